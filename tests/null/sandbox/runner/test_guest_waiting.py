"""The guest's event loop, transport, streams and locks, on a host that the test plays."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from inferd.protocol import ConstraintError, InvalidRequest, ReceiveMessage, SendMessage, Tokenize, Tokens
from inferd.transport.room import MOST_AT_ONCE
from inferd_runtime.sandbox.host.pending_calls import MAX_OPEN
from inferd_runtime.sandbox.messages import MAX_ASKED
from inferd_runtime.sandbox.runner.blocking import GuestLock
from inferd_runtime.sandbox.runner.completions import FOR_EVER, Completions
from inferd_runtime.sandbox.runner.eventloop import MOST_SKIPPED, GuestEventLoop, run_to_end
from inferd_runtime.sandbox.runner.stdio import CHUNK_BYTES, LogStream, Streams
from inferd_runtime.sandbox.runner.transport import GuestTransport


class PlayedHost:
    """Answers an operation ``delay`` waits after it came, with what ``answer`` says."""

    def __init__(self, answer: Callable[[str, Any], tuple[int, Any]] | None = None, delay: int = 0) -> None:
        self.answer = answer
        self.delay = delay
        self.open: dict[int, tuple[str, Any, int]] = {}
        self.submitted: list[tuple[str, Any]] = []
        self.cancelled: list[int] = []
        self.waits: list[int] = []
        self.asked = 0
        self.logged: list[tuple[str, str]] = []

    def submit(self, op: str, arguments: str) -> int:
        self.submitted.append((op, json.loads(arguments)))
        ticket = len(self.submitted)
        self.open[ticket] = (op, json.loads(arguments), len(self.waits) + self.delay)
        return ticket

    def wait(self, timeout_ms: int) -> str:
        self.waits.append(timeout_ms)
        due = [ticket for ticket, (_, _, when) in self.open.items() if when < len(self.waits)]
        if self.answer is None or not due:
            if timeout_ms == FOR_EVER:
                assert self.open, "the guest waits for ever, and for nothing"
            else:
                time.sleep(timeout_ms / 1e3)
            return "[]"
        answers = [[ticket, *self.answer(*self.open.pop(ticket)[:2])] for ticket in due]
        return json.dumps(answers)

    def ask(self, op: str, arguments: str, timeout_ms: int) -> str:
        self.asked += 1
        return f"[{self.submit(op, arguments)},{self.wait(timeout_ms)}]"

    def cancel(self, ticket: int) -> None:
        self.cancelled.append(ticket)
        self.open.pop(ticket, None)

    def log(self, target: str, text: str) -> None:
        self.logged.append((target, text))


def length_of(op: str, arguments: Any) -> tuple[int, Any]:
    return 1, {"tokens": [len(arguments["text"])], "unknown": "of a newer runtime"}


def play(host: PlayedHost, main: Callable[[GuestTransport], Coroutine[Any, Any, Any]]) -> Any:
    completions = Completions(host, lambda: None)
    return run_to_end(GuestEventLoop(completions), main(GuestTransport(completions)))


def test_a_call_is_submitted_and_answered() -> None:
    host = PlayedHost(length_of)
    assert play(host, lambda transport: transport.call(Tokenize("abc"))) == Tokens([3])
    assert host.submitted == [("model.tokenize", {"text": "abc", "model": "", "special": False, "start": False})]


def test_an_error_is_raised_as_what_it_is() -> None:
    host = PlayedHost(
        lambda op, arguments: (0, {"code": "client.constraint", "message": "no", "detail": {"pointer": "/"}})
    )
    with pytest.raises(ConstraintError, match="no") as raised:
        play(host, lambda transport: transport.call(Tokenize("abc")))
    assert raised.value.detail == {"pointer": "/"}


@pytest.mark.parametrize("message", [object(), float("nan"), {"a": [float("inf")]}, {(1, 2): 3}])
def test_a_value_that_json_cannot_hold_is_refused_before_it_is_sent(message: Any) -> None:
    host = PlayedHost(length_of)
    with pytest.raises(InvalidRequest, match=r"session\.send"):
        play(host, lambda transport: transport.call(SendMessage(message)))
    assert host.submitted == []


def test_a_lone_call_blocks_right_there_and_a_second_task_goes_first() -> None:
    host = PlayedHost(length_of)
    order: list[str] = []

    async def other() -> None:
        order.append(f"other after {len(host.waits)} waits")

    async def main(transport: GuestTransport) -> None:
        await transport.call(Tokenize("a"))
        order.append(f"first after {len(host.waits)} waits")
        task = asyncio.ensure_future(other())
        await transport.call(Tokenize("b"))
        await task

    play(host, main)
    assert order == ["first after 1 waits", "other after 1 waits"]
    assert host.waits[0] == FOR_EVER


def test_more_calls_than_the_host_takes_wait_for_earlier_ones() -> None:
    """1,500 calls in one `asyncio.gather` failed: the host takes 1,024. Waits for messages take none of their room."""
    host = PlayedHost(
        lambda op, arguments: (1, {"message": 1} if op == "session.receive" else {"tokens": [1]}), delay=3
    )
    most = 0

    def submit(op: str, arguments: str) -> int:
        nonlocal most
        ticket = PlayedHost.submit(host, op, arguments)
        most = max(most, sum(op == "model.tokenize" for op, _, _ in host.open.values()))
        return ticket

    host.submit = submit  # type: ignore[method-assign]

    async def main(transport: GuestTransport) -> int:
        calls = [transport.call(Tokenize(str(n))) for n in range(2 * MOST_AT_ONCE)]
        given_up = asyncio.ensure_future(transport.call(Tokenize("given up")))
        asyncio.get_running_loop().call_soon(given_up.cancel)
        received = [transport.call(ReceiveMessage()) for _ in range(20)]
        return len(await asyncio.gather(*calls, *received))

    assert play(host, main) == 2 * MOST_AT_ONCE + 20
    assert most == MOST_AT_ONCE
    assert most + MAX_ASKED < MAX_OPEN


def test_a_lone_call_is_one_crossing_and_brings_what_two_bring() -> None:
    at_once, in_two = PlayedHost(length_of), PlayedHost(length_of)

    async def lone(transport: GuestTransport) -> Any:
        return await transport.call(Tokenize("abc"))

    async def blocking(transport: GuestTransport) -> Any:
        return transport.call_blocking(Tokenize("abc"))

    assert play(at_once, lone) == play(in_two, blocking)
    assert (at_once.asked, in_two.asked) == (1, 0)
    assert (at_once.submitted, at_once.waits) == (in_two.submitted, in_two.waits)


def test_a_lone_call_that_is_answered_later_keeps_its_ticket() -> None:
    host = PlayedHost(length_of, delay=2)

    async def main(transport: GuestTransport) -> Any:
        asyncio.get_running_loop().call_later(0.005, lambda: None)
        return await transport.call(Tokenize("abc"))

    assert play(host, main) == Tokens([3])
    assert (host.asked, len(host.submitted), len(host.waits)) == (1, 1, 3)


def test_a_call_that_blocks_keeps_what_others_wait_for() -> None:
    host = PlayedHost(length_of, delay=1)

    async def main(transport: GuestTransport) -> list[Any]:
        other = asyncio.ensure_future(transport.call(Tokenize("a")))
        await asyncio.sleep(0)
        blocked = [transport.call_blocking(Tokenize(text)) for text in ("bb", "ccc")]
        assert not other.done()  # its turn comes when this task waits
        return [*blocked, await other]

    assert play(host, main) == [Tokens([2]), Tokens([3]), Tokens([1])]


def test_an_error_of_a_call_that_blocks_is_raised_there() -> None:
    host = PlayedHost(lambda op, arguments: (0, {"code": "client.constraint", "message": "no", "detail": {}}))

    async def main(transport: GuestTransport) -> None:
        with pytest.raises(ConstraintError, match="no"):
            transport.call_blocking(Tokenize("a"))

    play(host, main)


def test_a_timer_goes_off_while_a_call_blocks() -> None:
    host = PlayedHost(length_of, delay=1)
    fired: list[float] = []

    async def main(transport: GuestTransport) -> Tokens:
        asyncio.get_running_loop().call_later(0.01, fired.append, time.monotonic())
        reply = await transport.call(Tokenize("abc"))
        assert fired
        assert isinstance(reply, Tokens)
        return reply

    assert play(host, main) == Tokens([3])
    assert 0 < host.waits[0] <= 11


def test_many_calls_are_in_flight_at_once() -> None:
    host = PlayedHost(length_of, delay=3)

    async def main(transport: GuestTransport) -> list[Any]:
        return await asyncio.gather(*(transport.call(Tokenize("x" * n)) for n in range(20)))

    assert [reply.tokens[0] for reply in play(host, main)] == list(range(20))
    assert len(host.waits) < 10


def test_a_cancelled_call_is_cancelled_at_the_host_and_one_that_is_answered_is_not() -> None:
    host = PlayedHost()

    async def main(transport: GuestTransport) -> None:
        try:
            async with asyncio.timeout(0.01):
                await transport.call(Tokenize("abc"))
        except TimeoutError:
            host.answer = length_of
            await transport.call(Tokenize("abcd"))

    play(host, main)
    assert host.cancelled == [1]


def test_timers_wait_in_the_host_for_their_time() -> None:
    host = PlayedHost()

    async def main(transport: GuestTransport) -> float:
        started = time.monotonic()
        await asyncio.gather(asyncio.sleep(0.02), asyncio.sleep(0.01))
        return time.monotonic() - started

    assert 0.019 < play(host, main) < 10
    assert 1 <= min(host.waits) <= max(host.waits) <= 21


def test_tasks_that_never_wait_do_not_starve_an_answer() -> None:
    host = PlayedHost(length_of)

    async def main(transport: GuestTransport) -> int:
        call = asyncio.ensure_future(transport.call(Tokenize("abc")))
        rounds = 0
        while not call.done():
            rounds += 1
            await asyncio.sleep(0)
        return rounds

    assert play(host, main) <= 2 * MOST_SKIPPED


def test_a_sleep_goes_on_settling_answers() -> None:
    host = PlayedHost(length_of)
    completions = Completions(host, lambda: None)

    async def main() -> bool:
        call = asyncio.ensure_future(completions.answer(completions.submit("model.tokenize", '{"text":""}')))
        await asyncio.sleep(0)
        completions.sleep(0.005)
        await asyncio.sleep(0)
        return call.done()

    assert run_to_end(GuestEventLoop(completions), main())


def test_streams_are_handed_out_at_line_ends_and_before_waiting() -> None:
    host = PlayedHost()
    streams = Streams(host)
    print("one", file=streams.stdout)
    print("two", end="", file=streams.stdout)
    print("three", file=streams.stderr, flush=True)
    assert host.logged == [("stdout", "one\n"), ("stderr", "three\n")]
    Completions(host, streams.flush).wait(0)
    assert host.logged[2:] == [("stdout", "two")]


def test_a_large_write_is_handed_out_whole_in_pieces() -> None:
    host = PlayedHost()
    stream = LogStream(host, "stdout")
    text = "aé€\U0001f600" * 40_000
    stream.write(text)
    stream.buffer.write(b"\xff bytes")
    stream.flush()
    assert "".join(piece for _, piece in host.logged) == text + "\ufffd bytes"
    assert all(len(piece.encode()) <= CHUNK_BYTES + 8 for _, piece in host.logged)


def test_a_lone_surrogate_is_written_as_an_escape() -> None:
    host = PlayedHost()
    print("\ud800", file=LogStream(host, "stdout"))
    assert host.logged == [("stdout", "\\ud800\n")]


class Lock(GuestLock):
    slept: list[float] = []  # noqa: RUF012 - one test's own

    @staticmethod
    def sleep(seconds: float) -> None:
        Lock.slept.append(seconds)


def test_a_lock_of_one_thread() -> None:
    lock = Lock()
    with lock:
        assert lock.locked()
        assert not lock.acquire(blocking=False)
        assert not lock.acquire(timeout=2)
        assert not lock.acquire(timeout=0)
        with pytest.raises(RuntimeError, match="wait for ever"):
            lock.acquire()
    assert not lock.locked()
    assert Lock.slept == [2]
    with pytest.raises(RuntimeError, match="unlocked"):
        lock.release()
    with pytest.raises(ValueError, match="non-blocking"):
        lock.acquire(False, 1)
    with pytest.raises(ValueError, match="non-negative"):
        lock.acquire(True, -2)


def test_a_generator_that_was_left_open_is_closed_at_the_end() -> None:
    ends, left = list[str](), list[Any]()

    async def numbers() -> Any:
        try:
            yield 1
        finally:
            await asyncio.sleep(0)
            ends.append("closed")

    async def main() -> int:
        left.append(numbers())
        return int(await anext(left[0]))

    completions = Completions(PlayedHost(), lambda: None)
    assert run_to_end(GuestEventLoop(completions), main()) == 1
    assert ends == ["closed"]
