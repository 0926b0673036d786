"""What a parent and its child processes agree on: settings are one argument in JSON; an error is the last line printed, in
JSON, with exit code 2.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TypeVar

import msgspec

from inferd.protocol import ErrorInfo, InferdError, InvalidRequest

T = TypeVar("T")
FAILED = 2


def settings_argument(settings: object) -> str:
    """Return settings as the argument that :func:`parse_settings` reads."""
    return msgspec.json.encode(settings, enc_hook=str).decode()


def parse_settings(text: str, kind: type[T]) -> T:
    """Return settings from a child's argument. Raises InvalidRequest."""
    try:
        return msgspec.json.decode(text, type=kind, dec_hook=lambda other, value: other(value))
    except msgspec.MsgspecError as error:
        raise InvalidRequest(f"settings: {error}") from None


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
