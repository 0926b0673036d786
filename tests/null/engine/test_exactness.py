"""Speculation never changes the output: every sampler, every kind of drafter, with and without a grammar."""

from __future__ import annotations

import itertools
import json
import random
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest

from inferd.protocol import Sampling
from inferd_grammar import ExactGrammar, GrammarCompiler, JsonSchemaGrammar, RegexGrammar, TokenTable
from inferd_runtime.engine.engine import Engine, EngineOptions
from inferd_runtime.engine.jobs.generation import Generation, GenerationSpec
from inferd_runtime.engine.jobs.grammar_masks import GrammarCursor
from inferd_runtime.engine.jobs.text import TextAssembler
from inferd_runtime.engine.sampling.host_sampling import RowSampler, candidates
from inferd_runtime.engine.sampling.noise import gumbel
from inferd_runtime.speculation.drafter import Drafter
from inferd_runtime.speculation.drafts import Proposal
from inferd_runtime.speculation.ngram import NgramDrafter
from inferd_runtime.testing.byte_tokenizer import END, VOCAB_SIZE, ByteTokenizer
from inferd_runtime.testing.null_driver import NullDriver

SAMPLERS = {
    "argmax": Sampling(),
    "multinomial": Sampling(temperature=1.0),
    "top_p": Sampling(temperature=0.8, top_p=0.9),
    "top_k": Sampling(temperature=0.8, top_k=5),
    "min_p": Sampling(temperature=1.2, min_p=0.05),
    "top_k_top_p": Sampling(temperature=0.9, top_k=12, top_p=0.9),
    "repetition": Sampling(temperature=0.8, repetition_penalty=1.3),
    "all penalties": Sampling(1.0, 0, 0.95, 0.0, None, 1.2, 0.6, 0.9, (7, 4, 2), (1.0, -100.0, 0.5)),
}


class RandomDrafter(Drafter):
    """Guesses blindly; with few tokens in the vocabulary it is sometimes right."""

    def __init__(self, seed: int, vocab: int) -> None:
        self._random = random.Random(seed)
        self._vocab = vocab

    def propose(self, limit: int, ahead: Sequence[int] = ()) -> Proposal:
        count = self._random.randint(0, min(limit, 9))
        parents = [self._random.randint(-1, node - 1) for node in range(count)]
        return Proposal(self._random.choices(range(self._vocab), k=count), parents, confidence=[1.0] * count)


class Oracle(Drafter):
    """Knows the answer, and errs at every seventh token."""

    def __init__(self, answer: Sequence[int], start: int) -> None:
        self._answer, self._start, self._seen = list(answer), start, 0

    def observe(self, tokens: Sequence[int]) -> None:
        self._seen += len(tokens)

    def propose(self, limit: int, ahead: Sequence[int] = ()) -> Proposal:
        at = self._seen - self._start + len(ahead)
        right = enumerate(self._answer[at : at + min(limit, 11)], start=at + 1)
        return Proposal([token if index % 7 else (token + 1) % 5 for index, token in right])


def generate(
    driver: NullDriver, prompt: list[int], sampling: Sampling, seed: int, drafter: Drafter | None,
    cursor: GrammarCursor | None = None, max_tokens: int = 40, eos: int = END,
) -> tuple[list[int], Generation]:  # fmt: skip
    engine = Engine(driver, EngineOptions(token_budget=16))
    context = engine.create_context()
    context.append(prompt)
    sampler = RowSampler.resolve(sampling, seed=seed, lineage=0)
    sources = None if drafter is None else engine.draft_budget.sources([drafter])
    spec = GenerationSpec(sampler, max_tokens, [eos], cursor, sources)
    generation = Generation(context, spec, TextAssembler(ByteTokenizer().stream(), ()))
    engine.submit(generation)
    tokens: list[int] = []
    while not generation.finished() or generation.outbox:
        tokens += [token for step in generation.take() for token in step.tokens]
        engine.step()
        engine.pool.check_integrity([context.table.pages])
    assert generation.error is None
    assert context.tokens[: len(prompt) + len(tokens)] == prompt + tokens
    generation.close()
    context.release()
    engine.pool.check_integrity([])
    return tokens, generation


@pytest.mark.parametrize("name", SAMPLERS)
def test_the_same_seed_gives_the_same_tokens_with_any_drafter(name: str) -> None:
    accepted = 0
    for seed, scale in itertools.product(range(6), (0.5, 3.0)):
        driver = NullDriver(vocab_size=12, scale=scale, seed=seed)
        prompt = random.Random(seed).choices(range(12), k=1 + 5 * seed)
        plain, _ = generate(driver, prompt, SAMPLERS[name], seed, None)
        assert len(plain) == 40
        for drafter in (NgramDrafter(), RandomDrafter(seed, 12), Oracle(plain, len(prompt))):
            tokens, generation = generate(driver, prompt, SAMPLERS[name], seed, drafter)
            assert tokens == plain, (name, seed, type(drafter))
            counters = generation.counters
            assert generation.usage.tokens == 40 <= counters.steps + counters.accepted
            accepted += counters.accepted
    assert accepted > 250


