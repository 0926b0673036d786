"""Notes: bytes of a tenant under names, bounded, and nobody else's."""

from __future__ import annotations

import pytest

from inferd.protocol import Done, InvalidRequest, LimitExceeded
from inferd.protocol.notes import MAX_NOTE_BYTES, MAX_NOTE_NAME, DeleteNote, GetNote, Note, PutNote
from inferd_runtime.server.services.caller import Caller
from inferd_runtime.server.services.topics.notes import MAX_NOTES, MAX_TENANT_NOTES, Notes

ANN, BOB = Caller("ann", "run-1"), Caller("bob", "run-2")


async def ask(notes: Notes, request: PutNote | GetNote | DeleteNote, caller: Caller = ANN) -> Done | Note:
    answer: Done | Note = await notes.operations()[request.op](caller, request)  # type: ignore[union-attr]
    return answer


async def test_a_note_outlives_who_wrote_it_and_is_its_tenants_alone() -> None:
    notes = Notes()
    await ask(notes, PutNote("n", "k", b"\x00one"))
    notes.closed(ANN)
    assert await ask(notes, GetNote("n", "k"), Caller("ann", "run-3")) == Note(True, b"\x00one")
    assert await ask(notes, GetNote("n", "k"), BOB) == await ask(notes, GetNote("nk", "")) == Note(False)
    await ask(notes, PutNote("n", "k", b""))
    assert await ask(notes, DeleteNote("n", "k")) == Note(True, b"")
    assert await ask(notes, DeleteNote("n", "k")) == Note(False)


async def test_notes_of_a_tenant_are_bounded_in_number_and_bytes() -> None:
    notes = Notes()
    with pytest.raises(LimitExceeded) as raised:
        await ask(notes, PutNote("n", "k", bytes(MAX_NOTE_BYTES + 1)))
    assert raised.value.detail["limit"] == "note_bytes"
    for number in range(MAX_TENANT_NOTES // MAX_NOTE_BYTES - 1):
        await ask(notes, PutNote("large", str(number), bytes(MAX_NOTE_BYTES)))
    await ask(notes, PutNote("large", "0", bytes(MAX_NOTE_BYTES)))  # instead of itself
    for number in range(2):
        last = ask(notes, PutNote("last", str(number), bytes(MAX_NOTE_BYTES // 2)))
        if number:
            with pytest.raises(LimitExceeded) as raised:
                await last
            assert raised.value.detail["limit"] == "tenant_note_bytes"
        else:
            await last
    for number in range(MAX_NOTES):
        await ask(notes, PutNote("small", str(number), b""), BOB)
    with pytest.raises(LimitExceeded) as raised:
        await ask(notes, PutNote("small", "more", b""), BOB)
    assert (raised.value.detail["limit"], raised.value.detail["value"]) == ("notes", MAX_NOTES)


async def test_names_are_text_of_a_bounded_length() -> None:
    for name in ("n" * (MAX_NOTE_NAME + 1), 7):
        with pytest.raises(InvalidRequest, match="namespace and key"):
            await ask(Notes(), PutNote("n", name, b""))  # type: ignore[arg-type]
