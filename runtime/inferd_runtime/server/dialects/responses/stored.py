"""Responses that are kept: what each holds, and what clients see of it."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from inferd.protocol import InvalidRequest, NotFound, cut
from inferd_runtime.server.dialects.reading import invalid
from inferd_runtime.server.dialects.responses.items import Item

MAX_LISTED = 100
"""Items on one page."""
LISTED = 20
MAX_SHOWN = 100
EVENT_LINES = 3
"""Lines of a server-sent event: its name, its data, and an empty one."""
PIECE_BYTES = 256 << 10


class StoredResponse(msgspec.Struct, frozen=True):
    """A response with all that led to it, so that none before it is needed. ``input`` begins with what was said earlier.
    ``events``: those of :meth:`KeptEvents.finish`.
    """

    response: dict[str, Any]
    input: list[Item]
    events: bytes | None = None

    @property
    def id(self) -> str:
        """Return the response's id."""
        return str(self.response["id"])

    @property
    def is_background(self) -> bool:
        """Return True if the response was answered while nobody waited."""
        return self.response["background"] is True

    @property
    def is_failed(self) -> bool:
        """Return True if the response failed; then ``input`` is only what its own request brought."""
        return bool(self.response["status"] == "failed")

    @property
    def is_in_progress(self) -> bool:
        """Return True if the response was not over when it was kept."""
        return bool(self.response["status"] == "in_progress")

    @property
    def conversation(self) -> list[Item]:
        """Return what a next response follows: everything but the instructions."""
        return [*self.input, *self.response["output"]]


class KeptEvents:
    """Server-sent events of one stream. ``sent``: each at the index of its number, until ``packed`` has them all; slow readers
    share both.

    Events are compressed because each repeats much of the one before, and one by one, because compressing all of a long
    answer's at once would hold up other requests.
    """

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.packed: bytes | None = None
        self._packer = zlib.compressobj(level=1)
        self._begun = bytearray()

    def add(self, event: bytes) -> None:
        """Add the next event."""
        self.sent.append(event)
        self._begun += self._packer.compress(event)

    def finish(self) -> bytes:
        """Return all of them as they are kept; no other comes."""
        self.packed = bytes(self._begun + self._packer.flush())
        self.sent, self._begun = [], bytearray()
        return self.packed


def later_events(packed: bytes, after: int) -> Iterator[bytes]:
    """Yield those of the packed events whose numbers are higher, in pieces: together they may be large. What has none is b""."""
    lines = EVENT_LINES * (after + 1)
    unpacker = zlib.decompressobj()
    while piece := unpacker.decompress(packed, PIECE_BYTES):
        packed, seen = unpacker.unconsumed_tail, piece.count(b"\n")
        if seen < lines:
            lines -= seen
            yield b""
        else:
            yield piece.split(b"\n", lines)[lines]
            lines = 0


def no_events(response_id: str) -> InvalidRequest:
    """Return the error of asking for the events of a response that has none."""
    message = f"the events of {cut(response_id, MAX_SHOWN)!r} are not kept: make it with background and stream"
    return invalid("stream", f"stream: {message}")


def unknown_response(response_id: str) -> NotFound:
    """Return the error of a response that is not kept for the tenant."""
    return NotFound(f"Response with id {cut(response_id, MAX_SHOWN)!r} not found.", param="response_id")


def unknown_previous(response_id: str) -> InvalidRequest:
    """Return the error of a request that follows a response which is not kept for the tenant."""
    text = f"Previous response with id {cut(response_id, MAX_SHOWN)!r} not found."
    return InvalidRequest(text, param="previous_response_id", code="previous_response_not_found")


def broken_off(stored: StoredResponse) -> StoredResponse:
    """Return a response that was in progress when the server which answered it ended."""
    error = {"code": "server_error", "message": "the server ended before the response was complete"}
    return StoredResponse({**stored.response, "status": "failed", "error": error}, stored.input)


def cannot_follow(response_id: str) -> InvalidRequest:
    """Return the error of a request that follows a response which failed, or is not over."""
    at = "previous_response_id"
    return invalid(at, f"{at}: {cut(response_id, MAX_SHOWN)!r} is not over, or failed; follow the response before it")


def too_long(field: str, size: int, most: int) -> InvalidRequest:
    """Return the error of a request that goes on with what takes so many bytes as it is kept. ``field`` names it."""
    message = f"{field}: the conversation takes {size} bytes as it is kept; {most} are allowed (max_body_bytes)"
    return invalid(field, message)


def not_cancellable(response_id: str) -> InvalidRequest:
    """Return the error of cancelling a response that was not answered in the background."""
    return InvalidRequest(
        f"Cannot cancel the response {cut(response_id, MAX_SHOWN)!r}: it does not run in the background.",
        param="response_id",
    )


def still_in_progress(response_id: str) -> InvalidRequest:
    """Return the error of deleting a response that is being answered."""
    return InvalidRequest(
        f"Response with id {cut(response_id, MAX_SHOWN)!r} is in progress: cancel it first.", param="response_id"
    )


def deleted_json(response_id: str) -> dict[str, Any]:
    """Return what is answered when a response was deleted."""
    return {"id": response_id, "object": "response", "deleted": True}


def item_page(items: Sequence[Item], limit: int = LISTED, order: str = "desc", after: str = "") -> dict[str, Any]:
    """Return a page of items, newest first or (``asc``) oldest first, behind the item ``after``. Raises InvalidRequest."""
    if not 1 <= limit <= MAX_LISTED:
        raise invalid("limit", f"limit: it must be 1 to {MAX_LISTED}")
    if order not in ("asc", "desc"):
        raise invalid("order", "order: it must be asc or desc")
    ordered = list(items) if order == "asc" else list(reversed(items))
    if after:
        ids = [item["id"] for item in ordered]
        if after not in ids:
            raise invalid("after", f"after: the response has no item {cut(after, MAX_SHOWN)!r}")
        ordered = ordered[ids.index(after) + 1 :]
    data = ordered[:limit]
    return {
        "object": "list",
        "data": data,
        "first_id": data[0]["id"] if data else "",
        "last_id": data[-1]["id"] if data else "",
        "has_more": len(ordered) > limit,
    }
