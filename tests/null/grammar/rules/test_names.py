"""Names that an object has already cannot be closed."""

from __future__ import annotations

import contextlib
import json
import random
import time
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from byte_texts import BYTES, takes
from tiers import examples

from inferd_grammar import AnyJsonGrammar, GrammarCompiler, JsonSchemaGrammar, PrefixedGrammar
from inferd_grammar.rules.names import NamesPlace, NameTokens, RepeatedName

MAP = {"type": "object", "additionalProperties": {"type": "integer"}}
FEW = {"type": "object", "propertyNames": {"enum": ["x", "y"]}, "minProperties": 1}


@pytest.mark.parametrize(
    ("text", "valid"),
    [
        ('{"a":1,"b":2}', True), ('{"a":1,"a":2}', False), ('{"a":1,"b":{"a":1}}', True), ('[{"a":1},{"a":1}]', True),
        ('{"a":{"b":1,"b":2}}', False), ('{"a":"a","ab":"a"}', True), ('{"":1,"":2}', False), (r'{"é":1,"\u00e9":2}', False),
        (r'{"\n":1,"\u000a":2}', False), (r'{"a\"":1,"a":2}', True), (r'{"\\":1,"\\":2}', False),
    ],
)  # fmt: skip
def test_a_name_that_repeats_cannot_be_closed(text: str, valid: bool) -> None:
    """A generation that wrote one was refused by collect_json."""
    assert takes(AnyJsonGrammar(), text) == valid
    assert takes(PrefixedGrammar('so {"a":', JsonSchemaGrammar({})), f'so {{"a":{text}') == valid


@pytest.mark.parametrize(
    "schema", [{"type": "array"}, {"type": "array", "prefixItems": [{"type": "string"}], "minItems": 2}]
)
def test_items_of_any_kind_are_watched(schema: dict[str, Any]) -> None:
    assert takes(JsonSchemaGrammar(schema), '["",{"a":1,"b":1}]')
    assert not takes(JsonSchemaGrammar(schema), '["",{"a":1,"a":1}]')


def test_listed_and_other_names_are_one_set() -> None:
    schema = JsonSchemaGrammar({"type": "object", "properties": {"a": {}}, "patternProperties": {"^x": {}}})
    assert takes(schema, '{"a":1,"b":1,"xy":1}')
    assert not takes(schema, '{"a":1,"xy":1,"xy":1}')


@pytest.mark.parametrize("constraint", [AnyJsonGrammar(), JsonSchemaGrammar(MAP)])
def test_every_legal_token_keeps_names_apart(compiler: GrammarCompiler, constraint: Any) -> None:
    """Tokens that close one name and open the next, or close one that they have opened, are no way around the masks."""
    table, rng = compiler.table, random.Random(7)
    for _ in range(examples(30)):
        matcher, text, row = compiler.compile(constraint).matcher(), b"", np.empty(compiler.table.words, np.int32)
        for _ in range(60):
            matcher.fill(row)
            legal = [int(i) for i in np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little"))]
            legal = [i for i in legal if i not in table.eos_ids]
            quoted = [i for i in legal if b'"' in table.tokens[i]]
            if not legal:
                break
            token = rng.choice(quoted if quoted and rng.random() < 0.6 else legal)
            assert matcher.accept([token]) == 1
            text += table.tokens[token]
        ends = [place for place in range(len(text), 0, -1) if text[place : place + 1] in (b",", b"")]
        for end in ends:
            try:
                pairs = json.loads(text[:end] + b"}" * (text[:1] == b"{"), object_pairs_hook=Pairs)
            except ValueError:
                continue  # the comma stands inside of something
            assert not isinstance(pairs, Pairs) or len(dict(pairs)) == len(pairs), text
            break


class Pairs(list[Any]):
    """An object as it is written."""


def test_where_names_run_out_the_text_ends() -> None:
    """Behind a comma nothing could follow."""
    compiled = BYTES.compile(JsonSchemaGrammar(FEW))
    assert compiled.may_meet_dead_ends
    planner, matcher, text = compiled.planner(), compiled.matcher(), ""
    assert planner is not None
    for wanted in '{"x":1,"y":2,"x':
        token = planner.admit(ord(wanted) + 1, 100)
        assert matcher.accept([token]) == 1
        text += chr(token - 1)
        if token != ord(wanted) + 1:
            break
    assert text == '{"x":1,"y":2}'


def test_objects_of_listed_names_are_not_watched() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string"}}, "additionalProperties": False}
    assert not BYTES.compile(JsonSchemaGrammar(schema)).may_meet_dead_ends
    assert not BYTES.compile(JsonSchemaGrammar(MAP)).may_meet_dead_ends


def repeating(rng: random.Random, depth: int = 0) -> str:
    """Return a JSON text whose names often repeat."""
    if depth > 2 or rng.random() < 0.3:
        return rng.choice(('"a"', '","', '""', "1", r'"\\\""', '"é"'))
    values = [repeating(rng, depth + 1) for _ in range(rng.randint(0, 4))]
    if rng.random() < 0.3:
        return f"[{','.join(values)}]"
    names = (rng.choice(("a", "b", "ab", "", ",", ":", "é", r"\"", r"\u0061", r"\n")) for _ in values)
    pairs = [f'"{name}":{value}' for name, value in zip(names, values, strict=True)]
    return "".join(("{", ",".join(pairs), "}"))


def test_all_tokens_are_looked_at_that_could_close_a_repeated_name() -> None:
    """One that wrote a name twice by itself could be the first of its object."""
    rng = random.Random(3)
    cases = []
    for _ in range(examples(200)):
        text = repeating(rng).encode()
        cuts = [sorted((rng.randint(0, len(text)), rng.randint(0, len(text)))) for _ in range(20)]
        cases += [(text[:start], text[start:end]) for start, end in cuts]
    tokens = sorted({token for _, token in cases})
    found, number = NameTokens(SimpleNamespace(tokens=tokens)), {token: i for i, token in enumerate(tokens)}
    refused = 0
    for text, token in cases:
        with contextlib.suppress(RepeatedName):
            place = NamesPlace().behind(text)
            closing = set(found.closing(place))
            try:
                place.behind(token)
            except RepeatedName:
                refused += 1
                assert number[token] in closing, (text, token)
    assert refused > len(cases) / 100


def test_a_mask_looks_at_no_token_whose_names_are_new() -> None:
    """Each token with two quotes was read byte by byte, for half a millisecond of every mask; and each name was written anew."""
    found = NameTokens(SimpleNamespace(tokens=[b'"', b'","', b'"a":"', b"x" * 9]))
    place = NamesPlace().behind(b"{" + b"".join(b'"n%d":1,' % i for i in range(2000)) + b'"')
    started = time.thread_time()
    for _ in range(10):
        assert not list(found.closing(place))
    assert time.thread_time() - started < 0.1
