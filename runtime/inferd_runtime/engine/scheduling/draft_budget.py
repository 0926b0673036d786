"""What an engine's generations share about speculation: the controller, experience, counters."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter

from inferd_runtime.engine.job import Job, Planned
from inferd_runtime.engine.jobs.boundary import JobBoundary
from inferd_runtime.engine.stages import Verified
from inferd_runtime.speculation.controller import Controller
from inferd_runtime.speculation.counters import SpeculationCounters
from inferd_runtime.speculation.drafter import Drafter
from inferd_runtime.speculation.drafts import NO_DRAFT, Draft
from inferd_runtime.speculation.sources import SourceSet
from inferd_runtime.speculation.times import StepShape, StepTimes

SPECULATES = attrgetter("speculates")
SAMPLED = 32
"""One in so many steps without drafts is learnt from."""


class DraftBudget:
    """Decides which drafts a step verifies, and learns from how long it took and what came of it.

    ``most``: rows for a draft that every sequence feeds anyway; then each draft gets as many, and there is nothing to decide.
    """

    def __init__(self, times: StepTimes, most: int | None = None) -> None:
        self.controller = Controller(times)
        self.counters = SpeculationCounters()
        self._plain_steps = 0
        self._most = most

    def sources(
        self, drafters: Sequence[Drafter], *, max_draft: int = 16, tree: bool = True, forced: bool = True
    ) -> SourceSet:
        """The sources of one generation, with the experience of all before it."""
        survival = self.controller.survival.request()
        return SourceSet(drafters, survival, self.counters, max_draft=max_draft, tree=tree, forced=forced)

    def allocate(self, jobs: Sequence[Job], budget: int) -> dict[Job, Draft]:
        """Ask the jobs for their guesses, and choose among all of them what a step of ``budget`` tokens verifies."""
        if not any(map(SPECULATES, jobs)):
            return {}
        guesses = [guess(job) if job.speculates else NO_DRAFT for job in jobs]
        if not any(draft.drawn for draft in guesses):
            return {}
        if self._most is not None:
            free = {job: draft.likeliest(self._most) for job, draft in zip(jobs, guesses, strict=True)}
            return {job: draft for job, draft in free.items() if draft.drawn}
        shape = _shape_of(jobs, budget)
        sampled = [(job, draft) for job, draft in zip(jobs, guesses, strict=True) if draft.probabilities is not None]
        drawn = _share_out(sampled, max(0, budget - shape.rows))
        shape = shape._replace(rows=shape.rows + sum(map(len, drawn.values())))
        rest = [NO_DRAFT if job in drawn else draft for job, draft in zip(jobs, guesses, strict=True)]
        chosen = self.controller.allocate(rest, shape, max(0, budget - shape.rows))
        return {job: draft for job, draft in zip(jobs, chosen, strict=True) if draft.tokens} | drawn

    def price(self, plan: Sequence[Planned]) -> StepPrice | None:
        """What the step's drafts cost by the model; None where there are none."""
        if not any(item.work.draft.tokens for item in plan):
            return None
        shape = planned_shape(plan, drafts=True)
        plain = planned_shape(plan, drafts=False) if self._most is None else shape
        return StepPrice(self.controller, shape, plain)

    def settle(self, plan: Sequence[Planned], price: StepPrice | None, emitted: int, seconds: float) -> None:
        """Learn from a step that brought ``emitted`` tokens. Of those without drafts a sample is enough."""
        if not self.controller.times.learns:
            return
        if price is not None:
            self.controller.settle(price.shape, price.plain, emitted, seconds)
            return
        self._plain_steps += 1
        if self._plain_steps % SAMPLED == 0 or self.controller.compares:
            shape = planned_shape(plan, drafts=False)
            self.controller.settle(shape, shape, emitted, seconds)


class StepPrice:
    """One step with drafts, beside the same without."""

    def __init__(self, controller: Controller, shape: StepShape, plain: StepShape) -> None:
        self.shape = shape
        self.plain = plain
        self._step = controller.times.time(plain)
        self._row = max(0.0, controller.times.time(shape) - self._step) / max(1, shape.rows - plain.rows)

    def note(self, done: Verified) -> Verified:
        """The outcome with what its draft cost and saved: its share of the plain step for each accepted token, less its rows."""
        drafted = len(done.work.draft.tokens)
        if not drafted:
            return done
        share, extra = self._step / self.plain.sequences, self._row * drafted
        return done._replace(cost=(share + extra) / share, saved=done.accepted * share - extra)


def guess(job: Job) -> Draft:
    """What a job would like to have verified. A job that fails over it ends alone."""
    with JobBoundary(job):
        return job.guess()
    return NO_DRAFT


def _share_out(sampled: Sequence[tuple[Job, Draft]], rows: int) -> dict[Job, Draft]:
    """Sampled drafts, each whole or its share of the rows: what is verified must not depend on what was drawn."""
    granted: dict[Job, Draft] = {}
    for waiting, (job, draft) in zip(range(len(sampled), 0, -1), sampled, strict=True):
        granted[job] = draft.likeliest(rows // waiting)
        rows -= len(granted[job])
    return granted


def _shape_of(jobs: Sequence[Job], budget: int) -> StepShape:
    """The step that feeds these jobs without drafts, as far as the budget goes."""
    rows = min(budget, sum(max(1, job.context.pending) for job in jobs))
    return StepShape(len(jobs), rows, sum(len(job.context.tokens) for job in jobs))


def planned_shape(plan: Sequence[Planned], *, drafts: bool) -> StepShape:
    """A planned step's shape, with its drafts or without them."""
    rows = sum(len(item.work.tokens) for item in plan)
    context = rows + sum(item.table.length for item in plan)
    drafted = sum(len(item.work.draft.tokens) for item in plan)
    if not drafts:
        return StepShape(len(plan), rows - drafted, context - drafted)
    trees = sum(bool(item.work.draft.tokens) and item.work.placement is not None for item in plan) if drafted else 0
    return StepShape(len(plan), rows, context, trees)
