"""Server-sent events, as bytes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec


def named_event(name: str, data: Mapping[str, Any]) -> bytes:
    """Return an event with a name, and JSON as its data."""
    return b"event: %s\ndata: %s\n\n" % (name.encode(), msgspec.json.encode(data))


def event_line(name: str, data: Mapping[str, Any]) -> bytes:
    """Return an event as a line of JSON, for messages of a WebSocket: what it is called stands in its data."""
    return msgspec.json.encode(data) + b"\n"
