"""Generations of a random model under real schemas: every one is valid, or a valid beginning, and drafts change nothing."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import jsonschema
import pytest
from random_trees import RandomTrees

from inferd.protocol import ConstraintError, Sampling
from inferd_grammar import Compiled, GrammarCompiler, GrammarError, JsonSchemaGrammar, RegexGrammar, TokenTable
from inferd_runtime.engine.engine import Engine, EngineOptions
from inferd_runtime.engine.jobs.generation import Generation, GenerationSpec
from inferd_runtime.engine.jobs.grammar_masks import GrammarCursor
from inferd_runtime.engine.jobs.text import TextAssembler
from inferd_runtime.engine.sampling.host_sampling import RowSampler
from inferd_runtime.speculation.drafter import Drafter
from inferd_runtime.speculation.ngram import NgramDrafter
from inferd_runtime.speculation.predicted import PredictedText
from inferd_runtime.testing.null_driver import NullDriver

ROOT = Path(__file__).resolve().parents[3]
TOKENIZER = ROOT / "runtime" / "inferd_runtime" / "models" / "tiny" / "target" / "tokenizer.json"
CASES = ROOT.parent / "shared" / "conformance" / "maskbench" / "cases.jsonl"
VOCAB, END = 4096, 0
MAX_TOKENS = 64


def schemas() -> Iterator[str]:
    """The sample's schemas that compile strictly, again and again."""
    if not CASES.exists():
        pytest.skip(f"no MaskBench sample at {CASES}")
    while True:
        for line in CASES.read_text().splitlines():
            yield json.dumps(json.loads(line)["schema"])


def generate(compiled: Compiled, table: TokenTable, seed: int, drafter: Drafter | None) -> tuple[list[int], str]:
    """The tokens and why it ended: a schema may contradict itself behind some beginnings, which is a typed error."""
    engine = Engine(NullDriver(vocab_size=VOCAB, pages=64, seed=seed, scale=4.0), EngineOptions(64))
    context = engine.create_context()
    context.append([1 + seed % 100, 7])
    sampler = RowSampler.resolve(Sampling(temperature=1.0), seed=seed, lineage=0)
    cursor = GrammarCursor(compiled.matcher(), table.words, [END])
    sources = None if drafter is None else engine.draft_budget.sources([drafter])
    spec = GenerationSpec(sampler, MAX_TOKENS, [END], cursor, sources)
    generation = Generation(context, spec, TextAssembler(str, ()))
    engine.submit(generation)
    tokens: list[int] = []
    while not generation.finished() or generation.outbox:
        tokens += [token for step in generation.take() for token in step.tokens]
        engine.step()
    dead = isinstance(generation.error, ConstraintError)
    assert dead or generation.error is None, generation.error
    generation.close()
    context.release()
    engine.check_integrity()
    return tokens, "dead end" if dead else generation.finish


@pytest.mark.parametrize("runs", [100, pytest.param(10_000, marks=pytest.mark.long)])
def test_generations_under_schemas_are_valid_and_the_same_with_any_drafts(runs: int) -> None:
    table = TokenTable.from_tokenizer_json(TOKENIZER.read_text(), vocab_size=VOCAB, eos_ids=[END])
    compiler = GrammarCompiler(table)
    ended: Counter[str] = Counter()
    source = schemas()
    while ended.total() < runs:
        schema, seed = next(source), ended.total()
        try:
            compiled = compiler.compile(JsonSchemaGrammar(schema))
        except GrammarError:
            continue
        tokens, finish = generate(compiled, table, seed, None)
        for drafter in (NgramDrafter(), RandomTrees(seed, VOCAB)):
            assert generate(compiled, table, seed, drafter) == (tokens, finish), (schema, seed, type(drafter))
        ended[finish] += 1
        check(schema, b"".join(table.tokens[token] for token in tokens), compiled, tokens, finish)
    assert ended["stop"] > runs / 20, ended
    assert ended["dead end"] < runs / 100, ended


