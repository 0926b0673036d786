"""Code that has broken out of the sandbox, in a worker of a real server: it reaches nothing of the machine and nobody else."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import anyio
import pytest

import inferd_runtime
from inferd_runtime.isolation import report
from inferd_runtime.isolation.layers import CONFINED
from inferd_runtime.isolation.order import Access, Launch
from inferd_runtime.isolation.report import layers
from inferd_runtime.sandbox.messages import Bundle
from inferd_runtime.sandbox.worker_start import WorkerBounds, WorkerLinks, WorkerStart, worker_launch
from inferd_runtime.server.programs.bundles import Program, make_program
from inferd_runtime.server.supervisor.commands import Commands, default_commands
from inferd_runtime.server.supervisor.runs import Run
from inferd_runtime.server.supervisor.runtime import Runtime, open_runtime
from inferd_runtime.session.wire import EngineStats, GetEngineStats
from inferd_runtime.settings.settings import EngineSettings, Settings

HERE = Path(__file__).parent
BOUNDS = WorkerBounds(runs=8, memory_mb=2048)
MALLORY, BOB = "mallory", "bob"
missing = [layer.name for layer in layers() if not layer.active]
pytestmark = [pytest.mark.skipif(bool(missing), reason=f"this system does not offer {', '.join(missing)}")]


@dataclass(frozen=True)
class Scene:
    """A server whose workers are hostile, and what is worth stealing from it."""

    runtime: Runtime
    tokens: Path
    data: Path

    @property
    def sockets(self) -> str:
        return str(Path(self.runtime.engine.endpoint.removeprefix("ipc://")).parent)

    def launch(self, mode: str, tenant: str = MALLORY, **arguments: Any) -> Run:
        return self.runtime.launch(program(mode), json.dumps(arguments), tenant)

    async def attempt(self, mode: str, **arguments: Any) -> Any:
        """What came of a function of attempts.py."""
        run = self.launch(mode, **arguments)
        with anyio.fail_after(60):
            await run.wait()
        assert run.error is None, run.error
        return run.result


def program(mode: str) -> Program:
    return make_program(Bundle("p", {"main.py": f"# {mode}\nasync def main(): pass\n"}))


def hostile_worker(links: WorkerLinks) -> Launch:
    """A worker's own launch, with another target."""
    whole = worker_launch(WorkerStart(links, str(HERE / "intruder.py")), BOUNDS, require_all=True)
    attempts = str(HERE / "attempts.py")
    access = Access(read=(*whole.access.read, attempts), sockets=whole.access.sockets)
    return replace(whole, target=str(HERE / "intruder.py"), arguments=(attempts,), access=access)


@pytest.fixture(scope="module")
async def scene(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Scene]:
    folder = tmp_path_factory.mktemp("scene")
    tokens = folder / "tokens"
    tokens.write_text("secret-of-bob-that-is-long-enough bob\n")
    tokens.chmod(0o600)
    settings = Settings(
        engine=EngineSettings(threads=1, check=True), tokens_file=tokens, data_dir=folder / "data", max_workers=4,
    )  # fmt: skip
    commands = Commands(default_commands(settings).engine, hostile_worker)
    async with open_runtime(settings, commands) as runtime:
        yield Scene(runtime, tokens, folder / "data")


def refused(made: dict[str, str]) -> None:
    through = {name: outcome for name, outcome in made.items() if not outcome.startswith("refused")}
    assert made
    assert not through


async def test_files_of_others_are_out_of_reach(scene: Scene) -> None:
    package = str(Path(inferd_runtime.__file__).parent)
    secrets = [str(scene.tokens), str(scene.data), str(scene.tokens.parent), str(Path.home()), scene.sockets + "/.."]
    refused(await scene.attempt("files", secrets=secrets, package=package, sockets=scene.sockets))


@contextmanager
def listener(address: str) -> Iterator[None]:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(address)
        made.listen()
        yield


