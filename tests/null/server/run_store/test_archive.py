"""The store's thread: the event loop never waits on a disk, the queue is bounded, and failing is reported and passes."""

from __future__ import annotations

import logging
import sqlite3
import threading
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from inferd.protocol import ErrorInfo, IdempotencyKeyReused, InternalError, NotFound, Unavailable
from inferd_runtime.sandbox.messages import Bundle, Limits, Output, RunFinished, RunUsage
from inferd_runtime.server.programs.bundles import make_program
from inferd_runtime.server.run_store import archive as archive_module
from inferd_runtime.server.run_store.archive import MAX_QUEUED, MAX_QUEUED_BYTES, RunArchive, open_archive
from inferd_runtime.server.run_store.records import KeptKey
from inferd_runtime.server.run_store.run_file import RunFile
from inferd_runtime.server.supervisor.run_events import EventBuffer
from inferd_runtime.server.supervisor.run_keeper import RunKeeper, StoredRun
from inferd_runtime.server.supervisor.runs import Run, RunStore
from inferd_runtime.server.tenancy.quotas import Quotas, same_for_all

PROGRAM = make_program(Bundle("p", {"main.py": "async def main(): pass"}))
QUOTAS = same_for_all(Quotas())


def scenario(path: Path, body: Callable[[RunArchive], Awaitable[None]]) -> None:
    async def main() -> None:
        with anyio.fail_after(20):
            async with open_archive(path) as archive:
                await body(archive)

    anyio.run(main)


def new_run(tenant: str = "ann") -> Run:
    return Run(PROGRAM, "{}", tenant, Limits(), EventBuffer(1 << 16))


def kept_by(archive: RunArchive | None) -> RunKeeper:
    keeper = RunKeeper(RunStore(QUOTAS), QUOTAS, archive)
    keeper._recovered.set()  # nothing is left of a server before
    return keeper


def go_through(keeper: RunKeeper, run: Run, result: str | None = "1", error: ErrorInfo | None = None) -> None:
    keeper._runs.add(run)
    keeper.begun(run)
    run.started()
    run.wrote(Output(run.id, "stdout", "one\n"))
    keeper.progressed()
    run.wrote(Output(run.id, "stdout", "two\n"))
    run.finish_from(RunFinished(run.id, RunUsage(tokens=3), result, error))
    keeper._runs.retire(run)
    keeper.ended(run)


async def settle(archive: RunArchive) -> None:
    await archive.read(lambda file: None)
    await anyio.lowlevel.checkpoint()


async def events_of(run: Any) -> list[tuple[int, str, Any]]:
    return [(event.index, event.kind, event.payload) async for batch in run.batches(0, 0) for event in batch]


def test_a_finished_run_leaves_the_memory_and_is_read_again(tmp_path: Path) -> None:
    async def body(archive: RunArchive) -> None:
        keeper, run = kept_by(archive), new_run()
        go_through(keeper, run, '"' + "x" * 600_000 + '"')
        in_memory = await events_of(run)
        await settle(archive)
        assert keeper._runs.find(run.id) is None
        found = await keeper.find(run.id, "ann")
        assert isinstance(found, StoredRun)
        assert found.record() == run.record()
        assert [event[:2] for event in await events_of(found)] == [event[:2] for event in in_memory]
        assert b"".join([part async for part in found.result_slices()]).decode() == run.ending.result  # type: ignore[union-attr]
        assert [record.id for record in await keeper.records("ann")] == [run.id]
        for tenant, run_id in (("bob", run.id), ("ann", "run-nix")):
            with pytest.raises(NotFound):
                await keeper.find(run_id, tenant)

    scenario(tmp_path / "runs", body)


def test_a_disk_that_hangs_does_not_hold_the_event_loop_and_what_waits_is_bounded(tmp_path: Path) -> None:
    gate = threading.Event()

    async def body(archive: RunArchive) -> None:
        archive.save(lambda file: gate.wait(10), 0)
        assert archive.save(lambda file: None, MAX_QUEUED_BYTES, tenant="bob")  # the only one of a tenant may take all
        assert not archive.save(lambda file: None, 1)
        assert archive.save(lambda file: None, 0, tenant="bob")  # a read
        keeper, run = kept_by(archive), new_run()
        go_through(keeper, run)
        assert keeper._runs.find(run.id) is run  # it stays in memory
        gate.set()
        await settle(archive)
        keeper.progressed()
        await settle(archive)
        assert isinstance(await keeper.find(run.id, "ann"), StoredRun)

    scenario(tmp_path / "runs", body)


