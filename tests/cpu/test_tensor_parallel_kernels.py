"""A divided model over the kernels' twins, in recorded steps, between two gloo ranks: the tokens of one rank.

Rank 0 stages each step, the other one gets the block. Sums over two parts are rounded otherwise than over the whole, which
no token of these texts hangs on.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import numpy as np
import parallel_rank
import pytest
from cuda_bench import CudaBench
from families import VOCAB, make
from parallel_pair import Pair, options_for, pair_of_ranks, save
from parallel_rank import build_with_twins
from run_ahead_cases import BYTES, check_behind_drafts, check_the_same, texts
from triton.compiler.errors import CompilationError

from inferd.protocol import InferdError, Unavailable
from inferd_runtime.engine.driver import Begun, SamplingDriver
from inferd_runtime.engine.drivers import build
from inferd_runtime.engine.drivers.build import fused_pass, trial_batch
from inferd_runtime.engine.drivers.cuda_driver import CudaDriver
from inferd_runtime.engine.drivers.parallel import follow
from inferd_runtime.engine.drivers.parallel_commands import CommandDone, Failed, encode
from inferd_runtime.engine.drivers.parallel_steps import LeadingSampler
from inferd_runtime.engine.sampling.device_sampling import SampledRows, greedy_inputs
from inferd_runtime.kernels.suite import reference_kernels
from inferd_runtime.kv.table import PageCopy
from inferd_runtime.models.batch import Placement
from inferd_runtime.models.loading import load
from inferd_runtime.models.parallel import WatchedPass
from inferd_runtime.testing.recorded_host import RecordedHost

PAGES = 128
TOLERANCE = 1e-4


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with pair_of_ranks(tmp_path_factory.mktemp("pair")) as pair:
        yield pair


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(make("llama", vocab_size=BYTES), tmp_path_factory.mktemp("model"), BYTES)


@pytest.fixture(scope="module", params=["recorded", "eager"])
def led(request: pytest.FixtureRequest, pair: Pair, folder: Path) -> Any:
    graphs = request.param == "recorded"
    driver: Any = pair.lead(pair.load(folder, kernels=True), PAGES, most_rows=96, products="kernel", graphs=graphs)
    assert isinstance(driver, LeadingSampler)
    return driver


@pytest.fixture(scope="module")
def whole(folder: Path) -> CudaDriver:
    """The model in one rank."""
    loaded, options = load(str(folder)), options_for(PAGES, most_rows=96, products="kernel")
    driver = build_with_twins(loaded, fused_pass(loaded, options), options)
    assert isinstance(driver, CudaDriver)
    return driver


def test_texts_of_all_kinds_are_those_of_one_rank(led: LeadingSampler, whole: CudaDriver) -> None:
    """Streams with drafts, grammar, penalties and log-probabilities; steps ahead of their tokens, which the other rank gets from
    this one's device.
    """
    check_the_same(SimpleNamespace(driver=led))
    check_behind_drafts(SimpleNamespace(driver=led))
    ours, theirs = (texts(SimpleNamespace(driver=one), overlap=True)[0] for one in (led, whole))
    assert [tokens for tokens, _ in ours] == [tokens for tokens, _ in theirs]


def test_logits_and_hidden_states_are_those_of_one_rank(led: LeadingSampler, whole: CudaDriver) -> None:
    """Of a prompt in chunks that no recorded step holds, then of rows that one does."""
    tokens = np.random.default_rng(1).integers(3, BYTES, 90)
    for first, behind in ((0, 70), (70, 89), (89, 90)):
        batch = trial_batch(tokens[first:behind], first, led.page_size)
        for one in (batch, replace(batch, hidden_rows=batch.logit_rows[-1:])):
            ours, theirs = led.forward(one), whole.forward(one)
            for part, other in zip(ours, theirs, strict=True):
                assert np.abs(part - other).max(initial=0) < TOLERANCE


def test_a_step_that_is_refused_is_announced_to_nobody(led: LeadingSampler) -> None:
    tokens = np.arange(3, 100)
    with pytest.raises(ValueError, match="a step of 97 rows"):
        led.forward(trial_batch(tokens, 0, led.page_size))
    assert len(led.forward(trial_batch(tokens[:96], 0, led.page_size)).logits) == 96


def test_kernels_that_one_rank_does_not_trust_serve_in_none(
    pair: Pair, folder: Path, whole: CudaDriver, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(build, "allowed_difference", lambda *given: -1.0)
    driver = pair.lead(pair.load(folder, kernels=True), PAGES, graphs=False)
    assert "is served without kernels: their logits differ" in caplog.text
    assert not isinstance(driver, SamplingDriver)
    tokens = np.arange(3, 40)
    batch = trial_batch(tokens, 0, driver.page_size)
    assert np.abs(driver.forward(batch).logits - whole.forward(batch).logits).max() < TOLERANCE


@pytest.mark.parametrize("name", ["paged_attention", "confidence"])
def test_kernels_that_fail_in_one_rank_alone_serve_in_none(
    pair: Pair, folder: Path, name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """In the midst of sums, and behind all of them: the other rank is told, and does not wait until the group's time is over."""

    def broken(*given: object) -> NoReturn:
        raise CompilationError(None, None, "no such operation")

    monkeypatch.setattr(parallel_rank, "reference_kernels", lambda: reference_kernels()._replace(**{name: broken}))
    driver = pair.lead(pair.load(folder, kernels=True), PAGES, most_rows=40)
    assert "is served without kernels: CompilationError" in caplog.text
    assert not isinstance(driver, SamplingDriver)
    driver.forward(trial_batch(np.arange(3, 30), 0, driver.page_size))


