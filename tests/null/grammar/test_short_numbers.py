"""Numbers with fewer decimals than a bound or a step are as good as others: the library by itself refuses many of them."""

from __future__ import annotations

import random
from decimal import ROUND_DOWN, Decimal
from typing import Any

import pytest
from byte_texts import taken

from inferd_grammar import GrammarCompiler, JsonSchemaGrammar, TokenTable
from inferd_grammar.rewrites import CannotRewrite, rewrite

TABLE = TokenTable.of_bytes()
COMPILER = GrammarCompiler(TABLE)


def takes(schema: dict[str, Any], text: str) -> bool:
    return taken(COMPILER.compile(JsonSchemaGrammar(schema)).matcher(), text)


def spelt(value: Decimal) -> str:
    return format(value.normalize(), "f")


@pytest.mark.parametrize(
    ("schema", "valid", "invalid"),
    [
        ({"maximum": 6.42}, ["6.4", "6", "6.42"], ["6.43", "6.5"]),
        ({"minimum": -0.95, "maximum": 0}, ["-0.9", "-0.95"], ["-0.96", "-1"]),
        ({"minimum": 5.9, "maximum": 5.95}, ["5.9", "5.91"], ["5.8", "6"]),
        ({"exclusiveMinimum": 5.9, "maximum": 5.95}, ["5.91"], ["5.9"]),
        ({"minimum": 0.5, "exclusiveMaximum": 1}, ["0.9", "0.99", "0.5"], ["1", "1.0"]),
        ({"minimum": 2.9, "exclusiveMaximum": 7.08}, ["7", "7.01"], ["7.1", "7.08"]),
        ({"multipleOf": 0.25}, ["0.5", "0.25", "-1.5", "2", "2.75"], ["0.3", "0.55"]),
        ({"multipleOf": 0.125, "minimum": 0.3, "maximum": 0.75}, ["0.375", "0.5", "0.75"], ["0.25", "0.7", "1"]),
        ({"anyOf": [{"maximum": 0.15, "minimum": 0}, {"const": 3}]}, ["0.1", "3"], ["0.2"]),
    ],
)
def test_a_number_with_fewer_decimals_than_a_bound_or_step_is_taken(
    schema: dict[str, Any], valid: list[str], invalid: list[str]
) -> None:
    schema = {"type": "number", **schema}
    assert [text for text in valid if not takes(schema, text)] == []
    assert [text for text in invalid if takes(schema, text)] == []


def test_bounds_beside_another_type_keep_both() -> None:
    schema = {"type": ["number", "string"], "maximum": 6.42, "maxLength": 1}
    assert [text for text in ("6.4", '"a"', "6.5", '"ab"') if takes(schema, text)] == ["6.4", '"a"']
    whole = {"allOf": [{"maximum": 6.42}, {"type": "integer"}]}
    assert [text for text in ("6", "6.4") if takes(whole, text)] == ["6"]


@pytest.mark.parametrize("seed", range(4))
def test_random_ranges_take_every_cut_of_their_bounds(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(15):
        places = rng.choice([1, 2, 3])
        low = Decimal(rng.randrange(-300, 300)).scaleb(-places)
        high = low + Decimal(rng.randrange(1, 400)).scaleb(-rng.choice([1, 2, 4]))
        schema = {"type": "number", "minimum": float(low), "exclusiveMaximum": float(high)}
        for cut in (bound.quantize(Decimal(1).scaleb(-n), ROUND_DOWN) for bound in (low, high) for n in range(5)):
            assert takes(schema, spelt(cut)) == (low <= cut < high), f"{schema} on {cut}"


def test_steps_and_bounds_without_end_are_bounded_work() -> None:
    for words in ({"multipleOf": 0.99999}, {"minimum": -1e300, "maximum": 0.5}, {"multipleOf": 0.25, "minimum": 1e17}):
        COMPILER.compile(JsonSchemaGrammar({"type": "number", **words}))


@pytest.mark.parametrize("step", [0.07, 0.57, 1.14])
def test_a_step_that_floats_round_is_held_at_the_end_of_the_text(step: float) -> None:
    """The library read 0.07 as 7000000000000001 and refused it; one step in five with two decimals is so."""
    schema = {"type": "object", "properties": {"n": {"type": "number", "multipleOf": step}}, "required": ["n"]}
    assert takes(schema, f'{{"n":{step}}}')
    assert not takes(schema, f'{{"n":{step + 0.01:.2f}}}')
    with pytest.raises(CannotRewrite, match="floats round it") as caught:
        rewrite(schema)
    assert caught.value.pointer == "/properties/n/multipleOf"
