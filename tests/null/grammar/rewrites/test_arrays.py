"""`contains` with counts."""

from __future__ import annotations

import itertools
from typing import Any

import jsonschema
import pytest
from byte_texts import compact, taken

from inferd_grammar import GrammarCompiler, GrammarError, JsonSchemaGrammar, TokenTable
from inferd_grammar.rewrites import rewrite

BYTES = GrammarCompiler(TokenTable.of_bytes())
VALUES: list[Any] = [list(items) for size in range(6) for items in itertools.product((1, "a"), repeat=size)]


@pytest.mark.parametrize(
    "counts", [{"minContains": 2}, {"maxContains": 1}, {"minContains": 1, "maxContains": 3, "maxItems": 4}], ids=str
)
def test_small_counts_of_contained_items_are_no_reason_to_refuse_or_to_look_at_the_end_alone(
    counts: dict[str, Any],
) -> None:
    """In an object with other keys no end was found, so that the schema was refused."""
    votes = {"type": "array", "items": {"enum": ["yes", "no"]}, "contains": {"const": "yes"}, **counts}
    schema = {
        "type": "object",
        "properties": {"votes": votes, "name": {"type": "string"}},
        "required": ["votes", "name"],
    }
    assert BYTES.compile(JsonSchemaGrammar(schema)).refusal is None


@pytest.mark.parametrize("negated", [False, True])
@pytest.mark.parametrize("contains", [{"type": "integer"}, {"const": "a"}, True, False], ids=str)
@pytest.mark.parametrize(
    "counts",
    [
        *({"minContains": 2}, {"maxContains": 1}, {"maxContains": 0}, {"minContains": 0, "maxContains": 1}),
        *({"minContains": 2, "maxContains": 3, "maxItems": 4}, {"minContains": 3, "maxItems": 5}),
        {"minContains": 2.0, "maxContains": 2},
    ],
    ids=str,
)
def test_counts_of_contained_items_are_held(counts: dict[str, Any], contains: Any, negated: bool) -> None:
    schema: dict[str, Any] = {"contains": contains, **counts}
    if negated:
        schema = {"not": schema, "type": "array"}
    validator = jsonschema.Draft202012Validator(schema)
    values = [*VALUES, "x", {}]
    if not any(map(validator.is_valid, values)):
        with pytest.raises(GrammarError, match="no value is valid"):
            BYTES.compile(JsonSchemaGrammar(schema))
        return
    compiled = BYTES.compile(JsonSchemaGrammar(schema))
    for value in values:
        assert taken(compiled.matcher(), compact(value)) == validator.is_valid(value), value


def test_what_contains_asks_of_items_is_written_once_however_many_places_it_may_stand_at() -> None:
    """It was written out at each place of each way: 6 MB, and 13 s, for two levels."""
    inner = {"contains": {"multipleOf": 3, "type": "integer"}}
    for schema in ({"contains": inner, "maxContains": 2}, {"not": {"items": {"contains": inner, "maxContains": 1}}}):
        assert len(str(rewrite(schema).schema)) < 100_000
    deep: Any = {"contains": inner, "type": "array", "maxContains": 2}
    compiled, validator = BYTES.compile(JsonSchemaGrammar(deep)), jsonschema.Draft202012Validator(deep)
    parts: list[Any] = [[3], [4], [1, 6], 5]
    for value in (list(items) for size in range(4) for items in itertools.product(parts, repeat=size)):
        assert taken(compiled.matcher(), compact(value)) == validator.is_valid(value), value


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"type": "integer", "minimum": 5000, "not": {"multipleOf": 7}}, 5001),
        ({"type": "number", "minimum": 1000, "not": {"type": "integer"}}, 1000.5),
        ({"type": "array", "not": {"items": {"const": 1}}, "prefixItems": [{"const": 1}] * 10}, [1] * 10 + [2]),
    ],
    ids=str,
)
@pytest.mark.parametrize("mode", ["strict", "best_effort"])
def test_what_a_rewrite_leaves_out_is_no_proof_that_nothing_is_valid(schema: Any, value: Any, mode: Any) -> None:
    """Each was refused as unsatisfiable: the rewrites say only the gaps near zero, and the first ten places."""
    compiled = BYTES.compile(JsonSchemaGrammar(schema, mode=mode))
    assert taken(compiled.matcher(), compact(value))
    assert compiled.validate(compact(value)) is None


@pytest.mark.parametrize("mode", ["strict", "best_effort"])
def test_more_contained_items_than_there_are_places_for_are_no_schema_that_nothing_satisfies(mode: Any) -> None:
    """`minContains: 11` was refused as unsatisfiable, in best_effort, too."""
    compiled = BYTES.compile(
        JsonSchemaGrammar({"type": "array", "contains": {"const": 1}, "minContains": 11}, mode=mode)
    )
    assert taken(compiled.matcher(), compact([1] * 11))
    if mode == "strict":
        assert not taken(compiled.matcher(), compact([1] * 10 + [2]))
    else:
        assert compiled.validate(compact([1] * 10)) is not None


@pytest.mark.parametrize("size", [9, 10, 15, 29])
@pytest.mark.parametrize("mode", ["strict", "best_effort"])
def test_what_an_array_contains_may_stand_behind_all_of_its_listed_items(mode: Any, size: int) -> None:
    """Behind ten constants it was refused as unsatisfiable."""
    schema = {"type": "array", "prefixItems": [{"const": n} for n in range(size)], "contains": {"const": 99}}
    compiled = BYTES.compile(JsonSchemaGrammar(schema, mode=mode))
    assert not compiled.checked
    assert taken(compiled.matcher(), compact([*range(size), 99]))
    for wrong in ([*range(size)], [*range(size), 5], [99, *range(1, size)]):
        assert not taken(compiled.matcher(), compact(wrong))
