"""What the gateway and a parser's process say to each other: frames of bytes, with JSON in them.

A request is an upload's JSON as it came. An answer is a kind (one byte), and behind it for ``PARSED`` a
:class:`ParsedUpload`, for ``REFUSED`` an :class:`~inferd.protocol.ErrorInfo`, else nothing.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

import msgspec

from inferd.program.interface import Interface
from inferd_runtime.sandbox.messages import Bundle, LockedPackage

PARSED, REFUSED, TOO_SLOW, TOO_LATE, CRASHED, KILLED = b"P", b"R", b"S", b"L", b"C", b"K"
LENGTH = struct.Struct("<I")
MAX_ANSWER = 32 << 20
"""Bytes of an answer: a MiB of source is at most six as JSON, other files and packages take a third more than they have."""


class ParseLimits(msgspec.Struct, frozen=True):
    """What one upload may take: seconds of processor time and of the clock, MiB over what an idle process has.

    A MiB of ordinary code takes 0.4 s and 75 MiB.
    """

    cpu_s: float = 2.0
    wall_s: float = 10.0
    memory_mb: int = 384


class UploadBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``POST /v1/programs``. ``files`` maps relative paths to text, ``data`` to other files in Base64; ``name`` and ``version``
    win over the source's own.
    """

    files: dict[str, str]
    entry: str = "main.py"
    name: str = ""
    version: str = ""
    data: dict[str, bytes] = {}

    @property
    def bundle(self) -> Bundle:
        """The source that was sent."""
        return Bundle(self.name or self.entry.removesuffix(".py"), self.files, self.entry, self.data)


class StoredBody(UploadBody, frozen=True, forbid_unknown_fields=True):
    """A program as it is kept: with its packages, which were found when it was uploaded."""

    packages: dict[str, bytes] = {}
    lock: tuple[LockedPackage, ...] = ()

    @property
    def bundle(self) -> Bundle:
        """The source and its packages."""
        return msgspec.structs.replace(super().bundle, packages=self.packages, lock=self.lock)


def upload_body(bundle: Bundle, version: str) -> dict[str, object]:
    """Return the body of a program's upload, as JSON values. ``version``: "" for the source's own, or the next."""
    body = UploadBody(bundle.files, bundle.entry, bundle.name, version, bundle.data)
    plain: dict[str, object] = msgspec.to_builtins(body)
    return plain


class ParsedUpload(msgspec.Struct, frozen=True):
    """An upload's parts. ``name`` and ``version`` are what the request says, "" for what it leaves to the source."""

    bundle: Bundle
    interface: Interface
    name: str
    version: str


def write_frame(write: Callable[[bytes], object], data: bytes) -> None:
    """Write one frame: its length, then its bytes. Raises OSError if the reader is gone."""
    write(LENGTH.pack(len(data)) + data)


def read_frame(read: Callable[[int], bytes], most: int) -> bytes:
    """Return the next frame. Raises EOFError when the other side is gone, and for a frame of more than ``most`` bytes."""
    (length,) = LENGTH.unpack(_exactly(read, LENGTH.size))
    if length > most:
        raise EOFError(f"a frame of {length} bytes")
    return _exactly(read, length)


def _exactly(read: Callable[[int], bytes], count: int) -> bytes:
    parts: list[bytes] = []
    while count:
        part = read(min(count, 1 << 20))
        if not part:
            raise EOFError
        parts.append(part)
        count -= len(part)
    return b"".join(parts)
