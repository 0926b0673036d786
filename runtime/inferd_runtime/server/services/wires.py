"""How requests and replies of the gateway's operations are written: as JSON for the sandbox, as msgpack for scripts."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from inferd.protocol import GATEWAY_OPERATIONS, InferdError, InvalidRequest
from inferd_runtime.carriable import read_json, read_msgpack
from inferd_runtime.interpreter import no_collections
from inferd_runtime.json_cost import read_checked_json

MAYBE_NOT_FINITE = re.compile(rb"\xcb[\x7f\xff][\xf0-\xff]|\xca[\x7f\xff][\x80-\xff]")
"""How NaN and infinity begin in msgpack; other bytes may look like that."""


class JsonText:
    """A value of a reply that is JSON already: the sandbox gets it as it is. Its parts are joined when the reply is packed.

    Until then a reply that waits holds no copy of what others hold as well.
    """

    __slots__ = ("_parts",)

    def __init__(self, *parts: bytes | str) -> None:
        self._parts = parts

    @property
    def size(self) -> int:
        """About how many bytes it has."""
        return sum(map(len, self._parts))

    @property
    def text(self) -> bytes:
        """The JSON."""
        return b"".join(part.encode() if isinstance(part, str) else part for part in self._parts)


@dataclass(frozen=True)
class ServiceWire:
    """``read(payload, what, kind)`` returns a request and the bytes that it takes as JSON, which is how values wait here; raises
    InvalidRequest that begins with ``what``. ``write`` packs what is carriable.
    """

    read: Callable[[bytes, str, Any], tuple[Any, int]]
    write: Callable[[Any], bytes]

    def request(self, op: str, payload: bytes) -> tuple[Any, int]:
        """Return the request of an operation, and its bytes as JSON. Raises InvalidRequest."""
        return self.read(payload, op, GATEWAY_OPERATIONS[op])

    def error(self, error: InferdError) -> bytes:
        """Return an error as it is sent."""
        return self.write(error.to_wire())


def _read_msgpack(payload: bytes, what: str, kind: Any) -> tuple[Any, int]:
    request = read_msgpack(payload, what, kind)
    text = _json_of(request, payload)
    if text is None:
        raise InvalidRequest(f"{what}: a number, key or text that JSON does not have")
    return request, len(text)


def _json_of(request: Any, payload: bytes) -> bytes | None:
    """Return a request as JSON, None if that cannot hold it. Nothing here goes from value to value in Python: a MiB holds a
    million of them.
    """
    try:
        text = msgspec.json.encode(request)
    except (TypeError, ValueError, OverflowError, RecursionError):
        return None
    if MAYBE_NOT_FINITE.search(payload) is None:
        return text
    same = read_checked_json(text) == msgspec.to_builtins(request, str_keys=True)  # a NaN has become null
    return text if same else None


def _raw(value: Any) -> msgspec.Raw:
    return msgspec.Raw(_text_of(value))


def _plain(value: Any) -> Any:
    with no_collections():  # what is made is packed at once, and dropped
        return read_checked_json(_text_of(value))


def _text_of(value: Any) -> bytes:
    if not isinstance(value, JsonText):
        raise TypeError(f"{type(value).__name__} is no value of a reply")
    return value.text


JSON_WIRE = ServiceWire(
    lambda payload, what, kind: (read_json(payload, what, kind), len(payload)),
    msgspec.json.Encoder(enc_hook=_raw).encode,
)
MSGPACK_WIRE = ServiceWire(_read_msgpack, msgspec.msgpack.Encoder(enc_hook=_plain).encode)
