"""Lengths beside patterns of which llguidance does not say whether any text has both."""

from __future__ import annotations

import json
import random
import re
from typing import Any

import pytest

from inferd_grammar import GrammarCompiler, GrammarError, JsonSchemaGrammar, TaggedGrammar, TagGrammar, TokenTable
from inferd_grammar.backends.counted_chars import counted
from inferd_grammar.conformance.checking import TextReader

DOMAIN = r"^(?:[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?\.)+[a-z0-9][a-z0-9-]{0,61}[a-z0-9]$"
CASES: list[tuple[dict[str, Any], str, tuple[int, ...]]] = [
    ({"pattern": DOMAIN, "minLength": 1, "maxLength": 253}, "a0-.", (3, 4, 62, 63, 64)),
    ({"pattern": "[A-Z]", "minLength": 100}, "aZ ", (98, 99, 100, 101, 200)),
    ({"pattern": "^[^@]+@[^@]+$", "minLength": 64, "maxLength": 80}, "abcdefgh" * 8 + "@", (63, 64, 80, 81)),
]


@pytest.fixture(scope="module")
def compiler() -> GrammarCompiler:
    return GrammarCompiler(TokenTable.of_bytes())


@pytest.mark.parametrize(("words", "letters", "sizes"), CASES, ids=["domain", "search", "between"])
def test_such_a_length_is_held_exactly_for_texts_of_ascii(
    compiler: GrammarCompiler, words: dict[str, Any], letters: str, sizes: tuple[int, ...]
) -> None:
    """A tool of firecrawl, whose domains have 253 characters at most, was refused with what the library says of it."""
    compiled = compiler.compile(JsonSchemaGrammar({"type": "string", **words}))
    reader, drawn = TextReader(compiler.table), random.Random(5)
    texts = ["".join(drawn.choices(letters, k=size)) for size in sizes for _ in range(20)]
    texts += [".".join(["a" * 61] * 4) + "." + "b" * size for size in range(1, 8)]
    found = [reader.take(compiled.matcher(), json.dumps(text)) is not None for text in texts]
    least, most = words["minLength"], words.get("maxLength", 1_000)
    assert found == [bool(re.search(words["pattern"], text)) and least <= len(text) <= most for text in texts]
    assert {True, False} <= set(found)


@pytest.mark.parametrize("mode", ["strict", "best_effort"])
def test_such_a_schema_is_held_by_masks_inside_of_others_and_in_calls_of_tools(
    compiler: GrammarCompiler, mode: Any
) -> None:
    domains = {"type": "array", "items": {"type": "string", "pattern": DOMAIN, "maxLength": 253}}
    schema = {"type": "object", "properties": {"domains": domains}, "required": ["domains"]}
    compiled = compiler.compile(JsonSchemaGrammar(schema, mode))
    assert (compiled.checked, compiled.may_meet_dead_ends) == ((), False)
    if mode == "strict":
        compiler.compile(TaggedGrammar((TagGrammar("<call>", JsonSchemaGrammar(schema), "</call>"),)))


def test_a_length_that_is_still_too_much_is_refused_by_name_and_place(compiler: GrammarCompiler) -> None:
    schema = {"type": "array", "items": {"type": "string", "pattern": DOMAIN, "maxLength": 5_000}}
    with pytest.raises(GrammarError, match="whether any text has this pattern and this length") as refused:
        compiler.compile(JsonSchemaGrammar(schema))
    assert refused.value.pointer == "/items/pattern"


def test_what_has_no_characters_of_ascii_stays_as_it_is() -> None:
    for words in ({"pattern": "^[\u4e00-\u9fff]+$"}, {"pattern": "(a)\\1"}, {}):
        schema = {"type": "string", "minLength": 90, **words}
        assert counted(schema) == schema
