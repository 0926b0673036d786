"""Several tenants in a cache that is too small: nobody reads, loses or waits for ever because of another."""

from __future__ import annotations

import time
from typing import Any

import pytest

from inferd import protocol as p
from inferd_runtime.engine.engine import EngineOptions
from inferd_runtime.engine.scheduling.fairness import StepCost
from inferd_runtime.engine.scheduling.tenants import Tenancy, TenantLimits
from inferd_runtime.testing.byte_tokenizer import VOCAB_SIZE
from inferd_runtime.testing.direct import DirectSession
from inferd_runtime.testing.null_driver import NullDriver
from inferd_runtime.testing.served import null_model


class Server:
    """One engine, sessions of several tenants, every step checked for leaks."""

    def __init__(self, pages: int, page_size: int = 4, **options: Any) -> None:
        self.driver = NullDriver(vocab_size=VOCAB_SIZE, pages=pages, page_size=page_size, max_context=2000, order=6)
        self.model = null_model(driver=self.driver, options=EngineOptions(**{"token_budget": 64, **options}))
        self.engine = self.model.engine

    def tenant(self, name: str) -> DirectSession:
        """A session of that tenant."""
        return DirectSession(self.model, tenant=name)

    def context(self, session: DirectSession, handle: int) -> Any:
        """The engine's side of a handle."""
        return session.session._state.contexts[handle].context


def tokens(session: DirectSession, *ids: int) -> int:
    """A context of these tokens."""
    return session.context(p.Part("tokens", tokens=list(ids)))


def flushed(session: DirectSession, *ids: int) -> int:
    """The same, computed."""
    context = tokens(session, *ids)
    session.call(p.FlushContext(context))
    return context


def alone(*ids: int, count: int) -> list[int]:
    """What a context of these tokens gives when there is room for everything."""
    session = Server(500).tenant("t")
    return session.generate(tokens(session, *ids), max_tokens=count).tokens


class Stream:
    """A generation whose steps are taken as they come."""

    def __init__(self, session: DirectSession, context: int, **fields: Any) -> None:
        self.session = session
        self.handle = session.call(p.StartGenerate(context, **fields)).generation
        self.tokens: list[int] = []
        self.error: p.InferdError | None = None
        self._replies: list[Any] = []
        self.finished = False
        self._ask()

    def _ask(self) -> None:
        self._replies = self.session.submit(p.NextSteps(self.handle))[1]

    def poll(self) -> None:
        """Take what has come, and ask for more."""
        if not self._replies or self.finished:
            return
        reply = self._replies.pop()
        if isinstance(reply, p.InferdError):
            self.error, self.finished = reply, True
            return
        self.tokens += [token for step in reply.steps for token in step.tokens]
        self.finished = bool(reply.finish)
        if not self.finished:
            self._ask()


def run(server: Server, *streams: Stream, steps: int = 2000) -> None:
    """Step until all are finished."""
    for _ in range(steps):
        for stream in streams:
            stream.poll()
        if all(stream.finished for stream in streams):
            return
        server.engine.step()
        server.engine.check_integrity()
    pytest.fail("a stream is never finished")


def test_a_flush_whose_prompt_is_known_feeds_nothing() -> None:
    """A job without tokens once read its neighbour's row of the batch."""
    server = Server(100)
    one, other = server.tenant("one"), server.tenant("other")
    prompt = [7] * 33
    assert one.call(p.FlushContext(flushed(one, *prompt))).pending == 1
    stream = Stream(other, tokens(other, 1, 2, 3), max_tokens=12)
    for _ in range(4):
        context = tokens(one, *prompt)
        assert one.call(p.FlushContext(context)).pending == 1
        assert one.generate(context, max_tokens=3).tokens == alone(*prompt, count=3)
    run(server, stream)
    assert stream.tokens == alone(1, 2, 3, count=12)


def test_a_copied_page_is_read_before_somebody_else_gets_it() -> None:
    """A fork's tail was copied with the forward, after another tenant's swapped page had been written over it."""
    server = Server(12)
    one, other = server.tenant("one"), server.tenant("other")
    parked = flushed(other, *range(10, 33))
    big = flushed(one, *range(50, 95))
    one.call(p.ReleaseContext(big))
    server.engine.pool.forget_kept()
    assert server.context(other, parked).parked is not None
    forked = flushed(one, *range(100, 123))
    one.call(p.ForkContext(forked))
    streams = [Stream(one, forked, max_tokens=6), Stream(other, parked, max_tokens=6)]
    run(server, *streams)
    assert streams[0].tokens == alone(*range(100, 123), count=6)
    assert streams[1].tokens == alone(*range(10, 33), count=6)


def test_a_failed_forward_leaves_a_forks_tail_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(100)
    session = server.tenant("t")
    context = flushed(session, *range(100, 123))
    session.call(p.ForkContext(context))
    forward = server.driver.forward

    def fails(batch: object) -> Any:
        monkeypatch.setattr(server.driver, "forward", forward)
        raise RuntimeError("out of memory")

    monkeypatch.setattr(server.driver, "forward", fails)
    generation = session.call(p.StartGenerate(context, max_tokens=6)).generation
    with pytest.raises(p.InternalError, match="out of memory"):
        session.call(p.NextSteps(generation))
    session.call(p.CloseGenerate(generation))
    assert session.generate(context, max_tokens=6).tokens == alone(*range(100, 123), count=6)


