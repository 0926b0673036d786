"""``inferd.Client`` against a gateway over the fakes: runs from launch to result, lost connections, and typed errors."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path

import anyio
import pytest
from cutting_relay import cutting_relay
from waiting import until

from inferd import Client, InvalidRequest, LimitExceeded, NotFound, ProgramError, SyncClient, Unauthorized, Unavailable
from inferd.client import EventsDropped
from inferd.client.http_link import ConnectionLost
from inferd_runtime.server.gateway.app import open_gateway

from .conftest import ANN, BOB, Serve, fake_commands, settings_in

TALKER = """
import asyncio, worker
async def main(count: int = 3) -> dict:
    for number in range(count):
        print("line", number, "\\u2028 still the same line", flush=True)
        worker.send({"number": number})
        await asyncio.sleep(0)
    return {"count": count}
"""
ECHO = """
import worker
async def main() -> str:
    worker.send("ready")
    heard = await worker.receive()
    worker.send({"heard": heard})
    return heard["text"]
"""
FAILS = "async def main():\n    raise ValueError('no')\n"
SLEEPS = "import asyncio\nasync def main():\n    await asyncio.sleep(600)\n"


@pytest.fixture(scope="module")
async def url(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[str]:
    """A server that the tests of this file share: each has programs of its own."""
    async with open_gateway(settings_in(tmp_path_factory.mktemp("served")), fake_commands()) as gateway:
        await gateway.runtime.wait_ready()
        yield gateway.url


def source(folder: Path, text: str, name: str = "p") -> Path:
    path = folder / f"{name}.py"
    path.write_text(text)
    return path


async def test_a_run_from_its_upload_to_its_result(url: str, tmp_path: Path) -> None:
    async with Client(url, ANN) as client:
        program = await client.upload(source(tmp_path, TALKER), version="1.2.3")
        assert (program.name, program.version, program.created) == ("p", "1.2.3", True)
        assert not (await client.upload(source(tmp_path, TALKER), version="1.2.3")).created
        run = await client.launch(program, {"count": 3})
        assert [message async for message in run.messages()] == [{"number": 0}, {"number": 1}, {"number": 2}]
        assert "".join([text async for text in run.output()]).count("\u2028") == 3
        assert await run.result() == {"count": 3}
        assert run.record["state"] == "succeeded"
        assert [event.kind for event in await run.logs()][-1] == "finished"
        assert await (await client.attach(run.id)).result() == {"count": 3}
        assert run.id in [one["id"] for one in await client.runs()]
        assert "p" in [one["name"] for one in await client.programs()]
        assert await client.remove("p") == 1
        with pytest.raises(NotFound):
            await client.program("p")


async def test_messages_both_ways_and_typed_ends(url: str) -> None:
    async with Client(url, ANN) as client:
        run = await client.launch(await client.upload({"echo.py": ECHO}))
        async with aclosing(run.messages()) as messages:
            assert await anext(messages) == "ready"
            await run.send({"text": "hello"})
            assert await anext(messages) == {"heard": {"text": "hello"}}
        assert await run.result() == "hello"
        with pytest.raises(InvalidRequest, match="is over"):
            await run.send(1)
        failed = await client.launch(await client.upload({"fails.py": FAILS}))
        with pytest.raises(ProgramError, match="no"):
            await failed.result()
        with pytest.raises(ProgramError):
            [_ async for _ in failed.messages()]
        asleep = await client.launch(await client.upload({"sleeps.py": SLEEPS}), limits={"wall_s": 60})
        await asleep.cancel()
        assert (await anyio.to_thread.run_sync(_result_of, url, asleep.id))[0] == "cancelled"


def _result_of(url: str, run: str) -> tuple[str, int]:
    """How a run ended, asked for without ``await``; and how many events it has."""
    with SyncClient(url, ANN) as client:
        held = client.attach(run)
        count = sum(1 for _ in held.events())
        assert count == len(held.logs())
        return held.refresh()["state"], count


async def test_refusals_are_of_the_sdks_own_errors(url: str, free_tcp_port: int) -> None:
    async with Client(url, "token-of-nobody-0123456789") as client:
        with pytest.raises(Unauthorized):
            await client.runs()
    async with Client(url, ANN) as client, Client(url, BOB) as other:
        with pytest.raises(NotFound):
            await client.attach("run-of-nobody/../x")
        with pytest.raises(NotFound):
            await client.launch("nothing")
        program = await client.upload({"main.py": SLEEPS})
        with pytest.raises(InvalidRequest):
            await client.launch(program, {"there is no such": 1})
        with pytest.raises(InvalidRequest):
            await client.launch(program, limits={"wall_s": -1})
        with pytest.raises(LimitExceeded):
            await client.upload({"main.py": "#" * (1 << 21)})
        run = await client.launch(program)
        with pytest.raises(NotFound):
            await other.attach(run.id)
        await run.cancel()
    async with Client(f"http://127.0.0.1:{free_tcp_port}", ANN) as client:
        with pytest.raises(Unavailable, match="no runtime answers"), anyio.fail_after(5):
            await client.runs()


@pytest.mark.parametrize("bad", ["", "127.0.0.1:7070", "ftp://x", "http://", "http://x:99999", None, 3])
def test_an_address_that_is_none_is_refused(bad: object) -> None:
    with pytest.raises(InvalidRequest):
        Client(bad)  # type: ignore[arg-type]


async def test_a_launch_with_a_key_starts_one_run(url: str) -> None:
    async with Client(url, ANN) as client:
        program = await client.upload({"talker.py": TALKER})
        first = await client.launch(program, {"count": 1}, idempotency_key="k", seed=7)
        second = await client.launch(program, {"count": 1}, idempotency_key="k", seed=7)
        assert first.id == second.id


@pytest.mark.parametrize("seed", range(3))
async def test_nothing_is_lost_or_told_twice_where_connections_are_cut_at_random(url: str, seed: int) -> None:
    port = int(url.rpartition(":")[2])
    async with Client(url, ANN) as direct, cutting_relay(port, 4000, seed) as (cut, relay), Client(cut, ANN) as client:
        program = await direct.upload({"talker.py": TALKER})
        with anyio.fail_after(30):
            run = await client.launch(program, {"count": 120}, idempotency_key=f"key-{seed}")
            events = [event async for event in run.events()]
            assert await run.result() == {"count": 120}
        assert relay.cuts > 3
        assert [event.index for event in events] == list(range(len(events)))
        assert [event.message["number"] for event in events if event.kind == "message"] == list(range(120))
        assert events == [event async for event in (await direct.attach(run.id)).events()]


async def test_a_gap_is_an_error_that_says_where_to_go_on(serve: Serve) -> None:
    async with serve(run_event_bytes=4096) as served, Client(served.gateway.url, ANN) as client:
        run = await client.launch(await client.upload({"talker.py": TALKER}), {"count": 100})

        async def over() -> bool:
            return (await run.refresh())["finished_at"] is not None

        await until(over)  # nobody follows it, so nothing is kept for a follower
        with pytest.raises(EventsDropped) as told:
            [_ async for _ in run.events()]
        rest = [event.index async for event in run.events(told.value.next)]
        assert rest[0] == told.value.next
        assert [event.index for event in await run.logs()] == rest


async def test_a_server_that_does_not_come_back_is_told_once_patience_is_over() -> None:
    async def serve_half(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).split()[1]
        record = {"id": "r", "state": "running", "finished_at": None, "next_event": 0, "error": None}
        body = json.dumps(record).encode() if b"/r/" not in head else b'{"index": 0, "ty'
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % max(len(body), 60) + body)
        writer.close()

    server = await asyncio.start_server(serve_half, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, Client(f"http://127.0.0.1:{port}", patience_s=0.2) as client:
        run = await client.attach("r")
        with pytest.raises(ConnectionLost), anyio.fail_after(10):
            [_ async for _ in run.events()]
        with pytest.raises(ConnectionLost):
            await run.send("perhaps")
