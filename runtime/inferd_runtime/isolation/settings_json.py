"""Settings as the line of JSON in which a parent hands them to a child."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from inferd.protocol import InvalidRequest

T = TypeVar("T")


def encode_settings(settings: object) -> bytes:
    """Return settings as one line; paths become text."""
    return msgspec.json.encode(settings, enc_hook=str)


def decode_settings(line: bytes, kind: type[T]) -> T:
    """Return settings from their line. Raises InvalidRequest."""
    try:
        return msgspec.json.decode(line, type=kind, dec_hook=lambda other, value: other(value))
    except msgspec.MsgspecError as error:
        raise InvalidRequest(f"settings: {error}") from None
