"""Hostile constraints against a real engine process: a typed error in time, and nobody else notices."""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hostile_constraints import HELD, REFUSED, object_of, patterns, schema

from inferd import protocol as p
from inferd_grammar.trials.pool import BEHIND

from .engine_client import Caller, EngineProcess, engine_process

ERROR_SECONDS = 20.0
# A good part of a second of work, within the caps.
SLOW = schema({"type": "integer", "multipleOf": 40_009})


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineProcess]:
    with engine_process(tmp_path_factory.mktemp("engine")) as opened:
        yield opened


def start(caller: Caller, constraint: p.ConstraintSpec, max_tokens: int = 8) -> int:
    """The ticket of a generation under a constraint."""
    request = p.StartGenerate(caller.prompt("A text: "), max_tokens=max_tokens, constraint=constraint)
    return caller.submit(request)


def steps_beside(caller: Caller, hostile: Caller, ticket: int) -> int:
    """Run generations until the hostile request is answered: engine steps that they made meanwhile."""
    before = caller.stats().steps
    while not hostile.ready(ticket):
        generate(caller)
    return caller.stats().steps - before


def generate(caller: Caller, max_tokens: int = 32) -> float:
    """One generation without a constraint; its tokens per second."""
    context = caller.prompt("Once upon a time")
    started = time.perf_counter()
    generation = caller.call(p.StartGenerate(context, max_tokens=max_tokens)).generation
    while not caller.call(p.NextSteps(generation)).finish:
        pass
    rate = max_tokens / (time.perf_counter() - started)
    caller.call(p.CloseGenerate(generation))
    caller.call(p.ReleaseContext(context))
    return rate


def children(pid: int) -> list[int]:
    """Processes whose parent is this one."""
    listed = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for thread in listed for child in thread.read_text().split()]


def test_hostile_constraints_end_in_typed_errors_and_steps_go_on(engine: EngineProcess) -> None:
    caller, hostile = engine.session("steps"), engine.session("steps/hostile")
    generate(caller)
    ticket = start(hostile, SLOW)
    assert steps_beside(caller, hostile, ticket) >= 32
    assert isinstance(hostile.wait(ticket), p.GenerationStarted)
    for name in ("10 MB", "remote reference", "reference to itself", "number of 401 digits", "allOf of 50 patterns"):
        assert isinstance(hostile.wait(start(hostile, REFUSED[name])), (p.ConstraintError, p.LimitExceeded)), name
    held = hostile.wait(start(hostile, HELD["maxItems 1e5 of objects"]))
    assert isinstance(held, p.GenerationStarted)
    many = hostile.wait(start(hostile, HELD["200 times .*"]))
    assert isinstance(many, p.GenerationStarted)
    assert isinstance(_whole(hostile, many.generation), p.ConstraintError), "a limit of the library's own"


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="process descriptors exist on Linux only")
def test_the_compiler_ends_with_an_engine_that_is_killed(tmp_path: Path) -> None:
    """Also while it is busy in native code: the kernel sees to it."""
    with engine_process(tmp_path) as engine:
        caller = engine.session("killed")
        caller.wait(start(caller, schema({"type": "integer", "maximum": 77})))
        before = set(children(engine.process.pid))
        assert before
        start(caller, SLOW)
        descriptors = [os.pidfd_open(child) for child in before]
        engine.process.send_signal(signal.SIGKILL)
        engine.process.wait()
        for descriptor in descriptors:
            assert _ended(descriptor)
            os.close(descriptor)


def _ended(descriptor: int) -> bool:
    import select

    return bool(select.select([descriptor], [], [], 10)[0])


@pytest.mark.long
def test_every_hostile_constraint_in_time(engine: EngineProcess) -> None:
    """Prints the table that docs/grammar.md shows: what became of each, after how long."""
    caller = engine.session("table")
    for name, constraint in {**REFUSED, **HELD}.items():
        started = time.perf_counter()
        answer = caller.wait(start(caller, constraint))
        if isinstance(answer, p.GenerationStarted):
            answer = _whole(caller, answer.generation)
        seconds = time.perf_counter() - started
        told = type(answer).__name__ if isinstance(answer, p.InferdError) else "runs"
        print(f"| {name} | {told} | {1e3 * seconds:.0f} |")
        assert seconds < ERROR_SECONDS, name
        assert not isinstance(answer, p.InternalError), (name, answer)
        if name in REFUSED:
            assert isinstance(answer, (p.ConstraintError, p.LimitExceeded)), (name, answer)


def _whole(caller: Caller, generation: int) -> p.Steps | p.InferdError:
    """Run a generation to its end: its last steps, or the error that it ended with."""
    while True:
        answer: p.Steps | p.InferdError = caller.wait(caller.submit(p.NextSteps(generation)))
        if isinstance(answer, p.InferdError) or answer.finish:
            caller.call(p.CloseGenerate(generation))
            return answer


@contextmanager
def busy_process() -> Iterator[None]:
    """A process as nice as the compiler that does nothing but take a processor."""
    with subprocess.Popen([sys.executable, "-c", f"import os\nos.nice({BEHIND})\nwhile True: pass"]) as process:
        try:
            yield
        finally:
            process.kill()


@pytest.mark.long
def test_others_keep_their_speed(engine: EngineProcess) -> None:
    """Tokens per second of a stream beside a tenant that sends nothing but slow constraints, against without.

    Without means beside a process that only takes the processor: machines with few of them slow down by that alone.
    """
    caller, hostile = engine.session("speed"), engine.session("speed/hostile")
    shares = []
    for number in range(12):
        with busy_process():
            alone = statistics.median(generate(caller, 64) for _ in range(5))
        kinds = (object_of(1500 + number), patterns(8 + number % 8), {"type": "integer", "multipleOf": 90_000 + number})
        tickets = [start(hostile, schema(kind)) for kind in kinds]
        rates = []
        while not all(hostile.ready(ticket) for ticket in tickets):
            rates.append(generate(caller, 64))
        shares.append(statistics.median(rates) / alone)
    share = statistics.median(shares[1:])
    print(
        f"beside hostile compiles: {share:.2f} of the speed without  [{min(shares[1:]):.2f} .. {max(shares[1:]):.2f}]"
    )
    assert share >= 0.9
