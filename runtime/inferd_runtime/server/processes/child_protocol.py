"""How a child process tells its parent why it ended: an error is the last line printed, in JSON, with exit code 2."""

from __future__ import annotations

import sys
from collections.abc import Callable

import msgspec

from inferd.protocol import ErrorInfo, InferdError

FAILED = 2


def exit_code(serve: Callable[[], None]) -> int:
    """Run ``serve`` and return a process's exit code: 0, or after an InferdError, which is printed, 2."""
    try:
        serve()
    except InferdError as error:
        print_error(error)
        return FAILED
    return 0


def print_error(error: InferdError) -> None:
    """Print an error as the line that :func:`printed_error` reads."""
    print(msgspec.json.encode(error.to_wire()).decode(), file=sys.stderr, flush=True)


def printed_error(printed: str) -> InferdError | None:
    """Return the error on the last line of what a child printed; None if that line is something else."""
    try:
        return msgspec.json.decode(printed.rpartition("\n")[2], type=ErrorInfo).to_exception()
    except msgspec.MsgspecError:
        return None
