"""The draft budget: it decides which drafts a step verifies, prices them, and learns from the result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from operator import attrgetter

from inferd_runtime.engine.job import Continuation, Job, Planned
from inferd_runtime.engine.jobs.boundary import JobBoundary
from inferd_runtime.engine.stages import Verified
from inferd_runtime.speculation.controller import Controller
from inferd_runtime.speculation.counters import SpeculationCounters
from inferd_runtime.speculation.drafter import Drafter
from inferd_runtime.speculation.drafts import NO_DRAFT, Draft
from inferd_runtime.speculation.sources import SourceSet
from inferd_runtime.speculation.times import StepShape, StepTimes

SPECULATES = attrgetter("speculates")
InFlight = Mapping[Job, Continuation | None]
"""How jobs of the step in flight go on behind it; None: not known."""
NOTHING_IN_FLIGHT: InFlight = {}
FEW_ROWS = 64
"""For so many, lists are quicker than arrays."""
PLAIN_SAMPLE = 32
"""One in so many steps without drafts is learnt from."""


class DraftBudget:
    """Decides which drafts a step verifies, and learns from how long it took and how many tokens it emitted.

    ``fixed_rows``: rows for a draft that every sequence feeds anyway; then each draft gets as many, and nothing is decided.
    """

    def __init__(self, times: StepTimes, fixed_rows: int | None = None) -> None:
        self.controller = Controller(times)
        self.counters = SpeculationCounters()
        self._plain_steps = 0
        self._asked = StepShape(1, 1, 0), 1
        """The shape of the step without drafts, and how many sequences draft in it."""
        self._costs: Sequence[float] = ()
        """See :meth:`draft_costs`; empty until somebody asks for them in a step."""
        self._fixed_rows = fixed_rows

    def sources(
        self, drafters: Sequence[Drafter], *, max_draft: int = 16, tree: bool = True, forced: bool = True
    ) -> SourceSet:
        """Return the sources of one new generation, which start from the experience of all before it."""
        survival = self.controller.survival.request()
        return SourceSet(
            drafters, survival, self.counters, max_draft=max_draft, tree=tree, forced=forced, draft_costs=self.draft_costs
        )  # fmt: skip

    def allocate(self, jobs: Sequence[Job], budget: int, in_flight: InFlight = NOTHING_IN_FLIGHT) -> dict[Job, Draft]:
        """Ask the jobs for drafts, and return what a step of ``budget`` tokens verifies of each; jobs without are left out.

        Those ``in_flight`` are asked for one behind the row that they go on with, if they do.
        """
        if not any(map(SPECULATES, jobs)):
            return {}
        shape = _shape_without_drafts(jobs, budget)
        self._asked, self._costs = (shape, sum(map(SPECULATES, jobs))), ()
        drafts = [propose_draft(job, in_flight) if job.speculates else NO_DRAFT for job in jobs]
        if not any(draft.uncut_length for draft in drafts):
            return {}
        if self._fixed_rows is not None:
            cut = {job: draft.likeliest(self._fixed_rows) for job, draft in zip(jobs, drafts, strict=True)}
            return {job: draft for job, draft in cut.items() if draft.uncut_length}
        sampled = [(job, draft) for job, draft in zip(jobs, drafts, strict=True) if draft.probabilities is not None]
        granted = _divide_rows(sampled, max(0, budget - shape.rows))
        shape = shape._replace(rows=shape.rows + sum(map(len, granted.values())))
        rest = [NO_DRAFT if job in granted else draft for job, draft in zip(jobs, drafts, strict=True)]
        likely = [_discounted(job, draft, in_flight) for job, draft in zip(jobs, rest, strict=True)]
        chosen = self.controller.allocate(likely, shape, max(0, budget - shape.rows))
        found = {
            job: part if asked is draft else draft.likeliest(len(part))
            for job, draft, asked, part in zip(jobs, rest, likely, chosen, strict=True)
            if part.tokens
        }
        return found | granted

    def draft_costs(self, most: int) -> Sequence[float]:
        """Return what drafts of 0, 1, .. ``most`` rows cost, or of more, in one sequence's share of the step without drafts.

        All that draft in the step are taken to have as many: the first row beside others can be far cheaper than one each.
        """
        if len(self._costs) <= most:
            self._costs = [0.0] * (most + 1) if self._fixed_rows is not None else self._priced(most)
        return self._costs

    def _priced(self, most: int) -> list[float]:
        (shape, drafting), times = self._asked, self.controller.times
        rows = most * drafting
        seconds = (times.times(shape, rows) if rows <= FEW_ROWS else times.array(shape, rows).tolist())[::drafting]
        share = shape.sequences / drafting
        return list(accumulate((share * (each / seconds[0] - 1) for each in seconds), max))

    def price(self, plan: Sequence[Planned]) -> StepPrice | None:
        """Return what the step's drafts cost by the model of step times; None if it has no drafts."""
        if not any(item.work.draft.tokens for item in plan):
            return None
        shape = planned_shape(plan, drafts=True)
        plain = planned_shape(plan, drafts=False) if self._fixed_rows is None else shape
        return StepPrice(self.controller, shape, plain)

    def learn(self, plan: Sequence[Planned], price: StepPrice | None, emitted: int, seconds: float) -> None:
        """Take in how long a step took that emitted so many tokens. Of steps without drafts, one in PLAIN_SAMPLE is enough."""
        if not self.controller.times.learns:
            return
        if price is not None:
            self.controller.learn(price.shape, price.plain, emitted, seconds)
            return
        self._plain_steps += 1
        if self._plain_steps % PLAIN_SAMPLE == 0 or self.controller.compares:
            shape = planned_shape(plan, drafts=False)
            self.controller.learn(shape, shape, emitted, seconds)


