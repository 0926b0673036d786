"""A process of a cluster that does not answer any more: it is killed, so that another one takes its place."""

from __future__ import annotations

import itertools
import signal
import subprocess
import sys
from collections.abc import Iterator

import anyio
import pytest

from inferd_runtime.cluster.ray_serve.child import kill_if_hung

SLEEPS = "import time; time.sleep(60)"


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-I", "-c", SLEEPS]) as process:
        yield process
        process.kill()


async def test_a_process_that_has_stopped_answering_is_killed(child: subprocess.Popen[bytes]) -> None:
    looks = itertools.count()

    async def answers() -> bool:
        return next(looks) < 3

    with anyio.fail_after(20):
        child.send_signal(signal.SIGSTOP)
        await kill_if_hung(child, answers, seconds=0.02, pause=0.005)
        assert child.returncode == -signal.SIGKILL
    assert next(looks) > 3


async def test_one_that_answers_now_and_then_is_not(child: subprocess.Popen[bytes]) -> None:
    looks = itertools.count()

    async def answers() -> bool:
        look = next(looks)
        if look == 40:
            child.terminate()
        return look % 4 == 0

    with anyio.fail_after(20):
        await kill_if_hung(child, answers, seconds=10.0, pause=0.001)
        assert child.returncode == -signal.SIGTERM
