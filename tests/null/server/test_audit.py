"""The audit log: what a client writes into it."""

from __future__ import annotations

import os
from pathlib import Path

import anyio
import msgspec
import pytest
from small_disk import small_disk
from starlette.types import Message, Receive, Scope, Send

from inferd_runtime.server.gateway.audit import MAX_TEXT, SUBJECT_KEY, Audited, AuditLog
from inferd_runtime.server.gateway.auth import TENANT_KEY

LONG = "x\n\x1b" * 10_000


async def answered(scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})


async def nowhere(message: Message) -> None:
    pass


async def nothing() -> Message:
    raise AssertionError


def test_no_request_fills_the_audit_log_or_forges_its_lines(tmp_path: Path) -> None:
    log = AuditLog(tmp_path / "audit")
    scope = {"type": "http", "method": LONG, "path": LONG, TENANT_KEY: "t", SUBJECT_KEY: LONG}
    anyio.run(Audited(answered, log), scope, nothing, nowhere)
    log.close()
    (line,) = (tmp_path / "audit").read_bytes().splitlines()
    entry = msgspec.json.decode(line)
    assert [len(entry[key]) for key in ("method", "path", "subject")] == [MAX_TEXT] * 3
    assert entry["tenant"] == "t"
    assert entry["status"] == 200


def test_an_audit_log_that_is_rotated_goes_on_in_a_new_file_without_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "audit"
    log = AuditLog(path)
    log.write({"line": 1})
    path.rename(tmp_path / "audit.1")
    log.write({"line": 2})
    path.unlink()
    log.write({"line": 3})
    log.close()
    assert (tmp_path / "audit.1").read_text() == '{"line":1}\n'
    assert path.read_text() == '{"line":3}\n'
    assert path.stat().st_mode & 0o777 == 0o600


def test_where_no_new_audit_log_can_be_made_lines_go_on_to_the_one_before(tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    log = AuditLog(folder / "audit")
    folder.rename(tmp_path / "gone")  # so that there is no folder to make a new file in
    log.write({"line": 1})
    log.close()
    assert (tmp_path / "gone" / "audit").read_text() == '{"line":1}\n'


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes")
def test_a_pipe_that_nobody_reads_does_not_stop_the_server(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    pipe = tmp_path / "audit"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    log = AuditLog(pipe)
    log.write({"line": 1})
    assert os.read(reader, 100) == b'{"line":1}\n'
    for _ in range(2000):
        log.write({"line": "x" * 100})  # more than a pipe holds
    assert "cannot be written" in caplog.text
    os.close(reader)
    log.write({"line": 3})
    pipe.unlink()
    os.mkfifo(pipe)
    log.write({"line": 4})
    assert "goes on where it was" in caplog.text
    log.close()


def test_a_line_that_a_full_disk_does_not_take_leaves_nothing_of_it(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 12) as disk:
        log = AuditLog(disk / "audit")
        for _ in range(40):
            log.write({"line": "x" * 500})
        assert {len(line) for line in (disk / "audit").read_bytes().splitlines()} == {511}
        log.close()