class StepPrice:
    """A step with drafts beside the same step without: ``shape`` and ``plain``."""

    def __init__(self, controller: Controller, shape: StepShape, plain: StepShape) -> None:
        self.shape = shape
        self.plain = plain
        self._step = controller.times.time(plain)
        self._row = max(0.0, controller.times.time(shape) - self._step) / max(1, shape.rows - plain.rows)

    def annotate(self, done: Verified) -> Verified:
        """Return the outcome with what its draft cost and saved.

        An accepted token saves the job's share of the plain step; a drafted token costs a row.
        """
        drafted = len(done.work.draft.tokens)
        if not drafted:
            return done
        share, extra = self._step / self.plain.sequences, self._row * drafted
        return done._replace(cost=(share + extra) / share, saved=done.accepted * share - extra)


def propose_draft(job: Job, in_flight: InFlight) -> Draft:
    """Return the job's draft. A job that raises ends alone, and has none."""
    with JobBoundary(job):
        if job not in in_flight:
            return job.propose()
        step = in_flight[job]
        if step is not None and step.row is not None and step.row.rows:  # it has none where the job ends or pauses
            return job.propose_behind(step.draft)
    return NO_DRAFT


def _discounted(job: Job, draft: Draft, in_flight: InFlight) -> Draft:
    """Return the draft with its chances multiplied by the chance of the draft in flight that it follows."""
    step = in_flight.get(job)
    if step is None or step.chance == 1.0 or not draft.tokens:
        return draft
    return replace(draft, survival=[step.chance * one for one in draft.survival])


def _divide_rows(sampled: Sequence[tuple[Job, Draft]], rows: int) -> dict[Job, Draft]:
    """Return each sampled draft, cut to an equal share of the rows.

    The controller does not choose among these: how much is verified must not depend on which tokens were drawn.
    """
    granted: dict[Job, Draft] = {}
    for waiting, (job, draft) in zip(range(len(sampled), 0, -1), sampled, strict=True):
        granted[job] = draft.likeliest(rows // waiting)
        rows -= len(granted[job])
    return granted


def _shape_without_drafts(jobs: Sequence[Job], budget: int) -> StepShape:
    """Return the shape of a step that feeds these jobs without drafts, as far as the budget goes."""
    rows = min(budget, sum(max(1, job.context.pending) for job in jobs))
    return StepShape(len(jobs), rows, sum(len(job.context.tokens) for job in jobs))


def planned_shape(plan: Sequence[Planned], *, drafts: bool) -> StepShape:
    """Return a planned step's shape, with its drafts or without them."""
    rows = sum(len(item.work.tokens) for item in plan)
    context = rows + sum(item.table.length for item in plan)
    drafted = sum(len(item.work.draft.tokens) for item in plan)
    if not drafts:
        return StepShape(len(plan), rows - drafted, context - drafted)
    trees = sum(bool(item.work.draft.tokens) and item.work.placement is not None for item in plan) if drafted else 0
    return StepShape(len(plan), rows, context, trees)
