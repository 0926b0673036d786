"""Verify and commit: which tokens a step's rows emit, which K and V stay in the cache, and what each job is told.

The functions stand in the order in which a step calls them. :func:`verify_step` decides each job's tokens,
:func:`commit_step` keeps the K and V of the accepted ones and hands the outcomes over.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple

from inferd.protocol import InferdError
from inferd_runtime.engine.driver import Driver, StepResult
from inferd_runtime.engine.in_flight import InFlightStep, attempt
from inferd_runtime.engine.job import Job, Planned
from inferd_runtime.engine.jobs.boundary import JobBoundary
from inferd_runtime.engine.sampling.device_sampling import SampledTokens, is_sampled, read_sampled
from inferd_runtime.engine.sampling.host_sampling import LogitRows, RowSampler, draw, largest
from inferd_runtime.engine.sampling.rejection import reject
from inferd_runtime.engine.scheduling.draft_budget import StepPrice
from inferd_runtime.engine.stages import Verified, Work
from inferd_runtime.models.batch import FloatRows
from inferd_runtime.speculation.drafts import ROOT


class JobResult(NamedTuple):
    """One planned job's part of a step's result.

    ``logits`` float32[rows, V] and ``hidden`` float32[hidden, E] if the job asked for states. If the device sampled the job,
    ``sampled`` holds the tokens of all sampled jobs, this one's as ``number``, and ``logits`` is empty.
    """

    item: Planned
    logits: LogitRows
    hidden: FloatRows | None
    sampled: SampledTokens | None = None
    number: int = 0


class JobOutcome(NamedTuple):
    """The verified outcome of planned job ``number``."""

    number: int
    verified: Verified


# -- Verify -----------------------------------------------------------------------------------------------------------


def verify_step(step: InFlightStep, result: StepResult, price: StepPrice | None = None) -> list[JobOutcome]:
    """Return the outcome of every job that still wants one. A job whose verification raises ends alone.

    A thousand texts that are steered to their ends may all begin to look for one in the same step: those that have no time left
    compute their rows once more, with the same tokens.
    """
    outcomes: list[JobOutcome] = []
    step.times.begin()
    for index, part in enumerate(split_result(step.plan, result)):
        late = part.item.work.admit is not None and step.times.must_wait(part.item.job)
        if late or not step.is_wanted(index):
            part.item.table.trim_unplanned()
            continue
        with JobBoundary(part.item.job):
            verified = verify_job(part)
            outcomes.append(JobOutcome(index, verified if price is None else price.annotate(verified)))
        step.times.spent_on(part.item.job)
    return outcomes


def split_result(plan: Sequence[Planned], result: StepResult) -> Iterator[JobResult]:
    """Yield each planned job's part of a step's result, in the plan's order."""
    (logits, hidden), sampled = result
    row = state = index = 0
    for item in plan:
        rows, states = item.work.rows, item.work.hidden
        own_states = hidden[state : state + states] if states else None
        state += states
        if sampled is not None and rows and is_sampled(item.work):
            yield JobResult(item, logits[:0], own_states, sampled, index)
            index += 1
        else:
            yield JobResult(item, logits[row : row + rows], own_states)
            row += rows


def verify_job(result: JobResult) -> Verified:
    """Return a job's outcome: read from the device if it sampled, else sampled here."""
    item, logits, hidden, sampled, index = result
    verified = verify_rows(item, logits) if sampled is None else read_sampled(item.work, sampled, index)
    if item.work.admit is not None:
        tokens = item.work.admit(verified.tokens)
        admitted = list(tokens) != list(verified.tokens)
        verified = verified._replace(tokens=tokens, path=verified.path[: max(len(tokens) - 1, 0)], admitted=admitted)
    return verified if hidden is None else verified._replace(hidden=hidden)


