"""JSON texts of a run's messages and results, and the error for a run that is not there."""

from __future__ import annotations

from typing import Any

import msgspec

from inferd.protocol import InvalidRequest, NotFound, cut, shown

SHOWN_ID = 80


def one_line(json: str) -> str:
    """Return JSON text without line breaks: between its values they are space, and inside of its strings there are none."""
    return json.replace("\n", " ").replace("\r", " ")


def json_text(message: Any) -> str:
    """Return a value as JSON text. Raises InvalidRequest for one that JSON or msgpack cannot carry."""
    try:
        msgspec.msgpack.encode(message)
        return msgspec.json.encode(message).decode()
    except (OverflowError, RecursionError, TypeError, ValueError) as error:
        raise InvalidRequest(f"the message cannot be sent: {error}") from None


def unknown_run(run_id: str) -> NotFound:
    """Return the error for a run that is not there, or is another tenant's."""
    return NotFound(f"no run {shown(run_id)}: it never existed or has been forgotten", run=cut(run_id, SHOWN_ID))
