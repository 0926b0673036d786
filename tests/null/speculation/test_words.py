"""A word that has been begun is found in the text, whatever tokens it has there."""

from __future__ import annotations

import random
import re
from array import array
from collections.abc import Sequence

import pytest
from tiers import examples

from inferd_runtime.speculation.ngram import SIGNS, SIGNS_MATCH, WORD_MATCH, NgramDrafter
from inferd_runtime.speculation.words import NEWEST, WordIndex

PIECES = [
    b"",
    *(bytes([byte]) for byte in range(256)),
    b" In",
    b" Ing",
    b"In",
    b"grid",
    b" Sol",
    b"rid",
    b"berg",
    b'":"',
    b" 1",
    b"gri",
]
IDS = {piece: token for token, piece in enumerate(PIECES)}
PROMPT = "A letter of Ingrid Solberg, Ingmar's sister, 12 Harbour Road."


def encode(text: str) -> list[int]:
    """The longest tokens first, from left to right; a space belongs to the word behind it."""
    tokens, rest = [], text.encode()
    while rest:
        piece = max((piece for piece in PIECES if piece and rest.startswith(piece)), key=len)
        tokens.append(IDS[piece])
        rest = rest[len(piece) :]
    return tokens


def written(tokens: Sequence[int]) -> str:
    return b"".join(PIECES[token] for token in tokens).decode("utf-8", "replace")


def proposed(prompt: str, answer: str, limit: int = 64) -> str:
    """Return what is proposed behind an answer, which no tokens of the prompt match."""
    drafter = NgramDrafter(limit, words=WordIndex(PIECES, encode))
    drafter.begin(encode(prompt))
    drafter.observe(encode(answer))
    return written(drafter.propose(limit).tokens)


@pytest.mark.parametrize(
    ("answer", "goes_on"),
    [
        ('{"name":"In', "grid Solberg"), ('{"name":"Ingm', "ar's sister"), ("sister's house is in (H", "arbour Road."),
        ('"Roa', "d."), ('"Roads', ""), ('"Qz', ""), (" In", ""), ("{", ""), ("", ""), ('"é', ""),
    ],
)  # fmt: skip
def test_a_word_is_found_behind_a_quote_that_stands_behind_a_space(answer: str, goes_on: str) -> None:
    """It was found by its second word, when two tokens agreed."""
    found = proposed(PROMPT, answer)
    assert found.startswith(goes_on)
    assert bool(found) == bool(goes_on)


def test_the_rest_of_a_word_has_the_tokens_that_it_would_have_behind_what_is_written() -> None:
    drafter = NgramDrafter(4, words=WordIndex(PIECES, encode))
    drafter.begin([*encode(PROMPT), *encode('{"n":"'), IDS[b"In"]])
    found = drafter.propose(4)
    assert [PIECES[token] for token in found.tokens] == [b"grid", b" Sol", b"berg", b","]
    assert found.match == WORD_MATCH
    drafter.observe([IDS[b"gri"]])  # not as it would be encoded: nothing is known of what follows
    assert not drafter.propose(4).tokens
    assert drafter.fork().propose(4) == drafter.propose(4)


@pytest.mark.parametrize(
    ("agrees", "match"),
    [("\n\n", SIGNS_MATCH), ("});", SIGNS_MATCH), ("x)", 2), ("7;\n", 3), ("é\n", 3), ('");})', SIGNS + 2)],
)
def test_signs_that_agree_count_less_than_words_that_do(agrees: str, match: int) -> None:
    """What stood behind two line breaks was drafted at full length, and was right in one of four, not in two of three."""
    drafter = NgramDrafter(4, words=WordIndex(PIECES, encode))
    drafter.begin([*encode(f"A{agrees}def"), *encode(f"B{agrees}")])
    found = drafter.propose(4)
    assert written(found.tokens).startswith("def")
    assert found.match == match


def test_tokens_that_are_forced_next_may_begin_the_word() -> None:
    drafter = NgramDrafter(3, words=WordIndex(PIECES, encode))
    drafter.begin([*encode(PROMPT), *encode('{"n')])
    ahead = [IDS[b'":"'], IDS[b"In"]]
    assert [PIECES[token] for token in drafter.propose(3, ahead).tokens] == [b"grid", b" Sol", b"berg"]


def test_without_a_vocabulary_words_are_not_looked_for() -> None:
    drafter = NgramDrafter()
    drafter.begin([*encode(PROMPT), *encode('{"name":"In')])
    assert not drafter.propose(8).tokens


def plain(text: str, begun: str) -> str | None:
    """Return the first word in a text that begins so, and all behind it; None for none. The plain twin, over characters."""
    for found in re.finditer(r"[0-9A-Za-z\x80-\U0010ffff]+", text):
        if found[0].startswith(begun) and found.end() < len(text):
            return text[found.start() + len(begun) :]
    return None


def test_what_is_found_is_what_a_search_for_characters_finds() -> None:
    rng = random.Random(5)
    hits = 0
    for _ in range(examples(2000)):
        text = "".join(rng.choices(("In", "grid", " ", " ", ".", "a", "é", '"', "rid", "1"), k=rng.randint(0, 24)))
        begun = "".join(rng.choices(("In", "g", "a", "é", "1"), k=rng.randint(1, 2)))
        tokens = [*encode(text), IDS[b'":"'], *encode(begun)]
        index, tail = WordIndex(PIECES, encode), array("i", tokens[-32:])
        found, expected = index.find(array("i", tokens), tail), plain(f'{text}":"', begun)
        assert found is None or expected is not None
        if found is not None and expected is not None:
            rest = tokens[found.behind :] if found.behind >= 0 else []
            shown = b"".join(PIECES[token] for token in [*found.tokens, *rest])
            assert f"{expected}{begun}".encode().startswith(shown)
            hits += 1
    assert hits > examples(2000) / 20


def test_a_long_text_is_searched_from_its_newest_part_on_and_words_of_any_length_end() -> None:
    assert proposed("Solberg " + "x. " * NEWEST, '"Solb') == ""
    assert proposed("x" * 9000 + " ", '"x') == ""
