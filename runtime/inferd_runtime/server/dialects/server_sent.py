"""Server-sent events, as bytes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec


def named_event(name: str, data: Mapping[str, Any]) -> bytes:
    """Return an event with a name, and JSON as its data."""
    return b"event: %s\ndata: %s\n\n" % (name.encode(), msgspec.json.encode(data))
