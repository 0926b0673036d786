"""The step loop: plan, prepare, forward, verify, commit. A driver that samples does the middle part on its device."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from inferd.protocol import InferdError, InternalError
from inferd_runtime.engine.driver import Driver, Launched, SamplingDriver, StepResult
from inferd_runtime.engine.fixed_width import widen
from inferd_runtime.engine.job import Job, Planned
from inferd_runtime.engine.jobs.boundary import JobBoundary
from inferd_runtime.engine.overlap import DeferredForward, InFlightStep, OverlapPlanner, attempt
from inferd_runtime.engine.prepare import prepare
from inferd_runtime.engine.sampling.device_sampling import SampledTokens, is_sampled, read_sampled, sampling_inputs
from inferd_runtime.engine.sampling.host_sampling import LogitRows, RowSampler, draw
from inferd_runtime.engine.sampling.rejection import reject
from inferd_runtime.engine.scheduling.draft_budget import DraftBudget, StepPrice
from inferd_runtime.engine.scheduling.fairness import StepCost
from inferd_runtime.engine.scheduling.scheduler import Scheduler
from inferd_runtime.engine.scheduling.tenants import Accounts, Tenancy
from inferd_runtime.engine.sequences.cached_sequence import CachedSequence, SequenceSet
from inferd_runtime.engine.sequences.parking import ParkingSpace
from inferd_runtime.engine.stages import Verified, Work
from inferd_runtime.kv.pool import PagePool
from inferd_runtime.models.batch import FloatRows
from inferd_runtime.speculation.drafts import ROOT
from inferd_runtime.speculation.times import StepTimes


@dataclass(frozen=True)
class EngineOptions:
    """``token_budget``: tokens per step. ``swap_bytes``: host memory for pages of contexts that had to leave the cache.

    ``fixed_rows``: every sequence feeds that many rows in each step, drafted or not, and drafts are as long as fits (0: as many
    as it needs). Where the driver's arithmetic allows it, drafts then change no bit of any logit; each step costs what the
    longest draft does. Trees and explicit positions keep their own number.

    ``overlap``: where the driver samples, the next step is launched while one runs (:mod:`~inferd_runtime.engine.overlap`).
    """

    token_budget: int = 512
    swap_bytes: int = 256 << 20
    tenancy: Tenancy = field(default_factory=Tenancy)
    cost: StepCost = field(default_factory=StepCost)
    fixed_rows: int = 0
    times: StepTimes = field(default_factory=lambda: StepTimes.linear(1e-3, 1e-5))
    overlap: bool = True


class Engine:
    """One model on one device: its page pool, its jobs, and the loop that serves them. Owned by one thread."""

    def __init__(self, driver: Driver, options: EngineOptions | None = None) -> None:
        options = options or EngineOptions()
        accounts = Accounts(options.tenancy)
        self.driver = driver
        self._width = options.fixed_rows
        self.pool = PagePool(driver.pages - (self._width > 0), driver.page_size)
        self.parking = ParkingSpace(driver, options.swap_bytes)
        self.contexts = SequenceSet(
            self.pool, self.parking, accounts, vocab_size=driver.vocab_size, max_length=driver.max_context
        )
        self.speculation = DraftBudget(options.times, most=max(1, self._width - 1) if self._width else None)
        self.scheduler = Scheduler(
            self.contexts, accounts, self.speculation.allocate, token_budget=options.token_budget, cost=options.cost
        )
        self._sampler = driver if isinstance(driver, SamplingDriver) else None
        self._run_ahead = (
            OverlapPlanner(self.scheduler, self.pool) if options.overlap and self._sampler is not None else None
        )
        self._behind: InFlightStep | None = None
        self.steps = 0

    def create_context(self, tenant: str = "") -> CachedSequence:
        """An empty root context of a tenant."""
        return self.contexts.create(tenant)

    def submit(self, job: Job) -> None:
        """Let a job take part from the next step on."""
        self.scheduler.add(job)

    def check_integrity(self) -> None:
        """Re-add who holds which page. Raises AssertionError when one leaks."""
        self.contexts.check_integrity()

    def step(self) -> bool:
        """Take a step to its end, and set off the one behind it before where that can be. False when nobody wanted anything."""
        flight = self._behind or self._launch(self.scheduler.plan)
        if flight is None:
            return False
        self._behind = None if self._run_ahead is None else self._launch(partial(self._run_ahead.plan, flight))
        self._land(flight)
        return True

    def close(self) -> None:
        """Wait for the step that is on its way, if one is."""
        flight, self._behind = self._behind, None
        if flight is not None:
            self._land(flight)

    def _launch(self, make: Callable[[], list[Planned]]) -> InFlightStep | None:
        """Plan a step and set it off. None when nobody wants anything."""
        started = time.perf_counter()
        plan = make()
        return InFlightStep(plan, attempt(partial(self._forward, plan)), started) if plan else None

    def _forward(self, plan: Sequence[Planned]) -> Launched:
        """Start the planned step; the device draws if it can."""
        batch = prepare(plan, self.driver.page_size)
        if self._width:
            batch = widen(batch, self._width, self.pool.size, self.driver.page_size)
        if self._sampler is None:
            return DeferredForward(self.driver, batch)
        return self._sampler.launch(batch, sampling_inputs(plan, self.driver.vocab_size))

    def _land(self, flight: InFlightStep) -> None:
        """Wait for a step, and hand out what it brought. Its jobs fail if the device did."""
        self.steps += 1
        result = flight.wait()
        if isinstance(result, InternalError):
            abandon(flight.plan, result)
        else:
            price = self.speculation.price(flight.plan)
            emitted = commit(flight, result, self.driver, price)
            self.speculation.settle(flight.plan, price, emitted, time.perf_counter() - flight.since)
        if self._behind is not None:
            self._behind.since = time.perf_counter()


def commit(flight: InFlightStep, result: StepResult, driver: Driver, price: StepPrice | None = None) -> int:
    """Verify every job's rows, and hand the outcomes over; how many tokens were sampled. A job that cannot take its outcome
    fails alone. What is not wanted any more is thrown away: its K and V stand behind what counts.
    """
    verified = outcomes(flight, result, price)
    compact([(flight.plan[at], done) for at, done in verified], driver)
    for at, done in verified:
        item = flight.plan[at]
        # The job may have failed over its moves, or been ended by what another one's outcome set off.
        if not flight.stands(at):
            item.table.trim()
            continue
        with JobBoundary(item.job):
            keep(item, done)
            item.job.commit(done)
            item.table.publish(item.job.context.tokens)
    return sum(len(done.tokens) for _, done in verified)


def outcomes(flight: InFlightStep, result: StepResult, price: StepPrice | None = None) -> list[tuple[int, Verified]]:
    """The planned jobs, by their number, that a step brings something, and what."""
    verified: list[tuple[int, Verified]] = []
    for at, share in enumerate(shares(flight.plan, result)):
        if not flight.stands(at):
            share.item.table.trim()
            continue
        with JobBoundary(share.item.job):
            done = outcome(share)
            verified.append((at, done if price is None else price.note(done)))
    return verified


class JobResult(NamedTuple):
    """What a step brought one planned job: ``logits`` float32[rows, V], and ``hidden`` float32[hidden, E] where wanted; or,
    where the device drew, all that was ``drawn``, and the job's place in it.
    """

    item: Planned
    logits: LogitRows
    hidden: FloatRows | None
    drawn: SampledTokens | None = None
    at: int = 0


def shares(plan: Sequence[Planned], result: StepResult) -> Iterator[JobResult]:
    """Each planned job's share."""
    (logits, hidden), drawn = result
    first = taken = at = 0
    for item in plan:
        rows, states = item.work.rows, item.work.hidden
        mine = hidden[taken : taken + states] if states else None
        taken += states
        if drawn is not None and rows and is_sampled(item.work):
            yield JobResult(item, logits[:0], mine, drawn, at)
            at += 1
        else:
            yield JobResult(item, logits[first : first + rows], mine)
            first += rows


