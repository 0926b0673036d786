"""The step loop: plan, prepare, forward, verify, commit."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from inferd.protocol import InternalError
from inferd_runtime.engine.driver import Begun, Driver, Launched, SamplingDriver, StepResult
from inferd_runtime.engine.fixed_width import widen
from inferd_runtime.engine.in_flight import InFlightStep, attempt
from inferd_runtime.engine.job import Job, Planned
from inferd_runtime.engine.overlap import OverlapPlanner, complete
from inferd_runtime.engine.prepare import prepare
from inferd_runtime.engine.sampling.device_sampling import sampled_rows, sampling_inputs
from inferd_runtime.engine.scheduling.draft_budget import DraftBudget, StepPrice
from inferd_runtime.engine.scheduling.fairness import FairClock, StepCost
from inferd_runtime.engine.scheduling.job_times import JobTimes
from inferd_runtime.engine.scheduling.scheduler import Scheduler
from inferd_runtime.engine.scheduling.tenants import Accounts, Tenancy
from inferd_runtime.engine.sequences.cached_sequence import CachedSequence, SequenceSet
from inferd_runtime.engine.sequences.parking import ParkingSpace
from inferd_runtime.engine.sequences.prompt_meter import PromptMeter
from inferd_runtime.engine.verification import JobOutcome, commit_step, fail_jobs, verify_step
from inferd_runtime.kernels.native.draws import draw_kernels
from inferd_runtime.kv.pool import PagePool
from inferd_runtime.models.batch import Batch
from inferd_runtime.speculation.times import StepTimes


@dataclass(frozen=True)
class EngineOptions:
    """Settings of one engine.

    ``token_budget``: tokens per step. ``swap_bytes``: host memory for the pages of contexts that had to leave the cache.

    ``fixed_rows``: every sequence feeds that many rows in each step, drafted or not, and drafts are as long as fits (0: as many
    as it needs). Where the driver's arithmetic allows it, drafts then change no bit of any logit; each step costs what the
    longest draft does. Trees and explicit positions keep their own number.

    ``overlap``: with a driver that samples, launch the next step while one runs (:mod:`~inferd_runtime.engine.overlap`).

    ``fairness``: the tenants' clock that all engines of a thread share (None: its own); ``clock``: the seconds that steps take.
    """

    token_budget: int = 512
    swap_bytes: int = 256 << 20
    tenancy: Tenancy = field(default_factory=Tenancy)
    cost: StepCost = field(default_factory=StepCost)
    fixed_rows: int = 0
    times: StepTimes = field(default_factory=lambda: StepTimes.linear(1e-3, 1e-5))
    overlap: bool = True
    fairness: FairClock[str] | None = None
    clock: Callable[[], float] = time.perf_counter


class VerifiedStep(NamedTuple):
    """A step's outcomes, and the price of its drafts (None: it had none)."""

    outcomes: list[JobOutcome]
    price: StepPrice | None


