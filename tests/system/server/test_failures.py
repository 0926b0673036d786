"""What dies is named, started again, and takes nothing else with it; nothing outlives the runtime."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import anyio
import msgspec
import pytest
from waiting import until

from inferd.protocol import Cancelled, Unavailable
from inferd_runtime.isolation.kinds import ChildKind
from inferd_runtime.isolation.order import Launch
from inferd_runtime.sandbox.messages import Bundle, Limits, RunFinished, RunUsage
from inferd_runtime.server.processes.rundir import LOCK, run_directory
from inferd_runtime.server.programs.bundles import Program, make_program
from inferd_runtime.server.supervisor import engine_supervisor, runtime as runtime_module
from inferd_runtime.server.supervisor.run_events import Ending
from inferd_runtime.server.supervisor.runs import Run
from inferd_runtime.server.supervisor.runtime import open_runtime

from .conftest import HERE, Serve, fake_commands, settings_in

SLEEP = "import asyncio\nasync def main():\n    print('asleep')\n    await asyncio.sleep(600)\n"
DIE = "import worker\nasync def main():\n    worker.die()\n"
ASK = "import worker\nasync def main(text: str):\n    return await worker.call('model.tokenize', text=text)\n"
SESSIONS = "import worker\nasync def main():\n    return (await worker.call('context.create'))['length']\n"


async def ended(run: Run, seconds: float = 60) -> Ending:
    """How a run ends, within a time."""
    with anyio.fail_after(seconds):
        return await run.wait()


def program(source: str) -> Program:
    return make_program(Bundle("p", {"main.py": source}))


def is_running(pid: int) -> bool:
    """Whether a process is there and is more than an exit code that nobody has asked for."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


async def test_a_killed_worker_ends_its_runs_and_no_others(serve: Serve) -> None:
    async with serve() as served:
        sleeper, victim = await served.launch(SLEEP), await served.launch(DIE)
        for run in (sleeper, victim):
            over = await served.finished(run)
            assert over["state"] == "failed"
            assert over["error"]["code"] == "unavailable"
            assert "worker-1 was killed by SIGKILL" in over["error"]["message"]
        again = await served.finished(await served.launch(ASK, text="ab"))
        assert again["result"] == {"tokens": [97, 98]}
        assert served.gateway.runtime.fleet.restarts == 1


async def test_the_sessions_of_a_killed_worker_are_closed_at_the_engine(serve: Serve) -> None:
    async with serve() as served:
        sleeper = await served.launch(SLEEP)
        await until(lambda: len(served.gateway.runtime.fleet.pids) == 2)
        await served.finished(await served.launch(DIE))
        await served.finished(sleeper)

        async def only_its_own_and_the_gateways() -> bool:
            over = await served.finished(await served.launch(SESSIONS))
            return bool(over["result"] == 2)

        await until(only_its_own_and_the_gateways)


async def test_a_dead_engine_ends_the_runs_that_use_it_and_comes_back(serve: Serve) -> None:
    async with serve() as served:
        sleeper = await served.launch(SLEEP)
        over = await served.finished(await served.launch(ASK, text="die"))
        assert (over["state"], over["error"]["code"]) == ("failed", "unavailable")
        assert "the engine exited with code 3" in over["error"]["message"]
        assert (await served.finished(sleeper))["error"]["code"] == "unavailable"
        assert "told to die" not in json.dumps(over)  # what the engine printed may be about others
        await until(served.ready)
        again = await served.finished(await served.launch(ASK, text="a"))
        assert again["result"] == {"tokens": [97]}
        assert served.gateway.runtime.engine.restarts == 1
        assert served.gateway.runtime.fleet.restarts == 0


