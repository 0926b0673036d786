"""``file.*``: files between a program and its launcher, in pieces. The gateway keeps them on disk, within limits."""

from __future__ import annotations

import re
from dataclasses import dataclass

from inferd.protocol.carrying import shown
from inferd.protocol.errors import InvalidRequest, LimitExceeded
from inferd.protocol.operations import Done, operation

MAX_PIECE = 256 << 10
"""Bytes that go in one request or reply."""
MAX_FILE_BYTES = 64 << 20
MAX_FILE_NAME = 255
"""Bytes of UTF-8, as of common file systems."""
ANY_TYPE = "application/octet-stream"
MEDIA_TYPE = re.compile(r"[A-Za-z0-9][A-Za-z0-9!#$&^_.+-]{0,63}/[A-Za-z0-9][A-Za-z0-9!#$&^_.+-]{0,63}")


@dataclass(frozen=True)
class FileBegun:
    """The file's number in its run."""

    file: int


@operation("file.begin", FileBegun, by_gateway=True)
@dataclass(frozen=True)
class BeginFile:
    """Announce a file for the launcher, of ``size`` bytes. Its bytes follow in order, in :class:`WriteFile`."""

    name: str
    media_type: str
    size: int


@operation("file.write", Done, by_gateway=True)
@dataclass(frozen=True)
class WriteFile:
    """The next bytes of a file. The launcher hears of it once all are there."""

    file: int
    offset: int
    data: bytes


@dataclass(frozen=True)
class FileHead:
    """A file that the launcher has sent."""

    file: int
    name: str
    media_type: str
    size: int
    sha256: str


@operation("file.receive", FileHead, by_gateway=True)
@dataclass(frozen=True)
class ReceiveFile:
    """Wait for the next file from the launcher."""


@dataclass(frozen=True)
class FilePiece:
    """Bytes of a file; ``last``: there are no more behind them."""

    data: bytes
    last: bool


@operation("file.read", FilePiece, by_gateway=True)
@dataclass(frozen=True)
class ReadFile:
    """Ask for the bytes of a received file from ``offset`` on, ``MAX_PIECE`` of them at most."""

    file: int
    offset: int


def check_file(name: str, media_type: str, size: int) -> None:
    """Raise InvalidRequest for what cannot be a file's name, type or size, LimitExceeded for one that is too large.

    A name is one part of a path: no slash of either kind, nothing that does not print, not ``.`` or ``..``.
    """
    good = name.isprintable() and not {"/", "\\"} & set(name) and name not in (".", "..")
    if not good or not 0 < len(name.encode(errors="replace")) <= MAX_FILE_NAME:
        raise InvalidRequest(
            f"{shown(name)} cannot be a file's name: 1 to {MAX_FILE_NAME} bytes that print, no slashes"
        )
    if not MEDIA_TYPE.fullmatch(media_type):
        raise InvalidRequest(f"{shown(media_type)} is no media type, such as text/plain")
    if size < 0:
        raise InvalidRequest(f"a file cannot have {size} bytes")
    if size > MAX_FILE_BYTES:
        text = f"a file may have {MAX_FILE_BYTES} bytes, {shown(name)} has {size}"
        raise LimitExceeded(text, limit="file_bytes", value=MAX_FILE_BYTES, raise_with="several files")
