"""How requests and replies of the gateway's operations are written: as JSON for the sandbox, as msgpack for scripts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from inferd.program.json_values import is_carried
from inferd.protocol import GATEWAY_OPERATIONS, InferdError, InvalidRequest
from inferd_runtime.carriable import read_json, read_msgpack


class JsonText:
    """A value of a reply that is JSON already: the sandbox gets it as it is."""

    __slots__ = ("text",)

    def __init__(self, text: bytes) -> None:
        self.text = text


@dataclass(frozen=True)
class ServiceWire:
    """``read(payload, what, kind)`` raises InvalidRequest that begins with ``what``; ``write`` packs what is carriable."""

    read: Callable[[bytes, str, Any], Any]
    write: Callable[[Any], bytes]

    def request(self, op: str, payload: bytes) -> Any:
        """Return the request of an operation. Raises InvalidRequest."""
        return self.read(payload, op, GATEWAY_OPERATIONS[op])

    def error(self, error: InferdError) -> bytes:
        """Return an error as it is sent."""
        return self.write(error.to_wire())


def _read_msgpack(payload: bytes, what: str, kind: Any) -> Any:
    request = read_msgpack(payload, what, kind)
    if not is_carried(msgspec.to_builtins(request, builtin_types=(bytes,))):  # JSON would turn a NaN into null
        raise InvalidRequest(f"{what}: a number or text that JSON does not have")
    return request


def _raw(value: Any) -> msgspec.Raw:
    return msgspec.Raw(_text_of(value))


def _plain(value: Any) -> Any:
    return msgspec.json.decode(_text_of(value))


def _text_of(value: Any) -> bytes:
    if not isinstance(value, JsonText):
        raise TypeError(f"{type(value).__name__} is no value of a reply")
    return value.text


JSON_WIRE = ServiceWire(
    lambda payload, what, kind: read_json(payload, what, kind), msgspec.json.Encoder(enc_hook=_raw).encode
)
MSGPACK_WIRE = ServiceWire(_read_msgpack, msgspec.msgpack.Encoder(enc_hook=_plain).encode)
