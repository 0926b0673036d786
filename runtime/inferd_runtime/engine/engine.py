"""The step loop: plan, prepare, forward, verify, commit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from inferd.protocol import InferdError, InternalError
from inferd_runtime.engine.boundary import JobBoundary
from inferd_runtime.engine.context import Context, ContextSet
from inferd_runtime.engine.fairness import StepCost
from inferd_runtime.engine.parking import ParkingSpace
from inferd_runtime.engine.plan import Driver, Job, Planned, Verified, prepare
from inferd_runtime.engine.sampling import Logits, draw
from inferd_runtime.engine.scheduler import Scheduler
from inferd_runtime.engine.tenants import Accounts, Tenancy
from inferd_runtime.kv.pool import PagePool
from inferd_runtime.models.batch import Outputs, Rows


@dataclass(frozen=True)
class EngineOptions:
    """``token_budget``: tokens per step. ``swap_bytes``: host memory for pages of contexts that had to leave the cache."""

    token_budget: int = 512
    swap_bytes: int = 256 << 20
    tenancy: Tenancy = field(default_factory=Tenancy)
    cost: StepCost = field(default_factory=StepCost)


class Engine:
    """One model on one device: its page pool, its jobs, and the loop that serves them. Owned by one thread."""

    def __init__(self, driver: Driver, options: EngineOptions | None = None) -> None:
        options = options or EngineOptions()
        accounts = Accounts(options.tenancy)
        self.driver = driver
        self.pool = PagePool(driver.pages, driver.page_size)
        self.parking = ParkingSpace(driver, options.swap_bytes)
        self.contexts = ContextSet(
            self.pool, self.parking, accounts, vocab_size=driver.vocab_size, max_length=driver.max_context
        )
        self.scheduler = Scheduler(self.contexts, accounts, token_budget=options.token_budget, cost=options.cost)
        self.steps = 0

    def create_context(self, tenant: str = "") -> Context:
        """An empty root context of a tenant."""
        return self.contexts.create(tenant)

    def submit(self, job: Job) -> None:
        """Let a job take part from the next step on."""
        self.scheduler.add(job)

    def check_integrity(self) -> None:
        """Re-add who holds which page. Raises AssertionError when one leaks."""
        self.contexts.check_integrity()

    def step(self) -> bool:
        """Run one step. False when nobody wanted anything."""
        plan = self.scheduler.plan()
        if not plan:
            return False
        self.steps += 1
        batch = prepare(plan, self.driver.page_size)
        try:
            outputs = self.driver.forward(batch)
        except Exception as error:  # noqa: BLE001 - the device boundary: the step's jobs fail, the engine goes on
            abandon(plan, InternalError(f"the forward pass failed: {error!r}"))
            return True
        commit(plan, outputs)
        return True


def commit(plan: Sequence[Planned], outputs: Outputs) -> None:
    """Verify every job's rows and hand the outcome over. A job that cannot take its outcome fails alone."""
    for item, rows, hidden in split_rows(plan, outputs):
        with JobBoundary(item.job):
            done = verify(item, rows)
            if hidden is not None:
                done = done._replace(hidden=hidden)
            item.table.advance(len(item.work.tokens) - len(item.work.draft) + done.accepted)
            item.job.commit(done)
            item.table.publish(item.job.context.tokens)


def split_rows(plan: Sequence[Planned], outputs: Outputs) -> Iterator[tuple[Planned, Logits, Rows | None]]:
    """Each planned job with its share of the logits, float32[rows, V], and of the hidden states, float32[hidden, E]."""
    logits, hidden = outputs
    first = taken = 0
    for item in plan:
        rows, states = item.work.rows, item.work.hidden
        yield item, logits[first : first + rows], hidden[taken : taken + states] if states else None
        first += rows
        taken += states


def verify(item: Planned, logits: Logits) -> Verified:
    """Agreement: sample row after row while the sample equals the draft; the first that differs is emitted and ends it.

    Every emitted token is a sample of the target from its own row, with its own history, mask and position. So the
    output is what it would be without a draft, for any sampler and any deterministic draft.
    """
    work = item.work
    if work.sampler is None:
        return Verified(work, (), 0, logits)
    position = item.table.length + len(work.tokens) - work.rows + 1
    tokens: list[int] = []
    for row in range(work.rows):
        mask = None if work.masks is None else work.masks[row]
        tokens.append(draw(logits[row], work.sampler, position + row, mask))
        if row == len(work.draft) or tokens[-1] != work.draft[row]:
            break
    return Verified(work, tokens, max(0, len(tokens) - 1), logits)


def abandon(plan: Sequence[Planned], error: InferdError) -> None:
    """End every job of a step that could not run."""
    for item in plan:
        item.job.fail(error)
