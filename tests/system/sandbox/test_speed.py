"""What starting a program and waiting for an operation cost. The bounds are loose: the machines that run this are shared."""

from __future__ import annotations

import json
import statistics
import time
from pathlib import Path

import pytest

from inferd_runtime.sandbox.messages import Output

from .conftest import Gateway

STARTS = 60
LIVE = 20


def test_start_latency(gateway: Gateway, capsys: pytest.CaptureFixture[str]) -> None:
    latencies = []
    for _ in range(STARTS):
        started = time.perf_counter()
        run = gateway.launch("async def main():\n    print('first line')\n")
        gateway.wait_for(run, Output)
        latencies.append((time.perf_counter() - started) * 1e3)
        gateway.wait(run)
    p50, p99 = statistics.median(latencies), sorted(latencies)[int(STARTS * 0.99)]
    with capsys.disabled():
        print(f"\nlaunch to first line of output: p50 {p50:.1f} ms, p99 {p99:.1f} ms, best {min(latencies):.1f} ms")
    assert p50 < 60


def test_round_trip(gateway: Gateway, capsys: pytest.CaptureFixture[str]) -> None:
    program = """
        import time
        from inferd.protocol import Tokenize
        from inferd.transport import current_transport

        async def main():
            times = []
            for _ in range(500):
                start = time.perf_counter()
                await current_transport().call(Tokenize("hello"))
                times.append(time.perf_counter() - start)
            times.sort()
            return [times[0], times[250], times[495]]
    """
    best, p50, p99 = (value * 1e6 for value in gateway.value(program))
    with capsys.disabled():
        print(f"\noperation from await to reply: p50 {p50:.0f} us, p99 {p99:.0f} us, best {best:.0f} us")
    assert p50 < 5000


def test_memory_of_live_instances(gateway: Gateway, capsys: pytest.CaptureFixture[str]) -> None:
    ready = gateway.wait_ready()
    before = private_mib(ready.pid)
    runs = [
        gateway.launch("import inferd\nasync def main():\n    print('live')\n    await inferd.session.receive()")
        for _ in range(LIVE)
    ]
    for run in runs:
        gateway.wait_text(run, "live")
    each = (private_mib(ready.pid) - before) / LIVE
    for run in runs:
        gateway.deliver(run, None)
        assert json.loads(gateway.wait(run).result or "") is None
    with capsys.disabled():
        print(f"\nprivate memory of a live instance: {each:.1f} MiB")
    assert 0 < each < 24


def private_mib(pid: int) -> float:
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return sum(int(line.split()[1]) for line in text.splitlines() if line.startswith("Private_")) / 1024
