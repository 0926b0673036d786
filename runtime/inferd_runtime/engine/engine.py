"""The step loop: plan, prepare, forward, verify, commit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from inferd.protocol import InferdError, InternalError
from inferd_runtime.engine.boundary import job_boundary
from inferd_runtime.engine.context import Context, ContextSet
from inferd_runtime.engine.plan import Driver, Job, Planned, Verified, prepare
from inferd_runtime.engine.sampling import Logits, draw
from inferd_runtime.engine.scheduler import Scheduler
from inferd_runtime.kv.pool import PagePool


class Engine:
    """One model on one device: its page pool, its jobs, and the loop that serves them. Owned by one thread."""

    def __init__(self, driver: Driver, *, token_budget: int = 512) -> None:
        self.driver = driver
        self.pool = PagePool(driver.pages, driver.page_size)
        self.contexts = ContextSet(self.pool, vocab_size=driver.vocab_size, max_length=driver.max_context)
        self.scheduler = Scheduler(self.contexts, token_budget=token_budget)
        self.steps = 0

    def create_context(self, tenant: str = "") -> Context:
        """An empty root context of a tenant."""
        return self.contexts.create(tenant)

    def submit(self, job: Job) -> None:
        """Let a job take part from the next step on."""
        self.scheduler.add(job)

    def step(self) -> bool:
        """Run one step. False when nobody wanted anything."""
        plan = self.scheduler.plan()
        if not plan:
            return False
        self.steps += 1
        batch = prepare(plan, self.driver.page_size)
        try:
            logits = self.driver.forward(batch)
        except Exception as error:  # noqa: BLE001 - the device boundary: the step's jobs fail, the engine goes on
            abandon(plan, InternalError(f"the forward pass failed: {error!r}"))
            return True
        commit(plan, logits)
        return True


def commit(plan: Sequence[Planned], logits: Logits) -> None:
    """Verify every job's rows and hand the outcome over. A job that cannot take its outcome fails alone."""
    for item, rows in split_rows(plan, logits):
        with job_boundary(item.job):
            done = verify(item, rows)
            item.table.advance(len(item.work.tokens) - len(item.work.draft) + done.accepted)
            item.job.commit(done)


def split_rows(plan: Sequence[Planned], logits: Logits) -> Iterator[tuple[Planned, Logits]]:
    """Each planned job with its share of the logits, float32[rows, V]."""
    first = 0
    for item in plan:
        yield item, logits[first : first + item.work.rows]
        first += item.work.rows


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
