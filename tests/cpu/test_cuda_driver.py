"""The fast driver's logic without a device: recorded steps and sampling beside the reference driver and the host's sampler."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from cuda_bench import MOST_ROWS, PAGE_SIZE, SAMPLERS, CudaBench, answered, requests_of, run
from families import FAMILIES, VOCAB
from triton.compiler.errors import CompilationError
from triton.runtime.errors import OutOfResources

from inferd_grammar import GrammarCompiler, RegexGrammar, TokenTable
from inferd_runtime.engine.driver import Driver
from inferd_runtime.engine.drivers.buckets import StepShapes
from inferd_runtime.engine.drivers.build import (
    DriverOptions,
    build_driver,
    fast_driver,
    logit_difference,
    measured_step_bytes,
    step_bytes,
)  # fmt: skip
from inferd_runtime.engine.drivers.captured import ResultSlot
from inferd_runtime.engine.job import Planned
from inferd_runtime.engine.prepare import prepare
from inferd_runtime.engine.sampling.device_sampling import greedy_inputs, host_inputs, sampling_inputs
from inferd_runtime.engine.sampling.host_sampling import RowSampler
from inferd_runtime.engine.sampling.penalties import Entries
from inferd_runtime.engine.scheduling import costs
from inferd_runtime.engine.scheduling.costs import MEASURED_ROWS, _batch, measure_times
from inferd_runtime.engine.stages import Work
from inferd_runtime.kernels.attention import paged_attention
from inferd_runtime.kernels.failures import kernel_failures
from inferd_runtime.kernels.suite import reference_kernels, triton_kernels
from inferd_runtime.kv.pool import PagePool
from inferd_runtime.kv.table import PageTable
from inferd_runtime.models.batch import Placement
from inferd_runtime.models.loading import load
from inferd_runtime.models.passes.fused import fuse
from inferd_runtime.speculation.drafts import Proposal
from inferd_runtime.speculation.times import StepShape
from inferd_runtime.testing.byte_tokenizer import END, ByteTokenizer
from inferd_runtime.testing.recorded_host import RecordedHost
from inferd_runtime.testing.speculation import Blind, BlindTree, Guesser, Oracle, OracleTree, Wrong

TOLERANCE = 1e-4
BYTES = 260
GROUPS = (
    {"num_attention_heads": 6, "num_key_value_heads": 2, "hidden_size": 42},
    {"num_attention_heads": 7, "num_key_value_heads": 1, "hidden_size": 42},
)
SHAPES = ([1, 1, 1], [16, 1, 1, 1], [20, 1, 3], [40, 1, 17, 1])


@pytest.fixture(scope="module", params=FAMILIES)
def bench(request: pytest.FixtureRequest) -> CudaBench:
    return CudaBench(request.param, reference_kernels())


@pytest.fixture(scope="module")
def llama() -> CudaBench:
    return CudaBench("llama", reference_kernels())


@pytest.mark.parametrize("counts", SHAPES, ids=str)
def test_logits_are_the_reference_drivers(bench: CudaBench, counts: list[int]) -> None:
    """Twice, with other tokens and pages: what a recording has frozen would show."""
    for seed, context in ((0, 7), (1, 21)):
        batch = _batch(bench.driver, counts, context)
        past = _batch(bench.driver, [context] * len(counts), 0)
        spans = [replace_pages(one, at.pages) for one, at in zip(past.spans, batch.spans, strict=True)]
        slots = np.concatenate([np.asarray(span.pages)[np.arange(context) // PAGE_SIZE] for span in spans]) * PAGE_SIZE
        tokens = np.random.default_rng(seed).integers(0, VOCAB, len(past.tokens) + len(batch.tokens))
        past = replace(past, spans=spans, slots=slots + past.positions % PAGE_SIZE, tokens=tokens[: len(past.tokens)])
        batch = replace(batch, tokens=tokens[len(past.tokens) :])
        for driver in (bench.driver, bench.reference):
            feed_in_parts(driver, past)
        got, expected = bench.driver.forward(batch).logits, bench.reference.forward(batch).logits
        assert np.abs(got - expected).max() < TOLERANCE


def replace_pages(span, pages):  # type: ignore[no-untyped-def]
    return span._replace(pages=pages)


def feed_in_parts(driver: Driver, batch) -> None:  # type: ignore[no-untyped-def]
    """Sequence by sequence."""
    for span in batch.spans:
        rows = slice(span.first, span.first + span.count)
        part = replace(
            batch, tokens=batch.tokens[rows], positions=batch.positions[rows], slots=batch.slots[rows],
            logit_rows=np.asarray([span.count - 1]), spans=[span._replace(first=0)],
        )  # fmt: skip
        driver.forward(part)


# -- Generations ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SAMPLERS)
def test_tokens_are_the_reference_drivers_with_any_draft(llama: CudaBench, name: str) -> None:
    requests = answered(llama.reference, requests_of(name, 6))
    replays = llama.host.replays
    for drafters in ([None] * 6, [Oracle, OracleTree, Blind, BlindTree, Wrong, None]):
        run(llama.driver, requests, drafters)
    assert llama.host.replays > replays + 20


def test_tokens_of_other_families(bench: CudaBench) -> None:
    requests = answered(bench.reference, requests_of("filtered", 3))
    run(bench.driver, requests, [OracleTree, Oracle, None])


def test_masked_rows() -> None:
    """A grammar's masks reach the device, and only the rows that they are for."""
    bench = CudaBench("llama", reference_kernels(), vocab_size=BYTES)
    table = TokenTable.from_tokenizer_json(ByteTokenizer.tokenizer_json(), vocab_size=BYTES, eos_ids=[END])
    grammar = GrammarCompiler(table).compile(RegexGrammar(r"[a-d]{3,6}=(x|yy|[0-4]{2})"))
    plain, masked = requests_of("filtered", 2), requests_of("argmax", 2, grammar)
    requests = [replace(request, eos=END) for request in (*plain, *masked)]
    run(bench.driver, answered(bench.reference, requests), [Oracle, None, Oracle, None])


