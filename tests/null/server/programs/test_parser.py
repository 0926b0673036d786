"""Parsing what strangers upload, in a process of its own: every attack ends in a typed error, and harms no other upload."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import anyio
import anyio.to_thread
import hostile_uploads
import msgspec
import psutil
import pytest

from inferd.protocol import (
    ClientError,
    InferdError,
    InvalidRequest,
    LimitExceeded,
    ProgramError,
    ProgramSyntaxError,
    Unavailable,
)
from inferd_runtime.server.gateway.replies import program_json
from inferd_runtime.server.programs import parser_pool
from inferd_runtime.server.programs.bundles import Program, assemble_program
from inferd_runtime.server.programs.parser_messages import ParsedUpload, ParseLimits
from inferd_runtime.server.programs.parser_pool import MAX_LINE, ParserPool
from inferd_runtime.server.programs.parser_process import ParserProcess

LIMITS = ParseLimits(cpu_s=0.3, wall_s=20, memory_mb=192)
GOOD = hostile_uploads.body("async def main(x: int = 1) -> str:\n    'Doc.'\n")
# Slow with every Python: 3.14 refuses, at once, keys with more than a thousand dots.
SLOW = hostile_uploads.body("a<b;" * 240_000 + "\n" + hostile_uploads.MAIN)
SLOW_LIMITS = ParseLimits(cpu_s=1, wall_s=60, memory_mb=2048)


@pytest.fixture(scope="module")
def parser() -> Iterator[ParserProcess]:
    process = ParserProcess(LIMITS)
    yield process
    process.close()


def assemble(parsed: ParsedUpload) -> Program:
    return assemble_program(parsed.bundle, parsed.interface, parsed.name, parsed.version)


@pytest.mark.parametrize("what", hostile_uploads.HOSTILE)
def test_a_hostile_upload_ends_in_a_typed_error_and_the_next_is_parsed(parser: ParserProcess, what: str) -> None:
    pid = parser.pid
    with pytest.raises((ClientError, LimitExceeded, ProgramError)) as caught:
        assemble(parser.parse(hostile_uploads.HOSTILE[what]))
    json.dumps(caught.value.to_wire().detail, allow_nan=False)
    assert len(caught.value.message) < 3000
    assert parser.parse(GOOD).interface.doc == "Doc."
    assert parser.pid == pid
    assert parser.alive


@pytest.mark.parametrize("what", hostile_uploads.MANIFESTS)
def test_a_hostile_manifest_is_refused_by_what_is_wrong_with_it(parser: ParserProcess, what: str) -> None:
    upload, named = hostile_uploads.MANIFESTS[what]
    with pytest.raises(InvalidRequest, match=named) as caught:
        assemble(parser.parse(upload))
    assert len(caught.value.message) < 500
    assert caught.value.message.isprintable()


@pytest.mark.parametrize("what", hostile_uploads.HARMLESS)
def test_what_only_looks_hostile_is_parsed(parser: ParserProcess, what: str) -> None:
    program = assemble(parser.parse(hostile_uploads.HARMLESS[what]))
    msgspec.json.encode(program_json(program))


def test_too_much_time_is_named() -> None:
    parser = ParserProcess(SLOW_LIMITS)
    with pytest.raises(LimitExceeded) as caught:
        parser.parse(SLOW)
    assert caught.value.detail["limit"] == "parse_cpu_s"
    parser.close()
    impatient = ParserProcess(ParseLimits(cpu_s=20, wall_s=0.1, memory_mb=2048))
    with pytest.raises(Unavailable, match="busy"):
        impatient.parse(SLOW)
    impatient.close()


LOW = """
import os, sys
from inferd.protocol import LimitExceeded
from inferd_runtime.server.programs.parser_messages import ParseLimits
from inferd_runtime.server.programs.parser_process import ParserProcess
os.nice(6)
parser = ParserProcess(ParseLimits(cpu_s=0.3, wall_s=60, memory_mb=2048))
try:
    parser.parse(sys.stdin.buffer.read())
except LimitExceeded as error:
    print(error.detail["limit"], parser.alive)
parser.close()
"""


def test_slow_uploads_end_no_parser_of_a_server_with_a_low_priority() -> None:
    """Only root may lower a nice value, and a server may have been started with a high one."""
    done = subprocess.run([sys.executable, "-c", LOW], input=SLOW, capture_output=True, check=True)
    assert done.stdout.split() == [b"parse_cpu_s", b"True"], done.stderr


def test_nothing_of_the_gateways_environment_but_what_python_needs_reaches_the_parser(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("INFERD_TOKEN", "secret")
    process = ParserProcess(LIMITS)
    process.parse(GOOD)
    if sys.platform == "linux":
        assert b"secret" not in Path(f"/proc/{process.pid}/environ").read_bytes()
    process.close()


def test_a_parser_ends_with_the_gateways_end_of_the_socket() -> None:
    process = ParserProcess(LIMITS)
    process.parse(GOOD)
    process._link.close()
    assert process._child.wait(20) == 0


LIES = {
    "nothing": "b''",
    "nonsense": "b'P{'",
    "another kind": "b'Z{}'",
    "a program with bad paths": "b'P' + json.dumps(dict(P, bundle={'name': 'p', 'files': {'../x': ''}, 'entry': 'x'})).encode()",
    "an error that is the server's": "b'R' + json.dumps({'code': 'internal', 'message': 'x' * 10**6}).encode()",
    "an error without end": "b'R' + json.dumps({'code': 'limit', 'message': 'x', 'detail': {'a': [0] * 10**6}}).encode()",
}
LIAR = """
import json, os, socket, struct, sys
link = socket.socket(fileno=os.dup(0))
sys.stdin.buffer.readline()  # the settings
P = {{"bundle": {{"name": "p", "files": {{}}, "entry": "x"}}, "name": "", "version": "",
      "interface": {{"manifest": {{"name": "p"}}, "parameters": []}}}}
