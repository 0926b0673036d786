"""Files and messages both ways between clients and programs in real sandboxes, over the fake engine."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path

import anyio
import pytest
from cutting_relay import cutting_relay

from inferd import Client, EndOfMessages, InvalidRequest, LimitExceeded, NotFound
from inferd.protocol.files import MAX_FILE_BYTES
from inferd_runtime.cli.conversation import Conversation
from inferd_runtime.cli.own_run import OwnRun
from inferd_runtime.cli.program_command import TalkOptions
from inferd_runtime.cli.run_screen import RunScreen
from inferd_runtime.sandbox.messages import Bundle
from inferd_runtime.sandbox.runner_build.component import ensure_runner
from inferd_runtime.server.gateway.app import Gateway, open_gateway
from inferd_runtime.server.programs.bundles import make_program
from inferd_runtime.server.services import run_files
from inferd_runtime.server.supervisor.commands import Commands, default_commands

from .conftest import ANN, BOB, fake_commands, settings_in

TURNS = """
import hashlib
from inferd import session

async def main() -> list:
    told = []
    for _ in range(2):
        file = await session.receive_file()
        data = await file.read()
        told.append([file.name, file.media_type, file.size, hashlib.sha256(data).hexdigest()])
        await session.send_file(data[::-1], name=f"turned-{file.name}", media_type="text/plain")
    return told
"""
TALKS = """
from inferd import session

async def main() -> list:
    heard = [message async for message in session.messages()]
    try:
        await session.receive_file()
    except inferd.EndOfMessages:
        heard.append("no files")
    await session.receive()
"""
HOSTILE = """
import inferd
from inferd import session
from inferd.protocol.files import BeginFile, ReadFile, WriteFile
from inferd.transport import current_transport

async def refused(call) -> str:
    try:
        await call
    except inferd.InferdError as error:
        return error.detail.get("limit") or error.code
    return "taken"

async def main(names: list[str], most: int) -> dict:
    call = current_transport().call
    found = {"names": [await refused(call(BeginFile(name, "a/b", 1))) for name in names]}
    found["types"] = [await refused(call(BeginFile("x", kind, 1))) for kind in ("", "x", "a/b\\r\\nX: y", "a/" + "b" * 99)]
    found["sizes"] = [await refused(call(BeginFile("x", "a/b", size))) for size in (-1, most + 1, 1 << 62)]
    file = (await call(BeginFile("x", "a/b", 10))).file
    pieces = [(file, 1, b"a"), (file, 0, b"a" * 11), (file, -1, b"a"), (file + 1, 0, b"a"), (-1, 0, b"a")]
    found["pieces"] = [await refused(call(WriteFile(*piece))) for piece in pieces]
    found["reads"] = [await refused(call(ReadFile(number, 0))) for number in (file, file + 1, -1)]
    begun = 1
    while (why := await refused(call(BeginFile("y", "a/b", 0)))) == "taken":
        begun += 1
    return {**found, "begun": begun, "why": why}
"""
RETRIED = """
# /// script
# [tool.inferd]
# retry_safe = true
# ///
from inferd import session

async def main() -> list:
    file = await session.receive_file()
    data = await file.read()
    await session.send_file(data[::-1], name="turned")
    return [await session.receive(), data.decode()]
