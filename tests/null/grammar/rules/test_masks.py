"""Which tokens are asked about by the rules: no mask differs from the one for which each token was."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from inferd_grammar import (
    Constraint,
    ExactGrammar,
    JsonSchemaGrammar,
    RepeatedGrammar,
    SequenceGrammar,
    TaggedGrammar,
    TagGrammar,
    TextGrammar,
    TokenTable,
)
from inferd_grammar.backends.llguidance import LlguidanceBackend
from inferd_grammar.limits import DEFAULT_LIMITS
from inferd_grammar.rules.core import RuledCore

PIECES = [
    '","', 'a","a', '",', '"]', "]]", "],[", "],[1", ",1,", "1,1", "1,1,", "true,t", ',"a"', '"},{"', "}}", "}]", "]}", '"}}',
    '":["', '["a","a"]',
    "<c>[1,1,", ">[t,t", '>{"a":1,"a":', 'c>{"a":1,"a"', ":[[],[]", 'at:{"":[],"":', ';at:[1,"1","1"', "<d", "at",
    '["', "[[", "[{", '\\"', 'b\\"', "\\u0061", 'a"', "aa", "true,true", "null,", ",{", "{}", "[],[]", "]]]]",
]  # fmt: skip
UNIQUE: dict[str, Any] = {"type": "array", "uniqueItems": True}
LETTERS = {**UNIQUE, "items": {"type": "string", "pattern": '^[ab"]{0,3}$'}}
SCHEMAS: dict[str, dict[str, Any]] = {
    "strings": LETTERS,
    "strings and others": {**UNIQUE, "items": {"anyOf": [LETTERS["items"], {"type": ["integer", "boolean", "null"]}]}},
    "lists": {**UNIQUE, "items": LETTERS},
    "objects": {**UNIQUE, "items": {"type": "object", "properties": {"a": LETTERS["items"], "b": LETTERS}}},
    "anything": UNIQUE,
    "held at the end": {
        "type": "object", "properties": {"a": {"items": LETTERS["items"], "type": "array"}, "b": {"type": "object"}},
        "not": {"properties": {"a": {"uniqueItems": True}, "b": {"propertyNames": {"maxLength": 1}}}},
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def pieces() -> TokenTable:
    """Single bytes, and tokens that end and begin several things at once."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: n for n, letter in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<end>"])
    tokenizer.add_tokens(PIECES)
    return TokenTable.from_tokenizer_json(tokenizer.to_str(), eos_ids=[tokenizer.token_to_id("<end>")])


def legal(core: Any, table: TokenTable) -> list[int]:
    row = np.zeros(table.words, np.int32)
    core.fill(row, row.ctypes.data)
    return [
        int(i) for i in np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little")) if i < table.vocab_size
    ]


@pytest.mark.parametrize("schema", SCHEMAS.values(), ids=SCHEMAS)
def test_no_token_that_breaks_a_rule_is_left_unasked(pieces: TokenTable, schema: dict[str, Any]) -> None:
    refused_along(pieces, JsonSchemaGrammar(schema), b"")


ITEMS = JsonSchemaGrammar(UNIQUE)
CALLS = ExactGrammar(TaggedGrammar((TagGrammar("<c>", ITEMS, "</c>"), TagGrammar("<d>", JsonSchemaGrammar({}), ""))))
LINES = RepeatedGrammar(SequenceGrammar((TextGrammar("at:"), ITEMS, TextGrammar(";"))))


@pytest.mark.parametrize(
    ("constraint", "begun"),
    [(CALLS, b""), (CALLS, b"1<"), (CALLS, b"1<c"), (CALLS, b"<c>[1]</c><d"), (LINES, b"a"), (LINES, b"at:[1]")],
)
def test_no_token_that_begins_a_value_and_breaks_a_rule_in_it_is_left_unasked(
    pieces: TokenTable, constraint: Constraint, begun: bytes
) -> None:
    assert refused_along(pieces, constraint, begun)


def refused_along(pieces: TokenTable, constraint: Constraint, begun: bytes) -> int:
    """Go on behind a text at random, and ask about every token; return how many broke a rule."""
    start = LlguidanceBackend(pieces).compile(constraint, DEFAULT_LIMITS)
    for token in pieces.splitter.split(begun).tokens(0):
        start.push(token)
    rng, refused = random.Random(1), 0
    for _ in range(40):
        core = start.copy()
        assert isinstance(core, RuledCore)
        for _ in range(12):
            allowed = legal(core, pieces)
            text = [i for i in legal(core._inner, pieces) if pieces.tokens[i]]
            kept = [i for i in text if core._behind(i) is not None]
            assert kept == [i for i in allowed if pieces.tokens[i]]
            refused += len(text) - len(kept)
            likely = [i for i in allowed if len(pieces.tokens[i]) > 1] if rng.random() < 0.5 else []
            going = [i for i in likely or allowed if pieces.tokens[i]]
            if not going:
                break
            core.push(rng.choice(going))
    return refused