async def test_an_engine_that_hangs_is_told_by_readyz_and_another_takes_its_place(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that waits for it would wait for ever, and no health check would say so."""
    monkeypatch.setattr(engine_supervisor, "LOOK_SECONDS", 0.1)
    monkeypatch.setattr(engine_supervisor, "HANGING", 15)
    async with serve() as served:
        engine = served.gateway.runtime.engine
        hanging = engine.pid
        assert hanging is not None
        waits = await served.launch(ASK, text="hang")
        os.kill(hanging, signal.SIGSTOP)
        await until(lambda: not engine.answers)
        assert (await served.client.get("/readyz")).status_code == 503
        os.kill(hanging, signal.SIGCONT)  # it only took long
        await until(served.ready)
        assert engine.pid == hanging
        os.kill(hanging, signal.SIGSTOP)
        over = await served.finished(waits)
        assert over["error"]["code"] == "unavailable"
        await until(served.ready)
        assert (await served.finished(await served.launch(ASK, text="a")))["result"] == {"tokens": [97]}


async def test_without_an_engine_launches_are_unavailable(serve: Serve, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    async with serve(fake_commands(["--after", str(gate)]), wait=False) as served:
        await served.upload(SLEEP)
        response = await served.client.post("/v1/runs", json={"program": "p"})
        assert response.status_code == 503
        assert response.json()["error"]["message"] == "the engine is starting"
        assert (await served.client.get("/readyz")).status_code == 503
        assert (await served.client.get("/v1/models")).status_code == 503
        await anyio.to_thread.run_sync(gate.write_bytes, b"")
        await served.gateway.runtime.wait_ready()
        assert (await served.client.get("/readyz")).status_code == 200


@pytest.mark.parametrize(
    ("engine", "worker", "message"),
    [(["--fail"], [], "no such model: fake"), ([], ["--fail"], "the fake runner is broken")],
)
async def test_a_child_that_does_not_start_is_reported_with_what_it_printed(
    tmp_path: Path, engine: list[str], worker: list[str], message: str
) -> None:
    with pytest.raises(Unavailable, match=message):
        async with open_runtime(settings_in(tmp_path), fake_commands(engine, worker)):
            pytest.fail("it came up")


async def test_a_worker_that_is_never_ready_is_given_up(tmp_path: Path) -> None:
    mute = tmp_path / "mute.py"
    mute.write_text("import time\ntime.sleep(600)\n")
    commands = runtime_module.Commands(fake_commands().engine, lambda links: Launch(str(mute), ChildKind.MODEL))
    with pytest.raises(Unavailable, match="was killed by SIGKILL"):
        async with open_runtime(settings_in(tmp_path, worker_start_s=0.3), commands):
            pytest.fail("it came up")


async def test_a_worker_that_ignores_a_cancel_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime_module, "GRACE_SECONDS", 0.2)
    async with open_runtime(settings_in(tmp_path), fake_commands(worker=["--deaf"])) as runtime:
        bystander, run = runtime.launch(program(SLEEP), "{}"), runtime.launch(program(SLEEP), "{}")
        await run.next_batch(1)
        run.cancel()
        ending = await ended(run)
        assert ending.error is not None
        assert ending.error.code == "cancelled"
        other = await ended(bystander)
        assert other.error is not None
        assert other.error.code == "unavailable"


async def test_a_worker_that_ends_many_runs_one_after_the_other_is_not_killed_for_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """192 runs that were cancelled at once cost their tenant a worker, with all that it ran, on a busy machine."""
    async with open_runtime(settings_in(tmp_path), fake_commands(worker=["--deaf"])) as runtime:
        first, last = runtime.launch(program(SLEEP), "{}"), runtime.launch(program(SLEEP), "{}")
        for run in (first, last):
            await run.next_batch(1)
        holder = runtime.fleet.pool.worker_of(first.id)
        assert holder == runtime.fleet.pool.worker_of(last.id)
        assert holder is not None
        killed: list[str] = []
        monkeypatch.setattr(runtime.fleet, "kill", killed.append)
        monkeypatch.setattr(runtime_module, "GRACE_SECONDS", 0.0)
        first.cancel()
        last.cancel()
        monkeypatch.setattr(runtime_module, "GRACE_SECONDS", 60.0)
        runtime.worker_reported(holder, RunFinished(first.id, RunUsage(), error=Cancelled("").to_wire()), 1)
        runtime.tick(time.monotonic())
        runtime.worker_reported(holder, RunFinished(last.id, RunUsage(), error=Cancelled("").to_wire()), 1)
        assert killed == []


async def test_a_run_beyond_its_wall_time_ends_even_if_the_worker_does_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime_module, "GRACE_SECONDS", 0.2)
    async with open_runtime(settings_in(tmp_path), fake_commands()) as runtime:
        run = runtime.launch(program(SLEEP), "{}", limits=Limits(wall_s=0.2))
        ending = await ended(run)
        assert ending.error is not None
        assert (ending.error.code, ending.error.detail["limit"]) == ("limit", "wall_s")


async def test_a_worker_is_believed_about_its_own_runs_only(tmp_path: Path) -> None:
    async with open_runtime(settings_in(tmp_path), fake_commands()) as runtime:
        run = runtime.launch(program(SLEEP), "{}", tenant="ann")
        await run.next_batch(1)
        forged = RunFinished(run.id, RunUsage(), result='"forged"')
        runtime.worker_reported("worker-99", forged, 1)
        assert run.ending is None
        holder = runtime.fleet.pool.worker_of(run.id)
        assert holder is not None
        runtime.worker_reported(holder, forged, 1)
        assert run.result == "forged"


@pytest.mark.parametrize("data", [b"\xc1", b"", b"\x91" * 100_000, msgspec.msgpack.encode({"type": "Nothing"})])
async def test_a_worker_that_sends_nonsense_is_killed_and_nothing_else(tmp_path: Path, data: bytes) -> None:
    source = f"import asyncio, worker\nasync def main():\n    worker.garble({data!r})\n    await asyncio.sleep(600)\n"
    async with open_runtime(settings_in(tmp_path), fake_commands()) as runtime:
        ending = await ended(runtime.launch(program(source), "{}"))
        assert ending.error is not None
        assert "was killed by SIGKILL" in ending.error.message
        again = await ended(runtime.launch(program("async def main(): return 1"), "{}"))
        assert again.result == "1"


async def test_a_message_that_json_cannot_hold_kills_the_worker_only(tmp_path: Path) -> None:
    lines = "    worker.send(msgspec.msgpack.Ext(1, b''))\n    await worker.receive()\n"
    source = f"import msgspec, worker\nasync def main():\n{lines}"
    async with open_runtime(settings_in(tmp_path), fake_commands()) as runtime:
        ending = await ended(runtime.launch(program(source), "{}"))
        assert ending.error is not None
        assert ending.error.code == "unavailable"


async def test_a_child_that_cannot_be_started_is_unavailable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "no-python"))
    with pytest.raises(Unavailable, match="cannot be started"):
        async with open_runtime(settings_in(tmp_path), fake_commands()):
            pytest.fail("it came up")


async def test_closing_cancels_the_runs_and_leaves_no_process_and_no_file(tmp_path: Path) -> None:
    async with open_runtime(settings_in(tmp_path), fake_commands()) as runtime:
        run = runtime.launch(program(SLEEP), "{}")
        await run.next_batch(1)
        pids = [*runtime.fleet.pids.values(), runtime.engine.pid]
        folder = Path(runtime.engine.endpoint.removeprefix("ipc://")).parents[1]
        assert folder.stat().st_mode & 0o777 == 0o700
    assert run.error is not None
    assert run.error.code == "cancelled"
    assert not any(is_running(pid) for pid in pids if pid is not None)
    assert not folder.exists()


async def test_the_bodys_own_exception_comes_out_as_it_is(tmp_path: Path) -> None:
    with pytest.raises(KeyError):
        async with open_runtime(settings_in(tmp_path), fake_commands()):
            raise KeyError("mine")


def test_the_children_of_a_killed_runtime_die_with_it(tmp_path: Path) -> None:
    environment = {**os.environ, "XDG_STATE_HOME": str(tmp_path), "XDG_DATA_HOME": str(tmp_path)}
    command = [sys.executable, str(HERE / "fake_cli.py"), "serve", "--port", "0", "--json"]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as server:
        assert server.stdout is not None
        assert json.loads(server.stdout.readline())["pid"] == server.pid
        children = [int(pid) for pid in Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split()]
        assert len(children) >= 2
        os.kill(server.pid, signal.SIGKILL)
    anyio.run(until, lambda: not any(is_running(pid) for pid in children))


def test_what_a_killed_runtime_left_behind_is_removed_by_the_next_one(tmp_path: Path) -> None:
    left = tmp_path / "inferd-run-left"
    left.mkdir()
    (left / LOCK).touch()
    with run_directory(tmp_path) as first, run_directory(tmp_path) as second:
        assert not left.exists()
        assert first.exists()
        assert second.exists()
    assert list(tmp_path.iterdir()) == []


async def test_programs_step_behind_engine_and_gateway_while_another_tenant_is_there(tmp_path: Path) -> None:
    def niceness() -> set[int]:
        return {os.getpriority(os.PRIO_PROCESS, pid) for pid in runtime.fleet.pids.values()}

    own = os.getpriority(os.PRIO_PROCESS, 0)
    async with open_runtime(settings_in(tmp_path), fake_commands(), spare=0) as runtime:
        run = runtime.launch(program(SLEEP), "{}", "mallory")
        await until(lambda: run.state == "running")
        assert niceness() == {own}
        with runtime.use.socket("neighbour"):
            await until(lambda: min(niceness()) > own)
            assert os.getpriority(os.PRIO_PROCESS, runtime.engine.pid or 0) == own
        if os.geteuid() == 0:
            await until(lambda: niceness() == {own})
        run.cancel()
        await ended(run)
