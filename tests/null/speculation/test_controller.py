"""The controller: what it gives out is prefix-closed, inside the budget, deterministic, and never worse than nothing."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, strategies as st

from inferd_runtime.speculation.controller import Controller
from inferd_runtime.speculation.drafts import NO_DRAFT, ROOT, Draft
from inferd_runtime.speculation.times import Profile, StepShape, StepTimes


def draft_of(chances: Sequence[float], parents: Sequence[int] = (), source: str = "ngram") -> Draft:
    """A draft whose node ``i`` holds with the chance ``chances[i]`` when its parent does."""
    parents = parents or list(range(-1, len(chances) - 1))
    survival: list[float] = []
    for chance, parent in zip(chances, parents, strict=True):
        survival.append(chance if parent == ROOT else chance * survival[parent])
    count = len(chances)
    return Draft(list(range(count)), list(parents), [source] * count, survival)


@st.composite
def drafts(draw: st.DrawFn) -> Draft:
    """A chain, a tree, or nothing."""
    count = draw(st.integers(0, 8))
    chain = draw(st.booleans())
    parents = [node - 1 if chain or node == 0 else draw(st.integers(ROOT, node - 1)) for node in range(count)]
    return draft_of(draw(st.lists(st.floats(0, 1), min_size=count, max_size=count)), parents) if count else NO_DRAFT


BATCHES = st.lists(drafts(), min_size=1, max_size=12)
ROW = st.floats(0, 2)


def rate(chosen: Sequence[Draft], times: StepTimes) -> float:
    rows = sum(len(draft.tokens) for draft in chosen)
    trees = sum(not draft.is_chain for draft in chosen)
    expected = len(chosen) + sum(sum(draft.survival) for draft in chosen)
    return expected / times.time(StepShape(len(chosen), len(chosen) + rows, 0, trees))


def allocate(batch: Sequence[Draft], times: StepTimes, budget: int = 10_000) -> list[Draft]:
    return Controller(times).allocate(batch, StepShape(len(batch), len(batch), 0), budget)


@given(BATCHES, ROW, st.integers(0, 60), st.floats(0, 2))
def test_every_choice_is_a_part_with_its_parents_within_the_budget(
    batch: list[Draft], row: float, budget: int, tree: float
) -> None:
    chosen = allocate(batch, StepTimes.linear(1.0, row, tree), budget)
    assert len(chosen) == len(batch)
    assert sum(len(draft.tokens) for draft in chosen) <= budget
    for part, whole in zip(chosen, batch, strict=True):
        # Tokens are their own node numbers, so they say which nodes were taken and under which parent.
        for token, parent, survival in zip(part.tokens, part.parents, part.survival, strict=True):
            above = ROOT if parent == ROOT else part.tokens[parent]
            assert above == whole.parents[token]
            assert survival == whole.survival[token]


@given(BATCHES, ROW, st.floats(0, 2))
def test_it_never_expects_less_than_without_drafts(batch: list[Draft], row: float, tree: float) -> None:
    times = StepTimes.linear(1.0, row, tree)
    assert rate(allocate(batch, times), times) >= rate([NO_DRAFT] * len(batch), times) * (1 - 1e-9)


@given(BATCHES, ROW)
def test_no_beginning_of_the_line_is_better(batch: list[Draft], row: float) -> None:
    times = StepTimes.linear(1.0, row)
    line = sorted((survival for draft in batch for survival in draft.survival), reverse=True)
    plain = StepShape(len(batch), len(batch), 0)
    best = max((len(batch) + sum(line[:count])) / times.times(plain, count)[-1] for count in range(len(line) + 1))
    assert rate(allocate(batch, times), times) == pytest.approx(best)


@given(BATCHES, ROW, st.integers(0, 60))
def test_it_is_deterministic(batch: list[Draft], row: float, budget: int) -> None:
    times = StepTimes.linear(1.0, row)
    assert allocate(batch, times, budget) == allocate(batch, times, budget)


def test_rows_go_to_the_likeliest_wherever_they_stand() -> None:
    batch = [draft_of([0.9] * 6), draft_of([0.2] * 6), NO_DRAFT, draft_of([0.99] * 6)]
    assert [len(draft.tokens) for draft in allocate(batch, StepTimes.linear(1.0, 0.0), 7)] == [1, 0, 0, 6]


@pytest.mark.parametrize(("row", "wanted"), [(0.0, 16), (0.01, 16), (0.3, 4), (0.8, 1), (0.9, 0)])
def test_the_dearer_a_row_the_shorter_the_draft(row: float, wanted: int) -> None:
    chosen = allocate([draft_of([0.85] * 16)], StepTimes.linear(1.0 - row, row))
    assert len(chosen[0].tokens) == wanted


def test_a_tree_that_costs_too_much_becomes_a_chain() -> None:
    tree = draft_of([0.8, 0.9, 0.5], [ROOT, 0, ROOT])
    assert len(allocate([tree], StepTimes.linear(1.0, 0.01))[0].tokens) == 3
    chosen = allocate([tree], StepTimes.linear(1.0, 0.01, tree=2.0))[0]
    assert chosen.is_chain
    assert list(chosen.tokens) == [0, 1]


def test_what_else_stands_in_the_step_does_not_make_guesses_worth_more() -> None:
    batch, times = [draft_of([0.4] * 4), NO_DRAFT], StepTimes.linear(0.0, 1.0)
    assert not Controller(times).allocate(batch, StepShape(2, 2, 0), 16)[0].tokens
    assert not Controller(times).allocate(batch, StepShape(2, 500, 500), 16)[0].tokens


def test_a_programs_own_draft_passes_whole_and_first() -> None:
    batch = [draft_of([0.9] * 4), draft_of([1.0] * 6, source="program")]
    assert [len(draft.tokens) for draft in allocate(batch, StepTimes.linear(1.0, 5.0))] == [0, 6]
    assert [len(draft.tokens) for draft in allocate(batch, StepTimes.linear(1.0, 0.001), 8)] == [2, 6]
    assert [len(draft.tokens) for draft in allocate(batch, StepTimes.linear(1.0, 0.001), 5)] == [0, 5]


@pytest.mark.parametrize("row", [0.01, 0.05, 0.3, 0.8])
@pytest.mark.parametrize("match", [2, 8, 20])
def test_a_source_that_is_always_wrong_costs_an_engine_a_few_steps_once(row: float, match: int) -> None:
    controller, times, plain = (
        Controller(StepTimes.linear(1 - row, row)),
        StepTimes.linear(1 - row, row),
        StepShape(1, 1, 0),
    )
    lost = []
    for _ in range(6):
        request, steps = controller.survival.request(), 0.0
        for _ in range(120):
            request.fade("ngram", match)
            draft = draft_of(request.chances("ngram", match, 16))
            rows = len(controller.allocate([draft], plain, 16)[0].tokens)
            if rows:
                request.learn("ngram", match, rows, 0)
            shape = StepShape(1, 1 + rows, 0)
            steps += times.time(shape) - 1
            controller.learn(shape, plain, 1, times.time(shape))
        lost.append(steps)
    assert lost[0] < 5
    assert max(lost[1:]) < 1


def test_a_source_that_is_always_right_is_believed_within_a_few_steps() -> None:
    controller, plain = Controller(StepTimes.linear(0.7, 0.3)), StepShape(1, 1, 0)
    request, lengths = controller.survival.request(), []
    for _ in range(20):
        request.fade("ngram", 3)
        rows = len(controller.allocate([draft_of(request.chances("ngram", 3, 16))], plain, 16)[0].tokens)
        request.learn("ngram", 3, rows, rows)
        lengths.append(rows)
    assert lengths[0] > 0
    assert lengths[-1] == 16


class Machine:
    """An engine of one sequence whose steps take what ``real`` says, whatever the controller believes."""

    def __init__(self, real: StepTimes, accepted: int, source: str = "ngram") -> None:
        self.controller = Controller(StepTimes.linear(1.0, 0.001))
        self.real = real
        self.accepted = accepted
        self.draft = draft_of([0.9] * 4, source=source)
        self.plain = StepShape(1, 1, 0)

    def run(self, steps: int) -> int:
        """How many of so many steps drafted."""
        drafted = 0
        for _ in range(steps):
            rows = len(self.controller.allocate([self.draft], self.plain, 16)[0].tokens)
            drafted += rows > 0
            shape = StepShape(1, 1 + rows, 0)
            self.controller.learn(shape, self.plain, 1 + min(rows, self.accepted), self.real.time(shape))
        return drafted


def test_an_engine_that_loses_by_drafting_stops_and_comes_back_when_it_pays() -> None:
    machine = Machine(StepTimes.linear(1.0, 0.1), accepted=0)
    machine.run(1000)
    assert machine.controller.state == "open"
    assert machine.run(4000) < 400
    machine.accepted = 4
    machine.run(10_000)
    assert machine.controller.state == "closed"
    assert machine.run(1000) > 980


def compared(controller: Controller) -> None:
    """Let the breaker have seen enough steps without drafts."""
    for _ in range(10):
        controller.learn(StepShape(1, 1, 0), StepShape(1, 1, 0), 1, 1.0)


def test_a_programs_bad_drafts_stop_nobody() -> None:
    machine = Machine(StepTimes.linear(1.0, 0.1), accepted=0, source="program")
    compared(machine.controller)
    assert machine.run(1000) == 1000
    assert machine.controller.state == "closed"


def test_steps_that_read_prompts_judge_nothing_and_are_not_used_for_comparison() -> None:
    controller, draft = Controller(StepTimes.linear(1.0, 0.001)), draft_of([0.9] * 4)
    plain = StepShape(2, 40, 0)
    compared(controller)
    for _ in range(500):
        chosen = controller.allocate([draft, NO_DRAFT], plain, 16)
        assert len(chosen[0].tokens) == 4
        controller.learn(plain._replace(rows=44), plain, 1, 9.0)
    assert controller.state == "closed"


def test_a_comparison_that_is_due_waits_for_a_step_that_only_decodes() -> None:
    machine = Machine(StepTimes.linear(1.0, 0.001), accepted=0)
    controller, plain = machine.controller, machine.plain
    while not controller.breaker.wants_control:
        controller.learn(plain._replace(rows=5), plain, 1, 1.0)
    assert controller.allocate([machine.draft], StepShape(1, 40, 0), 16)[0].tokens
    assert not controller.compares
    assert not controller.allocate([machine.draft], plain, 16)[0].tokens
    assert controller.compares
    controller.learn(plain, plain, 1, 1.0)
    assert not controller.compares
    assert controller.allocate([machine.draft], plain, 16)[0].tokens


def test_where_nobody_measures_drafting_goes_on() -> None:
    controller, draft, plain = Controller(StepTimes.linear(1.0, 0.001)), draft_of([0.9] * 4), StepShape(1, 1, 0)
    for _ in range(500):
        assert controller.allocate([draft], plain, 16)[0].tokens
        controller.learn(plain._replace(rows=5), plain, 1, None)


def test_learnt_times_are_used() -> None:
    times = StepTimes(Profile((1,), (1, 5), np.asarray([[1.0, 1.1]])))
    controller, draft, plain = Controller(times), draft_of([0.5] * 4), StepShape(1, 1, 0)
    assert len(controller.allocate([draft], plain, 16)[0].tokens) == 4
    for _ in range(200):
        controller.learn(plain, plain, 1, 1.0)
        controller.learn(plain._replace(rows=5), plain, 5, 5.0)
    assert len(controller.allocate([draft], plain, 16)[0].tokens) == 0
