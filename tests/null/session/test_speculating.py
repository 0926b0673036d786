"""Speculation on the wire: which sources a request gets, what is refused by name, and what is counted."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest
from sessions import new_grants

from inferd import protocol as p
from inferd_runtime.engine.jobs.generation import STEPS_AHEAD
from inferd_runtime.engine.sampling.host_sampling import RowSampler
from inferd_runtime.session.generation.sources import SpeculationRequest, build_sources, open_drafters
from inferd_runtime.session.hub import SessionHub
from inferd_runtime.speculation.drafter import LONGER_SILENCE, SILENT_OFFERS
from inferd_runtime.speculation.ngram import NgramDrafter
from inferd_runtime.testing.byte_tokenizer import VOCAB_SIZE
from inferd_runtime.testing.direct import DirectSession
from inferd_runtime.testing.served import null_model

REPEATING = "one two three, one two three, one two three, "
WISHED = p.SpeculationSettings
REGEX = p.ConstraintSpec("regex", value="(one two three, )*")


@pytest.fixture
def caller() -> Iterator[DirectSession]:
    caller = DirectSession(null_model())
    yield caller
    caller.close()


def names(request: p.StartGenerate, *, auto: bool = True) -> list[str] | None:
    """The sources of a request, the grammar's tokens first; None where nothing is drafted."""
    model = dataclasses.replace(null_model(), auto_speculation=auto)
    wish, sampler = SpeculationRequest.of(request, model), RowSampler.resolve(p.Sampling(), seed=0, lineage=0)
    context = model.engine.create_context("t")
    sources = build_sources(request, model, context, sampler)
    drafters = [drafter.source for drafter in open_drafters(wish, model, context, sampler)]
    assert (sources is None) == (not wish.forced and not drafters)
    return None if sources is None else ["grammar"] * sources.forced + drafters


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, None),
        ({"system_speculation": True}, ["ngram"]),
        ({"system_speculation": True, "constraint": REGEX}, ["grammar", "ngram"]),
        ({"system_speculation": True, "speculation": WISHED(["ngram"]), "constraint": REGEX}, ["ngram"]),
        ({"system_speculation": True, "speculation": WISHED(["grammar"]), "constraint": REGEX}, ["grammar"]),
        ({"system_speculation": True, "speculation": WISHED(auto=True)}, ["ngram"]),
        ({"predicted": [1, 2]}, ["predicted"]),
        ({"system_speculation": True, "predicted": [1, 2]}, ["predicted", "ngram"]),
        ({"system_speculation": True, "speculation": WISHED(["corpus"])}, ["corpus"]),
        ({"system_speculation": True, "speculation": WISHED(["predicted"]), "predicted": [1]}, ["predicted"]),
    ],
)
def test_a_request_gets_the_sources_that_it_asks_for(fields: dict[str, Any], expected: list[str] | None) -> None:
    assert names(p.StartGenerate(1, **fields)) == expected


def test_an_operator_decides_for_those_who_leave_it_open() -> None:
    auto = p.StartGenerate(1, system_speculation=True, speculation=WISHED(auto=True))
    assert names(auto, auto=False) is None
    assert names(dataclasses.replace(auto, speculation=None), auto=False) == ["ngram"]
    named = p.StartGenerate(1, system_speculation=True, speculation=WISHED(auto=True, draft_model="tiny-draft"))
    assert names(named, auto=False) is None


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"speculation": WISHED()}, "needs system_speculation"),
        ({"speculation": WISHED(["oracle"])}, "'oracle'"),
        ({"speculation": WISHED(["program"])}, "'program'"),
        ({"speculation": WISHED(["predicted"])}, "predicted"),
        ({"speculation": WISHED(["grammar"])}, 'source "grammar"'),
        ({"speculation": WISHED(["ngram", "grammar"])}, 'source "grammar"'),
        ({"speculation": WISHED(["ngram", "corpus", "ngram"])}, "sources name 'ngram' twice"),
        ({"speculation": WISHED(["ngram"]), "predicted": [1]}, "predicted"),
        ({"speculation": WISHED(max_draft=0)}, "max_draft must be a whole number from 1 to 64, not 0"),
        ({"speculation": WISHED(max_draft=65)}, "1 to 64"),
        ({"speculation": WISHED(verifier="luck")}, "'luck'"),
        ({"speculation": WISHED(verifier="rejection")}, "only source"),
        ({"speculation": WISHED(["ngram"], draft_model="tiny-draft")}, "tiny-draft"),
        ({"predicted": [1], "predicted_text": "a"}, "predicted_text"),
        ({"predicted": [1], "program_speculation": True}, "prediction"),
        ({"predicted_text": "a", "program_constraint": True}, "prediction"),
        ({"program_constraint": True, "program_speculation": True}, "program_speculation"),
        ({"predicted": [VOCAB_SIZE]}, str(VOCAB_SIZE)),
    ],
)
def test_what_cannot_be_is_refused_by_name(caller: DirectSession, fields: dict[str, Any], says: str) -> None:
    context = caller.text("hello")
    drafts: dict[str, Any] = {"system_speculation": True} if "speculation" in fields and "needs" not in says else {}
    with pytest.raises(p.InvalidRequest, match=says):
        caller.call(p.StartGenerate(context, **fields, **drafts))
    assert caller.generate(context, max_tokens=3).tokens


