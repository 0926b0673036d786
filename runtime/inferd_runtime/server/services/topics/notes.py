"""``note.*``: bytes under names, which stay while the server does, whoever of their tenant runs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from inferd.protocol import Done, LimitExceeded
from inferd.protocol.notes import MAX_NOTE_BYTES, DeleteNote, GetNote, Note, PutNote, check_note_name
from inferd_runtime.server.services.caller import Caller
from inferd_runtime.server.services.table import Handler

MAX_NOTES = 1024
"""Notes of a tenant."""
MAX_TENANT_NOTES = 1 << 20
"""Bytes of a tenant's notes, their names included."""
DELETE = "runtime.metadata_delete"
Key = tuple[str, str]


class Notes:
    """All tenants' notes."""

    def __init__(self) -> None:
        self._kept: defaultdict[str, dict[Key, bytes]] = defaultdict(dict)

    def operations(self) -> Mapping[str, Handler]:
        """Return the handlers."""
        return {"note.put": self._put, "note.get": self._get, "note.delete": self._delete}

    def closed(self, caller: Caller) -> None:
        """Do nothing: notes outlive their writers."""

    async def _put(self, caller: Caller, request: PutNote) -> Done:
        check_note_name(request.namespace, request.key)
        kept, key = self._kept[caller.tenant], (request.namespace, request.key)
        others = {each: value for each, value in kept.items() if each != key}
        _check_room(others, key, request.value)
        kept[key] = request.value
        return Done()

    async def _get(self, caller: Caller, request: GetNote) -> Note:
        return _note(self._kept[caller.tenant].get((request.namespace, request.key)))

    async def _delete(self, caller: Caller, request: DeleteNote) -> Note:
        return _note(self._kept[caller.tenant].pop((request.namespace, request.key), None))


def _check_room(others: Mapping[Key, bytes], key: Key, value: bytes) -> None:
    """Raise LimitExceeded if there is no room for a note beside the others."""
    if len(value) > MAX_NOTE_BYTES:
        text = f"a note has {len(value)} bytes, and may have {MAX_NOTE_BYTES}"
        raise LimitExceeded(text, limit="note_bytes", value=MAX_NOTE_BYTES, raise_with="a saved context or a file")
    size = sum(map(_size, others.items()))
    text = f"the tenant has {len(others)} notes of {size} bytes already"
    if len(others) >= MAX_NOTES:
        raise LimitExceeded(text, limit="notes", value=MAX_NOTES, raise_with=DELETE)
    if size + _size((key, value)) > MAX_TENANT_NOTES:
        raise LimitExceeded(text, limit="tenant_note_bytes", value=MAX_TENANT_NOTES, raise_with=DELETE)


def _size(note: tuple[Key, bytes]) -> int:
    (namespace, key), value = note
    return len(namespace.encode()) + len(key.encode()) + len(value)


def _note(value: bytes | None) -> Note:
    return Note(value is not None, value or b"")
