"""A model that is divided between two gloo ranks on the CPU, against the same model in one process: the same tokens.

The whole runs transformers' own modules in float32, the parts the fused pass where it knows the family, once over the kernels'
twins. Sums over two parts are rounded otherwise than sums over the whole, so logits differ in their last bits.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from families import VOCAB, make
from family_table import HERE, SERVED
from parallel_pair import PAGE_SIZE, Pair, alone, pair_of_ranks, save
from test_families import batches, make as make_family

from inferd.protocol import InvalidRequest, Sampling
from inferd_runtime.engine.drivers.parallel import LeadingDriver
from inferd_runtime.engine.engine import Engine, EngineOptions
from inferd_runtime.engine.job import Planned
from inferd_runtime.engine.prepare import prepare
from inferd_runtime.engine.sampling.host_sampling import RowSampler
from inferd_runtime.engine.sequences.cached_sequence import CachedSequence
from inferd_runtime.engine.sequences.positions import tree_placement
from inferd_runtime.engine.stages import Work
from inferd_runtime.kv.pool import PagePool
from inferd_runtime.kv.table import PageTable
from inferd_runtime.models import parallel
from inferd_runtime.models.loading import load
from inferd_runtime.models.passes.divided import DividedPass
from inferd_runtime.server.engine_process.followers import Followers
from inferd_runtime.server.engine_process.serving import serve_model
from inferd_runtime.settings.settings import EngineSettings
from inferd_runtime.testing.speculation import GenerationUnderTest, OracleTree, Request

TOLERANCE = 1e-4
PAGES = 44
MODELS = [
    "llama", "tiny", "llama with kernels",
    *(pytest.param(family, marks=pytest.mark.long) for family in ("qwen2", "qwen3", "mistral", "gemma2")),
]  # fmt: skip
SAMPLERS = (Sampling(), Sampling(1.0), Sampling(0.8, top_k=20, top_p=0.9), Sampling())


class Counting:
    """A driver that counts what is asked of it."""

    def __init__(self, driver: Any) -> None:
        self._driver = driver
        self.calls: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._driver, name)
        if callable(found):
            self.calls[name] += 1
        return found


@dataclass
class Both:
    """The driver over two ranks, that of one process, and what came of each scenario."""

    divided: Counting
    whole: Counting
    vocabulary: int
    held: float
    fingerprints: tuple[str, str]
    name: str
    part: object


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with pair_of_ranks(tmp_path_factory.mktemp("pair")) as pair:
        yield pair


@pytest.fixture(scope="module", params=MODELS)
def both(request: pytest.FixtureRequest, pair: Pair, tmp_path_factory: pytest.TempPathFactory) -> Both:
    name, _, kernels = request.param.partition(" with ")
    folder = "tiny" if name == "tiny" else save(make(name), tmp_path_factory.mktemp(name), VOCAB)
    part = pair.load(folder, kernels=bool(kernels))
    whole, driver = alone(folder, PAGES)
    held = sum(parallel.own_part(weight).numel() for weight in part.module.parameters())
    return Both(
        Counting(pair.lead(part, PAGES, most_rows=128, graphs=False)), Counting(driver), whole.vocab_size,
        held / sum(weight.numel() for weight in whole.module.parameters()),
        (part.fingerprint, whole.fingerprint), name, part.part,
    )  # fmt: skip


def prompt(length: int, seed: int, vocabulary: int) -> tuple[int, ...]:
    return tuple(np.random.default_rng(seed).integers(3, vocabulary, length).tolist())


def a_request(length: int, seed: int, vocabulary: int, sampling: Sampling, tokens: int = 10) -> Request:
    return Request(prompt(length, seed, vocabulary), RowSampler.resolve(sampling, seed=seed, lineage=0), tokens, eos=2)


def finish(engine: Engine, running: list[GenerationUnderTest]) -> list[tuple[int, ...]]:
    """The tokens of generations that run together."""
    while any(not one.generation.finished() for one in running):
        assert engine.step()
        for one in running:
            one.take()
    assert [one.generation.error for one in running] == [None] * len(running)
    for one in running:
        one.generation.close()
    return [tuple(one.tokens) for one in running]


def start(engine: Engine, request: Request) -> GenerationUnderTest:
    context = engine.create_context()
    context.append(request.prompt)
    return GenerationUnderTest.submit(engine, context, request, [])


def engine_of(driver: Counting, budget: int = 24) -> Engine:
    return Engine(driver, EngineOptions(token_budget=budget))


# -- What both must bring ---------------------------------------------------------------------------------------------


def ragged(driver: Counting, vocabulary: int) -> list[tuple[int, ...]]:
    """Prompts of many lengths at once, fed in chunks beside rows of others; greedy and with seeds."""
    engine = engine_of(driver)
    lengths = (50, 3, 17, 30)
    requests = [a_request(n, seed, vocabulary, s) for seed, (n, s) in enumerate(zip(lengths, SAMPLERS, strict=True))]
    running = [start(engine, request) for request in requests]
    tokens = finish(engine, running)
    for one in running:
        one.generation.context.release()
    return tokens


def forked(driver: Counting, vocabulary: int) -> list[tuple[int, ...]]:
    """Two forks go on from inside a page, each with tokens of its own, then write together."""
    engine = engine_of(driver)
    before = driver.calls["copy_pages"]
    first = start(engine, a_request(13, 5, vocabulary, Sampling()))
    tokens = finish(engine, [first])
    contexts = [first.generation.context, first.generation.context.fork()]
    running = []
    for seed, context in enumerate(contexts):
        context.append(prompt(2, 10 + seed, vocabulary))
        request = replace(a_request(1, seed, vocabulary, Sampling(1.0)), prompt=tuple(context.tokens))
        running.append(GenerationUnderTest.submit(engine, context, request, []))
    tokens += finish(engine, running)
    for context in contexts:
        context.release()
    assert driver.calls["copy_pages"] > before, "no page was copied on write"
    return tokens


def swapped(driver: Counting, vocabulary: int) -> list[tuple[int, ...]]:
    """Contexts that the cache cannot hold together leave it and come back."""
    engine = engine_of(driver, 128)
    contexts: list[CachedSequence] = []
    running: list[GenerationUnderTest] = []
    for seed in range(4):
        request = a_request(50, 20 + seed, vocabulary, SAMPLERS[seed], 4)
        running.append(start(engine, request))
        finish(engine, running[-1:])
        contexts.append(running[-1].generation.context)
    for seed, context in enumerate(contexts):
        request = replace(a_request(1, seed, vocabulary, SAMPLERS[seed], 4), prompt=tuple(context.tokens))
        running.append(GenerationUnderTest.submit(engine, context, request, []))
        finish(engine, running[-1:])
    assert engine.parking.swapped > 0
    assert driver.calls["write_pages"] > 0
    for context in contexts:
        context.release()
    return [tuple(one.tokens) for one in running]


@pytest.mark.parametrize("scenario", [ragged, forked, swapped])
def test_tokens_are_those_of_one_process(both: Both, scenario: Any) -> None:
    expected = scenario(both.whole, both.vocabulary)
    assert sum(map(len, expected)) > 20
    assert scenario(both.divided, both.vocabulary) == expected


@pytest.mark.parametrize("sampling", [SAMPLERS[0], SAMPLERS[2]], ids=["greedy", "seeded"])
def test_draft_trees_leave_the_tokens_and_are_moved_in_every_rank(both: Both, sampling: Sampling) -> None:
    requests = [a_request(length, length, both.vocabulary, sampling, 16) for length in (21, 6)]
    engine = engine_of(both.whole)
    running = [start(engine, request) for request in requests]
    answers = finish(engine, running)
    engine, moves = engine_of(both.divided), both.divided.calls["move_tokens"]
    drafted = []
    for request, tokens, one in zip(requests, answers, running, strict=True):
        known = replace(request, tokens=tokens, finish=one.generation.finish)
        context = engine.create_context()
        context.append(request.prompt)
        drafted.append(GenerationUnderTest.submit(engine, context, known, [OracleTree(known, both.vocabulary)]))
    finish(engine, drafted)
    for one in drafted:
        one.check()
        assert one.accepted > 0
    assert both.divided.calls["move_tokens"] > moves


# -- Logits, hidden states, pages -------------------------------------------------------------------------------------


def outputs(driver: Any, vocabulary: int) -> tuple[list[np.ndarray], np.ndarray]:
    """Logits and hidden states of a prompt, then of a tree behind it; and the pages."""
    table = PageTable(PagePool(PAGES, PAGE_SIZE))
    tokens = prompt(30, 40, vocabulary)
    rows: list[np.ndarray] = []
    driver.copy_pages(table.reserve(36))
    for work in (
        Work(tokens[:23], 23, hidden=5),
        Work(tokens[23:], 7, hidden=1, placement=tree_placement(23, 1, [-1, 0, 0, 2, -1, 4])),
    ):
        rows += driver.forward(prepare([Planned(None, work, table)], PAGE_SIZE))  # type: ignore[arg-type]
        table.advance(len(work.tokens))
    return rows, driver.read_pages(table.pages)


def test_logits_hidden_states_and_caches_agree(both: Both) -> None:
    """A rank's part of a page is its own heads; the parts of all ranks stand behind each other."""
    got, pages = outputs(both.divided, both.vocabulary)
    expected, whole = outputs(both.whole, both.vocabulary)
    for one, other in zip(got, expected, strict=True):
        assert one.shape == other.shape
        assert np.abs(one - other).max() < TOLERANCE
    assert pages.shape == whole.shape
    assert sum(both.divided.token_bytes) == sum(both.whole.token_bytes)
    mine, theirs = (sorted(held.view(np.float32)[0].tolist()) for held in (pages, whole))
    assert np.abs(np.subtract(mine, theirs)).max() < TOLERANCE


