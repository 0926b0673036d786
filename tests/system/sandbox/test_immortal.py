"""The snapshot's objects in real guests: not counted, and otherwise as if they were."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from inferd_runtime.sandbox.runner.rehearsal import PROGRAMS
from inferd_runtime.sandbox.runner_build.component import ensure_runner
from inferd_runtime.sandbox.wasm.engine_settings import MIB
from inferd_runtime.sandbox.wasm.linear_memory import written_pages
from inferd_runtime.sandbox.wasm.loaded_runner import LoadedRunner, compile_component
from inferd_runtime.sandbox.wasm.warm_up import RehearsalCalls

from .conftest import Gateway

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="an instance's memory is found on Linux alone")


def test_the_snapshots_objects_are_not_counted_and_a_programs_own_are(gateway: Gateway) -> None:
    program = """
        import asyncio, sys, weakref
        import inferd

        class Own:
            pass

        async def main():
            known = [inferd.Context, inferd.Context.generate.__code__, "collect_text", asyncio.sleep, sys.modules]
            own = Own()
            gone = weakref.ref(own)
            del own
            return [[sys.getrefcount(one) >= 1 << 30 for one in known], gone() is None]
    """
    assert gateway.value(program) == [[True] * 5, True]


def test_a_collection_of_everything_finds_a_programs_own_garbage_and_breaks_nothing(gateway: Gateway) -> None:
    program = """
        import gc, weakref
        import inferd

        class Own:
            pass

        async def main():
            one = Own()
            one.itself, gone = one, weakref.ref(one)
            del one
            gc.unfreeze()
            for _ in range(3):
                gc.collect()
            await inferd.session.send("still here")
            return gone() is None
    """
    assert gateway.value(program) is True


def test_what_is_given_back_when_memory_runs_short_is_counted(gateway: Gateway) -> None:
    program = """
        import gc, sys
        from inferd_runtime.sandbox.runner.entry import RESERVE_BYTES, Runner

        async def main():
            gc.unfreeze()
            runner, = (one for one in gc.get_objects() if type(one) is Runner)
            assert len(runner._reserve) == RESERVE_BYTES
            return sys.getrefcount(runner._reserve)
    """
    assert 0 < gateway.value(program) < 10


@pytest.mark.long
def test_programs_do_the_same_as_in_a_runner_whose_objects_are_counted_and_write_to_half_of_the_pages(
    tmp_path: Path,
) -> None:
    runner = ensure_runner()
    plain = tmp_path / "plain.cwasm"
    compile_component(runner.with_name(f"{runner.name.partition('-')[0]}.wasm"), plain)
    for name, text in PROGRAMS.items():
        (outcome, written), (expected, more) = one_run(runner, text), one_run(plain, text)
        assert outcome == expected
        assert 0 < written < 0.6 * more, name


def one_run(file: Path, text: str) -> tuple[tuple[bool, str], int]:
    """How a program ends, and how many bytes of its memory it has written to."""
    guest = LoadedRunner(file).start(256 * MIB)
    bundle = {"name": "twin", "files": {"main.py": text}, "entry": "main.py"}
    ended = guest.run(RehearsalCalls(), json.dumps(bundle), json.dumps({"text": "hello"}))
    return ended, sum(map(len, written_pages(guest.memory())))
