"""What a program may know of the runtime that it runs in."""

from __future__ import annotations

import uuid

from inferd.protocol import PROTOCOL_VERSION
from inferd.protocol.notes import DeleteNote, GetNote, Note, PutNote, check_note_name
from inferd.transport import current_port
from inferlet.blocking import call
from inferlet.model import served_models

USER = "user"
"""What every program is told: the runtime tells none its tenant."""


def version() -> str:
    """Return the version of inferd's protocol, ``inferd/1``."""
    return f"inferd/{PROTOCOL_VERSION}"


def instance_id() -> str:
    """Return a name that is this run's alone."""
    known: str = current_port().shared.setdefault("inferlet instance", str(uuid.uuid4()))
    return known


def username() -> str:
    """Return ``user``."""
    return USER


def models() -> list[str]:
    """Return the names of the models that are served, the default one first."""
    return [info.name for info in served_models(current_port())]


def metadata_put(namespace: str, key: str, value: bytes) -> None:
    """Keep bytes for later programs of the same tenant, while the server runs. Raises LimitExceeded for too many."""
    check_note_name(namespace, key)
    call(current_port(), PutNote(namespace, key, bytes(value)))


def metadata_get(namespace: str, key: str) -> bytes | None:
    """Return what was kept; None for nothing."""
    found: Note = call(current_port(), GetNote(namespace, key))
    return found.value if found.found else None


def metadata_delete(namespace: str, key: str) -> bool:
    """Forget what was kept; returns True if something was."""
    deleted: bool = call(current_port(), DeleteNote(namespace, key)).found
    return deleted