def test_pages_come_back_to_the_bit_in_every_rank(both: Both) -> None:
    _, pages = outputs(both.divided, both.vocabulary)
    count = len(pages)
    both.divided.write_pages(range(10, 10 + count), pages)
    assert (both.divided.read_pages(range(10, 10 + count)) == pages).all()
    assert both.divided.bearable(pages)
    assert both.divided.bearable(pages[:0])
    for column in (0, pages.shape[1] - 4):  # rank 0's first number, rank 1's last
        bad = pages.copy()
        bad[0, column : column + 4].view(np.float32)[:] = np.inf
        assert not both.divided.bearable(bad)


def test_a_layout_names_the_ranks_and_a_fingerprint_does_not(both: Both) -> None:
    assert both.divided.kv_layout != both.whole.kv_layout
    assert both.divided.kv_layout.endswith("2 ranks")
    assert both.fingerprints[0] == both.fingerprints[1]


def test_a_rank_holds_its_half_of_the_weights(both: Both) -> None:
    assert 0.5 <= both.held < 0.55


def test_the_fused_pass_runs_over_the_parts(both: Both) -> None:
    assert isinstance(both.part, DividedPass) == (both.name != "gemma2")


def test_a_call_that_fails_alike_in_every_rank_fails_alone(both: Both) -> None:
    with pytest.raises(IndexError):
        both.divided.read_pages([PAGES])
    assert ragged(both.divided, both.vocabulary) == ragged(both.whole, both.vocabulary)


