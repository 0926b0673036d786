"""Where tokens stand in a text: by its characters, of which a token may have a part, and which not every token shows."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, strategies as st

from inferd.chat import TokenScore
from inferd.chat.token_scores import TokenPlaces


def score(data: bytes) -> TokenScore:
    return TokenScore(1, data.decode(errors="replace"), list(data), -0.5)


@given(st.text(st.sampled_from("ab é日🙂")), st.lists(st.integers(0, 40)), st.integers(0, 5))
def test_places_are_counted_in_characters_wherever_tokens_begin(text: str, cuts: list[int], start: int) -> None:
    data = text.encode()
    borders = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    places = TokenPlaces(text, start)
    told = [places.of(score(data[one:other])) for one, other in pairwise(borders)]
    assert told == [start + len(data[:border].decode(errors="ignore")) for border in borders[:-1]]
    assert places.end == start + len(text)


def test_a_token_that_does_not_show_takes_no_place() -> None:
    places = TokenPlaces("one two")
    assert [places.of(score(data)) for data in (b"<s>", b"one", b"<|end|>", b" two", b"<|end|>")] == [0, 0, 3, 3, 7]


def test_tokens_are_found_behind_what_was_held_back_or_is_no_text() -> None:
    places = TokenPlaces("ENd\ufffd.", 4)
    assert [places.of(score(data)) for data in (b"d", b"\xff", b".")] == [6, 7, 8]