@pytest.mark.parametrize("name", SAMPLERS)
def test_the_same_seed_gives_the_same_tokens_under_a_grammar(name: str) -> None:
    table = TokenTable.from_tokenizer_json(ByteTokenizer.tokenizer_json(), vocab_size=VOCAB_SIZE, eos_ids=[END])
    compiled = GrammarCompiler(table).compile(
        RegexGrammar(r'\{"name":"[a-e]{2,9}","tags":\[("x"|"yy")(,("x"|"yy")){0,3}\]\}')
    )
    accepted = 0
    for seed in range(5):
        driver = NullDriver(vocab_size=VOCAB_SIZE, scale=1.0, seed=seed)
        prompt = list(b'{"name":"abc","tags":["x","yy"]}')[: 4 + 3 * seed]

        def cursor() -> GrammarCursor:
            return GrammarCursor(compiled.matcher(), table.words, [END])

        plain, _ = generate(driver, prompt, SAMPLERS[name], seed, None, cursor(), 80)
        assert bytes(plain).startswith(b'{"name":"')
        assert bytes(plain).endswith(b"]}")
        drafters = (NgramDrafter(), RandomDrafter(seed, VOCAB_SIZE), Oracle(plain, len(prompt)))
        for drafter in drafters:
            tokens, generation = generate(driver, prompt, SAMPLERS[name], seed, drafter, cursor(), 80)
            assert tokens == plain, (name, seed, type(drafter))
            accepted += generation.counters.accepted
    assert accepted > 100


def joint_counts(driver: NullDriver, runs: int) -> Counter[tuple[int, ...]]:
    counts: Counter[tuple[int, ...]] = Counter()
    for seed in range(runs):
        tokens, _ = generate(driver, [0], Sampling(temperature=1.0), seed, RandomDrafter(seed, 4), None, 3)
        counts[tuple(tokens)] += 1
    return counts


@pytest.mark.statistics
@pytest.mark.parametrize("runs", [2000, pytest.param(100_000, marks=pytest.mark.long)])
def test_the_joint_distribution_with_drafts_is_the_models(runs: int) -> None:
    """Chi-square over all 64 sequences of three tokens; 110 is the 99.97 % quantile of 63 degrees of freedom."""
    driver = NullDriver(vocab_size=4, scale=1.0, seed=3, order=1)
    counts = joint_counts(driver, runs)
    chi = 0.0
    for sequence in itertools.product(range(4), repeat=3):
        probability, last = 1.0, 0
        for token in sequence:
            logits = driver.logits([last]).astype(np.float64)
            probability *= np.exp(logits[token] - logits.max()) / np.exp(logits - logits.max()).sum()
            last = token
        chi += (counts[sequence] - runs * probability) ** 2 / (runs * probability)
    assert chi < 110


def test_noise_is_standard_gumbel_and_independent_between_positions() -> None:
    tokens = np.arange(4000)
    one, other = gumbel(1, 10, tokens), gumbel(1, 11, tokens)
    assert abs(one.mean() - 0.5772) < 0.08
    assert abs(one.var() - np.pi**2 / 6) < 0.2
    assert abs(np.corrcoef(one, other)[0, 1]) < 0.06


def test_top_k_top_p_and_min_p_keep_what_they_say() -> None:
    logits = np.log(np.array([0.4, 0.3, 0.2, 0.06, 0.04], np.float32))

    def kept(**fields: float) -> list[int]:
        sampling = Sampling(temperature=1.0, **fields)  # type: ignore[arg-type]
        return candidates(logits, RowSampler.resolve(sampling, seed=0, lineage=0))[0].tolist()

    assert kept() == [0, 1, 2, 3, 4]
    assert kept(top_k=2) == [0, 1]
    assert kept(top_p=0.65) == [0, 1]
    assert kept(top_p=0.75) == [0, 1, 2]
    assert kept(min_p=0.4) == [0, 1, 2]
    assert kept(top_k=3, top_p=0.5) == [0, 1]


@pytest.mark.parametrize("exact", [False, True], ids=["canonical", "exact"])
def test_drafts_change_nothing_whichever_splits_the_masks_allow(exact: bool) -> None:
    """With tokens of several bytes: one mode forces the canonical split of certain text, the other allows every split."""
    pieces = [
        "</s>",
        *"0123456789{}:,",
        '"',
        '{"',
        '":',
        '","',
        '"}',
        *"abcdefghmn",
        "na",
        "me",
        "name",
        '"name',
        '":"',
    ]
    flags = ("single_word", "lstrip", "rstrip", "normalized")
    data = {
        "model": {"type": "BPE", "vocab": {piece: at for at, piece in enumerate(pieces)}, "merges": []},
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "added_tokens": [{"id": 0, "content": "</s>", "special": True, **dict.fromkeys(flags, False)}],
    }
    table = TokenTable.from_tokenizer_json(json.dumps(data), vocab_size=len(pieces) + 3, eos_ids=[0])
    text = {"type": "object", "properties": {"name": {"enum": ["abc", "name", "game"]}, "age": {"type": "integer"}}}
    schema = JsonSchemaGrammar({**text, "required": ["name", "age"], "additionalProperties": False})
    compiled = GrammarCompiler(table).compile(ExactGrammar(schema) if exact else schema)
    splits = set()
    for name, seed in itertools.product(("argmax", "multinomial"), range(12)):
        driver = NullDriver(vocab_size=table.vocab_size, scale=1.0, seed=seed)

        def cursor() -> GrammarCursor:
            return GrammarCursor(compiled.matcher(), table.words, [0])

        plain, _ = generate(driver, [3, 4], SAMPLERS[name], seed, None, cursor(), 60, eos=0)
        splits.add(tuple(plain[:3]))
        for drafter in (NgramDrafter(), RandomDrafter(seed, table.vocab_size), Oracle(plain, 2)):
            tokens, _ = generate(driver, [3, 4], SAMPLERS[name], seed, drafter, cursor(), 60, eos=0)
            assert tokens == plain, (name, seed, type(drafter))
    assert (len(splits) > 1) == exact
