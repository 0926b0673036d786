"""An egress process from the gateway's side: how it ends, and what is left of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
import zmq
from waiting import until

from inferd.protocol import Done, LimitExceeded, Unavailable
from inferd_runtime.isolation.kinds import ChildKind
from inferd_runtime.isolation.order import Launch
from inferd_runtime.server.egress import process as process_module
from inferd_runtime.server.egress.process import EgressLaunch, EgressProcess
from inferd_runtime.server.egress.tool_start import ToolServerStart
from inferd_runtime.server.services.outside import _remove_home


def script(folder: Path, source: str) -> Path:
    path = folder / "script.py"
    path.write_text(source)
    return path


@asynccontextmanager
async def process_of(script: Path, home: Path) -> AsyncIterator[EgressProcess]:
    def launch(endpoint: str) -> Launch:
        home.mkdir()
        (home / "left").write_text("x")
        return Launch(str(script), ChildKind.EGRESS, settings=ToolServerStart(endpoint, "x", str(home)))

    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    try:
        with anyio.fail_after(30):
            async with anyio.create_task_group() as tasks:
                endpoint = "inproc://{}".format
                yield EgressProcess(EgressLaunch("x", launch, endpoint, context, tasks, _remove_home))
                tasks.cancel_scope.cancel()
    finally:
        context.destroy(linger=0)


async def test_what_a_server_of_tools_leaves_goes_with_it(tmp_path: Path) -> None:
    """Each start left a home, for as long as the gateway lived."""
    home = tmp_path / "home"
    async with process_of(script(tmp_path, "raise SystemExit(3)"), home) as process:
        with pytest.raises(Unavailable, match="exited with code 3"):
            await process.call("x", Done(), Done)
        await until(lambda: not home.exists())


async def test_the_log_has_what_a_process_printed_before_its_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It had the error alone, which does not say why a server of tools ended."""
    error = '{"code": "unavailable", "message": "it ended", "detail": {}}'
    async with process_of(
        script(tmp_path, f"print('no such file: tools.py'); print({error!r}); raise SystemExit(2)"), tmp_path / "home"
    ) as process:
        with pytest.raises(Unavailable, match=r"^it ended$"):
            await process.call("x", Done(), Done)
    (said,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert said.endswith("no such file: tools.py\nit ended")


async def test_who_waits_is_told_why_a_process_was_stopped(tmp_path: Path) -> None:
    async with process_of(script(tmp_path, "import time; time.sleep(600)"), tmp_path / "home") as process:
        async with anyio.create_task_group() as tasks:

            async def ask() -> None:
                with pytest.raises(LimitExceeded, match="too much"):
                    await process.call("x", Done(), Done)

            tasks.start_soon(ask)
            await until(lambda: process.pid is not None)
            process.stop(LimitExceeded("too much", limit="mcp_memory_mb", value=1))
            assert not process.alive, "who asks now would be told of the end of one that it never met"
        assert process.pid is None


async def test_a_process_that_never_takes_calls_is_ended_and_started_again_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stayed, stopped or hung, and each call waited for it anew."""
    monkeypatch.setattr(process_module, "START_SECONDS", 0.5)
    home = tmp_path / "home"
    async with process_of(script(tmp_path, "import time; time.sleep(600)"), home) as process:
        process._clock = lambda: 0.0
        with pytest.raises(Unavailable, match="did not start within"):
            await process.started()
        await until(lambda: not process.alive and not home.exists())
        with pytest.raises(Unavailable, match="is started again in"):
            await process.call("x", Done(), Done)
        assert process.starts == 1