def test_prompts_beside_decode_rows_are_replayed() -> None:
    """In shapes of their own, with long sequences cut into splits; also where rows draft meanwhile."""
    bench = CudaBench("llama", reference_kernels(), split_keys=64, most_rows=160)
    long = [replace(one, prompt=(*one.prompt, *range(10, 40))) for one in requests_of("filtered", 4)]
    run(bench.driver, answered(bench.reference, long), [Oracle, OracleTree, None, Blind])
    assert max(shape.prompt_tiles for shape in bench.driver._recorded) > 0
    for counts in ([100, 1, 1], [40, 20, 3, 1], [17]):
        batch = _batch(bench.driver, counts, 60)
        read = np.asarray([span.first + span.count - 1 for span in batch.spans])
        batch = replace(batch, logit_rows=read, tokens=np.arange(len(batch.tokens)) % VOCAB)
        for driver in (bench.driver, bench.reference):
            feed_in_parts(driver, _batch(driver, [60] * len(counts), 0))
        replays = bench.host.replays
        got, expected = bench.driver.forward(batch).logits, bench.reference.forward(batch).logits
        assert bench.host.replays == replays + 2, "forward and sampling"
        assert np.abs(got - expected).max() < TOLERANCE


def test_without_recording_the_tokens_are_the_same() -> None:
    bench = CudaBench("qwen3", reference_kernels(), record=False)
    requests = answered(bench.reference, requests_of("filtered", 3))
    run(bench.driver, requests, [OracleTree, Oracle, None])
    assert bench.host.recordings == 0


# -- What is not for kernels ------------------------------------------------------------------------------------------


def test_a_mask_that_is_no_tree_goes_through_the_reference(llama: CudaBench) -> None:
    batch = _batch(llama.driver, [3, 1], 9)
    visible = np.tril(np.ones((3, 12), np.bool_), 9)
    visible[2, 4] = False
    batch = replace(batch, placements={0: Placement(np.arange(12), visible)})
    for driver in (llama.driver, llama.reference):
        feed_in_parts(driver, _batch(driver, [9, 9], 0))
    before = llama.host.replays
    got, expected = llama.driver.forward(batch).logits, llama.reference.forward(batch).logits
    assert np.abs(got - expected).max() < TOLERANCE
    assert llama.host.replays == before


@pytest.mark.parametrize("kind", [RuntimeError, OutOfResources])
def test_steps_that_cannot_be_recorded_run_all_the_same_and_no_other_is_tried(
    monkeypatch: pytest.MonkeyPatch, kind: type[Exception]
) -> None:
    bench = CudaBench("llama", reference_kernels())
    tried = []

    def refuse(body: object) -> None:
        tried.append(body)
        raise (
            RuntimeError("not permitted when stream is capturing") if kind is RuntimeError else kind(9, 8, "registers")
        )

    monkeypatch.setattr(bench.host, "record", refuse)
    requests = answered(bench.reference, requests_of("argmax", 2))
    run(bench.driver, requests, [None, Oracle])
    assert bench.driver.record_all() == 0
    assert len(tried) == 1


