"""What the gateway holds of answers is counted for their tenants, and given back however they end."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

from inferd.chat import ChatEvent, PromptScores, TextDelta, TokenScore
from inferd.protocol import LimitExceeded
from inferd_runtime.server.chat.held_answers import MAX_ANSWER_BYTES, SCORE_BYTES, SENT_TIMES, held_answer
from inferd_runtime.server.tenancy.shares import SharedPlaces
from inferd_runtime.server.tenancy.tenant_use import OUTSTANDING_RULE

ALTERNATIVES = 20
SCORE = TokenScore(1, "a", [97], -1.0, [TokenScore(2, "b", [98], -1.5, [], 1)] * ALTERNATIVES, 1)
SCORED = TextDelta("a", scores=[SCORE] * 256)
SCORED_BYTES = 256 * SCORE_BYTES * (1 + ALTERNATIVES)


class Endless:
    """Writes the same for ever."""

    run = "run-1"
    events: Sequence[ChatEvent] = [SCORED]

    async def next(self) -> list[ChatEvent]:
        return list(self.events)


@asynccontextmanager
async def endless() -> AsyncIterator[Endless]:
    yield Endless()


async def test_an_answer_with_logprobs_without_end_is_refused_by_name() -> None:
    places = SharedPlaces(OUTSTANDING_RULE, "outstanding_bytes", "")

    async def read() -> None:
        async with held_answer(endless(), places, "mallory") as source:
            assert source.run == "run-1"
            while True:
                await source.next()
                assert SCORED_BYTES <= places.held("mallory") <= MAX_ANSWER_BYTES + (1 << 17)

    with pytest.raises(LimitExceeded) as caught:
        await read()
    assert (caught.value.detail["limit"], caught.value.detail["value"]) == ("answer_bytes", MAX_ANSWER_BYTES)
    assert places.used == 0


async def test_what_many_answers_of_a_tenant_hold_leaves_room_for_others() -> None:
    places = SharedPlaces(OUTSTANDING_RULE, "outstanding_bytes", "")

    async def fill(left: int) -> None:
        async with held_answer(endless(), places, "mallory") as source:
            for _ in range(MAX_ANSWER_BYTES // SCORED_BYTES - 1):
                await source.next()
            async with held_answer(endless(), places, "bob") as other:
                await other.next()
            if left:
                await fill(left - 1)

    with pytest.raises(LimitExceeded) as caught:
        await fill(16)
    assert caught.value.detail["limit"] == "outstanding_bytes"
    assert places.used == 0


async def test_events_that_are_kept_as_they_were_sent_count() -> None:
    places = SharedPlaces(OUTSTANDING_RULE, "outstanding_bytes", "")
    async with held_answer(endless(), places, "mallory", keeps_events=True) as source:
        await source.next()
        assert places.held("mallory") >= SENT_TIMES * SCORED_BYTES


async def test_what_is_told_of_a_prompt_counts_as_often_as_the_answer_repeats_it() -> None:
    places = SharedPlaces(OUTSTANDING_RULE, "outstanding_bytes", "")

    @asynccontextmanager
    async def told() -> AsyncIterator[Endless]:
        source = Endless()
        source.events = [PromptScores([SCORE] * 256)]
        yield source

    async with held_answer(told(), places, "mallory", 16) as source:
        await source.next()
        assert places.held("mallory") >= 16 * SCORED_BYTES


async def test_a_request_counts_as_often_as_what_is_kept_repeats_it() -> None:
    """70 of 4 MB each, in the background, took 1.2 GiB that nobody had counted."""
    places = SharedPlaces(OUTSTANDING_RULE, "outstanding_bytes", "")
    async with held_answer(endless(), places, "mallory", keeps_events=True, request=4 << 20):
        assert places.held("mallory") >= SENT_TIMES * (4 << 20)
    with pytest.raises(LimitExceeded):
        async with held_answer(endless(), places, "mallory", request=MAX_ANSWER_BYTES + 1):
            pass
    assert places.used == 0
