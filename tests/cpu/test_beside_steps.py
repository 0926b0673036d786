"""What goes on beside the steps of a device: pages that leave and come back, and a draft model's own stream."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import numpy as np
import pytest
from cuda_bench import CudaBench
from families import VOCAB
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from inferd.protocol import Sampling
from inferd_runtime.draft_models.draft_host import DraftHost
from inferd_runtime.draft_models.messages import AskDraft, DraftAnswer, DraftSpec
from inferd_runtime.engine.driver import Driver
from inferd_runtime.engine.drivers.cuda_driver import GATHERED
from inferd_runtime.engine.engine import Engine, EngineOptions
from inferd_runtime.engine.sampling.device_sampling import host_inputs
from inferd_runtime.engine.sampling.host_sampling import RowSampler
from inferd_runtime.engine.scheduling.costs import _batch
from inferd_runtime.kernels.suite import reference_kernels
from inferd_runtime.kv.table import PageCopy
from inferd_runtime.testing.recorded_host import RecordedHost

PROMPT = [3, 9, 4, 1, 7, 7, 2]
VIEWS = ("aten.detach.default", "aten.to.dtype_layout", "aten.resolve_conj.default", "aten.resolve_neg.default")
"""What ``Tensor.numpy`` does to memory of the host."""


@pytest.fixture(scope="module")
def bench() -> CudaBench:
    return CudaBench("llama", reference_kernels())


# -- Draft models -----------------------------------------------------------------------------------------------------


def drafted(driver: Driver, sampler: RowSampler, *, width: int = VOCAB, probabilities: bool = False) -> DraftAnswer:
    """What a draft model writes behind a prompt."""
    answers: list[DraftAnswer] = []
    host = DraftHost(Engine(driver, EngineOptions(token_budget=64)), ())
    spec = DraftSpec("tenant", sampler, width, probabilities, prompt=len(PROMPT))
    host.ask("client", AskDraft(1, 0, PROMPT, 8, spec=spec), answers.append)
    while not answers:
        assert host.step()
    host.close()
    return answers[0]


@pytest.mark.parametrize("sampling", [
    Sampling(), Sampling(0.9), Sampling(0.8, top_k=20, top_p=0.9),
    Sampling(0.7, repetition_penalty=1.3, bias_tokens=[5, VOCAB - 1], bias_values=[2.0, 50.0]), Sampling(0.8, typical_p=0.7),
], ids=["argmax", "warm", "filtered", "penalised", "the host's"])  # fmt: skip
@pytest.mark.parametrize("width", [VOCAB, VOCAB - 5])
def test_a_draft_model_draws_on_the_device_what_it_draws_on_the_host(
    bench: CudaBench, sampling: Sampling, width: int
) -> None:
    sampler = RowSampler.resolve(sampling, seed=4, lineage=0)
    here, there = (drafted(driver, sampler, width=width) for driver in (bench.reference, bench.driver))
    assert there.tokens == here.tokens
    assert max(there.tokens) < width
    assert all(0 < chance <= 1 for chance in there.confidence)
    if sampling.top_k == 0:
        # What filters take out counts on the device.
        assert there.confidence == pytest.approx(here.confidence, rel=1e-2)


def test_no_logits_come_to_the_host_for_drafts_but_for_distributions(
    bench: CudaBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows: list[int] = []
    launch = bench.driver.launch
    monkeypatch.setattr(
        bench.driver, "launch", lambda batch, inputs: rows.append(len(inputs.host_rows)) or launch(batch, inputs)
    )
    sampler = RowSampler.resolve(Sampling(0.9), seed=4, lineage=0)
    drafted(bench.driver, sampler)
    assert sum(rows) == 0
    answer = drafted(bench.driver, sampler, probabilities=True)
    assert sum(rows) == len(answer.tokens) == 8
    assert len(answer.probabilities) == 8 * VOCAB * 4


# -- The stream -------------------------------------------------------------------------------------------------------


class EnteredHost(RecordedHost):
    """Counts how often it has been entered: on a device what is queued outside goes to another stream."""

    def __init__(self) -> None:
        super().__init__()
        self.entered = 0

    def active(self) -> AbstractContextManager[object]:
        @contextmanager
        def entered() -> Iterator[None]:
            self.entered += 1
            yield
            self.entered -= 1

        return entered()


class Outside(TorchDispatchMode):
    """Notes operations of which nobody said on which device they are."""

    def __init__(self, host: EnteredHost) -> None:
        super().__init__()
        self.host = host
        self.found: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        if not self.host.entered and str(func) not in VIEWS:
            self.found.append(str(func))
        return func(*args, **(kwargs or {}))


def test_all_work_of_a_driver_is_queued_on_its_own_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cuda_bench.RecordedHost", EnteredHost)
    bench = CudaBench("llama", reference_kernels())
    driver = bench.driver
    with Outside(bench.host) as outside:
        for batch in (_batch(driver, [1, 1], 5), _batch(driver, [20], 0)):
            driver.launch(batch, host_inputs(len(batch.logit_rows), VOCAB)).wait()
        driver.copy_pages([PageCopy(0, 9)])
        driver.move_tokens([1, 2], [8, 9])
        driver.write_pages([3, 4], driver.read_pages([1, 2]))
        driver.record_all()
    assert not outside.found
    assert bench.host.entered == 0


# -- Pages ------------------------------------------------------------------------------------------------------------


class LateHost(RecordedHost):
    """Pages arrive when somebody waits for them. ``waited``: how often."""

    waited = 0

    def fetch(self, parts: Iterable[Tensor], size: int) -> Callable[[], Tensor]:
        arrived = super().fetch(parts, size)

        def wait() -> Tensor:
            self.waited += 1
            return arrived()

        return wait


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> CudaBench:
    monkeypatch.setattr("cuda_bench.RecordedHost", LateHost)
    return CudaBench("llama", reference_kernels())


def test_pages_go_out_and_come_in_by_parts(bench: CudaBench) -> None:
    pages = list(range(2 * GATHERED + 3))
    data = np.random.default_rng(0).integers(0, 50, (len(pages), bench.driver.page_bytes)).astype(np.uint8)
    bench.driver.write_pages(pages, data)
    assert np.array_equal(bench.driver.read_pages(pages), data)
    assert np.array_equal(bench.driver.read_pages(pages[::-2]), data[::-2])
    assert bench.driver.read_pages([]).shape == (0, bench.driver.page_bytes)


def test_what_is_written_after_the_reading_began_is_not_read(late: CudaBench) -> None:
    driver, size = late.driver, late.driver.page_bytes
    driver.write_pages([2], np.full((1, size), 1, np.uint8))
    arrived = driver.start_reading([2])
    driver.write_pages([2], np.full((1, size), 2, np.uint8))
    assert (arrived() == 1).all()


def test_a_context_is_parked_without_a_wait_for_its_pages(late: CudaBench) -> None:
    engine = Engine(late.driver, EngineOptions(token_budget=64))
    context = engine.create_context()
    context.append(PROMPT)
    context.reserve(len(PROMPT))
    context.table.advance(len(PROMPT))
    before = late.driver.read_pages(context.table.pages)
    waited = late.host.waited
    context.park()
    engine.check_integrity()
    other = context.fork()
    other.release()
    assert late.host.waited == waited
    assert engine.parking.used == before.nbytes
    context.unpark()
    assert late.host.waited == waited + 1
    used = np.array_equal(late.driver.read_pages(context.table.pages), before)
    assert used
    assert engine.parking.used == 0
    context.release()