def test_a_draft_into_a_dead_end_does_not_fail_a_text_that_never_goes_there() -> None:
    """Where keys exclude each other, some beginnings cannot be finished; a draft that tried one broke the matcher for good."""
    table = TokenTable.from_tokenizer_json(TOKENIZER.read_text(), vocab_size=VOCAB, eos_ids=[END])
    schema = {
        "type": "object", "patternProperties": {"^[a-d]$": {"const": 1}}, "additionalProperties": False, "minProperties": 3,
        "allOf": [
            {"dependencies": {
                "a": {"anyOf": [{"required": ["b"]}, {"required": ["c"]}]},
                "b": {"not": {"required": ["a"]}}, "c": {"not": {"required": ["a"]}},
            }},
            {"required": ["d"]},
        ],
    }  # fmt: skip
    compiled = GrammarCompiler(table).compile(JsonSchemaGrammar(schema))
    ended: Counter[str] = Counter()
    for seed in range(40):
        plain = generate(compiled, table, seed, None)
        for drafter in (NgramDrafter(), RandomTrees(seed, VOCAB)):
            assert generate(compiled, table, seed, drafter) == plain
        ended[plain[1]] += 1
        if plain[1] == "stop":
            check(json.dumps(schema), b"".join(table.tokens[token] for token in plain[0]), compiled, *plain)
    assert ended["dead end"] > 0 < ended["stop"], ended


def check(schema: str, text: bytes, compiled: Compiled, tokens: list[int], finish: str) -> None:
    """A finished text parses and validates; one that was cut is a beginning that the grammar allows."""
    if finish == "stop":
        value = json.loads(text)
        parsed = json.loads(schema)
        jsonschema.validators.validator_for(parsed, jsonschema.Draft202012Validator)(parsed).validate(value)
    else:
        assert finish in ("length", "dead end")
        assert compiled.matcher().accept(tokens) == len(tokens)


@pytest.mark.parametrize("usual", [0, 1])
def test_the_end_that_a_grammar_forces_is_one_token_whatever_drafts_stood(usual: int) -> None:
    """Of two ends a draft that brought the text there had the model choose one; without, the other was written, and the next turn
    went on behind another text.
    """
    ends = [usual, 1 - usual]
    table = TokenTable.from_tokenizer_json(TOKENIZER.read_text(), vocab_size=VOCAB, eos_ids=ends)
    compiled = GrammarCompiler(table).compile(RegexGrammar("(red|green|blue){3}"))
    found: Counter[int] = Counter()
    for seed in range(20):
        texts = [written(compiled, table, seed, ends, drafted) for drafted in (False, True)]
        assert texts[0] == texts[1]
        found[texts[0][-1]] += 1
    assert found == {usual: 20}


def written(compiled: Compiled, table: TokenTable, seed: int, ends: list[int], drafted: bool) -> list[int]:
    """Return the context behind a generation. ``drafted``: it is drafted as it was without."""
    engine = Engine(NullDriver(vocab_size=VOCAB, pages=64, seed=seed, scale=4.0), EngineOptions(64))
    context = engine.create_context()
    context.append([1 + seed, 7])
    sources = None
    if drafted:
        known = written(compiled, table, seed, ends, False)
        sources = engine.draft_budget.sources([PredictedText(known[2:])])
    sampler = RowSampler.resolve(Sampling(temperature=1.0), seed=seed, lineage=0)
    cursor = GrammarCursor(compiled.matcher(), table.words, ends)
    generation = Generation(context, GenerationSpec(sampler, MAX_TOKENS, ends, cursor, sources), TextAssembler(str, ()))
    engine.submit(generation)
    while not generation.finished():
        engine.step()
    assert generation.finish == "stop"
    assert not drafted or generation.counters.accepted > 0
    return context.tokens