def verify_rows(item: Planned, logits: LogitRows) -> Verified:
    """Return the tokens that a job's rows emit, ``logits`` float32[rows, V], by agreement with its draft.

    Samples row after row while the sample is one of the draft's tokens at that place; the first that is not ends the run and is
    emitted too. Every emitted token is a sample of the target from its own row, with its own history, mask and position, so the
    output is what it would be without a draft, for any sampler and any deterministic draft.
    """
    work = item.work
    if work.sampler is None:
        return Verified(work, (), (), logits)
    position = draft_start(item)
    if work.draft.probabilities is not None:
        return _verify_by_rejection(work, work.sampler, position, logits)
    children = work.draft.children() if work.draft.tokens else {}
    tokens: list[int] = []
    path: list[int] = []
    node = ROOT
    while True:
        mask = None if work.masks is None else work.masks[node + 1]
        entries = None if work.adjustments is None else work.adjustments[node + 1]
        tokens.append(draw(logits[node + 1], work.sampler, position + len(path), mask, entries))
        node = children.get((node, tokens[-1]), ROOT)
        if node == ROOT:
            return Verified(work, tokens, path, logits)
        path.append(node)


def _verify_by_rejection(work: Work, sampler: RowSampler, position: int, logits: LogitRows) -> Verified:
    """Return the outcome by rejection sampling, for a draft that comes with the probabilities that it was drawn from."""
    largest(logits)  # raises where there are no probabilities
    draft = work.draft
    tokens = [*draft.tokens, draft.refused] if draft.refused >= 0 else draft.tokens
    probabilities = None if draft.probabilities is None else draft.probabilities[: len(tokens)]
    emitted = reject(logits, work.masks, sampler, position, tokens, probabilities, work.adjustments)
    return Verified(work, emitted, range(len(emitted) - 1), logits)


def draft_start(item: Planned) -> int:
    """Return the index in the job's context at which its draft starts: behind the pending tokens that the step feeds."""
    return item.table.length + len(item.work.tokens) - len(item.work.draft.tokens)


# -- Commit -----------------------------------------------------------------------------------------------------------


def commit_step(step: InFlightStep, outcomes: Sequence[JobOutcome], driver: Driver) -> None:
    """Keep the K and V of accepted tokens, and hand every outcome to its job. A job that raises ends alone.

    K and V of rejected tokens stay after the table's length, where they are not read.
    """
    compact([(step.plan[index], verified) for index, verified in outcomes], driver)
    step.times.begin()
    for index, verified in outcomes:
        item = step.plan[index]
        # Compaction, or another job's commit, may have ended this job.
        if not step.is_wanted(index):
            item.table.trim_unplanned()
            continue
        with JobBoundary(item.job):
            advance_table(item, verified)
            item.job.commit(verified)
            item.table.publish(item.job.context.tokens)
        step.times.spent_on(item.job)


def compact(outcomes: Sequence[tuple[Planned, Verified]], driver: Driver) -> None:
    """Move the K and V of the accepted paths of all trees to where a chain would have written them, in one device call.

    Runs before any table counts the tokens. If the device fails, the jobs whose tokens move end with the error.
    """
    moved_jobs: list[Job] = []
    moves: list[tuple[int, int]] = []
    for item, verified in outcomes:
        with JobBoundary(item.job):
            own = slot_moves(item, verified)
            if own:
                moved_jobs.append(item.job)
                moves += own
    if moves:
        error = attempt(partial(driver.move_tokens, *zip(*moves, strict=True)), "moving accepted tokens")
        if error is not None:
            fail_jobs(moved_jobs, error)


def slot_moves(item: Planned, verified: Verified) -> list[tuple[int, int]]:
    """Return (source, target) slots of the accepted draft nodes that are not where a chain would have put them."""
    path, start, slot = verified.path, draft_start(item), item.table.slot
    if not path or path[-1] == len(path) - 1:
        return []
    return [(slot(start + node), slot(start + at)) for at, node in enumerate(path) if node != at]


def advance_table(item: Planned, verified: Verified) -> None:
    """Count the fed tokens and the accepted draft, already compacted, as computed."""
    item.table.advance(draft_start(item) - item.table.length + len(verified.path))


def fail_jobs(jobs: Sequence[Job], error: InferdError) -> None:
    """End every job with the error."""
    for job in jobs:
        job.fail(error)
