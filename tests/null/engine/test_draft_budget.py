"""The draft budget on its own: what it grants, and from which steps it learns."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from inferd_runtime.engine.job import Planned
from inferd_runtime.engine.scheduling.draft_budget import PLAIN_SAMPLE, DraftBudget
from inferd_runtime.engine.stages import Work
from inferd_runtime.kv.pool import PagePool
from inferd_runtime.kv.table import PageTable
from inferd_runtime.speculation.drafts import Draft
from inferd_runtime.speculation.times import Profile, StepTimes

DRAWN = Draft([2, 3], [-1, 0], ["draft_model"] * 2, [1.0, 1.0], np.ones((2, 4), np.float32))
LIKELY = Draft([2, 3], [-1, 0], ["ngram"] * 2, [0.99, 0.99])


@dataclass
class Context:
    """As much of a sequence as shapes need."""

    pending: int = 1
    tokens: list[int] = field(default_factory=lambda: [1, 2, 3])


@dataclass(eq=False)
class Guesser:
    """A job that proposes one draft."""

    draft: Draft
    speculates: bool = True
    context: Context = field(default_factory=Context)

    def propose(self) -> Draft:
        return self.draft


def budget(learns: bool = True) -> DraftBudget:
    """A budget for a device where a step takes a second and each row a thousandth more."""
    seconds = 1.0 + 0.001 * np.outer((1, 4), (1, 2, 8))
    return DraftBudget(StepTimes(Profile((1, 4), (1, 2, 8), seconds), learns=learns))


def planned(draft: Draft | None = None) -> list[Planned]:
    job: Any = None
    work = Work([1], 1) if draft is None else Work([1, *draft.tokens], 3, draft)
    return [Planned(job, work, PageTable(PagePool(4, 4)))]


def seen(budget: DraftBudget) -> int:
    """How many steps its times have learnt from."""
    return budget.controller.times._seen


def test_one_plain_step_in_so_many_is_learnt_from() -> None:
    plain = budget()
    for _ in range(3 * PLAIN_SAMPLE):
        plain.learn(planned(), None, 1, 1.0)
    assert seen(plain) == 3


def test_every_step_with_a_draft_is_learnt_from() -> None:
    drafting = budget()
    plan = planned(LIKELY)
    for _ in range(5):
        drafting.learn(plan, drafting.price(plan), 2, 1.0)
    assert seen(drafting) == 5


def test_times_that_are_given_are_not_learnt() -> None:
    fixed = budget(learns=False)
    plan = planned(LIKELY)
    fixed.learn(plan, fixed.price(plan), 2, 9.0)
    assert seen(fixed) == 0


def test_sampled_and_other_drafts_share_the_rows() -> None:
    """Two drafts and two pending tokens fit into six rows; of five rows the sampled draft gets its own first."""
    jobs: list[Any] = [Guesser(DRAWN), Guesser(LIKELY)]
    granted = budget().allocate(jobs, 6)
    assert [granted[job].tokens for job in jobs] == [[2, 3], [2, 3]]
    fewer = budget().allocate(jobs, 5)
    assert [len(fewer[job]) for job in jobs] == [2, 1]


def test_what_costs_nothing_and_is_likely_is_verified_whole() -> None:
    jobs: list[Any] = [Guesser(LIKELY)]
    assert budget().allocate(jobs, 64)[jobs[0]].tokens == [2, 3]


def test_a_tree_that_costs_more_than_its_chain_is_verified_as_the_chain() -> None:
    """Its likeliest nodes, as many as the chain has, would be a tree again."""
    tree = Draft([2, 3, 4, 5], [-1, -1, 0, 2], ["ngram"] * 4, [0.9, 0.85, 0.8, 0.7])
    jobs: list[Any] = [Guesser(tree)]
    chosen = DraftBudget(StepTimes.linear(1.0, 0.01, tree=2.0)).allocate(jobs, 64)[jobs[0]]
    assert chosen.tokens == [2, 4, 5]
