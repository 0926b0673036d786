"""Watching speculation: nothing is kept that nobody watches, and a watcher gets its tenant's steps once and in order."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hand_clock import HandClock
from hypothesis import given, settings, strategies as st
from sessions import new_grants, opening
from tiers import examples

from inferd import protocol as p
from inferd_runtime.session import wire as link
from inferd_runtime.session.cycles import KEPT, WATCHED_SECONDS, CycleFeed
from inferd_runtime.session.hub import SessionHub
from inferd_runtime.testing.served import null_model

PLAIN = p.Step([1])
DRAFTED = p.Step([1, 2, 3], "", 4, 2, sources=[p.SourceCount("ngram", 4, 0, 2)])


def test_nothing_is_kept_before_somebody_watches() -> None:
    feed = CycleFeed(HandClock())
    feed.publish("a", "s", 1, 1, [PLAIN] * 5)
    assert feed.read("a", -1) == link.CyclePage([], 0)
    feed.publish("a", "s", 1, 6, [DRAFTED, PLAIN])
    feed.publish("b", "other", 1, 1, [PLAIN])
    page = feed.read("a", 0)
    assert page.cycles == [
        link.WatchedCycle(0, "s", 1, 6, "ngram", 4, 2, 3),
        link.WatchedCycle(1, "s", 1, 7, "", 0, 0, 1),
    ]
    assert (page.next, page.missed) == (2, 0)
    assert feed.read("b", -1).cycles == []


def test_a_watcher_who_does_not_come_back_is_forgotten_and_told_if_it_does() -> None:
    clock = HandClock()
    feed = CycleFeed(clock)
    feed.read("a", -1)
    feed.publish("a", "s", 1, 1, [PLAIN] * 3)
    clock.now += WATCHED_SECONDS + 1
    feed.publish("a", "s", 1, 4, [PLAIN] * 2)
    page = feed.read("a", 0)
    assert (page.cycles, page.next, page.missed) == ([], 5, 5)


def test_an_index_of_another_engine_starts_anew() -> None:
    feed = CycleFeed(HandClock())
    assert feed.read("a", 77) == link.CyclePage([], 0)


@settings(max_examples=examples(60), deadline=None)
@given(events=st.lists(st.one_of(st.integers(1, KEPT), st.just("read"), st.just("late")), max_size=12))
def test_every_step_is_read_once_or_counted_as_missed(events: list[int | str]) -> None:
    clock = HandClock()
    feed = CycleFeed(clock)
    at, said, seen, missed = feed.read("a", -1).next, 0, list[int](), 0
    for event in [*events, "read"]:
        if event == "late":
            clock.now += WATCHED_SECONDS + 1
        elif isinstance(event, int):
            feed.publish("a", "s", 1, said + 1, [PLAIN] * event)
            said += event
        else:
            page = feed.read("a", at)
            at, missed = page.next, missed + page.missed
            seen += [cycle.step for cycle in page.cycles]
    assert len(seen) + missed == said
    assert seen == sorted(set(seen))


def test_the_hub_tells_what_was_delivered() -> None:
    replies: list[link.LinkReply] = []
    model = null_model()
    hub = SessionHub({"null": model}, lambda who, frames: replies.append(link.parse_reply(frames)), new_grants())
    hub.receive(b"gateway", opening("inferd", "gateway", gateway=True))
    hub.receive(b"a", opening("tenant", "label"))

    def ask(who: bytes, request: Any, kind: type[Any]) -> Any:
        replies.clear()
        hub.receive(who, link.request_frames(7, request.op, link.MSGPACK, msgspec.msgpack.encode(request)))
        while not replies:
            assert model.engine.step()
        assert replies[0].ok, replies[0].payload
        return msgspec.msgpack.decode(replies[0].payload, type=kind)

    def watch(after: int) -> link.CyclePage:
        page = ask(b"gateway", link.GetCycles("tenant", after), link.CyclePage)
        assert isinstance(page, link.CyclePage)
        return page

    start = watch(-1)
    context = ask(b"a", p.CreateContext(), p.ContextState).context
    ask(b"a", p.AppendContext(context, [p.Part("text", text="one, two, one, two, ")]), p.ContextState)
    request = p.StartGenerate(context, max_tokens=30, system_speculation=True)
    generation = ask(b"a", request, p.GenerationStarted).generation
    steps: list[p.Step] = []
    finish = ""
    while not finish:
        reply = ask(b"a", p.NextSteps(generation), p.Steps)
        finish, steps = reply.finish, steps + reply.steps
    ask(b"a", p.CloseGenerate(generation), p.ContextState)
    page = watch(start.next)
    assert [cycle.step for cycle in page.cycles] == list(range(1, len(steps) + 1))
    assert [(cycle.drafted, cycle.accepted) for cycle in page.cycles] == [(s.drafted, s.accepted) for s in steps]
    assert {(cycle.session, cycle.generation) for cycle in page.cycles} == {("label", generation)}
    assert watch(page.next).cycles == []
    hub.close_all()


def test_programs_and_scripts_cannot_ask_for_it() -> None:
    assert link.GetCycles.op in link.PRIVATE_OPERATIONS
    assert not link.PRIVATE_OPERATIONS & p.OPERATIONS.keys()


@pytest.mark.parametrize("tenant", ["", "x" * 50])
def test_tenants_are_apart(tenant: str) -> None:
    feed = CycleFeed(HandClock())
    feed.read(tenant, -1)
    feed.publish("somebody", "s", 1, 1, [PLAIN])
    assert feed.read(tenant, 0).next == 0
