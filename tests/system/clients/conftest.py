"""One real server for all tests here: gateway, engine with the embedded model, sandbox workers; and the vendors' clients."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import pytest
from anyio.from_thread import start_blocking_portal

from inferd_runtime.server.gateway.app import open_gateway
from inferd_runtime.settings.settings import Settings

ROOT = Path(__file__).parents[3]
TOKEN, BOB = "token-of-clients-0123456789", "token-of-bob-0123456789"
"""Of the server's own tenant, an admin; and of another one."""


@dataclass(frozen=True)
class LiveServer:
    """A server's address, and ways to it."""

    url: str
    gateway: Any

    def http(self, **headers: str) -> httpx.Client:
        return httpx.Client(base_url=self.url, headers={"Authorization": f"Bearer {TOKEN}", **headers}, timeout=60)

    def openai(self, **options: Any) -> openai.OpenAI:
        return openai.OpenAI(**{"base_url": f"{self.url}/v1", "api_key": TOKEN, "max_retries": 0, **options})

    def anthropic(self, **options: Any) -> anthropic.Anthropic:
        return anthropic.Anthropic(**{"base_url": self.url, "api_key": TOKEN, "max_retries": 0, **options})

    def upload(self, source: str, name: str) -> None:
        with self.http() as client:
            response = client.post("/v1/programs", json={"files": {"main.py": source}, "name": name})
        assert response.status_code in (200, 201), response.text


@contextmanager
def live_server(folder: Path, **changes: Any) -> Iterator[LiveServer]:
    """A server with these settings."""
    settings = Settings(port=0, token=TOKEN, data_dir=folder / "data", state_dir=folder / "state", **changes)
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(open_gateway(settings)) as gateway:
        portal.call(gateway.runtime.wait_ready)
        yield LiveServer(gateway.url, gateway)


@pytest.fixture(scope="package")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    folder = tmp_path_factory.mktemp("server")
    tokens = folder / "tokens"
    tokens.write_text(f"{BOB} bob\n")
    tokens.chmod(0o600)
    with live_server(folder, tokens_file=tokens) as live:
        for name in ("chat", "best-of-n", "self-consistency"):
            live.upload((ROOT / "inferlets" / name / "main.py").read_text(), name)
        yield live


@pytest.fixture(scope="module")
def client(server: LiveServer) -> Iterator[openai.OpenAI]:
    with server.openai() as client:
        yield client


@pytest.fixture(scope="module")
def http(server: LiveServer) -> Iterator[httpx.Client]:
    with server.http() as client:
        yield client
