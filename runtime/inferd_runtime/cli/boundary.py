"""Where every command line ends: what went wrong becomes a message and an exit code here, and nowhere else.

Exit codes: 0, 1 the program failed, 2 the caller's mistake, 3 a limit, 4 cancelled, 5 unavailable, 70 a bug, 130 Ctrl+C.
"""

from __future__ import annotations

import importlib
import io
import os
import sys
import traceback

from inferd.protocol import Cancelled, ErrorInfo, InferdError, InternalError, Unauthorized, Unavailable
from inferd_runtime.cli.output import print_json, say
from inferd_runtime.interpreter import loading

EXIT_CODES = {"program": 1, "client": 2, "limit": 3, "cancelled": 4, "unavailable": 5, "internal": 70}
EXIT_INTERRUPTED = 130


def guarded(module: str, function: str, arguments: list[str]) -> int:
    """Call a verb's function with its arguments; returns the exit code."""
    as_json = "--json" in arguments
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # half of a surrogate pair must not end the command
    try:
        with loading():
            verb = importlib.import_module(module)
        code: int = getattr(verb, function)(arguments)
        sys.stdout.flush()
        return code
    except InferdError as error:
        return report(error.to_wire(), as_json)
    except KeyboardInterrupt:
        report(Cancelled("interrupted").to_wire(), as_json)
        return EXIT_INTERRUPTED
    except SystemExit as stop:  # argparse, after --help
        return int(stop.code or 0)
    except BrokenPipeError:  # the reader of our output has closed it; the interpreter must not fail at exit again
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as raised:  # noqa: BLE001 - the command line's boundary: a bug gets an exit code of its own
        cause = _alone(raised)
        if isinstance(cause, InferdError):
            return report(cause.to_wire(), as_json)
        if (refused := _refused_by_system(cause)) is not None:
            return report(refused.to_wire(), as_json)
        say(traceback.format_exc(), sys.stderr)
        return report(InternalError(f"a bug in inferd: {cause!r}").to_wire(), as_json)


def _alone(error: Exception) -> Exception:
    """Return the one error that came out of task groups; another one itself."""
    while isinstance(error, ExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


def _refused_by_system(error: Exception) -> Unavailable | None:
    """Return the error for a file that the system does not give (read-only, of another user, on a full disk); None for a bug."""
    if not isinstance(error, OSError) or error.filename is None:
        return None
    return Unavailable(f"{os.fsdecode(error.filename)}: {error.strerror}")


def report(error: ErrorInfo, as_json: bool) -> int:
    """Show an error: ``{"error": ...}`` on stdout with ``--json``, else words on stderr. Returns its exit code."""
    if as_json:
        print_json({"error": error})
    else:
        say(error_text(error), sys.stderr)
    return exit_code(error)


def exit_code(error: ErrorInfo) -> int:
    """Return the exit code of an error."""
    return EXIT_CODES.get(error.code.partition(".")[0], EXIT_CODES["internal"])


def error_text(error: ErrorInfo) -> str:
    """Return an error's text for people: a program's own traceback where there is one, the message, and what raises a limit.

    The traceback of a program's own exception has its message; what the error says beyond that stands behind it.
    """
    trace = str(error.detail.get("traceback") or "").rstrip()
    if trace and error.code.startswith("program") and error.message in trace:
        return trace
    text = f"{trace}\nerror: {error.message}".lstrip()
    if error.code == "limit" and error.detail.get("raise_with"):
        text += f"\n       what helps: {error.detail['raise_with']}"
    if error.code == Unauthorized.code:
        text += "\n       what helps: --token or INFERD_TOKEN; without, the one of this user's own server is sent"
    if error.detail.get("usage"):
        text += f"\n{error.detail['usage']}"
    return text