class Engine:
    """One model on one device: its page pool, its jobs, and the loop that serves them. Owned by one thread."""

    def __init__(self, driver: Driver, options: EngineOptions | None = None) -> None:
        options = options or EngineOptions()
        draw_kernels()  # compiled now, if they are not, and not in the first step
        self.accounts = accounts = Accounts(options.tenancy)
        self.driver = driver
        self._width = options.fixed_rows
        self.pool = PagePool(driver.pages - (self._width > 0), driver.page_size)
        self.parking = ParkingSpace(driver, options.swap_bytes)
        self.contexts = SequenceSet(
            self.pool, self.parking, accounts, vocab_size=driver.vocab_size, max_length=driver.max_context
        )
        self.draft_budget = DraftBudget(options.times, fixed_rows=max(1, self._width - 1) if self._width else None)
        self.scheduler = Scheduler(
            self.contexts,
            accounts,
            self.draft_budget.allocate,
            token_budget=options.token_budget,
            cost=options.cost,
            clock=options.fairness,
            times=JobTimes(options.clock),
        )
        self._sampler = driver if isinstance(driver, SamplingDriver) else None
        overlaps = options.overlap and self._sampler is not None
        self._overlap = OverlapPlanner(self.scheduler) if overlaps else None
        self._in_flight: InFlightStep | None = None
        self.clock = options.clock
        self.steps = 0

    def create_context(self, tenant: str = "", salt: str = "", meter: PromptMeter | None = None) -> CachedSequence:
        """Return a new empty context of a tenant. Pages are shared under the same ``salt``; ``meter`` counts its prompts."""
        return self.contexts.create(tenant, salt, meter)

    def submit(self, job: Job) -> None:
        """Let a job take part from the next step on."""
        job.context.count_prompt()
        self.scheduler.add(job)

    def check_integrity(self) -> None:
        """Recount the holders of every page. Raises AssertionError if one leaks."""
        self.contexts.check_integrity()

    # -- The step loop --------------------------------------------------------------------------------------------

    def step(self) -> bool:
        """Run one step. Return False if no job has work. True, without a step, if it is the turn of other engines' tenants.

        What a device or a driver raises passes through the parts as an InternalError, which ends the step's jobs at the commit.
        """
        if self._overlap is not None:
            return self.step_overlapped(self._overlap)
        started = self.clock()
        plan = self.scheduler.plan()
        if not plan:
            return self.scheduler.deferred
        batch = self._prepare(plan)
        step = self._forward(plan, batch, started)
        verified = self._verify(step)
        self._commit(step, verified)
        return True

    def step_overlapped(self, planner: OverlapPlanner) -> bool:
        """Run one step; launch what can be planned of its successor without its tokens before waiting for this one.

        Rows of the successor whose mask or penalties depend on these tokens are sampled once they are committed.
        """
        step = self._in_flight or self._launch(self.scheduler.plan)
        if step is None:
            return self.scheduler.deferred
        self._in_flight = self._launch(partial(planner.plan, step))
        verified = self._verify(step)
        self._commit(step, verified)
        self._sample(self._in_flight)
        return True

    def close(self) -> None:
        """Wait for the step in flight, if there is one, and commit it."""
        step, self._in_flight = self._in_flight, None
        if step is not None:
            step.forget_reservations()
            self._commit(step, self._verify(step))

    def _launch(self, make_plan: Callable[[], list[Planned]]) -> InFlightStep | None:
        """Plan, prepare and launch a step. Return None if the plan is empty."""
        started = self.clock()
        plan = make_plan()
        return self._forward(plan, self._prepare(plan), started) if plan else None

    def _prepare(self, plan: Sequence[Planned]) -> Batch | InternalError:
        """Return the plan as one batch, widened to the fixed number of rows if there is one."""
        return attempt(partial(self._lay_out, plan))

    def _lay_out(self, plan: Sequence[Planned]) -> Batch:
        batch = prepare(plan, self.driver.page_size)
        return widen(batch, self._width, self.pool.size, self.driver.page_size) if self._width else batch

    def _forward(self, plan: list[Planned], batch: Batch | InternalError, since: float) -> InFlightStep:
        """Run the batch, or only launch it if the driver samples."""
        launched = batch if isinstance(batch, InternalError) else attempt(partial(self._run, plan, batch))
        return InFlightStep(plan, launched, since, times=self.scheduler.times)

    def _run(self, plan: Sequence[Planned], batch: Batch) -> Launched | Begun | StepResult:
        if self._sampler is None:
            return StepResult(self.driver.forward(batch))
        if any(item.work.late for item in plan):
            return self._sampler.begin(batch, sampled_rows(plan))
        return self._sampler.launch(batch, sampling_inputs(plan, self.driver.vocab_size))

    def _sample(self, step: InFlightStep | None) -> None:
        """Launch the sampling of a step that has begun without it, now that all tokens before its rows are known."""
        if step is not None and isinstance(begun := step.launched, Begun):
            complete(step)
            step.launched = attempt(lambda: begun.sample(sampling_inputs(step.plan, self.driver.vocab_size)))

    def _verify(self, step: InFlightStep) -> VerifiedStep | InternalError:
        """Wait for the step, and return its jobs' outcomes, or the error if the device failed."""
        began = self.clock()
        result = step.wait()
        step.waited = self.clock() - began
        if isinstance(result, InternalError):
            return result
        price = self.draft_budget.price(step.plan)
        return VerifiedStep(verify_step(step, result, price), price)

    def _commit(self, step: InFlightStep, verified: VerifiedStep | InternalError) -> None:
        """Hand the outcomes to the jobs, or the error, and learn from the time that the step took."""
        self.steps += 1
        if isinstance(verified, InternalError):
            fail_jobs([item.job for item in step.plan], verified)
        else:
            commit_step(step, verified.outcomes, self.driver)
            emitted = sum(len(done.tokens) for _, done in verified.outcomes)
            self.draft_budget.learn(step.plan, verified.price, emitted, self.clock() - step.since)
            if self._in_flight is not None:
                self._in_flight.discard(step.plan[at].job for at, done in verified.outcomes if done.admitted)
                self._in_flight.move_back(
                    {step.plan[at].job: (step.plan[at].stale, done) for at, done in verified.outcomes}
                )
        ended = self.clock()
        self.scheduler.charge(step.plan, ended - step.since)
        if self._overlap is not None:
            self._overlap.learn(step, ended - step.since, self._in_flight is not None)
        if self._in_flight is not None:
            self._in_flight.since, self._in_flight.ahead = ended, True
