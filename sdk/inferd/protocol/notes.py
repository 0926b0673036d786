"""``note.*``: bytes that programs of a tenant leave under a name for those that run later. The gateway keeps them in memory."""

from __future__ import annotations

from dataclasses import dataclass

from inferd.protocol.carrying import shown
from inferd.protocol.errors import InvalidRequest
from inferd.protocol.operations import Done, operation

MAX_NOTE_NAME = 256
"""Characters of a namespace, and of a key."""
MAX_NOTE_BYTES = 64 << 10
"""Bytes of one note."""


@operation("note.put", Done, by_gateway=True)
@dataclass(frozen=True)
class PutNote:
    """Keep bytes under a key, instead of what was there, until they are deleted or the server ends."""

    namespace: str
    key: str
    value: bytes


@dataclass(frozen=True)
class Note:
    """What was kept under a key. ``found``: something was."""

    found: bool
    value: bytes = b""


@operation("note.get", Note, by_gateway=True)
@dataclass(frozen=True)
class GetNote:
    """Return what is kept under a key."""

    namespace: str
    key: str


@operation("note.delete", Note, by_gateway=True)
@dataclass(frozen=True)
class DeleteNote:
    """Forget what is kept under a key, and return it."""

    namespace: str
    key: str


def check_note_name(namespace: object, key: object) -> None:
    """Raise InvalidRequest unless both are text of at most ``MAX_NOTE_NAME`` characters."""
    for name in (namespace, key):
        if not isinstance(name, str) or len(name) > MAX_NOTE_NAME:
            raise InvalidRequest(
                f"namespace and key must be text of at most {MAX_NOTE_NAME} characters, not {shown(name)}"
            )
