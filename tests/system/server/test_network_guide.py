"""The code of the guide to the network: its program, its scripts and clients, and the operator's file."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import AsyncIterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lying_tool_server
import pytest
from guide_pages import GUIDES, fenced, run_block
from web_servers import Connection, WebServer, web_server

import inferd
from inferd import http, mcp
from inferd_runtime.sandbox.runner_build.component import ensure_runner
from inferd_runtime.server.services.mcp_servers import read_servers
from inferd_runtime.server.supervisor.commands import Commands, default_commands
from inferd_runtime.server.tenancy.secret_store import SecretStore
from inferd_runtime.settings.settings import SECRETS_FILE

from .conftest import ANN, Serve, Served, fake_commands, settings_in

PAGE = "network.md"
PROGRAM, STREAM, SECRET, SERVERS, BROUGHT, OFFERED = range(6)
AGENT = """
from inferd import mcp
async def main(task: str) -> list[str]:
    return [task, *await mcp.servers()]
"""


class Notes:
    """A server of tools that finds notes."""

    async def list_tools(self) -> dict[str, Any]:
        return {"tools": [{"name": "find", "inputSchema": {"type": "object"}}]}

    async def call_tool(self, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        return {"content": [{"type": "text", "text": f"{name} {arguments['text']}"}], "structuredContent": arguments}


@dataclass
class Reader:
    """Somebody who tries what the guide shows, on a server whose operator allows it."""

    served: Served
    web: WebServer

    @property
    def url(self) -> str:
        return self.served.gateway.url

    async def run(self, block: int, **names: Any) -> dict[str, Any]:
        """Run a block in a script that is connected; returns its names."""
        async with inferd.connect(self.url.replace("http", "ws", 1), ANN):
            await run_block(PAGE, fenced(PAGE)[block], names)
        return names


async def answer(connection: Connection) -> None:
    await connection.answer(json.dumps({"path": connection.path}).encode())


@pytest.fixture
async def reader(serve: Serve, tmp_path: Path) -> AsyncIterator[Reader]:
    ensure_runner()
    async with web_server(answer) as web:
        origin = web.url("").rstrip("/")
        settings = settings_in(tmp_path)
        with closing(SecretStore(settings.data_dir / SECRETS_FILE)) as secrets:
            secrets.set("github", "ann", "ghp_0123456789", [origin])
        commands = Commands(fake_commands().engine, default_commands(settings).worker)
        async with serve(commands, http_allow=(f"tenant:ann,{origin},private=127.0.0.1/32",)) as served:
            yield Reader(served, web)


@pytest.fixture
def own_servers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client's file of servers of tools in the current folder."""
    monkeypatch.chdir(tmp_path)
    entry = {"command": sys.executable, "args": ["-S", lying_tool_server.__file__, ""]}
    (tmp_path / "mcp.json").write_text(json.dumps({"mcpServers": {"mine": entry}}))


async def test_its_program_fetches(reader: Reader) -> None:
    source = fenced(PAGE)[PROGRAM][1].replace("https://api.example.com", reader.web.url("").rstrip("/"))
    run = await reader.served.finished(await reader.served.launch(source, query="tea"))
    assert (run["error"], run["result"]) == (None, {"status": 200, "found": {"path": "/search"}})


async def test_its_scripts_fetch(reader: Reader) -> None:
    assert json.loads((await reader.run(STREAM, http=http, url=reader.web.url("/a")))["chunk"]) == {"path": "/a"}
    headers = (await reader.run(SECRET, http=http))["headers"]
    async with inferd.connect(reader.url.replace("http", "ws", 1), ANN):
        await http.fetch(reader.web.url("/b"), headers=headers)
    assert "Authorization: Bearer ghp_0123456789" in reader.web.seen[-1]


async def test_its_scripts_use_and_offer_servers_of_tools(reader: Reader, capsys: pytest.CaptureFixture[str]) -> None:
    async with inferd.connect(reader.url.replace("http", "ws", 1), ANN), mcp.offer("notes", Notes()):
        tools = (await reader.run(SERVERS))["tools"]
    assert [tool.name for tool in tools] == ["find"]
    assert capsys.readouterr().out == "find tea {'text': 'tea'} False\n"
    url = reader.url.replace("http", "ws", 1)
    await reader.run(OFFERED, inferd=inferd, mcp=mcp, url=url, token=ANN, session=Notes())


@pytest.mark.usefixtures("own_servers")
async def test_its_client_brings_servers_of_tools(reader: Reader, capsys: pytest.CaptureFixture[str]) -> None:
    await reader.served.upload(AGENT, "agent")
    await run_block(PAGE, fenced(PAGE)[BROUGHT], {"inferd": inferd, "url": reader.url, "token": ANN})
    assert capsys.readouterr().out == "['...', 'mine']\n"


def test_its_file_of_the_operator_is_read(tmp_path: Path) -> None:
    (shown,) = re.findall(r"```json\n(.*?)```", (GUIDES / PAGE).read_text(), re.DOTALL)
    (tmp_path / "mcp.json").write_text(shown)
    (tmp_path / "mcp.json").chmod(0o600)
    table = read_servers(tmp_path / "mcp.json")
    assert [table.names(tenant, None) for tenant in ("ann", "bob")] == [["notes", "search"], ["search"]]
