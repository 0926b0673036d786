"""Programs and scripts that fetch and use servers of tools: real workers, the real fetcher, real servers on this machine."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import httpx
import lying_tool_server
import pytest
from waiting import until
from web_servers import Connection, WebServer, web_server
from web_tools import over_http, reply_json

import inferd
from inferd import Client, Forbidden, InvalidRequest, LimitExceeded, NotFound, SyncClient, Unavailable, http, mcp
from inferd_runtime.sandbox.runner_build.component import ensure_runner
from inferd_runtime.server.egress import process as process_module
from inferd_runtime.server.gateway.app import open_gateway
from inferd_runtime.server.supervisor.commands import Commands, default_commands
from inferd_runtime.server.tenancy.secret_store import SecretStore
from inferd_runtime.settings.settings import SECRETS_FILE

from .conftest import ANN, BOB, Served, fake_commands, settings_in

SECRET = "ghp_0123456789abcdef"
HEADER = """
# /// script
# [tool.inferd]
# http = [{origins}]
# mcp = ["liar", "crash", "desk"]
# ///
import asyncio
from inferd import *
from inferd import http, mcp, session
"""


@dataclass
class Outside:
    """A gateway, and a web server that its programs may reach."""

    served: Served
    web: WebServer
    folder: Path

    async def run(self, source: str, *, declares: bool = True, **arguments: Any) -> dict[str, Any]:
        """A program's run once it is over. It may use ``WEB``, the web server's address."""
        origins = json.dumps(self.web.url("").rstrip("/")) if declares else ""
        whole = HEADER.format(origins=origins) + f"WEB = {self.web.url('')!r}.rstrip('/')\n" + source
        run = await self.served.launch(whole, **arguments)
        await self.served.finished(run)
        value: dict[str, Any] = (await self.served.client.get(f"/v1/runs/{run['id']}")).json()
        return value

    async def result(self, source: str) -> Any:
        run = await self.run(source)
        assert run["error"] is None, run["error"]
        return run["result"]

    async def calls(self, run: dict[str, Any]) -> list[dict[str, Any]]:
        """What the run's events say that it asked of the world outside."""
        lines = (await self.served.client.get(f"/v1/runs/{run['id']}/events?follow=false")).text.splitlines()
        return [event["call"] for event in map(json.loads, filter(None, lines)) if event["type"] == "call"]


