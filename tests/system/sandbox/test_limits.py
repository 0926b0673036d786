"""Programs that use too much, hang, crash or are stopped: each ends with the right error, and the others go on."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from inferd.protocol import Cancelled, ErrorInfo, Unavailable
from inferd_runtime.sandbox.messages import Bundle, LaunchRun, Limits, Output, Shutdown

from .conftest import Gateway, start_worker
from .fake_engine import FakeEngine

PROMPT_SECONDS = 10.0
"""Far above what it takes (tens of milliseconds), far below what the programs would take."""
SPIN = "def main():\n    print('begun')\n    while True: pass"
TIMED = Limits(wall_s=0.3)
BLOCKERS = {
    "asyncio.sleep": "import asyncio\nasync def main():\n    print('begun')\n    await asyncio.sleep(1000)",
    "time.sleep": "import time\ndef main():\n    print('begun')\n    time.sleep(1000)",
    "receive": "import inferd\nasync def main():\n    print('begun')\n    await inferd.session.receive()",
    "operation": "from inferd.protocol import FlushContext\nfrom inferd.transport import current_transport\n"
    "async def main():\n    print('begun')\n    await current_transport().call(FlushContext(1))",
    "event": "import threading\ndef main():\n    print('begun')\n    threading.Event().wait(1000)",
    "loop": SPIN,
    "regex": "import re\ndef main():\n    print('begun')\n    re.match('(a+)+$', 'a' * 60 + 'b')",
    "power": "def main():\n    print('begun')\n    return len(str(7 ** (10 ** 9)))",
    "catches everything": "import time\ndef main():\n    print('begun')\n    while True:\n        try:\n"
    "            time.sleep(1000)\n        except BaseException: pass",
}


def limit_of(error: ErrorInfo) -> str:
    assert error.code == "limit"
    assert error.detail["value"] is not None
    assert "[tool.inferd.limits]" in error.detail["raise_with"]
    return str(error.detail["limit"])


@pytest.mark.parametrize("blocker", BLOCKERS)
def test_a_cancelled_run_ends_wherever_it_is(gateway: Gateway, blocker: str) -> None:
    run = gateway.launch(BLOCKERS[blocker])
    gateway.wait_text(run, "begun")
    started = time.monotonic()
    gateway.cancel(run, Cancelled("enough").to_wire())
    finished = gateway.wait(run)
    assert time.monotonic() - started < PROMPT_SECONDS
    assert finished.error == Cancelled("enough").to_wire()
    assert finished.result is None


@pytest.mark.parametrize("blocker", BLOCKERS)
def test_the_wall_clock_limit_ends_a_run_wherever_it_is(gateway: Gateway, blocker: str) -> None:
    started = time.monotonic()
    error = gateway.error(BLOCKERS[blocker], TIMED)
    assert limit_of(error) == "wall_s"
    assert error.detail["value"] == 0.3
    assert 0.25 < time.monotonic() - started < PROMPT_SECONDS


def test_processor_time_is_charged_and_waiting_is_not(gateway: Gateway) -> None:
    finished = gateway.run(SPIN, Limits(cpu_s=0.3))
    assert finished.error is not None
    assert limit_of(finished.error) == "cpu_s"
    assert 250 < finished.usage.cpu_ms < 2000
    waiting = gateway.run("import time\ndef main(): time.sleep(0.6)", Limits(cpu_s=0.4))
    assert waiting.error is None
    assert waiting.usage.cpu_ms < 400 < waiting.usage.wall_ms


def test_many_short_waits_do_not_hide_processor_time(gateway: Gateway) -> None:
    program = """
        import time
        def main():
            while True:
                sum(range(2000))
                time.sleep(0.0005)
    """
    assert limit_of(gateway.error(program, Limits(cpu_s=0.3))) == "cpu_s"


@pytest.mark.parametrize(
    "bomb",
    [
        "def main(): return [bytearray(1 << 20) for _ in range(10_000)]",
        "def main():\n    kept = []\n    while True: kept.append(object())",
        "def main(): bytearray(1 << 30)",
        "kept = []\nasync def main():\n    while True: kept.append('x' * 10_000)",
    ],
)
def test_a_memory_bomb_ends_in_its_limit(gateway: Gateway, bomb: str) -> None:
    finished = gateway.run(bomb, Limits(memory_mb=96))
    assert finished.error is not None
    assert limit_of(finished.error) == "memory_mb"
    assert finished.error.detail["value"] == 96
    assert "96 MiB" in finished.error.message
    assert "main.py" in finished.error.detail["traceback"]
    assert finished.usage.peak_memory_mb <= 96


def test_a_program_may_catch_its_memory_error(gateway: Gateway) -> None:
    program = """
        def main():
            try:
                bytearray(1 << 30)
            except MemoryError:
                return "went on"
    """
    assert gateway.value(program) == "went on"


def test_output_ends_at_its_limit(gateway: Gateway) -> None:
    run = gateway.launch("def main():\n    while True: print('ä' * 99)", Limits(output_bytes=10_001))
    finished = gateway.wait(run)
    assert finished.error is not None
    assert limit_of(finished.error) == "output_bytes"
    text = gateway.text(run)
    assert 9_990 < len(text.encode()) <= 10_001
    assert set(text) == {"ä", "\n"}


def test_messages_and_results_count_as_output(gateway: Gateway) -> None:
    flood = "import inferd\nasync def main():\n    while True: await inferd.session.send('x' * 1000)"
    assert limit_of(gateway.error(flood, Limits(output_bytes=10_000))) == "output_bytes"
    assert limit_of(gateway.error("def main(): return 'x' * 20_000", Limits(output_bytes=10_000))) == "output_bytes"


def test_too_many_operations_in_flight_are_refused_one_by_one(gateway: Gateway) -> None:
    program = """
        import asyncio
        from inferd import LimitExceeded
        from inferd.protocol import ReceiveMessage
        from inferd.transport import current_transport

        async def main():
            tasks = [asyncio.create_task(current_transport().call(ReceiveMessage())) for _ in range(1100)]
            done, waiting = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            error = done.pop().exception()
            return [isinstance(error, LimitExceeded), error.detail["value"], len(waiting) >= 1024]
    """
    assert gateway.value(program) == [True, 1024, True]


def test_more_calls_of_the_engine_than_may_be_in_flight_wait_for_each_other(gateway: Gateway) -> None:
    program = """
        import asyncio
        from inferd.protocol import Tokenize
        from inferd.transport import current_transport

        async def main():
            replies = await asyncio.gather(*(current_transport().call(Tokenize(str(n))) for n in range(3000)))
            return sum(reply.tokens[0] for reply in replies)
    """
    assert gateway.value(program) == sum(len(str(n)) for n in range(3000))


def test_too_many_unread_messages_end_the_run(gateway: Gateway) -> None:
    run = gateway.launch("import time\ndef main():\n    print('begun')\n    time.sleep(1000)")
    gateway.wait_text(run, "begun")
    for number in range(1100):
        gateway.deliver(run, number)
    error = gateway.wait(run).error
    assert error is not None
    assert (error.code, error.detail["limit"]) == ("limit", "messages")


def test_a_system_call_that_blocks_ends_the_run(gateway: Gateway) -> None:
    program = """
        import sys
        del sys.modules["time"]
        import time
        def main():
            time.sleep(1000)
    """
    started = time.monotonic()
    error = gateway.error(program)
    assert time.monotonic() - started < PROMPT_SECONDS
    assert error.code == "program"
    assert "blocking system call" in error.message


def test_one_of_many_runs_dies_and_the_others_do_not_notice(gateway: Gateway) -> None:
    program = """
        import asyncio, os
        from inferd.protocol import Tokenize
        from inferd.transport import current_transport

        async def main(number: int):
            total = 0
            for step in range(20):
                total += (await current_transport().call(Tokenize("x" * number))).tokens[0]
                await asyncio.sleep(0.001)
                if number in (7, 8) and step == 10:
                    os.abort() if number == 7 else exec("def f(): f()\\nf()", {})
            return [number, total]
    """
    runs = {number: gateway.launch(program, number=number) for number in range(20)}
    endings = {number: gateway.wait(run) for number, run in runs.items()}
    for number, finished in endings.items():
        if number in (7, 8):
            assert finished.error is not None
            assert ("abnormally" if number == 7 else "RecursionError") in finished.error.message
        else:
            assert json.loads(finished.result or "") == [number, 20 * number]


def test_runs_that_were_stopped_leave_nothing_to_the_next_ones(gateway: Gateway) -> None:
    for _ in range(5):
        stopped = [gateway.launch(BLOCKERS["time.sleep"]) for _ in range(8)]
        for run in stopped:
            gateway.wait_text(run, "begun")
            gateway.cancel(run, Cancelled("enough").to_wire())
        for run in stopped:
            gateway.wait(run)
        following = [gateway.launch("def main(): return 'well'") for _ in range(8)]
        assert [gateway.wait(run).result for run in following] == ['"well"'] * 8


def test_an_engine_that_refuses_the_session_ends_the_run(gateway: Gateway, engine: FakeEngine) -> None:
    engine.refuse_sessions = True
    try:
        error = gateway.error("import time\ndef main(): time.sleep(1000)")
    finally:
        engine.refuse_sessions = False
    assert (error.code, error.message) == ("client.invalid", "no session for you")


def test_a_run_that_is_stopped_for_a_dead_engine_does_not_wait_for_it(gateway: Gateway) -> None:
    run = gateway.launch("import time\ndef main():\n    print('begun')\n    time.sleep(1000)")
    gateway.wait_text(run, "begun")
    gateway.cancel(run, Unavailable("the engine is gone").to_wire())
    error = gateway.wait(run).error
    assert error is not None
    assert error.code == "unavailable"


def test_a_second_launch_of_the_same_run_is_refused(gateway: Gateway) -> None:
    run = gateway.launch("import inferd\nasync def main(): return await inferd.session.receive()")
    gateway.send(LaunchRun(run, b"", Bundle("again", {}), "{}", Limits()))
    error = gateway.wait(run).error
    assert error is not None
    assert "goes on already" in error.message
    gateway.messages[run].clear()
    gateway.deliver(run, "first")
    assert gateway.wait(run).result == '"first"'


def test_shutdown_reports_every_run(runner: Path, engine: FakeEngine, tmp_path: Path) -> None:
    control = f"ipc://{tmp_path}/c"
    gateway = Gateway(control)
    worker = start_worker(control, engine, runner)
    try:
        gateway.wait_ready()
        runs = [gateway.launch(program) for program in BLOCKERS.values()]
        for run in runs:
            gateway.wait_for(run, Output)
        gateway.send(Shutdown())
        for run in runs:
            error = gateway.wait(run).error
            assert error is not None
            assert error.code == "cancelled"
        assert worker.wait(PROMPT_SECONDS) == 0
    finally:
        worker.kill()
        worker.wait()
        gateway.close()