def outcome(share: JobResult) -> Verified:
    """What came of it: as the device drew, or as the host does now."""
    item, logits, _, drawn, at = share
    done = verify(item, logits) if drawn is None else read_sampled(item.work, drawn, at)
    return done if share.hidden is None else done._replace(hidden=share.hidden)


def verify(item: Planned, logits: LogitRows) -> Verified:
    """Agreement: sample row after row while the sample is one of the draft's tokens there; the first that is not ends it.

    Every emitted token is a sample of the target from its own row, with its own history, mask and position. So the
    output is what it would be without a draft, for any sampler and any deterministic draft.
    """
    work = item.work
    if work.sampler is None:
        return Verified(work, (), (), logits)
    position = root(item)
    if work.draft.probabilities is not None:
        return _reject(work, work.sampler, position, logits)
    tokens: list[int] = []
    path: list[int] = []
    node = ROOT
    while True:
        mask = None if work.masks is None else work.masks[node + 1]
        entries = None if work.adjustments is None else work.adjustments[node + 1]
        tokens.append(draw(logits[node + 1], work.sampler, position + len(path), mask, entries))
        node = work.draft.child(node, tokens[-1])
        if node == ROOT:
            return Verified(work, tokens, path, logits)
        path.append(node)


def _reject(work: Work, sampler: RowSampler, position: int, logits: LogitRows) -> Verified:
    """The other verifier, for drafts that come with the probabilities they were drawn with."""
    draft = work.draft
    tokens = [*draft.tokens, draft.refused] if draft.refused >= 0 else draft.tokens
    probabilities = None if draft.probabilities is None else draft.probabilities[: len(tokens)]
    emitted = reject(logits, work.masks, sampler, position, tokens, probabilities, work.adjustments)
    return Verified(work, emitted, range(len(emitted) - 1), logits)


def compact(verified: Sequence[tuple[Planned, Verified]], driver: Driver) -> None:
    """Move the accepted paths of all trees of a step to where they belong, in one call: on a device each has its price, however
    little it moves. Before any table counts them or anybody may find them. If the device fails, the jobs end whose paths
    these are.
    """
    moving: list[Job] = []
    ends: list[tuple[int, int]] = []
    for item, done in verified:
        with JobBoundary(item.job):
            own = moves(item, done)
            if own:
                moving.append(item.job)
                ends += own
    if moving:
        failed = attempt(partial(driver.move_tokens, *zip(*ends, strict=True)), "moving accepted tokens")
        if failed is not None:
            for job in moving:
                job.fail(failed)


def moves(item: Planned, done: Verified) -> list[tuple[int, int]]:
    """From which slot to which the accepted nodes go that stand elsewhere than in a chain."""
    path, first, slot = done.path, root(item), item.table.slot
    if not path or path[-1] == len(path) - 1:
        return []
    return [(slot(first + node), slot(first + at)) for at, node in enumerate(path) if node != at]


def keep(item: Planned, done: Verified) -> None:
    """Count what the step computed and what stays of it, which :func:`compact` has moved to where it belongs."""
    item.table.advance(root(item) - item.table.length + len(done.path))


def root(item: Planned) -> int:
    """The index in its context behind the tokens that a job feeds: where its draft begins."""
    return item.table.length + len(item.work.tokens) - len(item.work.draft.tokens)


def abandon(plan: Sequence[Planned], error: InferdError) -> None:
    """End every job of a step that could not run."""
    for item in plan:
        item.job.fail(error)