def test_all_recorded_steps_leave_their_logits_in_one_place() -> None:
    bench = CudaBench("llama", reference_kernels(), most_rows=32)
    bench.driver.record_all()
    outputs = [one.outputs for one in bench.driver._recorded.values() if one is not None]
    assert len(outputs) > 5
    assert len({one.logits.untyped_storage().data_ptr() for one in outputs}) == 1


def test_a_kernel_that_does_not_compile_is_measured_and_served_without(caplog: pytest.LogCaptureFixture) -> None:
    def broken(*arguments: object) -> None:
        raise CompilationError(None, None, "no such operation")

    loaded, host = load("tiny"), RecordedHost()
    options = DriverOptions(pages=1000, page_size=16, most_rows=20, plain=True)
    kernels = reference_kernels()._replace(sample=broken)
    assert measured_step_bytes(loaded, None, options, kernels, host) == 0
    assert "measured without kernels: CompilationError" in caplog.text
    driver = fast_driver(loaded, None, options, kernels, host)
    with pytest.raises(kernel_failures()):
        logit_difference(driver, driver.plain)


def test_too_many_steps_in_flight_are_refused(llama: CudaBench) -> None:
    batch = _batch(llama.driver, [1], 3)
    steps = [llama.driver.launch(batch, host_inputs(1, VOCAB)) for _ in range(2)]
    with pytest.raises(RuntimeError, match="2 steps are in flight"):
        llama.driver.launch(batch, host_inputs(1, VOCAB))
    assert all(len(step.wait().outputs.logits) == 1 for step in steps)
    llama.driver.forward(batch)


def test_a_step_that_is_too_large_is_refused(llama: CudaBench) -> None:
    with pytest.raises(ValueError, match=f"was made for {MOST_ROWS}"):
        llama.driver.forward(_batch(llama.driver, [MOST_ROWS + 1], 0))


# -- Recording --------------------------------------------------------------------------------------------------------


def test_one_recording_serves_every_step_of_its_shape(llama: CudaBench) -> None:
    llama.driver.forward(_batch(llama.driver, [1, 1, 1, 1], 5))
    recordings = llama.host.recordings
    for context in (6, 9, 30):
        llama.driver.forward(_batch(llama.driver, [1, 1, 1], context))
    assert llama.host.recordings == recordings