async def test_there_is_no_network(scene: Scene, tmp_path: Path) -> None:
    stranger, abstract = str(tmp_path / "s"), f"inferd-test-{os.getpid()}"
    with socket.create_server(("127.0.0.1", 0)) as gateway, listener(stranger), listener("\0" + abstract):
        os.chmod(stranger, 0o777)
        port = gateway.getsockname()[1]
        refused(await scene.attempt("network", port=port, stranger=stranger, abstract=abstract))


async def test_other_processes_are_out_of_reach_and_none_can_be_started(scene: Scene) -> None:
    others = [*scene.runtime.fleet.pids.values(), scene.runtime.engine.pid]
    made = await scene.attempt("processes", others=others)
    own = {name: outcome for name, outcome in made.items() if "DONE" in outcome}
    assert set(own) <= {
        f"{name} {pid}" for pid in scene.runtime.fleet.pids.values() for name in ("tgkill", "read the memory of")
    }
    assert len(own) <= 2, "its own process is the only one that it can reach"


async def test_system_calls_that_a_worker_does_not_need_are_refused(scene: Scene) -> None:
    made = await scene.attempt("calls")
    assert len(made) > 400
    refused(made)


async def test_what_it_can_take_is_bounded(scene: Scene) -> None:
    took = await scene.attempt("amounts", memory_mb=1 << 16)
    limits = BOUNDS.limits
    assert took["memory_mb"] <= limits.memory_bytes >> 20
    assert took["files"] < limits.open_files
    assert took["threads"] < limits.threads


async def test_it_can_be_nobody_else(scene: Scene) -> None:
    victim = scene.launch("wait", BOB)
    with anyio.fail_after(60):
        while victim.started_at is None:
            await victim.next_batch(0)
    made = await scene.attempt("identity", victim=victim.id, others=list(scene.runtime.fleet.pids))
    refused(made)
    stats = await scene.runtime.engine.call(GetEngineStats(), EngineStats)
    assert stats.sessions >= 2, "the gateway's own, and the victim's"
    victim.deliver("go on")
    with anyio.fail_after(20):
        await victim.wait()
    assert victim.error is None
    assert victim.result == 1, "its session was still there"


async def test_a_session_that_a_worker_keeps_is_closed_when_its_run_is_over(scene: Scene) -> None:
    held = scene.launch("wait", MALLORY)
    with anyio.fail_after(60):
        await held.next_batch(0)
        held.cancel()
        await held.wait()
        while (await scene.runtime.engine.call(GetEngineStats(), EngineStats)).sessions > 1:
            await anyio.lowlevel.checkpoint()


async def test_it_is_nobody_on_the_machine(scene: Scene) -> None:
    held = scene.launch("wait", MALLORY)
    with anyio.fail_after(60):
        await held.next_batch(0)  # its worker runs programs; others may still start
        is_nobody(scene.runtime.fleet.pids[scene.runtime.fleet.pool.worker_of(held.id) or ""])
        held.cancel()
        await held.wait()


def is_nobody(pid: int) -> None:
    status = dict(
        line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":\t" in line
    )
    capabilities = [status[name] for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")]
    assert {int(bits, 16) for bits in capabilities} == {0}
    assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")
    assert "0" not in status["Uid"].split()
    named = [one for one in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0") if b"=" in one]
    assert all(one.startswith((b"LANG=", b"LC_", b"MALLOC_")) for one in named), named


def test_all_layers_are_reported_by_name() -> None:
    assert [layer.name for layer in layers()] == list(CONFINED)


def test_layers_stand_whatever_the_umask_of_who_starts_the_server() -> None:
    """With 077, folders of a root's worker's own root were closed to the user that the worker becomes."""
    usual = layers()
    before = os.umask(0o077)
    try:
        assert layers() == usual
    finally:
        os.umask(before)


def test_a_child_that_cannot_be_started_is_told_by_its_own_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "PROBE_MODULE", "inferd_runtime.no_such_module")
    assert all("ModuleNotFoundError: No module named" in layer.reason for layer in layers())
