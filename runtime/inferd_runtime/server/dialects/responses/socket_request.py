"""Requests of ``/v1/responses`` over a WebSocket: each is a message, and so is each event of its answer."""

from __future__ import annotations

from typing import Any

import msgspec

from inferd.protocol import InferdError
from inferd_runtime.server.dialects.exchange import ClientHeaders
from inferd_runtime.server.dialects.field_table import FieldTable, RequestField
from inferd_runtime.server.dialects.openai.errors import error_reply_openai
from inferd_runtime.server.dialects.reading import invalid, not_supported, read_object
from inferd_runtime.server.dialects.responses.answer import ResponsesExchange
from inferd_runtime.server.dialects.responses.fields import RESPONSES_FIELDS
from inferd_runtime.server.dialects.responses.request import checked_body
from inferd_runtime.server.dialects.server_sent import event_line

CREATE = "response.create"
CANCEL = "response.cancel"
MOST_OF_CANCEL = 1024
"""Bytes of a message that may cancel: others need not be read to know that they do not."""
OTHERWISE = (
    RequestField("stream", "an answer comes as events", (True,)),
    RequestField("background", "send it over HTTP", (False,)),
    RequestField("stream_id", "answers come one after the other: open another connection", ()),
)
"""Fields that are not what they are over HTTP."""
SOCKET_FIELDS = FieldTable(
    (*OTHERWISE, *(field for field in RESPONSES_FIELDS.fields if field.name not in ("stream", "background")))
)


class _Cancel(msgspec.Struct, frozen=True):
    type: str
    response_id: str | None = None


def cancels(body: bytes, response_id: str) -> bool | None:
    """Return whether a message cancels the response of that id; None for a message that cancels none."""
    try:
        read = msgspec.json.decode(body, type=_Cancel) if len(body) <= MOST_OF_CANCEL else None
    except (msgspec.MsgspecError, RecursionError):
        return None
    if read is None or read.type != CANCEL:
        return None
    return read.response_id in (None, response_id)


def read_create_event(body: bytes, headers: ClientHeaders) -> ResponsesExchange:
    """Return the request of a client's message. Raises InvalidRequest that names a field."""
    given = read_object(body)
    kind, generate = given.pop("type", None), given.pop("generate", None)
    if kind != CREATE:
        raise not_supported("type", f"anything but {CREATE!r} and {CANCEL!r} is")
    if not isinstance(generate, bool | None):
        raise invalid("generate", "generate: it must be true or false")
    generates = generate is not False
    working = {**SOCKET_FIELDS.take(given), "stream": True}
    read = checked_body({**given, "stream": True}, working, needs_input=generates)
    return ResponsesExchange(read, len(body), headers, event_line, generates=generates)


def error_event(error: InferdError) -> bytes:
    """Return the message of a request that failed before its answer began."""
    reply = error_reply_openai(error)
    told: dict[str, Any] = reply.body["error"]
    named = {"headers": reply.headers} if reply.headers else {}
    return msgspec.json.encode({"type": "error", "status": reply.status, "error": {**told, **named}})
