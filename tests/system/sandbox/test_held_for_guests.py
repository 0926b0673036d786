"""What the host holds for a program is charged to it and bounded: events, refused calls, replies, messages, errors."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from inferd.protocol import Cancelled
from inferd_runtime.sandbox.messages import Limits, Output, RunFinished, Sent

from .conftest import Gateway
from .fake_engine import FakeEngine

MIB = 1 << 20
CONSTANT_MB = 64
"""What a worker may take beside what its runs are charged: copies in flight, instances kept ready, the allocator's own."""
linux = pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")


def rss_mb(gateway: Gateway) -> float:
    assert gateway.ready is not None
    status = Path(f"/proc/{gateway.ready.pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) / 1024


def peak_while(gateway: Gateway, run: str) -> float:
    """The worker's largest memory while a run goes on."""
    peak = 0.0
    end = time.monotonic() + 60
    while not gateway.ended(run):
        assert time.monotonic() < end
        gateway.receive_now(0.005)
        peak = max(peak, rss_mb(gateway))
    return peak


def events_of(gateway: Gateway, run: str) -> int:
    return sum(isinstance(message, (Output, Sent)) for message in gateway.messages[run])


def limit_of(finished: RunFinished) -> str:
    assert finished.error is not None, finished.result
    assert finished.error.code == "limit", finished.error
    return str(finished.error.detail["limit"])


def test_one_byte_writes_become_few_events_and_nothing_is_lost(gateway: Gateway) -> None:
    run = gateway.launch("import wit_world\ndef main():\n    for _ in range(100_000): wit_world.log('stdout', 'x')")
    assert gateway.wait(run).error is None
    assert gateway.text(run) == "x" * 100_000
    assert events_of(gateway, run) < 3000


@pytest.mark.parametrize(
    "line", ["wit_world.log(('stdout', 'stderr')[n % 2], 'x')", "wit_world.submit('session.send', '{\"message\":1}')"]
)
def test_events_that_cannot_be_merged_are_counted(gateway: Gateway, line: str) -> None:
    source = f"import itertools, wit_world\ndef main():\n    for n in itertools.count(): {line}"
    run = gateway.launch(source, Limits(output_events=900))
    finished = gateway.wait(run)
    assert limit_of(finished) == "output_events"
    assert finished.error is not None
    assert "output_events" in finished.error.detail["raise_with"]
    assert events_of(gateway, run) == 900


def test_text_is_on_its_way_while_the_program_waits_or_computes(gateway: Gateway) -> None:
    lines = "    for n in range(2000): wit_world.log('stdout', 'x')\n    print('begun')\n"
    computes = gateway.launch(f"import wit_world\ndef main():\n{lines}    while True: pass", Limits(cpu_s=20))
    receives = gateway.launch(f"import inferd, wit_world\nasync def main():\n{lines}    await inferd.session.receive()")
    for run in (computes, receives):
        gateway.wait_text(run, "begun")
    gateway.deliver(receives, 1)
    assert gateway.wait(receives).error is None
    gateway.cancel(computes, Cancelled("enough").to_wire())
    gateway.wait(computes)


def test_a_gateway_that_takes_nothing_stops_the_program_and_not_the_worker(gateway: Gateway) -> None:
    gateway.takes = False
    try:
        flood = gateway.launch("import wit_world\ndef main():\n    while True: print('x' * 5000)", Limits(wall_s=1.5))
        assert limit_of(gateway.wait(flood)) == "wall_s"
        assert len(gateway.text(flood)) < MIB
        assert gateway.value("def main(): return 1") == 1
    finally:
        gateway.takes = True


REFUSED = "wit_world.submit('x' * (4 << 20), '{}')"


@linux
def test_refused_calls_with_long_names_are_not_kept(gateway: Gateway) -> None:
    before = rss_mb(gateway)
    run = gateway.launch(
        f"import wit_world\ndef main():\n    for _ in range(60): {REFUSED}\n    return wit_world.wait(0)[:200]"
    )
    peak = peak_while(gateway, run)
    finished = gateway.wait(run)
    assert finished.error is None
    assert "there is no operation" in (finished.result or "")
    assert peak - before < finished.usage.peak_memory_mb + CONSTANT_MB


@linux
@pytest.mark.parametrize(
    "line",
    [
        "wit_world.submit('nothing', '{}')",
        "wit_world.submit('context.flush', '{\"context\":\"' + 'x' * (60 << 10) + '\"}')",
    ],
    ids=["refused calls that nobody reads", "arguments of calls that the engine never answers"],
)
def test_what_waits_for_a_program_is_charged_to_its_memory(gateway: Gateway, line: str) -> None:
    before = rss_mb(gateway)
    source = f"import itertools, wit_world\ndef main():\n    for n in itertools.count(): {line}"
    run = gateway.launch(source, Limits(memory_mb=64, cpu_s=20))
    peak = peak_while(gateway, run)
    finished = gateway.wait(run)
    assert limit_of(finished) in ("memory_mb", "cpu_s")
    assert finished.usage.peak_memory_mb <= 66
    assert peak - before < 64 + CONSTANT_MB


LARGE = "'{\"text\":\"' + 'x' * (1 << 20) + '\"}'"


def test_large_arguments_are_sent_no_faster_than_the_engine_answers(gateway: Gateway, engine: FakeEngine) -> None:
    before = len(engine.asked)
    source = f"import wit_world\ndef main():\n    for _ in range(9): wit_world.submit('context.flush', {LARGE})"
    assert limit_of(gateway.run(source, Limits(wall_s=0.5))) == "wall_s"
    assert [op for _, op in engine.asked[before:]].count("context.flush") == 1
    answered = f"import wit_world\ndef main():\n    for _ in range(9): wit_world.submit('model.tokenize', {LARGE})"
    assert gateway.run(answered).error is None
    assert [op for _, op in engine.asked[before:]].count("model.tokenize") == 9


@linux
def test_messages_that_a_program_does_not_read_are_charged(gateway: Gateway) -> None:
    run = gateway.launch(
        "import asyncio\nasync def main():\n    print('begun')\n    await asyncio.sleep(60)", Limits(memory_mb=96)
    )
    gateway.wait_text(run, "begun")
    for _ in range(60):
        gateway.deliver(run, "x" * MIB)
    assert limit_of(gateway.wait(run)) in ("memory_mb", "message_bytes")


@pytest.mark.parametrize(
    "source",
    [
        "def main(): raise ValueError('x' * (20 << 20))",
        "import inferd\ndef main():\n    e = inferd.ProgramError('m')\n"
        "    e.detail = {'x': 2 ** 70, 'y': [['z'] * 300] * 300}\n    raise e",
        "def main():\n    e = None\n    for n in range(900):\n"
        "        e, f = ValueError('y' * 1000), e\n        e.__context__ = f\n    raise e",
        "import wit_world, componentize_py_types\n"
        "def main():\n    from inferd_runtime.sandbox.runner import app\n"
        "    app.RUNNER.run = lambda *a: type('O', (), {'ok': False, 'text': '[' * (8 << 20)})()\n    return 1",
    ],
    ids=["message", "detail", "chain", "nonsense"],
)
def test_errors_are_cut_before_they_are_kept(gateway: Gateway, source: str) -> None:
    finished = gateway.run(source, Limits(cpu_s=20))
    size = len(str(finished.error)) if finished.error is not None else 0
    assert size < 256 << 10
    assert gateway.value("def main(): return 'well'") == "well"


@pytest.mark.parametrize(
    "text", ["1" * 400, "-9223372036854775809", "18446744073709551616", '"\\ud800"', "[" * 3000 + "]" * 3000, "NaN"]
)
def test_a_message_that_cannot_be_carried_is_refused(gateway: Gateway, text: str) -> None:
    program = """
        import json, wit_world
        def main(text: str):
            wit_world.submit('session.send', '{"message":' + text + '}')
            return json.loads(wit_world.wait(0))[0][1:]
    """
    ok, error = gateway.value(program, text=text)
    assert (ok, error["code"]) == (0, "client.invalid")


@linux
def test_the_workers_memory_falls_back_after_its_runs(gateway: Gateway) -> None:
    fill = "def main():\n    kept = [bytes(1 << 20) for _ in range(60)]\n    return 'x' * (3 << 20)"
    gateway.run(fill)
    before = rss_mb(gateway)
    for _ in range(2):
        runs = [gateway.launch(fill) for _ in range(4)]
        assert all(gateway.wait(run).error is None for run in runs)
    assert gateway.value("def main(): return 1") == 1
    end = time.monotonic() + 10
    while rss_mb(gateway) >= before + CONSTANT_MB:  # a run is over before its guest's memory is given back
        assert time.monotonic() < end
        gateway.receive_now(0.005)
