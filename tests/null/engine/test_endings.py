"""Texts that end in time: any budget from the shortest text on ends with a valid one, with and without drafts the same."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings, strategies as st
from random_trees import RandomTrees
from tiers import examples

from inferd.protocol import LimitExceeded, Sampling
from inferd_grammar import (
    Compiled,
    Constraint,
    GrammarCompiler,
    JsonSchemaGrammar,
    LarkGrammar,
    RegexGrammar,
    TokenTable,
)
from inferd_grammar.constraints import AnyOfGrammar, RepeatedGrammar, SequenceGrammar, TextGrammar
from inferd_runtime.engine.engine import Engine, EngineOptions
from inferd_runtime.engine.jobs.generation import Generation, GenerationSpec
from inferd_runtime.engine.jobs.grammar_masks import MASK_SECONDS, GrammarCursor
from inferd_runtime.engine.jobs.text import TextAssembler
from inferd_runtime.engine.sampling.host_sampling import RowSampler
from inferd_runtime.speculation.drafter import Drafter
from inferd_runtime.speculation.ngram import NgramDrafter
from inferd_runtime.testing.null_driver import NullDriver

TOKENIZER = (
    Path(__file__).resolve().parents[3] / "runtime" / "inferd_runtime" / "models" / "tiny" / "target" / "tokenizer.json"
)
VOCAB, END = 4096, 0
TABLE = TokenTable.from_tokenizer_json(TOKENIZER.read_text(), vocab_size=VOCAB, eos_ids=[END])
COMPILER = GrammarCompiler(TABLE)
DRAFTERS: list[Callable[[int], Drafter | None]] = [
    lambda seed: None,
    lambda seed: NgramDrafter(),
    lambda seed: RandomTrees(seed, VOCAB),
]


def generate(
    compiled: Compiled,
    budget: int,
    seed: int,
    drafter: Drafter | None,
    temperature: float = 1.0,
    *,
    bounded: bool = True,
) -> tuple[bytes, str]:
    engine = Engine(NullDriver(vocab_size=VOCAB, pages=400, seed=seed, scale=4.0), EngineOptions(64))
    context = engine.create_context()
    context.append([1 + seed % 100, 7])
    sampler = RowSampler.resolve(Sampling(temperature=temperature), seed=seed, lineage=0)
    cursor = GrammarCursor(compiled.matcher(), TABLE.words, [END], compiled.planner(), bounded=bounded)
    sources = None if drafter is None else engine.draft_budget.sources([drafter])
    spec = GenerationSpec(sampler, budget, [END], cursor, sources)
    generation = Generation(context, spec, TextAssembler(str, ()))
    engine.submit(generation)
    tokens: list[int] = []
    while not generation.finished() or generation.outbox:
        tokens += [token for step in generation.take() for token in step.tokens]
        engine.step()
    assert generation.error is None
    generation.close()
    context.release()
    engine.check_integrity()
    assert len(tokens) <= budget
    return b"".join(TABLE.tokens[token] for token in tokens), generation.finish


def values() -> st.SearchStrategy[dict[str, Any]]:
    flat = st.one_of(
        st.builds(lambda n: {"type": "string", "minLength": n}, st.integers(0, 12)),
        st.sampled_from(
            [
                {"type": "string"},
                {"type": "number"},
                {"type": "integer", "minimum": 1000},
                {"type": "string", "format": "date"},
                {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{4}$"},
                {"enum": ["red", "crimson", "blue"]},
                {"type": ["boolean", "null"]},
                {"type": "object"},
            ]
        ),
    )

    def deeper(inner: Any) -> Any:
        named = st.dictionaries(st.sampled_from(["name", "age", "n", "tags", "address"]), inner, max_size=4)
        return st.one_of(
            named.flatmap(
                lambda members: st.sets(st.sampled_from(sorted(members)) if members else st.nothing()).map(
                    lambda needed: {
                        "type": "object",
                        "properties": members,
                        "required": sorted(needed),
                        "additionalProperties": False,
                    }
                )
            ),
            st.builds(lambda item, n: {"type": "array", "items": item, "minItems": n}, inner, st.integers(0, 3)),
            st.builds(lambda *parts: {"anyOf": list(parts)}, inner, inner),
        )

    return st.recursive(flat, deeper, max_leaves=8)


@given(values(), st.integers(0, 40), st.integers(0, 1000), st.sampled_from([0.0, 1.0]))
@settings(max_examples=examples(40), deadline=None)
def test_any_budget_from_the_shortest_text_on_ends_valid_with_any_drafts(
    schema: dict[str, Any], more: int, seed: int, temperature: float
) -> None:
    compiled = COMPILER.compile(JsonSchemaGrammar(schema))
    planner = compiled.planner()
    assert planner is not None
    budget = max(1, planner.needed + more)
    texts = {generate(compiled, budget, seed, make(seed), temperature) for make in DRAFTERS}
    assert len(texts) == 1, texts
    ((text, finish),) = texts
    assert finish == "stop"
    jsonschema.validate(json.loads(text), schema)


@pytest.mark.parametrize("constraint", [RegexGrammar("(ab|cde)+x"), RegexGrammar("[0-9]{4}-[0-9]{2}(T.*Z)?")])
def test_other_constraints_end_in_time_too(constraint: Constraint) -> None:
    compiled = COMPILER.compile(constraint)
    planner = compiled.planner()
    assert planner is not None
    for seed in range(20):
        text, finish = generate(compiled, planner.needed + seed, seed, None)
        matcher = compiled.matcher()
        assert finish == "stop"
        assert matcher.ends_with(TABLE.splitter.split(text).tokens(0)), text


CALL = SequenceGrammar(
    (
        TextGrammar("<|im_start|>call\n"),
        JsonSchemaGrammar(
            {
                "type": "object",
                "properties": {"city": {"type": "string", "minLength": 3}, "days": {"type": "integer", "minimum": 10}},
                "required": ["city", "days"],
                "additionalProperties": False,
            }
        ),
        TextGrammar("\n<|im_end|>"),
    )
)


@pytest.mark.parametrize(
    "constraint",
    [
        CALL,
        SequenceGrammar((CALL, RepeatedGrammar(CALL, 0, None))),
        SequenceGrammar(CALL.members[:2]),
        SequenceGrammar((TextGrammar("<|im_end|>"), AnyOfGrammar((CALL,)), TextGrammar("<|im_end|>"))),
        SequenceGrammar((TextGrammar("<|im_end|>"), AnyOfGrammar((CALL, CALL)), RepeatedGrammar(CALL, 0, None))),
    ],
)
def test_what_stands_between_special_tokens_ends_in_time(constraint: Constraint) -> None:
    """As calls of tools do, whose marks are special tokens in most models."""
    compiled = COMPILER.compile(constraint)
    planner = compiled.planner()
    assert planner is not None
    for seed in range(10):
        text, finish = generate(compiled, planner.needed + seed, seed, DRAFTERS[seed % 3](seed))
        assert finish == "stop"
        for call in text.removeprefix(b"call").split(b"call"):
            assert json.loads(call)["days"] >= 10


def test_a_budget_that_is_far_away_changes_no_text() -> None:
    """With room to spare the planner admits what the model writes."""
    schema = {
        "type": "object",
        "properties": {"a": {"enum": ["x", "yy"]}, "b": {"type": "boolean"}},
        "required": ["a", "b"],
    }
    compiled = COMPILER.compile(JsonSchemaGrammar({**schema, "additionalProperties": False}))
    assert {generate(compiled, 300, seed, None) for seed in range(8)} == {
        generate(compiled, 30, seed, None) for seed in range(8)
    }


@pytest.mark.parametrize(
    "items",
    [
        {"enum": ["a", "b", "ab", "c", "d", "e"]},
        {"type": "integer", "minimum": 1, "maximum": 9},
        {"pattern": "^[ab]{1,2}$"},
    ],
)
def test_arrays_of_different_items_never_run_out_of_them(items: dict[str, Any]) -> None:
    """There are few, and once all are used nothing but the bracket may follow."""
    schema = {"type": "array", "items": {"type": "string", **items}, "uniqueItems": True, "minItems": 2}
    if "minimum" in items:
        schema["items"] = items
    compiled = COMPILER.compile(JsonSchemaGrammar(schema))
    for seed in range(8):
        texts = {generate(compiled, 40, seed, make(seed)) for make in DRAFTERS}
        ((text, finish),) = texts
        assert finish == "stop"
        jsonschema.validate(json.loads(text), schema)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "array", "items": {"type": "integer"}, "contains": {"const": 5}, "minContains": 2, "maxItems": 6},
        {"type": "object", "properties": {"tags": {"oneOf": [{"type": "array", "uniqueItems": True}, {"minItems": 3}]}},
         "required": ["tags"], "additionalProperties": False},
    ],
)  # fmt: skip
@pytest.mark.parametrize("bounded", [True, False])
def test_texts_that_are_held_at_their_end_get_there(schema: dict[str, Any], bounded: bool) -> None:
    compiled = COMPILER.compile(JsonSchemaGrammar(schema))
    for seed in range(4):
        texts = {generate(compiled, 60, seed, make(seed), bounded=bounded) for make in DRAFTERS}
        ((text, finish),) = texts
        if finish == "stop":
            jsonschema.Draft202012Validator(schema).validate(json.loads(text))
        else:
            assert not bounded


def test_looking_for_an_end_that_takes_too_long_ends_its_generation_by_name() -> None:
    """It was bounded in states alone: where each has to be walked through, one token held all streams for 0.9 s."""
    compiled = COMPILER.compile(LarkGrammar('start: /[a-c]*/ ("d" | "e" /[a-z]{9}/ "f")'))
    now = itertools.count(0.0, MASK_SECONDS / 5)
    cursor = GrammarCursor(compiled.matcher(), TABLE.words, [END], compiled.planner(), clock=lambda: next(now))
    token = next(token for token, text in enumerate(TABLE.tokens) if text == b"e")
    with pytest.raises(LimitExceeded) as caught:
        cursor.admit([token], 100)
    assert caught.value.detail["limit"] == "mask_seconds"
    quick = GrammarCursor(compiled.matcher(), TABLE.words, [END], compiled.planner(), clock=lambda: 0.0)
    assert quick.admit([token], 100) == [token]
