"""A real gateway on a free port over the fake engine and the fake worker; or the command line over them."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
from command_line import own_home

from inferd_runtime.isolation.kinds import ChildKind
from inferd_runtime.isolation.order import Launch
from inferd_runtime.server.gateway.app import Gateway, open_gateway
from inferd_runtime.server.supervisor.commands import Commands
from inferd_runtime.settings.settings import ENGINE_FIELDS, EngineSettings, Settings

HERE = Path(__file__).parent
ANN, BOB = "token-of-ann-0123456789", "token-of-bob-0123456789"
ROOT = "token-of-root-0123456789"


def fake_commands(engine: Sequence[str] = (), worker: Sequence[str] = ()) -> Commands:
    """The fakes are scripts, with these options; nothing is forbidden to them."""
    return Commands(
        engine=lambda endpoint, key: script("fake_engine.py", "--endpoint", endpoint, *engine),
        worker=lambda links: script(
            "fake_worker.py", "--control", links.control, "--engine", links.engine, "--identity", links.secret, *worker
        ),
    )


def script(name: str, *arguments: str) -> Launch:
    return Launch(str(HERE / name), ChildKind.MODEL, arguments)


def settings_in(folder: Path, **changes: Any) -> Settings:
    folder.mkdir(parents=True, exist_ok=True)
    tokens = folder / "tokens"
    tokens.write_text(f"# token tenant\n{ANN} ann\n\n{BOB} bob\n{ROOT} root role=admin\n")
    tokens.chmod(0o600)
    values = {"port": 0, "tokens_file": tokens, "data_dir": folder / "data", "state_dir": folder / "state"}
    engine = {"check": True, **{name: changes.pop(name) for name in ENGINE_FIELDS if name in changes}}
    return Settings(engine=EngineSettings(**engine), **{**values, **changes})


@dataclass(frozen=True)
class Served:
    """A gateway and a client for one of its tenants."""

    gateway: Gateway
    client: httpx.AsyncClient

    async def upload(self, source: str, name: str = "p") -> dict[str, Any]:
        response = await self.client.post("/v1/programs", json={"files": {"main.py": source}, "name": name})
        assert response.status_code in (200, 201), response.text
        value: dict[str, Any] = response.json()
        return value

    async def launch(self, source: str, **arguments: Any) -> dict[str, Any]:
        program = await self.upload(source)
        response = await self.client.post("/v1/runs", json={"program": program["id"], "arguments": arguments})
        assert response.status_code == 201, response.text
        value: dict[str, Any] = response.json()
        return value

    async def finished(self, run: dict[str, Any]) -> dict[str, Any]:
        """The run once it is over."""
        with anyio.fail_after(30):
            await self.client.get(f"/v1/runs/{run['id']}/events", timeout=30)
        value: dict[str, Any] = (await self.client.get(f"/v1/runs/{run['id']}")).json()
        assert value["finished_at"] is not None
        return value

    async def ready(self) -> bool:
        """Whether launches work now."""
        return (await self.client.get("/readyz")).status_code == 200


Serve = Callable[..., AbstractAsyncContextManager[Served]]


@asynccontextmanager
async def served_in(
    folder: Path, commands: Commands | None = None, wait: bool = True, **changes: Any
) -> AsyncIterator[Served]:
    """A gateway whose files are in ``folder``."""
    settings = settings_in(folder, **changes)
    async with open_gateway(settings, commands or fake_commands()) as gateway:
        if wait:
            await gateway.runtime.wait_ready()
        headers = {"Authorization": f"Bearer {ANN}"}
        async with httpx.AsyncClient(base_url=gateway.url, headers=headers) as client:
            yield Served(gateway, client)


@pytest.fixture
def hang_ups() -> Iterator[None]:
    """Children hear of hang-ups, also where these tests run under ``nohup``, which has them ignored."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.fixture
def serve(tmp_path: Path) -> Serve:
    """``async with serve(...) as served``: options are settings, and ``commands`` for other children."""

    return partial(served_in, tmp_path)


@pytest.fixture(scope="module")
async def shared(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Served]:
    """One gateway for the tests of a file that need no settings, and leave it as it was but for programs and runs."""
    async with served_in(tmp_path_factory.mktemp("shared")) as served:
        yield served


def _heed_interrupts() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@dataclass(frozen=True)
class CommandLine:
    """``inferd`` over the fakes, with a home of its own."""

    environment: dict[str, str]

    def __call__(self, *arguments: str, input: str | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*arguments), env=self.environment, input=input, capture_output=True, text=True, timeout=60
        )

    @contextmanager
    def start(self, *arguments: str) -> Iterator[subprocess.Popen[str]]:
        """A process of its own that ends with the block, killed if it must be.

        SIGINT has its default there: what runs the tests may ignore it (a job in the background of a script does), and
        whoever is ignoring it hands that down.
        """
        with subprocess.Popen(
            self.command(*arguments), env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            preexec_fn=_heed_interrupts,
        ) as process:  # fmt: skip
            try:
                yield process
            finally:
                process.kill()

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-W", "error", str(HERE / "fake_cli.py"), *arguments]

    def but(self, **changes: str) -> CommandLine:
        return CommandLine({**self.environment, **changes})


@pytest.fixture
def inferd(tmp_path: Path) -> CommandLine:
    return CommandLine(own_home(tmp_path))
