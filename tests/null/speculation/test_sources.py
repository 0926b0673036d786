"""Several sources of one generation: merged by prefix, told what became of their guesses, isolated when they fail."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, strategies as st

from inferd_runtime.speculation.counters import SpeculationCounters, count_sources
from inferd_runtime.speculation.drafter import Drafter, OfferedDraft
from inferd_runtime.speculation.drafts import NO_DRAFT, Draft, Proposal
from inferd_runtime.speculation.sources import SourceSet, branches
from inferd_runtime.speculation.survival import Survival


class Scripted(Drafter):
    """Proposes what it is told to, and notes what it hears."""

    def __init__(self, source: str, proposal: Proposal) -> None:
        self.source = source
        self.proposal = proposal
        self.heard: list[tuple[int, int]] = []
        self.asked: list[tuple[int, list[int]]] = []
        self.dropped = 0

    def propose(self, limit: int, ahead: Sequence[int] = ()) -> Proposal:
        self.asked.append((limit, list(ahead)))
        return self.proposal

    def feedback(self, proposed: int, accepted: int) -> None:
        self.heard.append((proposed, accepted))

    def drop(self) -> None:
        self.dropped += 1


class Broken(Drafter):
    """Fails at one of its methods."""

    def __init__(self, method: str) -> None:
        self._method = method

    def __getattribute__(self, name: str):  # type: ignore[no-untyped-def]
        if name in ("observe", "propose", "feedback", "ready", "drop") and name == object.__getattribute__(
            self, "_method"
        ):
            raise ZeroDivisionError(name)
        return object.__getattribute__(self, name)

    def propose(self, limit: int, ahead: Sequence[int] = ()) -> Proposal:
        return Proposal([9])

    def ready(self) -> bool:
        return True


def together(*drafters: Drafter, tree: bool = True, max_draft: int = 16, survival: Survival | None = None) -> SourceSet:
    return SourceSet(
        drafters, (survival or Survival()).request(), SpeculationCounters(), max_draft=max_draft, tree=tree
    )


def paths(draft: Draft) -> list[tuple[int, ...]]:
    found: list[tuple[int, ...]] = []
    for token, parent in zip(draft.tokens, draft.parents, strict=True):
        found.append((*(() if parent < 0 else found[parent]), token))
    return found


def test_sources_merge_by_prefix_behind_what_is_forced() -> None:
    one, two = Scripted("ngram", Proposal([1, 2, 3])), Scripted("corpus", Proposal([1, 2, 4]))
    draft = together(one, two).propose(16, [7, 8])
    forced, shared = (7, 8), (7, 8, 1, 2)
    assert set(paths(draft)) == {(7,), forced, (7, 8, 1), shared, (*shared, 3), (*shared, 4)}
    by_path = dict(zip(paths(draft), draft.sources, strict=True))
    assert (by_path[forced], by_path[shared], by_path[(*shared, 4)]) == ("grammar", "ngram", "corpus")
    assert one.asked == two.asked == [(14, [7, 8])]
    assert draft.survival[0] == draft.survival[1] == 1.0


def test_without_trees_the_likeliest_chain_is_left() -> None:
    one, two = Scripted("predicted", Proposal([1, 2, 3], match=20)), Scripted("ngram", Proposal([4, 5], match=2))
    draft = together(one, two, tree=False).propose(16)
    assert list(draft.tokens) == [1, 2, 3]
    assert draft.is_chain


def test_each_source_hears_of_its_own_tokens() -> None:
    one, two = Scripted("ngram", Proposal([1, 2, 3])), Scripted("corpus", Proposal([1, 5]))
    sources = together(one, two)
    draft = sources.propose(16)
    path = [draft.children()[-1, 1]]
    path.append(draft.children()[path[0], 2])
    sources.learn(draft, path, 1.0)
    assert (one.heard, two.heard) == ([(3, 2)], [(2, 1)])


def test_what_was_cut_away_teaches_nothing() -> None:
    """Only verified tokens say how likely guesses are: the rest of a draft was never tried, so it neither held nor fell."""
    chances = []
    for rows, path in ((1, [0]), (3, [0]), (3, [0, 1, 2])):
        drafter, survival = Scripted("ngram", Proposal([1, 2, 3], match=4)), Survival()
        sources = together(drafter, survival=survival)
        sources.learn(sources.propose(16).likeliest(rows), path, 1.0)
        assert drafter.heard == [(rows, len(path))]
        chances.append(survival.request().chances("ngram", 4, 3))
    untried, fallen, held = chances
    assert fallen[1] < untried[1] < held[1]


@pytest.mark.parametrize("accepted", [0, 1, 2, 3])
def test_experience_counts_up_to_the_first_wrong_token(accepted: int) -> None:
    survival = Survival()
    sources = together(Scripted("ngram", Proposal([1, 2, 3], match=4)), survival=survival)
    for _ in range(30):
        draft = sources.propose(16)
        if draft.tokens:
            sources.learn(draft, list(range(accepted)), 0.1)
    chances = survival.request().chances("ngram", 4, 3)
    assert all(chance > 0.8 for chance in chances[:accepted])
    assert accepted == 3 or chances[accepted] < 0.4


def test_a_second_branch_is_judged_only_where_the_first_was_wrong() -> None:
    survival = Survival()
    tree = Proposal([1, 2, 3], [-1, 0, -1], match=4)
    sources = together(Scripted("ngram", tree), survival=survival)
    first = survival.request().chances("ngram/second", 4, 1)
    draft = sources.propose(16)
    sources.learn(draft, [draft.children()[-1, 1]], 0.5)
    assert survival.request().chances("ngram/second", 4, 1) == pytest.approx(first, abs=1e-2)
    draft = sources.propose(16)
    sources.learn(draft, [draft.children()[-1, 3]], 0.5)
    assert survival.request().chances("ngram/second", 4, 1)[0] > first[0]


@pytest.mark.parametrize("method", ["observe", "propose", "feedback", "ready", "drop"])
def test_a_source_that_raises_is_off_and_the_others_go_on(method: str, caplog: pytest.LogCaptureFixture) -> None:
    other = Scripted("corpus", Proposal([1, 2]))
    sources = together(Broken(method), other)
    for _ in range(3):
        sources.observe([5])
        assert sources.ready()
        draft = sources.propose(16)
        assert (1, 2) in paths(draft)
        sources.learn(draft, [], 1.0)
    sources.drop()
    assert other.dropped == 1
    assert caplog.text.count("Traceback") == 1
    assert "custom" in caplog.text


class Holding(Scripted):
    """Holds something elsewhere, and fails."""

    def propose(self, limit: int, ahead: Sequence[int] = ()) -> Proposal:
        raise ZeroDivisionError


def test_a_source_that_raises_gives_back_what_it_holds() -> None:
    drafter = Holding("draft_model", Proposal(()))
    sources = together(drafter)
    assert not sources.propose(16).tokens
    assert drafter.dropped == 1
    sources.drop()
    assert drafter.dropped == 1


def test_a_source_that_is_never_verified_is_asked_less_and_less() -> None:
    """A guess that does not pay must not cost the time to make it, either."""
    drafter = Scripted("ngram", Proposal([1, 2], match=3))
    sources = together(drafter)
    for _ in range(200):
        if sources.propose(16).tokens:
            sources.learn(NO_DRAFT, [], 1.0)
    assert len(drafter.asked) < 30
    asked = len(drafter.asked)
    for _ in range(20):
        sources.propose(16)
    assert len(drafter.asked) > asked, "it is never asked again"


def rows_at(price: float) -> list[float]:
    """What drafts of up to 16 rows cost, each the same."""
    return [price * rows for rows in range(17)]


def test_a_draft_is_no_longer_than_what_its_source_has_gained_pays_for() -> None:
    """Where a row took a sixth of a step, a first draft of 16 that was all wrong cost a request two steps and a half."""
    drafter = Scripted("ngram", Proposal(list(range(6)), match=12))
    sources, prices = together(drafter), iter((1 / 6, 1 / 6, 0.7, 0.0))
    sources._draft_costs = lambda most: rows_at(next(prices))
    sources.learn(sources.propose(16), range(6), 2.0)
    for _ in range(3):
        sources.propose(16)
    assert [limit for limit, _ in drafter.asked] == [6, 16, 5, 16]


def test_a_source_that_is_off_drafts_again_once_its_guesses_come_true() -> None:
    """One long draft that was wrong, where a value differed, kept it from copying all that came behind."""
    drafter = Scripted("ngram", Proposal([7] * 8, match=2))
    sources = together(drafter)
    while draft := sources.propose(16).tokens:
        sources.learn(sources._open.merged, [], 1 + len(draft) / 4)
    drafted = []
    for token in (9, 7, 7):
        sources.observe([token])
        drafted.append(len(sources.propose(16)))
    assert drafted == [0, 8, 8]


def test_a_short_request_loses_little_to_a_source_that_others_have_come_to_trust() -> None:
    """Eight answers of 32 tokens began with four rows each that were all wrong, where a row took half a step."""
    drafter = Scripted("predicted", Proposal([4], match=12))
    sources = together(drafter)
    sources._draft_costs = lambda most: rows_at(0.5)
    sources.begin([1, 2, 3], 32)
    sources.learn(sources.propose(16), [], 1.5)
    assert drafter.asked[0][0] == 1
    assert not sources.propose(16).tokens


class Slow(Scripted):
    """A draft model that has not answered yet."""

    def ready(self) -> bool:
        return False


def test_nobody_waits_for_a_slow_source_while_another_guesses_well() -> None:
    slow = Slow("draft_model", Proposal(()))
    sources = together(Scripted("ngram", Proposal([1, 2, 3, 4, 5])), slow)
    assert not sources.ready()
    draft = sources.propose(16)
    sources.learn(draft, range(5), 1.2)
    assert sources.ready()
    sources.observe([1, 2, 3, 4, 5, 6])
    assert not slow.needed, "it would draft on for nobody"
    sources.learn(sources.propose(16), range(1), 1.2)
    assert not sources.ready()
    sources.observe([1, 2])
    assert slow.needed


def test_a_program_is_asked_every_time() -> None:
    """It knows what it does, and was promised a step for every draft."""
    offered = OfferedDraft()
    sources = together(offered)
    for _ in range(60):
        offered.offer([1, 2])
        draft = sources.propose(16)
        assert draft.tokens == [1, 2]
        sources.learn(draft, [], 3.0)
        sources.observe([5])


@given(st.lists(st.integers(-1, 30), max_size=8))
def test_branches_hold_every_node_once(wanted: list[int]) -> None:
    parents = [min(parent, node - 1) for node, parent in enumerate(wanted)]
    if not parents:
        return
    proposal = Proposal(list(range(len(parents))), parents)
    found = branches(proposal)
    assert sorted(node for branch in found for node in branch.nodes) == list(range(len(parents)))
    for branch in found:
        assert proposal.parent(branch.nodes[0]) == branch.parent
        assert all(proposal.parent(b) == a for a, b in zip(branch.nodes, branch.nodes[1:], strict=False))
        siblings = [node for node in range(len(parents)) if proposal.parent(node) == branch.parent]
        assert branch.beside == (None if siblings[0] == branch.nodes[0] else siblings[0])


def test_counters_add_up() -> None:
    counters = SpeculationCounters()
    counters.count(count_sources(["grammar", "ngram", "ngram"], [0, 1], ["ngram"]), accepted=2, emitted=3)
    counters.count([], accepted=0, emitted=1)
    counters.count(count_sources(["ngram"], [0], []), accepted=1, emitted=1)
    assert counters.emitted == counters.steps + counters.accepted - counters.truncated == 5
    assert (counters.drafts, counters.drafted, counters.wasted) == (2, 4, 1)
    assert counters.accepted_per_position == [2, 1]
    ngram = counters.sources["ngram"]
    assert (ngram.drafted, ngram.filtered, ngram.accepted) == (3, 1, 2)


class Resting(Slow):
    """One that is not asked for now."""

    rests = True

    @property
    def resting(self) -> bool:
        return self.rests


def test_steps_run_ahead_where_even_the_slow_source_rests() -> None:
    slow = Resting("draft_model", Proposal(()))
    sources = together(slow)
    assert sources.all_resting
    assert sources.resting_next_step
    slow.rests = False
    assert not sources.all_resting
    assert not sources.resting_next_step


# -- Behind a draft in flight -----------------------------------------------------------------------------------------


def test_behind_a_draft_in_flight_they_guess_the_token_after_it_too_and_what_follows() -> None:
    one = Scripted("a", Proposal([5, 6, 7, 8], confidence=[0.5, 0.5, 1.0, 1.0]))
    sources = together(one)
    assert sources.propose(4).tokens == [5, 6, 7, 8]
    draft = sources.propose_behind(2, [5, 6])
    assert one.asked[-1] == (3, [5, 6]), "one token more, which is sampled and not drafted"
    assert (draft.tokens, list(draft.parents), list(draft.survival)) == ([6, 7], [-1, 0], [0.25, 0.25])
    assert not sources.propose_behind(0, [5, 6]).tokens


def test_of_a_tree_behind_a_draft_the_likeliest_chain_is_taken() -> None:
    tree = Proposal([5, 6, 8, 9, 10], [-1, 0, -1, 2, 3], confidence=[0.2, 1.0, 0.7, 1.0, 1.0])
    assert together(Scripted("a", tree)).propose_behind(4, []).tokens == [9, 10]


@pytest.mark.parametrize(("before", "heard"), [(5, (3, 2)), (4, (3, 0))])
def test_they_learn_from_both_steps_one_after_the_other(before: int, heard: tuple[int, int]) -> None:
    """Behind another token than the guessed one nothing of the guess was right, whatever was accepted."""
    one = Scripted("a", Proposal([5, 6, 7]))
    sources = together(one)
    first = sources.propose(3)
    behind = sources.propose_behind(2, first.tokens)
    sources.learn(first, [0, 1, 2], 1.0, before=3)
    assert one.heard == [(3, 3)]
    sources.learn(behind, [0], 1.0, before=before)
    assert one.heard[1:] == [heard]
    sources.learn(behind, [0], 1.0)
    assert len(one.heard) == 2


def test_what_was_made_behind_a_draft_that_fell_is_forgotten_with_the_next() -> None:
    one = Scripted("a", Proposal([5, 6, 7]))
    sources = together(one)
    first = sources.propose(3)
    sources.propose_behind(2, first.tokens)
    sources.learn(first, [0], 1.0, before=3)
    again = sources.propose(3)
    sources.learn(again, [0, 1], 1.0, before=8)
    assert one.heard == [(3, 1), (3, 2)]