read = sys.stdin.buffer.read
while True:
    read(struct.unpack("<I", read(4))[0])
    answer = {answer}
    link.sendall(struct.pack("<I", len(answer)) + answer)
"""


def liar(folder: Path, answer: str) -> ParserProcess:
    path = folder / "liar.py"
    path.write_text(LIAR.format(answer=answer))
    return ParserProcess(LIMITS, str(path))


@pytest.mark.parametrize("lie", LIES)
def test_a_parser_that_lies_is_not_believed(tmp_path: Path, lie: str) -> None:
    process = liar(tmp_path, LIES[lie])
    with pytest.raises((ClientError, LimitExceeded, ProgramError)) as caught:
        process.parse(GOOD)
    assert len(json.dumps(caught.value.detail) + caught.value.message) < 3000
    process.close()


@pytest.mark.parametrize("answer", ["b'P' * (33 << 20)", "exit()"])
def test_a_parser_that_floods_or_dies_is_replaced(tmp_path: Path, answer: str) -> None:
    process = liar(tmp_path, answer)
    with pytest.raises(Unavailable, match="upload again"):
        process.parse(GOOD)
    assert not process.alive


def test_a_parser_that_hangs_is_killed() -> None:
    process = ParserProcess(ParseLimits(wall_s=0.1))
    process.parse(GOOD)
    process._deadline = 0  # it may take longer to start than an upload may
    os.kill(process.pid, signal.SIGSTOP)
    with pytest.raises(Unavailable):
        process.parse(GOOD)
    assert not process.alive


def test_an_upload_is_not_blamed_where_the_system_killed_its_parser() -> None:
    """As it does when memory runs out: the same upload is a good one the next time."""
    process = ParserProcess(LIMITS)
    deadline = time.monotonic() + 20
    while not (forks := psutil.Process(process.pid).children()):  # the one that waits for the first upload
        assert time.monotonic() < deadline
    forks[0].kill()
    with pytest.raises(Unavailable, match="upload again"):
        process.parse(GOOD)
    assert process.parse(GOOD).interface.doc == "Doc."
    process.close()


async def test_hostile_uploads_of_one_tenant_delay_no_other_tenants() -> None:
    pool = ParserPool(lambda: ParserProcess(SLOW_LIMITS))
    pool.warm_up()
    ended: list[str] = []

    async def upload(body: bytes, tenant: str, name: str) -> None:
        async with pool.in_line(tenant), pool.turn(tenant):
            try:
                await pool.parse(body)
            except InferdError as error:
                name += f" {error.code}"
        ended.append(name)

    try:
        await upload(GOOD, "ann", "warm")
        async with anyio.create_task_group() as tasks:
            for _ in range(2):
                tasks.start_soon(upload, SLOW, "eve", "slow")
            await anyio.wait_all_tasks_blocked()
            for number in range(5):
                await upload(GOOD, "ann", f"good {number}")
    finally:
        pool.close()
    assert ended == ["warm", *(f"good {number}" for number in range(5)), *["slow limit"] * 2]


async def test_another_process_is_started_only_beside_an_upload_that_takes_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(parser_pool, "SLOW_SECONDS", 0.7)  # a short upload takes less on a busy machine, too
    started: list[ParserProcess] = []

    def start() -> ParserProcess:
        process = ParserProcess(SLOW_LIMITS)
        process.parse(GOOD)  # it has started, however long that takes
        started.append(process)
        return process

    pool = ParserPool(start)
    try:
        pool.warm_up()
        await pool.parse(GOOD)
        assert len(started) == 1
        with pytest.raises(LimitExceeded):
            await pool.parse(SLOW)
        assert len(started) == 2
    finally:
        pool.close()


async def test_a_tenants_line_is_short_and_gone_when_it_is_empty() -> None:
    pool = ParserPool()
    async with anyio.create_task_group() as tasks:
        entered = 0

        async def hold() -> None:
            nonlocal entered
            async with pool.in_line("eve"):
                entered += 1
                await anyio.sleep_forever()

        for _ in range(MAX_LINE):
            tasks.start_soon(hold)
        await anyio.wait_all_tasks_blocked()
        assert entered == MAX_LINE
        with pytest.raises(LimitExceeded, match="in work already"):
            async with pool.in_line("eve"):
                pass
        async with pool.in_line("ann"), pool.turn("ann"):
            pass
        tasks.cancel_scope.cancel()
    assert not pool._lines


async def test_uploads_that_are_parsed_when_the_pool_closes_fail() -> None:
    pool = ParserPool(lambda: ParserProcess(ParseLimits(cpu_s=30, wall_s=60)))
    pool.warm_up()
    await pool.parse(GOOD)
    refused: list[InferdError] = []

    async def upload() -> None:
        try:
            await pool.parse(SLOW)
        except InferdError as error:
            refused.append(error)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(upload)
        while not pool._busy:
            await anyio.lowlevel.checkpoint()
        pool.close()
    assert isinstance(refused[0], Unavailable)


def test_a_syntax_error_of_a_long_line_is_short() -> None:
    process = ParserProcess(LIMITS)
    with pytest.raises(ProgramSyntaxError) as caught:
        process.parse(hostile_uploads.body("x = 1 " + "a" * 500_000 + "\n"))
    assert caught.value.detail["line"] == 1
    assert len(caught.value.message) < 300
    process.close()