def test_a_large_prompt_gets_its_turn_beside_streams_that_fill_the_cache() -> None:
    server = Server(100)
    small, large = server.tenant("small"), server.tenant("large")
    streams = [Stream(small, tokens(small, *range(5)), max_tokens=20) for _ in range(30)]
    waiting = Stream(large, tokens(large, *[3] * 320), max_tokens=2)
    for _ in range(400):
        for number, stream in enumerate(streams):
            stream.poll()
            if stream.finished:
                small.call(p.CloseGenerate(stream.handle))
                streams[number] = Stream(small, tokens(small, *range(5)), max_tokens=20)
        waiting.poll()
        server.engine.step()
    assert waiting.finished
    assert waiting.tokens == alone(*[3] * 320, count=2)


def test_planning_stays_cheap_when_a_thousand_prompts_wait_for_room() -> None:
    """Median of steps; each waiting prompt once cost a scan of all contexts."""
    server = Server(64)
    session = server.tenant("t")
    for number in range(1000):
        session.submit(p.StartGenerate(tokens(session, *[number % 200] * 40), max_tokens=50))
    times = []
    for _ in range(15):
        start = time.thread_time()
        server.engine.scheduler.plan()
        times.append(time.thread_time() - start)
    assert sorted(times)[7] < 0.05


def test_rotating_priorities_gain_nothing_against_another_tenant() -> None:
    def share(priorities: list[int]) -> int:
        server = Server(4000, cost=StepCost(8.0))
        many, one = server.tenant("many"), server.tenant("one")
        stream = Stream(one, tokens(one, 1, 2), max_tokens=1900)
        contexts = [tokens(many, 5, number) for number in range(40)]
        crowd = [Stream(many, context, max_tokens=1, priority=priorities[0]) for context in contexts]
        for step in range(150):
            for number, each in enumerate(crowd):
                each.poll()
                if each.finished:
                    many.call(p.CloseGenerate(each.handle))
                    priority = priorities[step % len(priorities)]
                    crowd[number] = Stream(many, contexts[number], max_tokens=1, priority=priority)
            stream.poll()
            server.engine.step()
        return len(stream.tokens)

    assert share([-3, -2, -1, 0, 1, 2, 3]) >= 0.9 * share([0])


def test_pressure_by_others_takes_nothing_from_a_quota() -> None:
    """Two contexts that shared pages once had to fit side by side after both had left the cache."""
    server = Server(24, tenancy=Tenancy(named={"a": TenantLimits(kv_pages=12)}))
    mine, other = server.tenant("a"), server.tenant("b")
    first = flushed(mine, *range(34))
    second = mine.call(p.ForkContext(first)).context
    mine.generate(first, max_tokens=3)
    other.call(p.ReleaseContext(flushed(other, *[9] * 93)))
    server.engine.pool.forget_kept()
    assert server.context(mine, first).parked is not None
    assert server.context(mine, second).parked is not None
    assert len(mine.generate(second, max_tokens=3).tokens) == 3
    assert len(mine.generate(first, max_tokens=3).tokens) == 3
    server.engine.check_integrity()


@pytest.mark.parametrize("swap_bytes", [0, 1 << 20])
def test_contexts_with_explicit_positions_leave_the_cache_like_others(swap_bytes: int) -> None:
    server = Server(32, swap_bytes=swap_bytes)
    hogs = [server.tenant(name) for name in ("a", "b")]
    for session in hogs:
        for number in range(4):
            request = p.Forward(tokens(session), [number + 1] * 16, positions=[2 * at for at in range(16)])
            session.call(request)
    other = server.tenant("c")
    assert other.generate(tokens(other, *[4] * 60), max_tokens=8).tokens == alone(*[4] * 60, count=8)


def test_forks_of_a_parked_context_share_its_place_on_the_host() -> None:
    server = Server(20, swap_bytes=20 * 64)
    session = server.tenant("t")
    context = flushed(session, *range(40))
    server.context(session, context).park()
    used = server.engine.parking.used
    forks = [session.call(p.ForkContext(context)).context for _ in range(50)]
    assert server.engine.parking.used == used > 0
    for fork in forks:
        session.call(p.ReleaseContext(fork))
    assert session.generate(context, max_tokens=4).tokens == alone(*range(40), count=4)
    assert server.engine.parking.used == 0


def test_truncating_a_parked_context_frees_its_quota_and_its_memory() -> None:
    server = Server(20, tenancy=Tenancy(TenantLimits(kv_pages=12)))
    session = server.tenant("t")
    context = flushed(session, *range(40))
    server.context(session, context).park()
    session.call(p.TruncateContext(context, 6))
    assert server.context(session, context).account.used == 2
    session.call(p.TruncateContext(context, 0))
    assert server.context(session, context).account.used == 0
    assert server.engine.parking.used == 0
    server.engine.check_integrity()


def test_a_parked_context_comes_back_to_the_very_pages_that_still_hold_it() -> None:
    server = Server(20)
    session = server.tenant("t")
    context = flushed(session, *range(40))
    state = server.context(session, context)
    pages = list(state.table.pages)
    state.park()
    session.generate(context, max_tokens=1)
    assert state.table.pages[:9] == pages[:9]
