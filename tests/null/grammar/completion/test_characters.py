"""Characters that tokens cut in two."""

from __future__ import annotations

import pytest

from inferd_grammar.completion.characters import begun_character, rest_of_character


@pytest.mark.parametrize(
    "character", ["\u00e9", "\u0800", "\u6c34", "\ud7ff", "\ue000", "\U00010000", "\U0001f642", "\U0010ffff"]
)
def test_each_beginning_is_found_and_can_be_ended(character: str) -> None:
    whole = character.encode()
    assert begun_character(b"ab" + whole) == b""
    for size in range(1, len(whole)):
        begun = begun_character(b"ab" + whole[:size])
        assert begun == whole[:size]
        assert len((begun + rest_of_character(begun)).decode()) == 1


def test_what_begins_no_character_is_none() -> None:
    for text in (b"", b"a", b"\x80", b"\x80\x80\x80\x80", b"\xff", b"\xf8\x80", b"\xc1"):
        assert (begun_character(text), rest_of_character(begun_character(text))) == (b"", b"")