async def answer(connection: Connection) -> None:
    """The web server: ``/endless`` has no end, ``/to?URL`` redirects, ``/leaves`` does not answer, everything else answers the
    request's head and body.
    """
    if connection.path == "/leaves":
        return
    if connection.path == "/endless":
        await connection.send(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            await connection.send(bytes(65536))
    if connection.path.startswith("/to?"):
        await connection.answer(b"", "302 Found", Location=connection.path.removeprefix("/to?"))
        return
    body = b""
    if connection.header("Transfer-Encoding") == "chunked":
        while not body.endswith(b"0\r\n\r\n"):
            body += await connection.reader.read(65536)
    await connection.answer(connection.head.encode() + body)


@pytest.fixture(scope="module")
async def outside(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Outside]:
    ensure_runner()
    folder = tmp_path_factory.mktemp("outside")
    async with AsyncExitStack() as stack:
        web = await stack.enter_async_context(web_server(answer))
        origin = web.url("").rstrip("/")
        script = str(Path(lying_tool_server.__file__))
        liar = {
            "command": sys.executable,
            "args": ["-S", script, ""],
            "read": [str(Path(script).parent)],
            "tenants": ["ann"],
        }
        servers = {
            "liar": liar,
            "crash": {**liar, "args": ["-S", script, "crash"]},
            "bobs": {**liar, "tenants": ["bob"]},
        }
        (folder / "mcp.json").write_text(json.dumps({"mcpServers": servers}))
        (folder / "mcp.json").chmod(0o600)
        settings = settings_in(
            folder, http_allow=(f"tenant:ann,{origin},private=127.0.0.1/32",), http_body_bytes=4 << 20,
            mcp_file=folder / "mcp.json", audit_log=folder / "audit",
        )  # fmt: skip
        with closing(SecretStore(settings.data_dir / SECRETS_FILE)) as secrets:
            secrets.set("key", "ann", SECRET, [origin])
        commands = Commands(fake_commands().engine, default_commands(settings).worker)
        gateway = await stack.enter_async_context(open_gateway(settings, commands))
        await gateway.runtime.wait_ready()
        headers = {"Authorization": f"Bearer {ANN}"}
        client = await stack.enter_async_context(httpx.AsyncClient(base_url=gateway.url, headers=headers))
        yield Outside(Served(gateway, client), web, folder)


async def test_a_program_fetches_with_a_secret_that_it_never_sees(outside: Outside) -> None:
    run = await outside.run(
        """
        async def main():
            headers = {"Authorization": http.secret("key", "Bearer "), "X-Mine": "1"}
            response = await http.fetch(WEB + "/a?key=hidden", method="POST", headers=headers, json={"a": 1})
            return [response.status, response.headers["content-length"], await response.text()]
        """.replace("\n        ", "\n"),
    )
    status, length, text = run["result"]
    assert (status, int(length)) == (200, len(text))
    assert "Bearer " + "*" * len(SECRET) in text
    assert f"Authorization: Bearer {SECRET}" in outside.web.seen[-1]
    events = (await outside.served.client.get(f"/v1/runs/{run['id']}/events?follow=false")).text
    audit = (outside.folder / "audit").read_text()
    (call,) = await outside.calls(run)
    assert (call["call"], call["method"], call["path"], call["status"]) == ("http", "POST", "/a", 200)
    assert any(json.loads(line).get("subject") == run["id"] and "/a" in line for line in audit.splitlines())
    for told in (json.dumps(run), events, audit):
        assert SECRET not in told
    assert "hidden" not in audit + json.dumps(call)


async def test_urllib_fetches(outside: Outside) -> None:
    """`urllib.request` was refused."""
    text, final, refused, elsewhere = await outside.result(
        """
        from urllib.error import HTTPError
        from urllib.request import Request, build_opener, urlopen

        async def main():
            with urlopen(Request(WEB + "/a", data=b"x=1", headers={"X-Mine": "1"}), timeout=20) as response:
                text = response.read().decode()
            final = build_opener().open(WEB + "/to?/b").geturl()
            try:
                urlopen(WEB + "/to?mailto:x", timeout=20)
            except HTTPError as error:
                refused = error.code
            try:
                urlopen("https://b.example")
            except Forbidden as error:
                return [text, final, refused, str(error)]
        """.replace("\n        ", "\n"),
    )
    assert text.startswith("POST /a HTTP/1.1")
    assert "Content-Length: 3" in text
    assert "X-mine: 1" in text
    assert "application/x-www-form-urlencoded" in text
    assert final == outside.web.url("/b")
    assert refused == 302
    assert "https://b.example" in elsewhere


async def test_bodies_stream_both_ways(outside: Outside) -> None:
    size, pieces = await outside.result(
        """
async def body():
    for _ in range(10):
        yield b"x" * 100_000

async def main():
    pieces = [len(piece) async for piece in (await http.fetch(WEB, method="PUT", body=body())).stream()]
    return [sum(pieces), len(pieces)]
"""
    )
    assert size > 1_000_000
    assert pieces > 3


async def test_what_is_not_allowed_is_not_reached(outside: Outside) -> None:
    async with web_server(answer) as inside:
        found = await outside.result(
            f"""
async def main():
    found = []
    for url in ({inside.url()!r}, WEB + "/to?" + {inside.url()!r}, WEB + "/to?http://[::1]/", WEB + "/to?http://0x7f.1/",
                WEB + "/to?file:///etc/passwd", WEB.replace("127.0.0.1", "localhost"),
                WEB.replace("127.0.0.1", "[::ffff:127.0.0.1]")):
        try:
            found.append((await http.fetch(url)).status)
        except InferdError as error:
            found.append(error.code)
    return found
"""
        )
        assert set(found) <= {"client.forbidden", "client.invalid"}, found
        assert not inside.seen
    run = await outside.run("async def main():\n    await http.fetch(WEB)\n", declares=False)
    assert run["error"]["code"] == "client.forbidden"
    assert (await outside.calls(run))[0]["error"] == "client.forbidden"


async def test_an_endless_body_ends_at_its_limit(outside: Outside) -> None:
    codes = await outside.result(
        """
async def read(**limits):
    async for _ in (await http.fetch(WEB + "/endless", **limits)).stream():
        await asyncio.sleep(0.1 if limits else 0)

async def main():
    found = []
    for limits in ({}, {"timeout": 0.4}):
        try:
            await read(**limits)
        except LimitExceeded as error:
            found.append(error.detail["limit"])
    return found
"""
    )
    assert codes == ["http_body_bytes", "timeout"]
    await outside.run("async def main():\n    return (await http.fetch(WEB + '/endless')).status\n")


async def test_what_a_run_leaves_open_is_closed_and_told_of(outside: Outside) -> None:
    run = await outside.run("async def main():\n    return (await http.fetch(WEB + '/endless')).status\n")
    assert run["result"] == 200
    assert (await outside.calls(run))[0]["error"] == "abandoned"
    seen = len(outside.web.seen)
    origin = outside.web.url("").rstrip("/")
    source = f"async def main():\n    response = await http.fetch('{origin}/endless')\n    await session.receive()\n"
    run = await outside.served.launch(HEADER.format(origins=json.dumps(origin)) + source)
    await until(lambda: len(outside.web.seen) > seen)
    await outside.served.client.post(f"/v1/runs/{run['id']}/cancel")
    assert (await outside.served.finished(run))["state"] == "cancelled"
    assert (await outside.calls(run))[0]["error"] in ("abandoned", "cancelled")


async def test_a_program_uses_tools_and_a_liar_costs_its_callers_alone(outside: Outside) -> None:
    run = await outside.run(
        """
async def main():
    async with mcp.connect("liar") as liar, mcp.connect("crash") as crash:
        tools = [tool.name for tool in await liar.list_tools()]
        try:
            await crash.call_tool("echo", {"text": "x"})
        except Unavailable as error:
            crashed = error.message
        result = await liar.call_tool("add", {"a": 1, "b": 2})
        return [await mcp.servers(), tools, crashed, result.structured, mcp.text_of(result)]
"""
    )
    assert run["result"] == [
        ["crash", "liar"],
        ["echo", "add"],
        "the server of tools ended with code 3",
        {"sum": 3},
        "3",
    ]
    calls = await outside.calls(run)
    assert {"mcp.connect", "mcp.list_tools", "mcp.call_tool"} == {call["call"] for call in calls}
    assert [call.get("error") for call in calls if call["call"] == "mcp.call_tool"] == ["unavailable", None]


async def test_a_server_of_tools_has_nothing_of_the_gateways(outside: Outside, monkeypatch: pytest.MonkeyPatch) -> None:
    secrets_file = outside.folder / "data" / SECRETS_FILE
    environment, refused, own = await outside.result(
        f"""
async def main():
    async with mcp.connect("liar") as liar:
        return [mcp.text_of(await liar.call_tool(name, arguments)) for name, arguments in (
            ("environment", {{}}), ("read", {{"path": {str(secrets_file)!r}}}),
            ("read", {{"path": {lying_tool_server.__file__!r}}}))]
"""
    )
    variables, folder = json.loads(environment)
    assert not [name for name in variables if name.startswith(("INFERD", "PYTEST", "PYTHONPATH"))]
    assert "inferd-run-" in folder
    assert refused == "refused: Permission denied"
    assert own.startswith('"""A server of tools')


async def test_a_script_has_the_same_calls_and_its_tenants_rights(outside: Outside) -> None:
    url = outside.served.gateway.url.replace("http://", "ws://")
    async with inferd.connect(url, token=ANN):
        response = await http.fetch(outside.web.url("/script"), headers={"X-Key": http.secret("key")})
        assert SECRET not in await response.text()
        with pytest.raises(Forbidden):
            await http.fetch("https://example.com/")
        async with mcp.connect("liar") as liar:
            assert (await liar.call_tool("add", {"a": 2, "b": 2})).structured == {"sum": 4}
            with pytest.raises(LimitExceeded):
                await liar.call_tool("echo", {"text": "x" * (600 << 10)})
        with pytest.raises(NotFound):
            async with mcp.connect("bobs"):
                pytest.fail("another tenant's")
    async with inferd.connect(url, token=BOB):
        with pytest.raises(Forbidden):
            await http.fetch(outside.web.url())
        assert await mcp.servers() == ["bobs"]
        with pytest.raises(NotFound):
            async with mcp.connect("liar"):
                pytest.fail("another tenant's")


async def test_a_fetcher_that_was_killed_comes_back(outside: Outside) -> None:
    url = outside.served.gateway.url.replace("http://", "ws://")
    async with inferd.connect(url, token=ANN):
        response = await http.fetch(outside.web.url("/endless"))
        services = outside.served.gateway.runtime.outside
        assert services is not None
        services.fetcher.kill()
        with pytest.raises(inferd.Unavailable):
            await response.bytes()
        with anyio.fail_after(20):
            while True:
                try:
                    assert (await http.fetch(outside.web.url())).status == 200
                    break
                except inferd.Unavailable as error:
                    await anyio.sleep(error.detail.get("retry_after_s", 0.05))


async def test_who_waits_for_a_fetcher_that_hangs_is_told_and_another_one_takes_its_place(
    outside: Outside, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every fetch of every tenant waited for ever, as often as it was tried again."""
    monkeypatch.setattr(process_module, "LOOK_SECONDS", 0.1)
    monkeypatch.setattr(process_module, "HANG_SECONDS", 1.0)
    url = outside.served.gateway.url.replace("http://", "ws://")
    services = outside.served.gateway.runtime.outside
    assert services is not None
    async with inferd.connect(url, token=ANN):
        response = await http.fetch(outside.web.url("/endless"))
        assert services.fetcher.pid is not None
        os.kill(services.fetcher.pid, signal.SIGSTOP)
        with anyio.fail_after(20):
            with pytest.raises(inferd.Unavailable, match="hung, and was ended"):
                await response.bytes()
            while True:
                try:
                    assert (await http.fetch(outside.web.url())).status == 200
                    break
                except inferd.Unavailable as error:
                    await anyio.sleep(error.detail.get("retry_after_s", 0.05))


async def test_a_server_that_leaves_during_an_upload_is_unavailable(outside: Outside) -> None:
    run = await outside.run(
        """
async def pieces():
    while True:
        yield bytes(65536)

async def main():
    await http.fetch(WEB + "/leaves", method="POST", body=pieces())
"""
    )
    assert run["error"]["code"] == "unavailable", run["error"]


class Desk:
    """A server of tools that a client brings along."""

    def __init__(self) -> None:
        self.hangs = anyio.Event()

    async def list_tools(self) -> dict[str, Any]:
        return {"tools": [lying_tool_server.ADD]}

    async def call_tool(self, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        if name == "hang":
            self.hangs.set()
            await anyio.sleep_forever()
        if name == "fail":
            raise ValueError("no such tool")
        return {"content": [{"type": "text", "text": f"{name} {arguments}"}], "structuredContent": arguments}


ASK_DESK = """
async def main(tool: str = "add"):
    async with mcp.connect("desk") as desk:
        tools = [one.name for one in await desk.list_tools()]
        await session.send(tools)
        try:
            return [desk.about.offers, tools, (await desk.call_tool(tool, {"a": 1})).structured]
        except InferdError as error:
            return [error.code, error.message]
"""


async def test_a_clients_own_server_is_relayed_to_its_tenants_programs(outside: Outside) -> None:
    url = outside.served.gateway.url.replace("http://", "ws://")
    async with inferd.connect(url, token=ANN):
        async with mcp.offer("desk", Desk()):
            assert await outside.result(ASK_DESK) == [["tools"], ["add"], {"a": 1}]
            failed = await outside.run(ASK_DESK, tool="fail")
            assert failed["result"] == ["client.invalid", "desk answered an error: no such tool"]
            assert await mcp.servers() == ["crash", "desk", "liar"]
            for name in ("desk", "liar", "no name"):
                with pytest.raises(inferd.InvalidRequest):
                    async with mcp.offer(name, Desk()):
                        pytest.fail("it was taken")
        with pytest.raises(NotFound):
            async with mcp.connect("desk"):
                pytest.fail("it is gone")


async def test_a_client_that_leaves_ends_its_calls(outside: Outside) -> None:
    url = outside.served.gateway.url.replace("http://", "ws://")
    origin = json.dumps(outside.web.url("").rstrip("/"))
    desk = Desk()
    async with inferd.connect(url, token=ANN), mcp.offer("desk", desk):
        run = await outside.served.launch(HEADER.format(origins=origin) + ASK_DESK, tool="hang")
        with anyio.fail_after(20):
            await desk.hangs.wait()
    assert (await outside.served.finished(run))["state"] == "succeeded"
    result = (await outside.served.client.get(f"/v1/runs/{run['id']}")).json()["result"]
    assert result == ["unavailable", "the client that offered the server of tools desk has gone"]


BROUGHT = """
from inferd import *
from inferd import mcp, session

async def ask(name: str) -> list:
    try:
        async with mcp.connect(name) as server:
            tools = [tool.name for tool in await server.list_tools()]
            result = await server.call_tool("add", {"a": 1, "b": 2})
            return [server.about.title, tools, mcp.text_of(result)]
    except InferdError as error:
        return [error.code]

async def main(names: list[str], child: str = "") -> list:
    found = [await mcp.servers(), *[await ask(name) for name in names]]
    if child:
        found.append(await (await launch(child, {"names": names})).result())
    await session.send(found)
    return found
"""


def stdio(mode: str = "") -> dict[str, Any]:
    return {"command": sys.executable, "args": ["-S", "${SCRIPT}", mode], "env": {"KEY": "${NO_KEY:-x}"}}


async def sum_of(connection: Connection, message: dict[str, Any]) -> None:
    told = connection.header("X-Token")
    await reply_json(connection, message, {"content": [{"type": "text", "text": f"{told}: 3"}]})


def written(path: Path, told: Any) -> Path:
    path.write_text(json.dumps(told))
    return path


@pytest.fixture
def brought_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SCRIPT", lying_tool_server.__file__)
    return written(tmp_path / "mcp.json", {"mcpServers": {"mine": stdio(), "off": {**stdio(), "disabled": True}}})


async def test_a_client_brings_its_servers_for_the_runs_that_it_launches_with_them_alone(
    outside: Outside, brought_file: Path
) -> None:
    url = outside.served.gateway.url
    said = ["liar", ["echo", "add"], "3"]
    async with Client(url, ANN) as ann, Client(url, BOB) as bob, web_server(over_http(sum_of)) as web:
        program = await ann.upload({"main.py": BROUGHT}, name="brought")
        bobs = await bob.upload({"main.py": BROUGHT}, name="brought")
        entry = {"type": "http", "url": web.url("/mcp"), "headers": {"X-Token": "t-${SCRIPT}"}}
        written(brought_file, {"servers": {"mine": stdio(), "web": entry}})
        async with ann.mcp(brought_file) as tools:
            run = await ann.launch(program, {"names": ["mine", "web"], "child": "brought"}, mcp=tools)
            names, mine, at_url, child = await run.result()
            assert (names, mine) == (["mine", "web"], said), "no manifest names them"
            assert at_url == ["web", [], f"t-{lying_tool_server.__file__}: 3"]
            assert child == [names, mine, at_url], "what it launches sees them as well"
            for stranger, theirs in ((ann, program), (bob, bobs)):
                run = await stranger.launch(theirs, {"names": ["mine"]})
                assert (await run.result())[1] == ["client.not_found"]
            async with ann.mcp(brought_file) as others:  # another launch may use the same names
                assert await (await ann.launch(program, {"names": ["mine"]}, mcp=others)).result() == [names, said]
        run = await ann.launch(program, {"names": ["mine"]}, mcp=tools)
        assert await run.result() == [[], ["client.not_found"]], "they end with the block"


async def test_what_is_wrong_with_a_brought_server_is_told_before_the_launch(
    outside: Outside, brought_file: Path
) -> None:
    async with Client(outside.served.gateway.url, ANN) as ann:
        wrong: list[tuple[Any, type[Exception], str]] = [
            ({"mcpServers": {"liar": stdio()}}, InvalidRequest, "operator has a server"),
            ({"mcpServers": {"x": {"command": "/no/such/command"}}}, Unavailable, "x does not start"),
            ({"mcpServers": {"x": {**stdio(), "args": ["-c", "import sys; sys.exit('I am wrong')"]}}}, Unavailable, "I am wrong"),
            ({"mcpServers": {"x": {"type": "sse", "url": "http://127.0.0.1:1/"}}}, InvalidRequest, "'sse'"),
            ({"mcpServers": {"x": {"command": "${NO_SUCH}"}}}, InvalidRequest, "NO_SUCH"),
            ({"mcpServers": {"../x": stdio()}}, InvalidRequest, "must match"),
            ({"mcpServers": {"x": {"command": "c", "args": [1]}}}, InvalidRequest, "args"),
            ({"mcpServers": []}, InvalidRequest, "no object"),
        ]  # fmt: skip
        for told, kind, why in wrong:
            written(brought_file, told)
            with pytest.raises(kind, match=why):
                async with ann.mcp(brought_file):
                    pytest.fail("it was taken")


async def test_a_brought_server_that_crashes_is_an_error_of_its_call_and_comes_back(
    outside: Outside, brought_file: Path
) -> None:
    written(brought_file, {"mcpServers": {"mine": stdio("crash")}})
    async with Client(outside.served.gateway.url, ANN) as ann, ann.mcp(brought_file) as tools:
        program = await ann.upload({"main.py": BROUGHT}, name="brought")
        run = await ann.launch(program, {"names": ["mine", "mine"]}, mcp=tools)
        assert await run.result() == [["mine"], ["client.invalid"], ["client.invalid"]]
        calls = [event.data["call"]["call"] for event in await run.logs() if event.kind == "call"]
        assert calls == ["mcp.connect", "mcp.list_tools", "mcp.call_tool"] * 2, "it greeted and listed again"


async def test_the_command_line_brings_servers_and_so_does_the_blocking_client(
    outside: Outside, brought_file: Path
) -> None:
    url = outside.served.gateway.url

    def blocking() -> Any:
        with SyncClient(url, ANN) as client:
            program = client.upload({"main.py": BROUGHT}, name="brought")
            with client.mcp(brought_file) as tools:
                return client.launch(program, {"names": ["mine"]}, mcp=tools).result()

    expected = [["mine"], ["liar", ["echo", "add"], "3"]]
    with anyio.fail_after(60):
        assert await anyio.to_thread.run_sync(blocking) == expected
        command = [sys.executable, "-m", "inferd_runtime.cli", "launch", "--url", url, "--token", ANN, "--json"]
        command += ["--mcp-file", str(brought_file), "brought", "--names", "mine"]
        done = await anyio.run_process(command, check=False)
    assert json.loads(done.stdout)["result"] == expected, done.stderr
