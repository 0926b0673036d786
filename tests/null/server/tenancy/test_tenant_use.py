"""Rates, sockets and bodies of tenants."""

from __future__ import annotations

from contextlib import ExitStack

import anyio
import anyio.lowlevel
import pytest
from hand_clock import HandClock
from hypothesis import given, strategies as st

from inferd.protocol import LimitExceeded
from inferd_runtime.server.tenancy.quotas import Quotas, same_for_all
from inferd_runtime.server.tenancy.rates import MinuteBucket
from inferd_runtime.server.tenancy.tenant_use import OUTSTANDING_RULE, SharedSizes, TenantUse


def use_with(clock: HandClock, sizes: SharedSizes | None = None, **quotas: int) -> TenantUse:
    return TenantUse(same_for_all(Quotas(**quotas)), sizes, clock)  # type: ignore[arg-type]


@given(st.integers(1, 100), st.lists(st.floats(0, 120), max_size=60))
def test_nobody_launches_more_than_two_minutes_worth_in_a_minute(per_minute: int, pauses: list[float]) -> None:
    """The bucket's own minute, and the one in which it fills."""
    bucket, now, taken = MinuteBucket(), 0.0, []
    for pause in pauses:
        now += pause
        for _ in range(20):
            if bucket.wait(per_minute, now) == 0:
                bucket.charge(per_minute, now)
                taken.append(now)
    for start in taken:
        assert sum(start <= time < start + 60 for time in taken) <= 2 * per_minute + 1


@given(st.integers(1, 1000), st.integers(1, 10**6), st.floats(0, 10**6))
def test_after_the_wait_that_was_named_the_next_one_is_taken(per_minute: int, used: int, start: float) -> None:
    bucket = MinuteBucket()
    bucket.charge(per_minute, start, used)
    wait = bucket.wait(per_minute, start)
    assert bucket.wait(per_minute, start + wait + 1e-3) < 1e-3
    assert (wait > 0) == (used > per_minute - 1)


def test_too_many_launches_are_refused_with_when_to_try_again_and_only_for_their_tenant() -> None:
    clock = HandClock()
    use = use_with(clock, launches_per_minute=60)
    for _ in range(60):
        use.admit_launch("eve")
    with pytest.raises(LimitExceeded, match="60 runs a minute") as caught:
        use.admit_launch("eve")
    assert caught.value.detail["limit"] == "launches_per_minute"
    assert caught.value.detail["retry_after_s"] == 1.0
    use.admit_launch("ann")
    assert use.per_minute("eve") == {"launches_per_minute": 60}
    clock.now += 1
    use.admit_launch("eve")


def test_tokens_are_charged_when_they_are_known_and_paid_back_in_time() -> None:
    clock = HandClock()
    use = use_with(clock, tokens_per_minute=600)
    use.admit_launch("eve")
    use.charge_tokens("eve", 1200)
    with pytest.raises(LimitExceeded, match="600 tokens a minute"):
        use.admit_launch("eve")
    with pytest.raises(LimitExceeded, match="600 tokens a minute"), use.socket("eve"):
        pass
    clock.now += 61
    use.admit_launch("eve")


def test_sockets_and_connections_are_bounded_per_tenant_and_some_are_kept_for_others() -> None:
    clock = HandClock()
    use = use_with(clock, SharedSizes(sockets=8, connections=8), sockets=3, connections=100)
    with ExitStack() as stack:
        for _ in range(3):
            stack.enter_context(use.socket("eve"))
        with pytest.raises(LimitExceeded, match="3 open sessions"), use.socket("eve"):
            pass
        for _ in range(4):
            use.add_connection("eve")
        with pytest.raises(LimitExceeded, match="4 of the server's 8"):
            use.add_connection("eve")
        for tenant in ("ann", "bob", "cy", "dan"):
            use.add_connection(tenant)
    assert use.sockets.used == 0
    assert use.connections.used == 8


def test_a_tenant_with_too_many_connections_is_told_its_quota() -> None:
    use = use_with(HandClock(), connections=2)
    use.add_connection("eve")
    use.add_connection("eve")
    with pytest.raises(LimitExceeded, match="2 open connections") as caught:
        use.add_connection("eve")
    assert caught.value.detail["limit"] == "connections"
    assert caught.value.detail["retry_after_s"] > 0


def test_bodies_that_are_being_read_leave_room_for_one_of_another_tenant() -> None:
    use = use_with(HandClock(), SharedSizes(body_bytes=32, one_body=4))
    with pytest.raises(LimitExceeded, match="held_body_bytes"):
        use.bodies.take("eve", 17)
    use.bodies.take("eve", 16)
    use.bodies.take("ann", 4)
    with pytest.raises(LimitExceeded):
        use.bodies.take("ann", 1)


async def test_requests_beyond_the_sessions_of_a_tenant_have_them_in_turn() -> None:
    """They were refused with 429: of 500 at once, a client of OpenAI's got 361 answers."""
    use = use_with(HandClock(), sockets=2)
    order: list[int] = []
    most = 0

    async def request(number: int) -> None:
        nonlocal most
        async with use.socket_in_turn("eve", 60.0, {"number": number}):
            order.append(number)
            most = max(most, use.sockets.held("eve"))
            await anyio.lowlevel.checkpoint()

    async with anyio.create_task_group() as tasks:
        for number in range(20):
            tasks.start_soon(request, number)
    assert (order, most) == ([*range(20)], 2)
    assert use.sockets.used == use.outstanding.used == 0


async def test_who_leaves_the_line_or_has_waited_for_too_long_keeps_nobody_waiting() -> None:
    use = use_with(HandClock(), sockets=1)
    served = anyio.Event()

    async def request(seconds: float) -> None:
        async with use.socket_in_turn("eve", seconds, "x"):
            served.set()

    async with anyio.create_task_group() as tasks:
        with use.socket("eve"):
            with anyio.CancelScope() as left:
                tasks.start_soon(request, 60.0)
                left.cancel()
                await request(60.0)
            with pytest.raises(LimitExceeded, match="1 open sessions"):
                await request(0.01)
            async with use.socket_in_turn("ann", 0.0, "x"):
                assert not served.is_set()
        await served.wait()
    assert use.sockets.used == use.outstanding.used == 0


async def test_what_waits_for_a_session_is_held_against_its_tenants_room() -> None:
    use = use_with(HandClock(), sockets=1)
    use.outstanding.take("eve", OUTSTANDING_RULE.capacity - OUTSTANDING_RULE.guarded * OUTSTANDING_RULE.share - 100)
    with use.socket("eve"), pytest.raises(LimitExceeded, match="outstanding_bytes"):
        async with use.socket_in_turn("eve", 60.0, "x" * 100):
            pass