def test_while_the_store_fails_runs_go_on_in_memory_and_are_stored_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive_module, "REOPEN_SECONDS", 0.0)

    def full(*_: Any) -> None:
        raise Unavailable("the store of runs does not work now: the disk is full", reason="disk_full")

    async def body(archive: RunArchive) -> None:
        keeper, run = kept_by(archive), new_run()
        with monkeypatch.context() as broken:
            broken.setattr(RunFile, "finish", full)
            go_through(keeper, run)
            with pytest.raises(Unavailable):
                await archive.read(full)
            await anyio.lowlevel.checkpoint()
            assert keeper.failure is not None
            assert "disk is full" in keeper.failure
            assert await keeper.find(run.id, "ann") is run
            assert [record.id for record in await keeper.records("ann")] == [run.id]  # what is there can be read
            assert keeper.failure is not None
        keeper.progressed()
        await settle(archive)
        assert keeper.failure is None
        assert isinstance(await keeper.find(run.id, "ann"), StoredRun)

    scenario(tmp_path / "runs", body)


def test_a_bug_in_one_job_ends_no_other_job(tmp_path: Path) -> None:
    async def body(archive: RunArchive) -> None:
        with pytest.raises(InternalError, match="KeyError"):
            await archive.read(lambda file: {}["nothing"])
        assert await archive.read(lambda file: 1) == 1

    scenario(tmp_path / "runs", body)


def test_a_path_that_cannot_be_opened_is_a_typed_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    async def body(archive: RunArchive) -> None:
        with pytest.raises(Unavailable):
            await kept_by(archive).find("run-1", "ann")

    scenario(tmp_path / "file" / "runs", body)


def test_what_nobody_waits_for_any_more_is_not_done(tmp_path: Path) -> None:
    """A client that asks and leaves, over and over, would have the others wait for all of its jobs."""
    busy, gate = threading.Event(), threading.Event()

    def hold(file: RunFile) -> None:
        busy.set()
        gate.wait(10)

    async def body(archive: RunArchive) -> None:
        archive.save(hold, 0)
        await anyio.to_thread.run_sync(busy.wait, 10)
        done: list[RunFile] = []
        for count in range(1, 4):
            async with anyio.create_task_group() as asked:
                asked.start_soon(archive.read, done.append, "ann")
                while len(archive._line) < count:
                    await anyio.lowlevel.checkpoint()
                asked.cancel_scope.cancel()
        gate.set()
        await settle(archive)
        assert done == []

    scenario(tmp_path / "runs", body)


def test_what_one_tenant_writes_holds_no_other_up(tmp_path: Path) -> None:
    """Beside runs that wrote 64 MiB, another tenant's run was shown after 4 s."""
    busy, gate, order = threading.Event(), threading.Event(), list[str]()

    def hold(file: RunFile) -> None:
        busy.set()
        gate.wait(10)

    async def body(archive: RunArchive) -> None:
        archive.save(hold, 1, tenant="mallory")
        await anyio.to_thread.run_sync(busy.wait, 10)
        most = 0
        while archive.save(lambda file: order.append("mallory"), 1 << 20, tenant="mallory"):
            most += 1
        assert most == (MAX_QUEUED_BYTES >> 21) - 1
        async with anyio.create_task_group() as asked:
            asked.start_soon(archive.read, lambda file: order.append("bob"), "bob")
            asked.start_soon(archive.read, lambda file: order.append("all"))
            while len(archive._line) < most + 2:
                await anyio.lowlevel.checkpoint()
            assert archive.save(lambda file: order.append("mallory"), 0, tenant="mallory")
            gate.set()
        await settle(archive)
        assert order.index("bob") <= 1
        assert order[most + 1 :] == ["all", "mallory"]

    scenario(tmp_path / "runs", body)


