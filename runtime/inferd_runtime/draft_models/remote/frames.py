"""The frames between a target and a draft engine on another machine.

A frame: ``[length u32 LE][kind u8][ticket u32 LE][payload][seal 16 bytes]``; ``length`` is the payload's. The seal is a keyed
BLAKE2b over the frame's number in its direction and the frame itself. Until the hand-shake has agreed on keys it has no key, and
is a mere checksum; from then on a frame that was changed, repeated, left out, or written by somebody else is malformed. A
malformed frame ends its connection, as nothing behind it can be trusted.

The seal does not encrypt: that is what TLS is for.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")
HEADER = struct.Struct("<IBI")
NUMBER = struct.Struct("<Q")
SEAL_BYTES = 16
FIRST_FRAME_BYTES = 4096
"""Bytes of a payload at most before both sides have shown that they know the key."""


class Kind(IntEnum):
    """What a frame is. The first five are the hand-shake."""

    HELLO = 1
    CHALLENGE = 2
    PROOF = 3
    WELCOME = 4
    REFUSED = 5
    ASK = 6
    ANSWER = 7
    DROP = 8
    PING = 9
    PONG = 10
    END = 11


class MalformedFrame(Exception):
    """What arrived is no frame, or not one that may come here. Its connection is closed."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame that has arrived whole and unchanged."""

    kind: Kind
    ticket: int
    payload: bytes


class Seal:
    """The seals of one direction, one after the other."""

    def __init__(self, key: bytes = b"") -> None:
        self._key = key
        self._number = 0

    def next(self, frame: bytes) -> bytes:
        """Return the seal of the next frame, header and payload."""
        digest = hashlib.blake2b(NUMBER.pack(self._number), key=self._key, digest_size=SEAL_BYTES)
        self._number += 1
        digest.update(frame)
        return digest.digest()


class FrameWriter:
    """Writes the frames of one direction."""

    def __init__(self) -> None:
        self._seal = Seal()

    def rekey(self, key: bytes) -> None:
        """Seal all later frames with a key."""
        self._seal = Seal(key)

    def write(self, kind: Kind, payload: bytes = b"", ticket: int = 0) -> bytes:
        """Return the bytes of one frame."""
        frame = HEADER.pack(len(payload), kind, ticket) + payload
        return frame + self._seal.next(frame)


class FrameReader:
    """Reads the frames of one direction from pieces of any size. It holds one frame and one piece at most."""

    def __init__(self) -> None:
        self._most = FIRST_FRAME_BYTES
        self._seal = Seal()
        self._buffer = bytearray()

    def rekey(self, key: bytes, most: int) -> None:
        """Expect all later frames to be sealed with a key, and allow payloads of up to ``most`` bytes."""
        self._seal, self._most = Seal(key), most

    def allow(self, most: int) -> None:
        """Allow payloads of up to ``most`` bytes from the next frame on."""
        self._most = most

    def feed(self, data: bytes) -> None:
        """Take bytes that have arrived. Call :meth:`next` until it returns None before more are fed."""
        self._buffer += data

    @property
    def inside(self) -> bool:
        """True while a frame has begun and not ended."""
        return bool(self._buffer)

    def next(self) -> Frame | None:
        """Return the next whole frame; None if more bytes are needed. Raises MalformedFrame."""
        if len(self._buffer) < HEADER.size:
            return None
        length, number, ticket = HEADER.unpack_from(self._buffer)
        if length > self._most:
            raise MalformedFrame(f"a frame of {length} bytes, where {self._most} are allowed")
        end = HEADER.size + length
        if len(self._buffer) < end + SEAL_BYTES:
            return None
        frame, seal = bytes(self._buffer[:end]), bytes(self._buffer[end : end + SEAL_BYTES])
        del self._buffer[: end + SEAL_BYTES]
        if not hmac.compare_digest(self._seal.next(frame), seal):
            raise MalformedFrame("a frame whose seal is wrong")
        return Frame(_kind(number), ticket, frame[HEADER.size :])


def _kind(number: int) -> Kind:
    try:
        return Kind(number)
    except ValueError:
        raise MalformedFrame(f"a frame of the unknown kind {number}") from None


def pack(message: object) -> bytes:
    """Return a message as a payload."""
    return msgspec.msgpack.encode(message)


def unpack(payload: bytes, kind: type[T]) -> T:
    """Return the message in a payload. Raises MalformedFrame."""
    decode: Any = msgspec.msgpack.decode
    try:
        message: T = decode(payload, type=kind)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        raise MalformedFrame(f"a payload that is no {kind.__name__}") from None
    return message