"""
BAD_NAMES = ["", "..", ".", "../x", "a/b", "a\\b", "a\0b", "a\nb", "x" * 256, "\u202egpj.exe"]


@pytest.fixture(scope="module")
async def gateway(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Gateway]:
    ensure_runner()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    settings = settings_in(tmp_path_factory.mktemp("files"), threads=1, workers=1)
    commands = Commands(engine=fake_commands().engine, worker=default_commands(settings).worker)
    async with open_gateway(settings, commands) as opened:
        await opened.runtime.wait_ready()
        yield opened
    assert not list(settings.data_dir.glob("run-files-*")), "nothing is left of files that are not kept"


@pytest.fixture
async def ann(gateway: Gateway) -> AsyncIterator[Client]:
    async with Client(gateway.url, ANN) as client:
        yield client


async def test_files_both_ways_over_connections_that_are_cut(gateway: Gateway, ann: Client, tmp_path: Path) -> None:
    large, empty = tmp_path / "large.bin", tmp_path / "empty"
    large.write_bytes(os.urandom(1_000_003))
    empty.touch()
    program = await ann.upload({"main.py": TURNS}, name="turns")
    run = await ann.launch(program)
    async with (
        cutting_relay(int(gateway.url.rpartition(":")[2]), 700_000, 1) as (cut, relay),
        Client(cut, ANN) as client,
    ):
        held = await client.attach(run.id)
        await held.send_file(large, media_type="application/x-test")
        await held.send_file(empty)
        digests = [hashlib.sha256(path.read_bytes()).hexdigest() for path in (large, empty)]
        with anyio.fail_after(60):
            assert await held.result() == [
                ["large.bin", "application/x-test", 1_000_003, digests[0]], ["empty", "application/octet-stream", 0, digests[1]]
            ]  # fmt: skip
        files = await held.files()
        assert [(file.name, file.size, file.media_type) for file in files] == [
            ("turned-large.bin", 1_000_003, "text/plain"), ("turned-empty", 0, "text/plain")
        ]  # fmt: skip
        saved = [await held.save_file(files[0], tmp_path / "out") for _ in range(2)]
    assert relay.cuts
    assert saved[0].read_bytes() == saved[1].read_bytes() == large.read_bytes()[::-1]
    assert [path.name for path in saved] == ["turned-large.bin", "turned-large-1.bin"]
    assert [event.data["file"]["name"] for event in await run.logs() if event.kind == "file"] == [
        "turned-large.bin", "turned-empty"
    ]  # fmt: skip
    async with Client(gateway.url, BOB) as bob:
        with pytest.raises(NotFound):
            await bob._link.request("GET", f"/v1/runs/{run.id}/files", again=False)
    with pytest.raises(InvalidRequest, match="it is over"):
        await run.send_file(empty)


async def test_hostile_names_sizes_and_pieces_are_refused_by_type(ann: Client, tmp_path: Path) -> None:
    run = await ann.launch(
        await ann.upload({"main.py": HOSTILE}, name="hostile"), {"names": BAD_NAMES, "most": MAX_FILE_BYTES}
    )
    found = await run.result()
    assert found["names"] == ["client.invalid"] * len(BAD_NAMES)
    assert found["types"] == ["client.invalid"] * 4
    assert found["sizes"] == ["client.invalid", "file_bytes", "file_bytes"]
    assert found["pieces"] == ["client.invalid"] * 3 + ["client.not_found"] * 2
    assert found["reads"] == ["client.not_found"] * 3
    assert (found["begun"], found["why"]) == (run_files.MAX_RUN_FILES, "run_files")
    assert await run.files() == [], "what was not finished is nobody's"


async def test_launchers_are_held_to_the_same_limits(ann: Client, tmp_path: Path, gateway: Gateway) -> None:
    sleeps = await ann.upload(
        {"main.py": "import asyncio\nasync def main():\n    await asyncio.sleep(60)\n"}, name="sleeps"
    )
    run = await ann.launch(sleeps)
    huge = tmp_path / "huge"
    with huge.open("wb") as file:
        file.truncate(MAX_FILE_BYTES + 1)
    with pytest.raises(LimitExceeded):
        await run.send_file(huge)
    for path in (tmp_path, tmp_path / "missing"):
        with pytest.raises(InvalidRequest):
            await run.send_file(path)
    path = f"/v1/runs/{run.id}/files"
    for name in BAD_NAMES:
        with pytest.raises(InvalidRequest):
            await ann._link.request("POST", path, {"name": name, "size": 1}, again=False)
    for count in range(run_files.MAX_RUN_BYTES // MAX_FILE_BYTES + 1):
        if count == run_files.MAX_RUN_BYTES // MAX_FILE_BYTES:
            with pytest.raises(LimitExceeded, match="of a run"):
                await ann._link.request("POST", path, {"name": "x", "size": MAX_FILE_BYTES}, again=False)
        else:
            await ann._link.request("POST", path, {"name": "x", "size": MAX_FILE_BYTES}, again=False)
    await run.cancel()


async def test_a_sandboxed_program_says_that_it_waits_and_hears_of_the_end(ann: Client) -> None:
    run = await ann.launch(await ann.upload({"main.py": "import inferd\n" + TALKS}, name="talks"))
    async with aclosing(run.events()) as events:
        waits = 0
        async for event in events:
            if event.kind == "waiting":
                waits += 1
                await (run.send({"number": waits}) if waits < 3 else run.end_messages())
    assert waits == 3, "once for each message"
    with pytest.raises(EndOfMessages):
        await run.result()
    with pytest.raises(InvalidRequest, match="no more messages"):
        await run.end_messages()


async def test_a_file_that_a_program_has_written_goes_out_by_its_path_as_its_own_files_do(ann: Client) -> None:
    source = """
    from inferd import session

    async def main() -> list:
        with open("/tmp/report.txt", "w") as report:
            report.write("made here")
        await session.send_file("/tmp/report.txt")
        await session.send_file("letter.txt")
        told = []
        for missing in ("/tmp/none", "none", "../letter.txt"):
            try:
                await session.send_file(missing)
            except FileNotFoundError as error:
                told.append(missing in str(error))
        return told
    """
    program = await ann.upload({"main.py": textwrap.dedent(source), "letter.txt": b"ours"}, name="writes")
    run = await ann.launch(program)
    assert await run.result() == [True] * 3
    assert [
        (file.name, b"".join([piece async for piece in run.read_file(file.file)])) for file in await run.files()
    ] == [
        ("report.txt", b"made here"),
        ("letter.txt", b"ours"),
    ]


async def test_files_of_runs_that_are_over_make_room_and_scripts_are_refused_by_name(
    gateway: Gateway, ann: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    import inferd
    from inferd import session

    monkeypatch.setattr(run_files, "MAX_TENANT_RUNS", 2)
    source = "from inferd import session\nasync def main():\n    await session.send_file(b'x', name='x')\n"
    program = await ann.upload({"main.py": source}, name="sends")
    runs = []
    for _ in range(4):
        runs.append(await ann.launch(program))
        await runs[-1].result()
    left = [run for run in runs if await run.files()]
    assert 0 < len(left) <= 2
    async with inferd.connect(gateway.url.replace("http", "ws"), token=ANN):
        for call in (session.send_file(b"x", name="x"), session.receive_file()):
            with pytest.raises(InvalidRequest, match="script"):
                await call


async def test_files_outlive_the_server_as_runs_do_and_a_run_that_goes_on_finds_them(tmp_path: Path) -> None:
    settings = settings_in(tmp_path, threads=1, workers=1)
    commands = Commands(engine=fake_commands().engine, worker=default_commands(settings).worker)
    (tmp_path / "a.txt").write_text("hello")
    async with open_gateway(settings, commands) as first, Client(first.url, ANN) as ann:
        await first.runtime.wait_ready()
        sends = "from inferd import session\nasync def main():\n    await session.send_file(b'kept', name='x')\n"
        over = await ann.launch(await ann.upload({"main.py": sends}, name="sends"))
        await over.result()
        run = await ann.launch(await ann.upload({"main.py": RETRIED}, name="retried"))
        await run.send_file(tmp_path / "a.txt")
        with anyio.fail_after(60):
            async with aclosing(run.events()) as events:
                async for event in events:
                    if event.kind == "waiting":
                        break
    async with open_gateway(settings, commands) as second, Client(second.url, ANN) as ann:
        await second.runtime.wait_ready()
        ended, goes_on = await ann.attach(over.id), await ann.attach(run.id)
        saved = await ended.save_file((await ended.files())[0], tmp_path / "out")
        assert await anyio.Path(saved).read_bytes() == b"kept"
        await goes_on.send("more")
        with anyio.fail_after(60):
            assert await goes_on.result() == ["more", "hello"]
        assert [(file.name, file.size) for file in await goes_on.files()] == [("turned", 5)], "sent twice, told once"
        saved = await goes_on.save_file((await goes_on.files())[0], tmp_path / "out")
        assert await anyio.Path(saved).read_bytes() == b"olleh"


async def test_a_run_that_nobody_else_can_reach_gets_its_files_and_hears_of_their_end(
    gateway: Gateway, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.txt").write_text("hello")
    program = make_program(Bundle("two", {"main.py": TURNS}))
    run = gateway.runtime.launch(program, "{}")
    talk = TalkOptions(cancels=False, sends=(tmp_path / "a.txt",), files=tmp_path / "out")
    with anyio.fail_after(60):
        conversation = Conversation(OwnRun(run, gateway.runtime.files), RunScreen(as_json=True), talk, alone=True)
        assert await conversation.follow() == 2
    out, err = capsys.readouterr()
    assert json.loads(out)["error"]["message"] == "the launcher sends no more files"
    assert (tmp_path / "out" / "turned-a.txt").read_text() == "olleh"
    assert "there are no more: --send-file PATH" in err


async def test_the_command_line_keeps_files_and_sends_them(gateway: Gateway, ann: Client, tmp_path: Path) -> None:
    source = """
        from inferd import session

        async def main() -> int:
            file = await session.receive_file()
            for _ in range(2):
                await session.send_file(await file.read(), name=file.name)
            return file.size
        """
    await ann.upload({"main.py": textwrap.dedent(source)}, name="copies")
    (tmp_path / "a.txt").write_text("hello")
    own = ("--url", gateway.url, "--token", ANN)

    async def inferd(*arguments: str) -> subprocess.CompletedProcess[bytes]:
        with anyio.fail_after(60):
            return await anyio.run_process([sys.executable, "-m", "inferd_runtime.cli", *arguments], check=False)

    sent = await inferd(
        "launch", *own, "copies", "--send-file", str(tmp_path / "a.txt"), "--files", str(tmp_path / "in")
    )
    assert (sent.stdout, len(list((tmp_path / "in").iterdir()))) == (b"5\n", 2), sent.stderr
    launched = (await inferd("launch", *own, "--detach", "copies")).stdout.decode().strip()
    assert (await inferd("send", *own, launched, "--file", str(tmp_path / "a.txt"))).returncode == 0
    kept = await inferd("attach", *own, launched, "--replay", "--files", str(tmp_path / "out"))
    assert (kept.stdout, kept.returncode) == (b"5\n", 0), kept.stderr
    assert {path.name: path.read_text() for path in (tmp_path / "out").iterdir()} == {
        "a.txt": "hello",
        "a-1.txt": "hello",
    }
    listed = await inferd("attach", *own, launched, "--replay")
    assert listed.stderr.decode().count("'a.txt', 5 bytes; --files DIR keeps it") == 2
    refused = await inferd("send", *own, launched, "--file", str(tmp_path / "a.txt"))
    assert (refused.returncode, b"it is over" in refused.stderr) == (2, True)