@pytest.mark.parametrize("wish", [WISHED(["ngram", "draft_model"]), WISHED(draft_model="tiny-draft")])
def test_a_draft_model_that_is_not_served_is_refused(caller: DirectSession, wish: p.SpeculationSettings) -> None:
    with pytest.raises(p.NotFound, match="no draft model is served for 'null'"):
        caller.call(p.StartGenerate(caller.text("hello"), system_speculation=True, speculation=wish))


def test_a_prediction_longer_than_a_context_is_refused(caller: DirectSession) -> None:
    with pytest.raises(p.LimitExceeded, match="513 tokens"):
        caller.call(p.StartGenerate(caller.text("hello"), predicted=[1] * 513))
    with pytest.raises(p.LimitExceeded, match="a text of 16480 characters does not fit"):
        caller.call(p.StartGenerate(caller.text("hello"), predicted_text="ab" * 8240))


@pytest.mark.parametrize(
    ("draft", "parents", "positions", "says"),
    [
        ([1, 2], [-1, -1], [5, 6], "count from 5"),
        ([1, 2], [-1, 1], [5, 6], r"parents\[1\] must be a whole number from -1 to 0, not 1"),
        ([1, 2], [-2, 0], [5, 6], r"parents\[0\] must be -1, not -2"),
        ([1, 2], [-1], [5, 6], "each of the 2 tokens, not 1"),
        ([1] * 65, [], list(range(5, 70)), "64 tokens"),
        ([VOCAB_SIZE], [-1], [5], str(VOCAB_SIZE)),
        ([], [-1], [], "each of the 0 tokens, not 1"),
    ],
)
def test_a_tree_that_is_none_is_refused_and_costs_nothing(
    caller: DirectSession, draft: list[int], parents: list[int], positions: list[int], says: str
) -> None:
    context = caller.text("hello")
    started = caller.call(p.StartGenerate(context, max_tokens=4, program_speculation=True))
    with pytest.raises(p.InvalidRequest, match=says):
        caller.call(p.NextSteps(started.generation, draft, positions, parents))
    assert len(caller.call(p.NextSteps(started.generation, [1, 2], [5, 5], [-1, -1])).steps) == 1


@pytest.mark.parametrize(("least", "ahead"), [(1, 1), (3, 3), (p.MOST_STEPS, STEPS_AHEAD)])
def test_a_program_that_drafts_nothing_is_not_waited_for_until_it_drafts_again(
    caller: DirectSession, least: int, ahead: int
) -> None:
    plain = caller.generate(caller.text("hello"), max_tokens=40, ignore_eos=True).tokens
    started = caller.call(
        p.StartGenerate(caller.text("hello"), max_tokens=40, ignore_eos=True, program_speculation=True)
    )
    tokens: list[int] = []

    def ask(draft: list[int]) -> list[p.Step]:
        at = list(range(5 + len(tokens), 5 + len(tokens) + len(draft)))
        steps: list[p.Step] = caller.call(p.NextSteps(started.generation, draft, at, least=least)).steps
        tokens.extend(token for step in steps for token in step.tokens)
        return steps

    def runs_ahead() -> int:
        steps = 0
        while caller.engine.step():
            steps += 1
        return steps

    for _ in range(SILENT_OFFERS - 1):
        assert (len(ask([])), runs_ahead()) == (1, 0)
    assert (len(ask([])), runs_ahead()) == (ahead, ahead)
    assert (len(ask([])), runs_ahead()) == (ahead, ahead)
    late = ask(plain[len(tokens) : len(tokens) + 3])
    assert [step.accepted for step in late] == [0] * ahead
    assert runs_ahead() == 0, "a program that drafts again is waited for"
    assert [step.accepted for step in ask(plain[len(tokens) : len(tokens) + 3])] == [3]
    for _ in range(SILENT_OFFERS * LONGER_SILENCE - 1):
        assert (len(ask([])), runs_ahead()) == (1, 0)
    assert (len(ask([])), runs_ahead()) == (ahead, ahead)
    assert tokens == plain[: len(tokens)]


def test_what_a_silent_program_has_not_got_is_taken_back_at_its_end(caller: DirectSession) -> None:
    context = caller.text("hello")
    started = caller.call(p.StartGenerate(context, max_tokens=40, ignore_eos=True, program_speculation=True))
    got = [caller.call(p.NextSteps(started.generation)).steps for _ in range(SILENT_OFFERS)]
    while caller.engine.step():
        pass
    caller.call(p.CloseGenerate(started.generation))
    assert caller.tokens(context)[5:] == [token for steps in got for step in steps for token in step.tokens]


