"""What a run looks like on the command line, whether it runs here or on a server."""

from __future__ import annotations

import json
import sys
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from inferd.protocol import ErrorInfo
from inferd_runtime.cli.answers import answer_as
from inferd_runtime.cli.boundary import report
from inferd_runtime.cli.output import ProgramOutput, figures, print_json
from inferd_runtime.sandbox.messages import RunUsage


class Ended(msgspec.Struct):
    """The last event of a run, as a server sends it."""

    result: Any
    error: ErrorInfo | None
    usage: RunUsage


class Said(msgspec.Struct):
    """Any other one, as far as it is shown."""

    text: str | UnsetType = UNSET
    message: Any | UnsetType = UNSET
    count: int | UnsetType = UNSET


class RunScreen:
    """Program's output to stdout and stderr as it comes; at the end the result on stdout and the figures on stderr.

    With ``as_json`` all output goes to stderr, and stdout gets exactly one JSON object.
    """

    def __init__(self, as_json: bool) -> None:
        self._as_json = as_json
        self._err = ProgramOutput(sys.stderr)
        self._out = self._err if as_json else ProgramOutput(sys.stdout)

    def show(self, kind: str, payload: Any) -> None:
        """Show one event of the run, by its kind and what that carries."""
        if kind == "stdout":
            self._out.write(payload)
        elif kind == "stderr":
            self._err.write(payload)
        elif kind == "message":
            self._out.end_line()
            self._out.write(json.dumps(payload, ensure_ascii=False) + "\n")
        elif kind == "dropped":
            self._err.end_line()
            self._err.write(f"[{payload} events are no longer kept]\n")

    def show_json(self, event: dict[str, Any]) -> int | None:
        """Show an event as a server sends it; returns the exit code when it is the last one."""
        if event["type"] == "finished":
            ended = answer_as(Ended, event)
            result = None if ended.result is None else json.dumps(ended.result, ensure_ascii=False)
            return self.finish(result, ended.error, ended.usage)
        said = answer_as(Said, event)
        self.show(event["type"], next((one for one in (said.text, said.message, said.count) if one is not UNSET), None))
        return None

    def finish(self, result: str | None, error: ErrorInfo | None, usage: RunUsage) -> int:
        """Show how the run ended (``result`` is JSON text); returns the exit code."""
        self._out.end_line()
        self._err.end_line()
        if error is not None:
            code = report(error, self._as_json)
        elif self._as_json:
            print_json({"result": msgspec.Raw((result or "null").encode()), "usage": usage})
            return 0
        else:
            code = 0
            if result is not None and result != "null":
                self._out.write(json.dumps(json.loads(result), ensure_ascii=False) + "\n")
        if not self._as_json:
            print(figures(usage), file=sys.stderr)
        return code