def test_recording_leaves_the_cache_as_it_is() -> None:
    bench = CudaBench("llama", reference_kernels())
    pages = list(range(bench.driver.pages))
    bench.driver.write_pages(pages, np.full((len(pages), bench.driver.page_bytes), 1, np.uint8))
    before = bench.driver.read_pages(pages)
    batch = _batch(bench.driver, [1, 1], 6)
    bench.driver.forward(batch)
    changed = np.flatnonzero((bench.driver.read_pages(pages) != before).any(axis=1))
    assert changed.tolist() == sorted({int(slot) // PAGE_SIZE for slot in batch.slots})


def test_a_wait_for_the_device_cannot_be_recorded(llama: CudaBench) -> None:
    number = torch.tensor(3.0)
    with pytest.raises(RuntimeError, match=r"waits for aten\._local_scalar_dense"):
        llama.host.record(lambda: number.item())


def test_what_is_decided_on_the_host_is_frozen() -> None:
    """The recorder shows what a CUDA graph would do to a step that reads a Python number."""
    bench = CudaBench("llama", reference_kernels())
    box, source = [1.0], torch.ones(2)
    replay, result = bench.host.record(lambda: source * box[0])
    box[0] = 5.0
    source.fill_(2.0)
    replay()
    assert result.tolist() == [2.0, 2.0]


# -- Built from a loaded model ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kv_dtype", ["", "fp8"])
def test_the_embedded_model_through_the_fast_driver(kv_dtype: str) -> None:
    """The fused decoder over kernels, as it is built for a device, beside the reference on the same cache."""
    loaded = load("tiny")
    fused = fuse(loaded.module, loaded.probe.kv, loaded.probe.rules)
    options = DriverOptions(pages=64, page_size=16, most_rows=64, kv_dtype=kv_dtype)
    driver = fast_driver(loaded, fused, options, reference_kernels(), RecordedHost())
    assert logit_difference(driver, driver.plain) <= 1e-3
    assert driver.page_bytes == build_driver(loaded, options).page_bytes


def test_a_driver_that_computes_something_else_is_found() -> None:
    bench = CudaBench("llama", reference_kernels())
    wrong = CudaBench("llama", reference_kernels()._replace(paged_attention=blind_attention))
    assert logit_difference(bench.driver, bench.reference) <= 1e-3
    assert logit_difference(wrong.driver, wrong.reference) > 0.2


def blind_attention(query, keys, values, rows, rule):  # type: ignore[no-untyped-def]
    """Sees one key too few."""
    shorter = replace(rows, lengths=(rows.lengths - 1).clamp(min=1), tails=(rows.tails - 1).clamp(min=1))
    return paged_attention(query, keys, values, shorter, rule)


def test_what_steps_take_is_measured_with_the_largest_one() -> None:
    loaded = load("tiny")
    host = RecordedHost()
    options = DriverOptions(pages=1000, page_size=16, most_rows=20, plain=True)
    kernels = reference_kernels()
    rows: list[int] = []
    counting = kernels._replace(sample=lambda logits, one: rows.append(len(logits)) or kernels.sample(logits, one))
    assert measured_step_bytes(loaded, None, options, counting, host) == 0
    assert max(rows) == 20
    assert host.recordings == 2 * len(StepShapes(20, 256).recorded())
    assert step_bytes(loaded, options) == 0


def test_recording_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long it takes, the cost model gets all of its points."""
    bench = CudaBench("llama", reference_kernels(), most_rows=MEASURED_ROWS)
    clock = [0.0]
    monkeypatch.setattr(costs.time, "perf_counter", lambda: clock[0])
    record, launch = bench.host.record, bench.driver.launch

    def slow_record(body):  # type: ignore[no-untyped-def]
        clock[0] += 100.0
        return record(body)

    def timed_launch(batch, sampling):  # type: ignore[no-untyped-def]
        clock[0] += 1e-6 * (10 + len(batch.tokens))
        return launch(batch, sampling)

    monkeypatch.setattr(bench.host, "record", slow_record)
    monkeypatch.setattr(bench.driver, "launch", timed_launch)
    times = measure_times(bench.driver, limit=0.002)
    assert bench.host.recordings > 3
    assert times.time(StepShape(1, 9, 25)) == pytest.approx(19e-6, rel=0.05)


def test_tokens_through_tritons_kernels() -> None:
    """All of them together, in the interpreter: prompts, decode rows, chains, trees."""
    bench = CudaBench("qwen3", triton_kernels(), record=False, split_keys=16)
    requests = [replace(request, max_tokens=4) for request in requests_of("filtered", 3)]
    run(bench.driver, answered(bench.reference, requests), [OracleTree, Oracle, None])


class Sampled(Guesser):
    """Draws its guesses, as a draft model would, from distributions that it passes on."""

    looks_ahead = False

    def propose(self, limit: int, ahead: Sequence[int] = ()) -> Proposal:
        chance = np.random.default_rng(self.seen)
        rows = chance.dirichlet(np.full(self.vocab, 0.3), size=min(limit, 3)).astype(np.float32)
        right = self.right(limit, ahead)[: len(rows)]
        rows[np.arange(len(right)), right] += 1.0
        rows /= rows.sum(axis=1, keepdims=True)
        return Proposal(
            [int(chance.choice(self.vocab, p=row / row.sum())) for row in rows.astype(float)], probabilities=rows
        )


@pytest.mark.parametrize("name", SAMPLERS)
def test_sampled_drafts_are_verified_on_the_device(llama: CudaBench, name: str) -> None:
    """As the host would: the same tokens stand and the same are drawn, with grammar-free samplers of every kind beside."""
    requests = answered(llama.reference, requests_of(name, 4))
    unknown = [replace(request, finish="") for request in requests]
    drafters = [Sampled, None, Sampled, Oracle]
    expected, got = (run(driver, unknown, drafters) for driver in (llama.reference, llama.driver))
    assert [one.tokens for one in got] == [one.tokens for one in expected]
    assert sum(one.accepted for one in got) > 2


# -- What a review found ----------------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("heads", GROUPS, ids=["3 to 1", "7 to 1"])
def test_prompts_are_whole_where_heads_are_grouped_by_no_power_of_two(heads: dict[str, int]) -> None:
    bench = CudaBench("llama", triton_kernels(), record=False, **heads)
    assert logit_difference(bench.driver, bench.reference) <= 1e-3


def test_a_driver_that_leaves_a_tenth_of_a_prompt_out_is_found() -> None:
    def some_rows_only(query, keys, values, rows, rule):  # type: ignore[no-untyped-def]
        out = paged_attention(query, keys, values, rows, rule)
        out[::6] = 0
        return out

    wrong = CudaBench("llama", reference_kernels()._replace(paged_attention=some_rows_only))
    assert logit_difference(wrong.driver, wrong.reference) > 0.2


def test_penalties_hold_beside_positions_of_a_programs_own(llama: CudaBench) -> None:
    """The whole step goes through the reference then, and still draws as it was told to."""
    sampler = RowSampler.resolve(SAMPLERS["penalised"], seed=3, lineage=0)
    entries = Entries(np.asarray([5]), np.ones(1, np.float32), np.asarray([100.0], np.float32))
    pool = PagePool(8, PAGE_SIZE)
    table = PageTable(pool)
    table.reserve(3)
    table.advance(2)
    odd = Placement(np.asarray([0, 1, 7]), np.asarray([[True, False, True]]))
    work = Work([11], 1, sampler=sampler, placement=odd, adjustments=[entries])
    plan = [Planned(None, work, table)]  # type: ignore[arg-type]
    sampling = sampling_inputs(plan, VOCAB)
    assert llama.driver._needs_reference(prepare(plan, PAGE_SIZE))
    drawn = llama.driver.launch(prepare(plan, PAGE_SIZE), sampling).wait().sampled
    assert drawn is not None
    assert drawn.tokens[0, 0] == 5


def test_a_step_that_fails_half_way_keeps_no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = CudaBench("llama", reference_kernels())
    batch = _batch(bench.driver, [1], 3)

    def no_memory(*arguments: object) -> None:
        raise RuntimeError("out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(bench.driver, "_reject", no_memory)
        for _ in range(3):
            with pytest.raises(RuntimeError, match="out of memory"):
                bench.driver.launch(batch, host_inputs(1, VOCAB))
    assert len(bench.driver.forward(batch).logits) == 1


def test_fillers_at_the_end_of_a_context_have_a_place_in_the_page_table() -> None:
    bench = CudaBench("llama", reference_kernels(), fixed_rows=8)
    room = len(bench.driver._columns) * PAGE_SIZE
    assert room >= bench.driver.max_context + 7


def test_the_step_behind_one_without_a_token_reads_a_token() -> None:
    """A row of nothing but NaN draws nothing; what is carried over has to be in the vocabulary all the same."""
    nothing = reference_kernels()._replace(sample=lambda logits, rows: torch.full((len(logits),), -1))
    bench = CudaBench("llama", nothing)
    bench.driver.launch(_batch(bench.driver, [1], 3), greedy_inputs(_batch(bench.driver, [1], 3), VOCAB)).wait()
    assert bench.driver._carried.last[0] >= 0


def test_many_sequences_and_one_long_draft_fit_into_a_result() -> None:
    bench = CudaBench("llama", reference_kernels(), most_rows=340)
    batch = _batch(bench.driver, [65, 1, 1], 3)
    step = bench.driver.launch(batch, greedy_inputs(batch, VOCAB)).wait()
    assert step.sampled is not None
    assert step.sampled.tokens.shape == (3, 65)
    most = ResultSlot(bench.host, 340 * (2 + 2 * 64))
    assert most.receive(torch.zeros(270, 130, dtype=torch.int32)).shape == (270, 130)


def test_a_mask_of_another_width_is_refused(llama: CudaBench) -> None:
    batch = _batch(llama.driver, [1], 3)
    sampling = replace(greedy_inputs(batch, VOCAB), masks=np.zeros((1, 1), np.int32), mask_rows=np.zeros(1, np.int32))
    with pytest.raises(ValueError, match="masks of 1 words for 97 tokens"):
        llama.driver.launch(batch, sampling)


def test_all_shapes_are_recorded_ahead() -> None:
    bench = CudaBench("llama", reference_kernels(), most_rows=32)
    assert bench.driver.record_all() == len(StepShapes(32, 256).recorded()) == bench.host.recordings // 2
    for counts in ([1], [1] * 9, [5, 1], [16, 16], [2] * 16):
        bench.driver.forward(_batch(bench.driver, counts, 3))
    assert bench.host.recordings == 2 * len(StepShapes(32, 256).recorded())
