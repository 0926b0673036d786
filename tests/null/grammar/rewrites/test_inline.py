"""Schemas that hold together, written out as one."""

from __future__ import annotations

import random
from typing import Any

import jsonschema
import pytest
from byte_texts import compact, taken

from inferd_grammar import GrammarCompiler, GrammarError, JsonSchemaGrammar, TokenTable
from inferd_grammar.rewrites import inline
from inferd_grammar.rewrites.inline import Joiner

BYTES = GrammarCompiler(TokenTable.of_bytes())
NAMES = ("x", "y", "xa", "b")
LEAVES: list[Any] = [
    *({"type": "string"}, {"type": "integer"}, {"const": "a"}, {"const": 1}, {"const": True}, {"enum": ["a", "b", 1]}),
    *({"type": ["string", "null"]}, {"minimum": 2}, {"maxLength": 1}, {"type": "string", "pattern": "^a"}, True, False),
]


def random_schema(rng: random.Random, depth: int) -> Any:
    if depth == 0 or rng.random() < 0.15:
        return rng.choice(LEAVES)
    kind, inner = rng.random(), depth - 1
    if kind < 0.2:
        return {"$ref": f"#/$defs/d{rng.randrange(3)}"}
    if kind < 0.4:
        return {rng.choice(["allOf", "anyOf"]): [random_schema(rng, inner) for _ in range(rng.choice([1, 2, 3]))]}
    makers: dict[str, tuple[float, Any]] = {
        "type": (0.4, lambda: rng.choice(["object", "array", ["object", "string"]])),
        "properties": (0.7, lambda: {name: random_schema(rng, inner) for name in rng.sample(NAMES, 2)}),
        "patternProperties": (0.4, lambda: {p: random_schema(rng, inner) for p in rng.sample(["^x", "^xa", "a$"], 2)}),
        "additionalProperties": (0.4, lambda: random_schema(rng, inner)),
        "required": (0.3, lambda: rng.sample(NAMES, 1)),
        "prefixItems": (0.2, lambda: [random_schema(rng, inner)]),
        "items": (0.2, lambda: random_schema(rng, inner)),
        "$ref": (0.2, lambda: f"#/$defs/d{rng.randrange(3)}"),
        "anyOf": (0.2, lambda: [random_schema(rng, inner) for _ in range(2)]),
    }
    return {key: make() for key, (share, make) in makers.items() if rng.random() < share}


def random_value(rng: random.Random, depth: int) -> Any:
    kind = rng.random()
    if depth == 0 or kind < 0.35:
        return rng.choice(["a", "b", "aa", 1, 2, True, None, [], {}])
    if kind < 0.5:
        return [random_value(rng, depth - 1) for _ in range(rng.randrange(3))]
    return {name: random_value(rng, depth - 1) for name in rng.sample([*NAMES, "xb", "z"], rng.randrange(4))}


def verdicts(schema: Any, values: list[Any]) -> list[bool] | None:
    """Return which values are valid; None for references that lead to each other about one value."""
    validator = jsonschema.Draft202012Validator(schema)
    try:
        return [validator.is_valid(value) for value in values]
    except RecursionError:
        return None


def test_what_is_written_out_says_the_same() -> None:
    joined = 0
    for seed in range(200):
        rng = random.Random(seed)
        schema = {
            "allOf": [random_schema(rng, 2), random_schema(rng, 2)],
            "$defs": {f"d{n}": random_schema(rng, 2) for n in range(3)},
        }
        values = [random_value(rng, 3) for _ in range(30)]
        expected = verdicts(schema, values)
        try:
            written = Joiner(schema).document()
        except GrammarError:
            continue
        if expected is not None:
            joined += 1
            assert verdicts(written, values) == expected, seed
    assert joined > 100


# As AsyncAPI 2 extends the schema of JSON Schema: both definitions come back to themselves under the same names.
EXTENDED: dict[str, Any] = {
    "$ref": "#/$defs/extended",
    "$defs": {
        "plain": {
            "type": ["object", "boolean"],
            "properties": {
                "title": {"type": "string"},
                "items": {"anyOf": [{"$ref": "#/$defs/plain"}, {"type": "array", "items": {"$ref": "#/$defs/plain"}}]},
                "properties": {"type": "object", "additionalProperties": {"$ref": "#/$defs/plain"}},
            },
        },
        "extended": {
            "allOf": [
                {"$ref": "#/$defs/plain"},
                {
                    "patternProperties": {"^x-": {"type": "integer"}},
                    "properties": {
                        "items": {
                            "anyOf": [
                                {"$ref": "#/$defs/extended"},
                                {"type": "array", "items": {"$ref": "#/$defs/extended"}},
                            ]
                        },
                        "properties": {"type": "object", "additionalProperties": {"$ref": "#/$defs/extended"}},
                        "discriminator": {"type": "string"},
                    },
                },
            ]
        },
    },
}
DEEP = {"items": [{"properties": {"a": {"items": {"x-a": 1}, "discriminator": "d"}}}]}


@pytest.mark.parametrize(
    "value",
    [
        *({}, True, DEEP, {"items": {"discriminator": 1}}, {"items": [{"title": 1}]}, {"x-a": "s"}, 1),
        *({"properties": {"a": {"x-b": "s"}}}, {"properties": {"a": {"items": [{"x-b": 1}]}}}),
    ],
)
def test_definitions_that_meet_without_an_end_are_written_out_once(value: Any) -> None:
    compiled = BYTES.compile(JsonSchemaGrammar(EXTENDED))
    assert compiled.refusal is None
    assert taken(compiled.matcher(), compact(value)) == jsonschema.Draft202012Validator(EXTENDED).is_valid(value)


def test_too_many_schemas_that_hold_together_are_not_written_out() -> None:
    unions = [{"anyOf": [{"required": [f"{side}{n}"]} for side in "ab"]} for n in range(13)]
    with pytest.raises(GrammarError, match="too many to write out"):
        Joiner({"allOf": unions}).document()


def test_more_than_the_library_takes_is_not_written_out(monkeypatch: pytest.MonkeyPatch) -> None:
    unions = [{"anyOf": [{"prefixItems": [*[True] * n, {"const": each}]} for n in range(8)]} for each in "abc"]
    assert Joiner({"allOf": unions}).document() is not False
    monkeypatch.setattr(inline, "_MAX_WRITTEN", 1000)
    with pytest.raises(GrammarError, match="too many to write out"):
        Joiner({"allOf": unions}).document()