def test_a_record_that_cannot_be_read_keeps_no_server_from_starting(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def before(archive: RunArchive) -> None:
        kept_by(archive).begun(new_run())
        await settle(archive)

    async def after(archive: RunArchive) -> None:
        keeper, run = RunKeeper(RunStore(QUOTAS), QUOTAS, archive), new_run("bob")
        await keeper.recover()
        go_through(keeper, run)
        await settle(archive)
        assert (await keeper.find(run.id, "bob")).id == run.id

    path = tmp_path / "runs"
    scenario(path, before)
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("UPDATE runs SET record = x'c1'")
    caplog.set_level(logging.CRITICAL, "inferd.runs")
    scenario(path, after)


def test_many_small_things_of_one_tenant_leave_room_for_those_of_others(tmp_path: Path) -> None:
    gate = threading.Event()

    async def body(archive: RunArchive) -> None:
        archive.save(lambda file: gate.wait(10), 1)
        while archive.save(lambda file: None, 1, tenant="mallory"):
            pass
        assert len(archive._line) <= MAX_QUEUED // 2 + 1
        assert archive.save(lambda file: None, 1, tenant="bob")
        gate.set()
        await settle(archive)

    scenario(tmp_path / "runs", body)


def test_it_takes_as_long_to_be_told_that_a_run_is_another_tenants_as_that_there_is_none(tmp_path: Path) -> None:
    async def body(archive: RunArchive) -> None:
        keeper, run, looks = kept_by(archive), new_run("bob"), list[str]()
        keeper._runs.add(run)
        read = archive.read

        async def counted(job: Callable[[RunFile], Any], tenant: str = "") -> Any:
            looks.append(tenant)
            return await read(job, tenant)

        archive.read = counted  # type: ignore[method-assign]
        for run_id in (run.id, "run-nix"):
            with pytest.raises(NotFound):
                await keeper.find(run_id, "ann")
        assert looks == ["ann", "ann"]

    scenario(tmp_path / "runs", body)


def test_the_same_key_gives_the_same_run_and_no_other_launch(tmp_path: Path) -> None:
    run = new_run()

    async def before(archive: RunArchive) -> None:
        keeper = kept_by(archive)
        assert await keeper.launched("ann", "k", "f") is None
        keeper._runs.add(run)
        keeper.begun(run, KeptKey("k", "f", run.id, run.created_at))
        assert await keeper.launched("ann", "k", "f") is run  # stored or not
        await settle(archive)
        assert await keeper.launched("ann", "k", "f") is run
        assert await keeper.launched("bob", "k", "f") is None
        with pytest.raises(IdempotencyKeyReused):
            await keeper.launched("ann", "k", "another")

    async def after_a_restart(archive: RunArchive) -> None:
        keeper = kept_by(archive)
        await keeper.recover()
        found = await keeper.launched("ann", "k", "f")
        assert found is not None
        assert found.record().id == run.id
        assert found.record().state == "failed"
        with pytest.raises(IdempotencyKeyReused):
            await keeper.launched("ann", "k", "another")

    scenario(tmp_path / "runs", before)
    scenario(tmp_path / "runs", after_a_restart)


def test_without_a_store_runs_and_keys_stay_in_memory() -> None:
    async def body() -> None:
        keeper, run = kept_by(None), new_run()
        go_through(keeper, run)
        assert await keeper.find(run.id, "ann") is run
        assert keeper.failure is None
        await keeper.recover()

    anyio.run(body)


def surviving(archive: RunArchive) -> tuple[RunKeeper, Run]:
    keeper = kept_by(archive)
    run = Run(PROGRAM, "{}", "ann", Limits(), EventBuffer(1 << 16), retry_safe=True)
    keeper._runs.add(run)
    keeper.begun(run)
    return keeper, run


def test_what_a_surviving_run_says_is_shown_once_it_is_stored(tmp_path: Path) -> None:
    gate = threading.Event()

    async def body(archive: RunArchive) -> None:
        _, run = surviving(archive)
        archive.save(lambda file: gate.wait(10), 0)
        run.wrote(Output(run.id, "stdout", "one\n"))
        assert await run.next_batch(0, 0) == []
        assert run.record().next_event == 0
        gate.set()
        [event] = await run.next_batch(0)
        assert event.payload == "one\n"
        run.finish_from(RunFinished(run.id, RunUsage(), "1", None))
        assert await run.next_batch(1, 0) == []
        assert not run.complete

    scenario(tmp_path / "runs", body)


def test_while_the_store_fails_what_a_surviving_run_says_is_shown_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise Unavailable("the disk is full", reason="disk_full")

    async def body(archive: RunArchive) -> None:
        keeper, run = surviving(archive)
        with monkeypatch.context() as broken:
            broken.setattr(RunFile, "append", full)
            run.wrote(Output(run.id, "stdout", "one\n"))
            assert len(await run.next_batch(0)) == 1
        run.wrote(Output(run.id, "stdout", "two\n"))
        assert len(await run.next_batch(1)) == 1
        await settle(archive)
        unfinished = await archive.read(lambda file: file.unfinished_run(run.id))
        assert [event.text for event in unfinished.events] == ["one\n", "two\n"]
        assert unfinished.said == run.said
        keeper.left(run)
        assert [len(batch) async for batch in run.batches(0, 0)] == [2]

    scenario(tmp_path / "runs", body)


def test_a_run_that_was_sent_more_than_is_kept_is_not_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("inferd_runtime.server.supervisor.runs.MAX_INPUT_BYTES", 300)

    async def body(archive: RunArchive) -> None:
        keeper, run = surviving(archive)
        run.on_message = keeper.received
        run.deliver("x" * 100)
        keeper.progressed()
        assert (run.retry_safe, run.survives) == (False, False)
        assert await archive.read(lambda file: file.unfinished()) == []

    scenario(tmp_path / "runs", body)


def test_what_is_stored_can_be_read_while_a_file_that_fails_cannot_be_opened_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where no file may grow: SQLite cannot even open one to read it."""
    monkeypatch.setattr(archive_module, "REOPEN_SECONDS", 0.0)

    def broken(*_: Any) -> None:
        raise Unavailable("the store of runs does not work now", reason="io_error")

    async def body(archive: RunArchive) -> None:
        keeper, run = kept_by(archive), new_run()
        go_through(keeper, run)
        await settle(archive)
        with monkeypatch.context() as failing:
            failing.setattr(RunFile, "finish", broken)
            failing.setattr(archive_module, "RunFile", broken)
            go_through(keeper, new_run())
            assert isinstance(await keeper.find(run.id, "ann"), StoredRun)
            assert keeper.failure is not None
        keeper.progressed()
        await settle(archive)
        assert keeper.failure is None

    scenario(tmp_path / "runs", body)