# -- Refusals, before weights are read --------------------------------------------------------------------------------


def config_of(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    (folder / "model.safetensors").unlink()


def test_a_family_without_a_plan_is_refused(tmp_path: Path) -> None:
    config_of(save(make("gpt2"), tmp_path, VOCAB))
    with pytest.raises(InvalidRequest, match="no tensor-parallel plan for 'gpt2'"):
        load(str(tmp_path), ranks=2)


@pytest.mark.parametrize(
    ("ranks", "reason"), [(4, "its num_key_value_heads is 2"), (3, "3 ranks: its num_attention_heads is 4")]
)
def test_heads_that_cannot_be_divided_are_refused(tmp_path: Path, ranks: int, reason: str) -> None:
    config_of(save(make("llama"), tmp_path, VOCAB))
    with pytest.raises(InvalidRequest, match=reason):
        load(str(tmp_path), ranks=ranks)


def test_a_quantized_checkpoint_is_refused(tmp_path: Path) -> None:
    config_of(save(make("llama"), tmp_path, VOCAB), quantization_config={"quant_method": "fp8"})
    with pytest.raises(InvalidRequest, match="is quantized"):
        load(str(tmp_path), ranks=2)


def test_a_cache_of_eight_bits_is_refused_before_anything_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks keep the model's own dtype: who asks for another must not get a cache of twice the size, and not hear of it."""
    monkeypatch.setattr(Followers, "load", lambda *arguments: pytest.fail("loaded"))
    settings = EngineSettings(kv_dtype="fp8", tensor_parallel=2)
    with pytest.raises(InvalidRequest, match="--tensor-parallel does not go together with --kv-dtype fp8"):
        serve_model(settings)


def test_machines_without_what_it_takes_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    other = "cuda" if parallel.torch.accelerator.current_accelerator() is None else "cpu"
    with pytest.raises(InvalidRequest, match=f"not on '{other}'"):
        parallel.check_devices(other, 2)
    monkeypatch.setattr(parallel, "find_spec", lambda name: None)
    with pytest.raises(InvalidRequest, match="needs the package accelerate"):
        parallel.check_devices("cpu", 2)


def test_adapters_are_refused(both: Both) -> None:
    driver: LeadingDriver = both.divided._driver
    with pytest.raises(InvalidRequest, match="without adapters"):
        driver.adapter_reader()
    table = PageTable(PagePool(PAGES, PAGE_SIZE))
    table.reserve(1)
    batch = prepare([Planned(None, Work([3], 1), table, "a")], PAGE_SIZE)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="has no adapters"):
        driver.forward(batch)


# -- Families ---------------------------------------------------------------------------------------------------------

REFUSED = {
    "gemma3n_text": "the plan by which it is divided between ranks is wrong",
    "gemma4": "it does not run as a decoder",
}
"""Families with a plan that does not do."""


@pytest.mark.long
@pytest.mark.parametrize("family", HERE)
def test_a_family_that_can_be_divided_gives_the_whole_models_logits(family: str, pair: Pair, tmp_path: Path) -> None:
    model = make_family(family, SERVED[family])
    folder = save(model, tmp_path, VOCAB)
    if not getattr(model.config.get_text_config(), "base_model_tp_plan", None):
        with pytest.raises(InvalidRequest, match="no tensor-parallel plan"):
            load(str(folder), ranks=2)
    elif family in REFUSED:
        with pytest.raises(InvalidRequest, match=REFUSED[family]):
            pair.load(folder)
    else:
        divided, (_, whole) = pair.lead(pair.load(folder), PAGES), alone(folder, PAGES)
        for batch in batches():
            assert np.abs(divided.forward(batch).logits - whole.forward(batch).logits).max() < TOLERANCE