def test_steps_that_one_rank_cannot_record_are_recorded_in_none(
    pair: Pair, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(host: object, body: object) -> NoReturn:
        raise RuntimeError("not permitted when stream is capturing")

    monkeypatch.setattr(RecordedHost, "record", refuse)
    driver: Any = pair.lead(pair.load(folder, kernels=True), PAGES, most_rows=40)
    assert isinstance(driver, LeadingSampler)
    assert not driver._sampler.records
    driver.forward(trial_batch(np.arange(3, 30), 0, driver.page_size))


# -- What is said, without a group: two whole models, of which one follows ----------------------------------------------


class Lost(BaseException):
    """The engine process would have ended."""


def lost(error: InferdError) -> NoReturn:
    assert isinstance(error, Unavailable)
    raise Lost(error.message)


def unused() -> WatchedPass:
    return WatchedPass(lambda *arguments: pytest.fail("no divided pass here"))


@pytest.fixture
def ends() -> Iterator[tuple[Connection, Connection]]:
    ours, theirs = Pipe()
    with ours, theirs:
        yield ours, theirs


@pytest.fixture(scope="module")
def benches() -> tuple[CudaBench, CudaBench]:
    """A model twice, with a cache each."""
    first, second = (CudaBench("llama", reference_kernels()) for _ in range(2))
    return first, second


def led_by(bench: CudaBench, channel: Connection, seconds: float) -> LeadingSampler:
    for slot in bench.driver._slots:
        slot.taken = False  # by a step that nobody waited for
    return LeadingSampler(bench.driver, unused(), [channel], lost, timeout_s=seconds)


@pytest.fixture
def leading(benches: tuple[CudaBench, CudaBench], ends: tuple[Connection, Connection]) -> LeadingSampler:
    return led_by(benches[0], ends[0], 20.0)


@contextmanager
def following(driver: CudaDriver, leading: LeadingSampler, channel: Connection) -> Iterator[None]:
    thread = threading.Thread(target=follow, args=(driver, unused(), channel))
    thread.start()
    yield
    leading.close()
    thread.join(20.0)
    assert not thread.is_alive()


def a_batch(count: int = 5, start: int = 0) -> Any:
    return trial_batch(np.arange(3 + start, 3 + start + count), start, 4)


def test_the_other_rank_computes_what_was_staged(
    leading: LeadingSampler, benches: tuple[CudaBench, CudaBench], ends: tuple[Connection, Connection]
) -> None:
    """In one launch and in two, with hidden states, and what no kernel does; then its cache is the same to the bit."""
    first, second = (bench.driver for bench in benches)
    odd = replace(a_batch(3, 6), placements={0: Placement(np.arange(9) + 4, np.tri(3, 9, 6, dtype=np.bool_))})
    with following(second, leading, ends[1]):
        leading.forward(a_batch(5))
        begun = leading.begin(a_batch(1, 5), SampledRows(np.arange(1), np.arange(0)))
        begun.sample(greedy_inputs(a_batch(1, 5), VOCAB)).wait()
        leading.forward(odd)
        leading.forward(replace(a_batch(2, 9), hidden_rows=np.arange(1)))
        leading.copy_pages([PageCopy(0, 5)])
        assert np.array_equal(first.read_pages(range(6)), second.read_pages(range(6)))
        assert first.read_pages([2]).any()


def test_it_is_a_driver_that_samples(leading: LeadingSampler, ends: tuple[Connection, Connection]) -> None:
    assert isinstance(leading, SamplingDriver)
    begun = leading.begin(a_batch(), SampledRows(np.arange(5), np.arange(0)))
    assert isinstance(begun, Begun)
    assert ends[1].poll()


def test_a_rank_that_is_gone_ends_the_process(leading: LeadingSampler, ends: tuple[Connection, Connection]) -> None:
    ends[1].close()
    with pytest.raises(Lost, match="has ended"):
        leading.forward(a_batch())


def test_a_rank_that_does_not_begin_a_step_ends_the_process(
    benches: tuple[CudaBench, CudaBench], ends: tuple[Connection, Connection]
) -> None:
    """Before this one's device is asked, which would wait for it without end."""
    leading = led_by(benches[0], ends[0], 0.05)
    step = leading.launch(a_batch(), greedy_inputs(a_batch(), VOCAB))
    with pytest.raises(Lost, match="no answer for"):
        step.wait()


def test_a_rank_that_fails_alone_ends_the_process(leading: LeadingSampler, ends: tuple[Connection, Connection]) -> None:
    ends[1].send_bytes(encode(CommandDone()))
    leading.forward(a_batch())
    step = leading.launch(a_batch(), greedy_inputs(a_batch(), VOCAB))
    ends[1].send_bytes(encode(Failed("MemoryError()")))
    with pytest.raises(Lost, match=r"rank 1 .*MemoryError"):
        step.wait()


def broken(*given: object) -> NoReturn:
    raise RuntimeError("out of memory")


def test_a_step_that_breaks_off_in_rank_0_ends_the_process(
    leading: LeadingSampler, benches: tuple[CudaBench, CudaBench], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(benches[0].driver, "_forward", broken)
    with pytest.raises(Lost, match="a step failed in rank 0 of the model: RuntimeError"):
        leading.forward(replace(a_batch(), hidden_rows=np.arange(1)))


def test_a_follower_whose_step_breaks_off_ends(
    leading: LeadingSampler, benches: tuple[CudaBench, CudaBench], ends: tuple[Connection, Connection],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Rank 0 waits in a reduction, and only the follower's end frees it."""
    leading.launch(a_batch(), greedy_inputs(a_batch(), VOCAB))
    monkeypatch.setattr(benches[1].driver, "_forward", broken)
    with pytest.raises(RuntimeError, match="out of memory"):
        follow(benches[1].driver, unused(), ends[1])
    assert not ends[0].poll()


def test_adapters_are_refused_before_anything_is_said(
    leading: LeadingSampler, ends: tuple[Connection, Connection]
) -> None:
    batch = a_batch()
    adapted = replace(batch, spans=[batch.spans[0]._replace(adapter="a")])
    with pytest.raises(ValueError, match="has no adapters"):
        leading.forward(adapted)
    assert not ends[1].poll()