def test_parents_without_a_speculator_are_refused(caller: DirectSession) -> None:
    started = caller.call(p.StartGenerate(caller.text("hello"), max_tokens=4))
    with pytest.raises(p.InvalidRequest, match="program_speculation"):
        caller.call(p.NextSteps(started.generation, [1], [5], parents=[-1]))


def test_a_generation_that_cannot_start_drops_its_sources(caller: DirectSession, monkeypatch: Any) -> None:
    dropped: list[str] = []
    monkeypatch.setattr(
        "inferd_runtime.speculation.ngram.NgramDrafter.drop", lambda self: dropped.append(self.source), raising=False
    )
    empty = caller.call(p.CreateContext()).context
    with pytest.raises(p.InvalidRequest, match="the context is empty"):
        caller.call(p.StartGenerate(empty, system_speculation=True))
    assert dropped == ["ngram"]


@pytest.mark.parametrize(
    "fields", [{"max_tokens": 0}, {"speculation": WISHED(["ngram", "draft_model"])}, {"adapter": "unknown"}]
)
def test_a_refused_generation_leaves_the_index_of_the_last_one(
    caller: DirectSession, monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any]
) -> None:
    context = caller.text(REPEATING)
    caller.generate(context, max_tokens=4, system_speculation=True)
    with pytest.raises(p.InferdError):
        caller.call(p.StartGenerate(context, system_speculation=True, **fields))
    built: list[object] = []
    monkeypatch.setattr(NgramDrafter, "__init__", lambda self, *_: built.append(self))
    assert caller.generate(context, max_tokens=4, system_speculation=True).tokens
    assert built == []


def test_the_engine_counts_what_its_steps_tell() -> None:
    model = null_model()
    caller, hub = DirectSession(model), SessionHub({"null": model}, lambda identity, frames: None, new_grants())
    done = [caller.generate(caller.text(REPEATING * 2), max_tokens=60, system_speculation=True) for _ in range(3)]
    steps = [step for each in done for step in each.steps]
    (stats,) = hub.stats().models
    told = stats.speculation
    assert (told.steps, told.drafts) == (len(steps), sum(step.drafted > 0 for step in steps))
    assert told.emitted == told.steps + sum(step.accepted for step in steps) - told.truncated
    assert told.truncated == sum(step.truncated for step in steps)
    drafted, accepted = sum(step.drafted for step in steps), sum(step.accepted for step in steps)
    assert told.wasted == drafted - accepted
    assert sum(one.drafted for one in told.sources.values()) == drafted
    assert sum(one.accepted for one in told.sources.values()) == accepted == sum(told.accepted_per_position)
    assert set(told.sources) <= set(p.SOURCES)
    caller.close()


def test_a_prediction_is_verified_and_changes_nothing(caller: DirectSession) -> None:
    plain = caller.generate(caller.text("hello"), max_tokens=40)
    wrong = [*plain.tokens[:10], 1, 2, 3, *plain.tokens[10:]]
    for predicted in (plain.tokens, wrong, [1, 2, 3]):
        for drafts in (False, True):
            done = caller.generate(caller.text("hello"), max_tokens=40, predicted=predicted, system_speculation=drafts)
            assert done.tokens == plain.tokens
            assert len(done.steps) < 12 or predicted == [1, 2, 3]
            sources = {one.source for step in done.steps for one in step.sources}
            assert sources <= ({"predicted", "ngram"} if drafts else {"predicted"})


def test_verified_tokens_are_counted_as_generated(caller: DirectSession) -> None:
    context = caller.text("hello")
    expected = caller.generate(caller.text("hello"), max_tokens=4).tokens
    before = caller.call(p.GetUsage())
    done = caller.call(p.VerifyDraft(context, [*expected[:3], 1]))
    used = caller.call(p.GetUsage())
    assert (done.accepted, done.token) == (expected[:3], expected[3])
    assert (used.tokens - before.tokens, used.steps - before.steps) == (4, 1)
    assert (used.drafted - before.drafted, used.accepted - before.accepted) == (4, 3)
    totals = caller.engine.draft_budget.counters
    assert (totals.steps, totals.drafts, totals.emitted) == (1, 1, 4)
    assert (totals.sources["program"].drafted, totals.sources["program"].accepted) == (4, 3)


def test_a_corpus_learns_only_where_it_is_named_and_for_its_tenant_only() -> None:
    model = null_model()
    wish = {"system_speculation": True, "speculation": WISHED(["corpus"])}
    accepted = []
    for tenant, fields in (("a", {"system_speculation": True}), ("a", wish), ("b", wish), ("a", wish)):
        caller = DirectSession(model, tenant=tenant)
        done = caller.generate(caller.text("hello"), max_tokens=60, **fields)
        accepted.append(sum(one.accepted for step in done.steps for one in step.sources if one.source == "corpus"))
        caller.session.close()
    assert accepted[:3] == [0, 0, 0]
    assert accepted[3] > 20
