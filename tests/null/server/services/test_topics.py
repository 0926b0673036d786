"""Topics and queues through the SDK, without processes: order, back-pressure, bounds, and that nothing is lost or shared."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from hand_clock import HandClock
from tiers import examples

from inferd import queue, topic
from inferd.protocol import InferdError, InvalidRequest, LimitExceeded, NotFound, ProgramError, Unavailable
from inferd.protocol.topics import (
    MAX_TOPIC_NAME,
    MAX_VALUE_BYTES,
    NextValues,
    PublishValues,
    PullValues,
    PushValues,
    Subscribe,
)
from inferd_runtime.server.services.table import ServiceTable
from inferd_runtime.server.services.topics.buffers import MAX_HELD_VALUES, MAX_NAMES, MAX_TENANT_HELD, MessageRoom
from inferd_runtime.server.services.topics.kept_values import open_kept_values
from inferd_runtime.server.services.topics.queues import Queues
from inferd_runtime.server.services.topics.topics import MAX_SUBSCRIPTIONS, SLOW_SECONDS, Topics
from inferd_runtime.server.tenancy.quotas import Quotas, same_for_all
from inferd_runtime.testing.services import calling, service_table


class Messages:
    """Topics and queues of a table, whose room is looked at when the test is over."""

    def __init__(self, table: ServiceTable, room: MessageRoom, queues: Queues, clock: HandClock) -> None:
        self.table, self.room, self.queues, self.clock = table, room, queues, clock


@asynccontextmanager
async def messages(folder: Path | None = None, quotas: Quotas | None = None) -> AsyncIterator[Messages]:
    room, clock = MessageRoom(), HandClock()
    if folder is None:
        queues = Queues(room)
        async with service_table(Topics(room, clock), queues) as table:
            yield Messages(table, room, queues, clock)
        return
    async with open_kept_values(folder / "queues.sqlite3", same_for_all(quotas or Quotas())) as kept:
        queues = Queues(room, kept)
        async with service_table(Topics(room, clock), queues) as table:
            yield Messages(table, room, queues, clock)


async def settled() -> None:
    """Let every task go as far as it can."""
    for _ in range(30):
        await anyio.lowlevel.checkpoint()


async def test_all_who_subscribe_hear_every_value_in_the_order_of_each_publisher() -> None:
    async with messages() as m, asyncio.timeout(10):
        with calling(m.table):
            async with topic.subscribe("news") as first, topic.subscribe("news") as second:

                async def publish(who: str) -> None:
                    for number in range(300):
                        assert await topic.publish("news", [who, number]) == 2

                async with asyncio.TaskGroup() as tasks:
                    for who in "ab":
                        tasks.create_task(publish(who))
                    heard = [[await anext(one) for _ in range(600)] for one in (first, second)]
        assert heard[0] == heard[1]
        for who in "ab":
            assert [number for name, number in heard[0] if name == who] == list(range(300))
        assert m.room.held("ann") == 0


async def test_what_many_tasks_publish_goes_together_and_in_order() -> None:
    async with messages() as m, asyncio.timeout(10):
        with calling(m.table) as run:
            async with topic.subscribe("news") as news:
                before = run.desk.asked
                await asyncio.gather(*(topic.publish("news", number) for number in range(500)))
                assert run.desk.asked - before <= 4
                assert [await anext(news) for _ in range(500)] == list(range(500))


async def test_nobody_hears_what_is_published_before_they_subscribe_or_after_they_have_left() -> None:
    async with messages() as m, asyncio.timeout(10):
        with calling(m.table):
            assert await topic.publish("news", 1) == 0
            async with topic.subscribe("news") as news:
                assert await topic.publish("news", 2) == 1
                assert await anext(news) == 2
            assert await topic.publish("news", 3) == 0
            with pytest.raises(StopAsyncIteration):
                await anext(news)


async def test_a_slow_subscriber_slows_the_publisher_and_loses_nothing() -> None:
    async with messages() as m, asyncio.timeout(20):
        with calling(m.table):
            async with topic.subscribe("news") as news:
                sent = 0

                async def publish() -> None:
                    nonlocal sent
                    for start in range(0, 3 * MAX_HELD_VALUES, 64):
                        await asyncio.gather(*(topic.publish("news", start + number) for number in range(64)))
                        sent += 64

                task = asyncio.create_task(publish())
                while sent < MAX_HELD_VALUES:
                    await anyio.lowlevel.checkpoint()
                await settled()
                assert sent == MAX_HELD_VALUES
                with pytest.raises(LimitExceeded, match="no room"):
                    await topic.publish("news", "more", wait=False)
                assert [await anext(news) for _ in range(3 * MAX_HELD_VALUES)] == list(range(3 * MAX_HELD_VALUES))
                await task


async def test_a_subscriber_that_never_reads_is_ended_and_reads_what_it_has_and_then_why(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with messages() as m, asyncio.timeout(20):
        with calling(m.table):
            news = await topic.subscribe("news").__aenter__()
            for number in range(MAX_HELD_VALUES):
                await topic.publish("news", number)
            m.clock.now += 1.0
            waiting = asyncio.create_task(topic.publish("news", "one more"))
            await settled()
            assert not waiting.done()
            m.clock.now += SLOW_SECONDS
            async with topic.subscribe("news") as other:  # whatever changes has the publisher look at the clock
                pass
            assert await waiting == 0
            del other
            assert [await anext(news) for _ in range(MAX_HELD_VALUES)] == list(range(MAX_HELD_VALUES))
            with pytest.raises(LimitExceeded, match="waited 60 s"):
                await anext(news)
            await news.aclose()
        assert m.room.held("ann") == 0


async def test_a_cancelled_read_of_a_topic_loses_no_value() -> None:
    async with messages() as m, asyncio.timeout(10):
        with calling(m.table):
            async with topic.subscribe("news") as news:
                for number in range(50):
                    reading = asyncio.create_task(anext(news))
                    await asyncio.sleep(0)
                    publishing = asyncio.create_task(topic.publish("news", number))
                    for _ in range(number % 9):
                        await asyncio.sleep(0)
                    reading.cancel()
                    await publishing
                    result = (await asyncio.gather(reading, return_exceptions=True))[0]
                    got = await anext(news) if isinstance(result, asyncio.CancelledError) else result
                    assert got == number


async def test_of_many_reads_of_one_subscription_only_the_last_goes_on() -> None:
    async with messages() as m, asyncio.timeout(10):
        with calling(m.table) as run:
            news = await topic.subscribe("news").__aenter__()
            reads = [asyncio.create_task(run.call(NextValues(news._number or 0, 0))) for _ in range(5)]
            await settled()
            await topic.publish("news", 1)
            outcomes = await asyncio.gather(*reads, return_exceptions=True)
            assert [type(one) for one in outcomes[:4]] == [InvalidRequest] * 4
            assert outcomes[4].values == [1]  # type: ignore[union-attr]


async def test_a_subscription_that_another_task_closes_ends_its_reader() -> None:
    async with messages() as m, asyncio.timeout(10):
        with calling(m.table):
            news = await topic.subscribe("news").__aenter__()
            reading = asyncio.create_task(anext(news, "over"))
            await settled()
            await news.aclose()
            assert await reading == "over"


@pytest.mark.parametrize("seed", range(examples(10)))
async def test_no_value_is_lost_or_comes_twice_whoever_gives_up_or_ends(seed: int) -> None:
    random = Random(seed)
    got: list[int] = []
    async with messages() as m, asyncio.timeout(60):

        async def pull_some(name: str) -> None:
            with calling(m.table, name=name):
                for _ in range(random.randrange(1, 30)):
                    pulling = asyncio.create_task(queue.pull_many("jobs", random.randrange(1, 9)))
                    for _ in range(random.randrange(25)):
                        await asyncio.sleep(0)
                    if random.random() < 0.6:
                        pulling.cancel()
                        if random.random() < 0.2 and not pulling.done():
                            break  # its run ends at once
                    with contextlib.suppress(asyncio.CancelledError, TimeoutError):
                        got.extend(await asyncio.wait_for(pulling, 0.05))

        async def push_all() -> None:
            with calling(m.table, name="pusher"):
                for number in range(200):
                    await queue.push("jobs", number)
                    await asyncio.sleep(0)

        pushing = asyncio.create_task(push_all())
        await asyncio.gather(*(pull_some(f"run-{number}") for number in range(12)))
        await pushing
        await settled()
        with calling(m.table):
            while rest := await queue.pull_many("jobs", wait=False):
                got.extend(rest)
        assert (len(got), set(range(200)) - {*got}) == (200, set())
        assert m.room.held("ann") == 0


async def test_each_value_of_a_queue_goes_to_one_puller_and_who_waits_longest_is_first() -> None:
    async with messages() as m, asyncio.timeout(10):
        with calling(m.table):
            pulls = []
            for _ in range(5):
                pulls.append(asyncio.create_task(queue.pull("jobs")))
                await settled()
            for number in range(8):
                await queue.push("jobs", number)
            assert await asyncio.gather(*pulls) == [0, 1, 2, 3, 4]
            assert await queue.pull_many("jobs") == [5, 6, 7]
            assert await queue.pull_many("jobs", wait=False) == []
        assert m.room.held("ann") == 0


async def test_a_full_queue_makes_who_pushes_wait_or_refuses() -> None:
    async with messages() as m, asyncio.timeout(10):
        with calling(m.table):
            await asyncio.gather(*(queue.push("jobs", number) for number in range(MAX_HELD_VALUES)))
            with pytest.raises(LimitExceeded, match="no room"):
                await queue.push("jobs", "more", wait=False)
            waiting = asyncio.create_task(queue.push("jobs", MAX_HELD_VALUES))
            await settled()
            assert not waiting.done()
            got = [value for _ in range(4) for value in await queue.pull_many("jobs")]
            await waiting
            assert got + await queue.pull_many("jobs") == list(range(MAX_HELD_VALUES + 1))


async def test_a_cancelled_pull_loses_no_value() -> None:
    async with messages() as m, asyncio.timeout(10):
        with calling(m.table):
            for number in range(60):
                pulling = asyncio.create_task(queue.pull("jobs"))
                await asyncio.sleep(0)
                pushing = asyncio.create_task(queue.push("jobs", number))
                for _ in range(number % 12):
                    await asyncio.sleep(0)
                pulling.cancel()
                await pushing
                result = (await asyncio.gather(pulling, return_exceptions=True))[0]
                got = await queue.pull("jobs") if isinstance(result, asyncio.CancelledError) else result
                assert got == number


async def test_what_an_ended_puller_never_received_goes_to_the_next() -> None:
    async with messages() as m, asyncio.timeout(10):
        with calling(m.table, name="run-2"):
            with calling(m.table, name="run-1") as killed:
                killed.desk.ask(1, "queue.pull", b'{"queue":"jobs","most":2}')  # it never says that it has the answer
                await settled()
            with calling(m.table, name="run-1") as killed:
                killed.desk.ask(1, "queue.pull", b'{"queue":"jobs","most":2}')
                await settled()
                with calling(m.table, name="run-3"):
                    for number in range(4):
                        await queue.push("jobs", number)
            assert await queue.pull_many("jobs") == [0, 1, 2, 3]


async def test_tenants_do_not_meet_whatever_they_call_things() -> None:
    async with messages() as m, asyncio.timeout(10):
        for name in ("x", "ann\0x", "ann/x", "../ann/x", "('ann', 'x')", "x\0", " x"):
            with calling(m.table, "bob"):
                spy = await topic.subscribe(name).__aenter__()
                with calling(m.table, "ann"):
                    async with topic.subscribe("x"):
                        assert await topic.publish("x", "secret") == 1
                    await queue.push("x", "secret")
                assert await queue.pull_many(name, wait=False) == []
                assert not spy._values
                with calling(m.table, "ann") as ann, pytest.raises(NotFound):
                    await ann.call(NextValues(spy._number or 0, 0))  # a handle of another tenant's
                with calling(m.table, "ann"):
                    assert await queue.pull("x") == "secret"
                await spy.aclose()


async def test_handles_of_another_run_of_the_tenant_are_not_found() -> None:
    async with messages() as m, asyncio.timeout(10):
        with calling(m.table, name="run-1"):
            mine = await topic.subscribe("x").__aenter__()
            with calling(m.table, name="run-2") as other, pytest.raises(NotFound):
                await other.call(NextValues(mine._number or 0, 0))
            await mine.aclose()


@pytest.mark.parametrize("name", ["", "x" * (MAX_TOPIC_NAME + 1), "x" * (4 << 20), 7, None])
async def test_names_out_of_range_are_refused_by_both_ends_and_not_repeated(name: Any) -> None:
    async with messages() as m, asyncio.timeout(10):
        with calling(m.table) as run:
            for refused in (topic.publish(name, 1), queue.push(name, 1), queue.pull(name)):
                with pytest.raises(InvalidRequest) as error:
                    await refused
                assert len(error.value.message) < 300
            for request in (PublishValues(name, [1]), PushValues(name, [1]), PullValues(name), Subscribe(name)):
                if isinstance(name, str) and len(name) > 1 << 20:
                    continue  # more than a request may have
                with pytest.raises(InvalidRequest):
                    await run.call(request)


@pytest.mark.parametrize("value", [float("nan"), 1 << 70, "\ud800", object(), {1: 2}, [[[object]]]])
async def test_values_that_cannot_be_carried_are_refused(value: Any) -> None:
    async with messages() as m, asyncio.timeout(10):
        with calling(m.table), pytest.raises((ProgramError, InvalidRequest)):
            await queue.push("jobs", value)
        with calling(m.table):
            assert await queue.pull_many("jobs", wait=False) == []


async def test_values_and_requests_that_are_too_long_are_refused() -> None:
    async with messages() as m, asyncio.timeout(10):
        with calling(m.table) as run:
            await queue.push("jobs", "x" * (MAX_VALUE_BYTES - 2))
            with pytest.raises(LimitExceeded):
                await queue.push("jobs", "x" * MAX_VALUE_BYTES)
            with pytest.raises(LimitExceeded):
                await run.call(PushValues("jobs", ["x" * MAX_VALUE_BYTES]))
            for count in (0, 257):
                with pytest.raises(InvalidRequest):
                    await run.call(PushValues("jobs", [1] * count))
            with pytest.raises(InvalidRequest):
                await queue.pull_many("jobs", 1000)


async def test_what_a_tenant_holds_is_bounded_in_names_subscriptions_and_bytes() -> None:
    async with messages() as m, asyncio.timeout(30):
        with calling(m.table):
            for number in range(MAX_NAMES):
                await queue.push(f"q{number}", 1)
            with pytest.raises(LimitExceeded, match="topics and queues"):
                await queue.push("another", 1)
            m.queues.idle("ann")
            open_ones = [await topic.subscribe("t").__aenter__() for _ in range(MAX_SUBSCRIPTIONS)]
            with pytest.raises(LimitExceeded, match="subscriptions"):
                await topic.subscribe("t").__aenter__()
            big = "x" * (MAX_VALUE_BYTES - 100)
            most = MAX_TENANT_HELD // MAX_VALUE_BYTES
            for number in range(most):
                await queue.push(f"big{number}", big)
            with pytest.raises(LimitExceeded, match="nobody has read"):
                await queue.push("big", big)
            del open_ones
            with calling(m.table, "bob"):
                await queue.push("mine", 1)
                assert await queue.pull("mine") == 1


@pytest.mark.parametrize("received", [True, False])
async def test_values_that_were_handed_out_count_until_it_is_certain_that_they_arrived(received: bool) -> None:
    """Scripts that pull and never say that they have the values had the gateway hold 32 MiB for each of them."""
    big = "x" * (MAX_VALUE_BYTES - 100)
    async with messages() as m, asyncio.timeout(30):
        with calling(m.table), calling(m.table, name="ws/1") as script:
            for number in range(MAX_TENANT_HELD // MAX_VALUE_BYTES):
                await queue.push("jobs", big)
                script.desk.ask(1000 + number, "queue.pull", b'{"queue":"jobs"}')
                await settled()
            held = m.room.held("ann")
            with pytest.raises(LimitExceeded, match="nobody has read"):
                await queue.push("jobs", big)
            (script.desk.received if received else script.desk.withdraw)(1000)
            assert m.room.held("ann") < held or not received
        assert m.room.held("ann") <= MAX_TENANT_HELD
        await settled()
        m.queues.idle("ann")
        assert m.room.held("ann") == 0


async def test_a_subscription_goes_on_only_behind_what_it_was_given() -> None:
    async with messages() as m, asyncio.timeout(10):
        with calling(m.table) as run:
            news = await topic.subscribe("news").__aenter__()
            await topic.publish("news", 1)
            for after in (2, -1, 1 << 40):
                with pytest.raises(InvalidRequest):
                    await run.call(NextValues(news._number or 0, after))
            assert await anext(news) == 1


async def test_queues_are_gone_with_the_tenants_last_run() -> None:
    async with messages() as m, asyncio.timeout(10):
        with calling(m.table):
            await queue.push("jobs", 1)
        with calling(m.table):
            assert await queue.pull_many("jobs", wait=False) == [1]
            await queue.push("jobs", 2)
        m.table.on_idle.append(m.queues.idle)
        m.table.idle("ann")
        with calling(m.table):
            assert await queue.pull_many("jobs", wait=False) == []


async def test_durable_queues_outlive_the_server_and_what_was_received_does_not_come_again(tmp_path: Path) -> None:
    async with messages(tmp_path) as m, asyncio.timeout(20):
        with calling(m.table):
            for number in range(5):
                await queue.push("jobs", number, durable=True)
            await queue.push("jobs", "not durable")
            assert await queue.pull("jobs", durable=True) == 0
        m.queues.idle("ann")
        with calling(m.table) as killed:
            killed.desk.ask(1, "queue.pull", b'{"queue":"jobs","durable":true}')
            await anyio.lowlevel.checkpoint()
    async with messages(tmp_path) as m, asyncio.timeout(20):
        with calling(m.table, "bob"):
            assert await queue.pull_many("jobs", wait=False, durable=True) == []
        with calling(m.table):
            assert await queue.pull_many("jobs", durable=True) == [1, 2, 3, 4]
            assert await queue.pull_many("jobs", wait=False) == []


async def test_durable_queues_are_bounded_by_the_tenants_quota(tmp_path: Path) -> None:
    async with messages(tmp_path, Quotas(stored_bytes=1000)) as m, asyncio.timeout(20):
        with calling(m.table):
            for _ in range(14):
                await queue.push("jobs", "x", durable=True)
            with pytest.raises(LimitExceeded, match="durable queues take 1000 bytes"):
                await queue.push("jobs", "x", durable=True)
            assert len(await queue.pull_many("jobs", durable=True)) == 14
            await queue.push("jobs", "x", durable=True)


async def test_without_a_disk_durable_queues_are_refused() -> None:
    async with messages() as m, asyncio.timeout(10):
        with calling(m.table):
            for refused in (queue.push("jobs", 1, durable=True), queue.pull("jobs", durable=True)):
                with pytest.raises(Unavailable):
                    await refused


async def test_outside_of_a_runtime_the_calls_say_so() -> None:
    for call in (topic.publish("x", 1), queue.push("x", 1), queue.pull("x")):
        with pytest.raises(InferdError, match="not connected"):
            await call
