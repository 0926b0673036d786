"""The command line: ``inferd run``, ``serve``, ``upload``, ``launch``, ``ps``, ``logs``, ``stop``, ``models``, ``build-runner``.

Exit codes: 0, 1 the program failed, 2 the caller's mistake, 3 a limit, 4 cancelled (130 after Ctrl+C), 5 unavailable, 70 a bug.
Each verb lives in a module of its own that is imported only when the verb is used, so that the rest starts fast.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import traceback
from collections.abc import Sequence
from typing import NoReturn

from inferd_runtime import __version__

VERBS: dict[str, tuple[str, str]] = {
    "run": ("run", "run a program once, with a runtime of its own"),
    "serve": ("serve", "serve a runtime over HTTP and WebSocket"),
    "upload": ("remote", "upload a program to a server"),
    "launch": ("launch", "run an uploaded program and stream what it prints"),
    "ps": ("remote", "list a server's runs"),
    "logs": ("remote", "show what a run printed"),
    "stop": ("remote", "cancel a run"),
    "models": ("remote", "list a server's models"),
    "build-runner": ("build", "build the sandbox's Python component now, instead of at the first run"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line; returns its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(_overview())
        return 0 if arguments else 2
    if arguments[0] in ("-V", "--version"):
        print(f"inferd {__version__}")
        return 0
    verb, *rest = arguments
    if verb not in VERBS:
        print(f"inferd: there is no command {verb!r}\n\n{_overview()}", file=sys.stderr)
        return 2
    return _guarded(verb, rest)


def _overview() -> str:
    lines = [f"  {verb:<14}{text}" for verb, (_, text) in VERBS.items()]
    return "\n".join(
        ["usage: inferd COMMAND [options]   (inferd COMMAND --help tells more)", "", *lines, "", "  --version"]
    )


def _guarded(verb: str, arguments: list[str]) -> int:
    """Run a verb; whatever goes wrong becomes a message and an exit code here, and nowhere else."""
    # Imported here, not at the top: `inferd --version` and a mistyped verb need none of it.
    from inferd.protocol import InferdError, InternalError

    from inferd_runtime.cli.output import EXIT_INTERRUPTED, report_error

    as_json = "--json" in arguments
    try:
        module = importlib.import_module(f"inferd_runtime.cli.{VERBS[verb][0]}")
        code: int = getattr(module, verb.replace("-", "_"))(arguments)
        sys.stdout.flush()
        return code
    except InferdError as error:
        return report_error(error.to_wire(), as_json)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:  # whoever read our output has had enough; the rest must not fail at exit again
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:  # noqa: BLE001 - the command line's boundary: a bug gets an exit code of its own
        traceback.print_exc()
        return report_error(InternalError(f"a bug in inferd: {error!r}").to_wire(), as_json)


class Parser(argparse.ArgumentParser):
    """argparse that knows no abbreviations and raises InvalidRequest, so that mistakes are reported like all others."""

    def __init__(self, verb: str, description: str = "", *, usage: str | None = None, add_help: bool = True) -> None:
        super().__init__(
            prog=f"inferd {verb}", description=description, usage=usage, allow_abbrev=False, add_help=add_help,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )  # fmt: skip

    def error(self, message: str) -> NoReturn:
        """Refuse the command line."""
        from inferd.protocol import InvalidRequest

        raise InvalidRequest(f"{message}\n{self.format_usage().strip()}")
