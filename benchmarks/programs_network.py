"""What reaching out costs a program: a fetch over the same one by httpx in a plain script, and a call of a server of tools.

The web server and the server of tools are processes of their own: this file, as a script.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sandbox_runtime import Place


FETCH = """
# /// script
# [tool.inferd]
# http = ["http://127.0.0.1:{port}"]
# mcp = ["bench"]
# ///
import time
from inferd import http, mcp

async def main(fetches: int, calls: int) -> list:
    fetched, called = [], []
    for _ in range(fetches):
        start = time.perf_counter()
        await (await http.fetch("http://127.0.0.1:{port}/")).bytes()
        fetched.append((time.perf_counter() - start) * 1e3)
    if calls:
        async with mcp.connect("bench") as server:
            for _ in range(calls):
                start = time.perf_counter()
                await server.call_tool("add", {{"a": 1, "b": 2}})
                called.append((time.perf_counter() - start) * 1e3)
    return [fetched, called]
"""
BODY = b"x" * 1024
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(BODY), BODY)
ROUNDS = 5


@dataclass(frozen=True)
class Outside:
    """What programs reach: the web server's port, and the settings that allow it."""

    port: int
    settings: dict[str, Any]


@contextmanager
def outside(folder: Path) -> Iterator[Outside]:
    """Start the web server, and write the file that names the server of tools."""
    own = str(Path(__file__).resolve())
    web = subprocess.Popen([sys.executable, own, "web"], stdout=subprocess.PIPE)
    try:
        assert web.stdout is not None
        port = int(web.stdout.readline())
        servers = {"bench": {"command": sys.executable, "args": ["-S", own, "tools"], "read": [own], "tenants": ["*"]}}
        path = folder / "mcp.json"
        path.touch(mode=0o600)
        path.write_text(json.dumps({"mcpServers": servers}))
        allow = f"all,http://127.0.0.1:{port},private=127.0.0.1/32"
        yield Outside(port, {"http_allow": (allow,), "mcp_file": path})
    finally:
        web.kill()
        web.wait()
        web.stdout.close()  # type: ignore[union-attr]


async def network(place: Place, port: int, quick: bool) -> dict[str, float]:
    """Fetches and calls by a program, and fetches by httpx, in turns."""
    from measure import figure  # not at the top: as a script this file is two small servers

    program = await place.upload("reach", FETCH.format(port=port))
    count = 20 if quick else 100
    fetched: list[float] = []
    called: list[float] = []
    plain: list[float] = []
    for round_ in range(ROUNDS + 1):
        ending = await place.launch(program, fetches=count, calls=count).wait()
        assert ending.result is not None, ending.error
        some, calls = json.loads(ending.result)
        alone = await fetches(port, count)
        if round_:  # the first one starts the processes
            fetched, called, plain = fetched + some, called + calls, plain + alone
    overhead = figure(fetched).median - figure(plain).median
    print(f"a fetch of 1 KiB by a program, ms:    {figure(fetched)}")
    print(f"the same by httpx in a script, ms:    {figure(plain)}  (its connection is kept)")
    print(f"a call of a tool over MCP, ms:        {figure(called)}")
    return {
        "http_fetch_p50_ms": figure(fetched).median,
        "http_fetch_overhead_ms": overhead,
        "mcp_call_p50_ms": figure(called).median,
    }


async def fetches(port: int, count: int) -> list[float]:
    """Milliseconds of each of some fetches by httpx."""
    import httpx

    samples: list[float] = []
    async with httpx.AsyncClient() as client:
        for _ in range(count):
            start = time.perf_counter()
            await client.get(f"http://127.0.0.1:{port}/")
            samples.append((time.perf_counter() - start) * 1e3)
    return samples


async def serve_web() -> None:
    """Answer every request, and print the port."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                await reader.readuntil(b"\r\n\r\n")
                writer.write(ANSWER)
        except asyncio.IncompleteReadError:
            writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


def serve_tools() -> None:
    """Be a server of one tool."""
    schema = {"type": "object", "properties": {"a": {"type": "number"}, "b": {"type": "number"}}}
    for line in sys.stdin:
        message = json.loads(line)
        params = message.get("params", {})
        answers: dict[str, Any] = {
            "initialize": {
                "protocolVersion": params.get("protocolVersion"),
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "bench", "version": "1"},
            },
            "tools/list": {"tools": [{"name": "add", "inputSchema": schema}]},
            "tools/call": {"content": [{"type": "text", "text": "3"}]},
        }
        if "id" in message:
            print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": answers[message["method"]]}), flush=True)


if __name__ == "__main__":
    asyncio.run(serve_web()) if sys.argv[1] == "web" else serve_tools()
