"""The file of durable queues: what one tenant keeps, or asks of it, holds up no other."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from inferd import queue
from inferd.protocol import LimitExceeded, Unavailable
from inferd_runtime.server.run_store.archive import FileArchive
from inferd_runtime.server.services.topics.buffers import MAX_TENANT_HELD, HeldValue, MessageRoom, held_values
from inferd_runtime.server.services.topics.kept_values import KeptValues, open_kept_values
from inferd_runtime.server.services.topics.queue_file import QueueFile
from inferd_runtime.server.services.topics.queues import Queues
from inferd_runtime.server.tenancy.quotas import Quotas, same_for_all
from inferd_runtime.testing.services import calling, service_table


class StillFile:
    """Adds nothing before it is told to."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.dropped: list[int] = []

    def add(self, *_: object) -> list[HeldValue]:
        assert self.go.wait(20)
        return []

    def drop(self, rows: list[int]) -> None:
        self.dropped += rows

    def close(self) -> None:
        pass


async def test_a_flood_of_durable_values_leaves_the_files_thread_to_others() -> None:
    file = StillFile()
    archive: Any = FileArchive(lambda: file, "the file")
    kept = KeptValues(archive, same_for_all(Quotas()))
    async with anyio.create_task_group() as tasks:
        for _ in range(500):
            tasks.start_soon(kept.add, "mallory", "q", [])
        tasks.start_soon(kept.add, "bob", "q", [])
        for number in range(500):
            kept.drop([number])
        for _ in range(5):
            await anyio.lowlevel.checkpoint()
        assert len(archive._line) <= 3  # one of each tenant, and one that drops
        file.go.set()
    kept.drop_now()
    await archive.close()
    assert sorted(file.dropped) == list(range(500))


async def test_a_value_that_was_received_does_not_come_again_while_the_file_forgets_another(tmp_path: Path) -> None:
    async with open_kept_values(tmp_path / "queues.sqlite3", same_for_all(Quotas())) as kept:
        first, second, third = await kept.add("ann", "q", held_values([1, 2, 3]))
        kept.drop([first.row])
        kept.drop([second.row])  # noted: the file's thread is told once it has forgotten the first
        assert [value.row for value in await kept.values("ann", "q")] == [third.row]


async def test_a_value_that_was_received_does_not_come_again_while_the_disk_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing can be deleted there: whoever pulled had the same values again and again, and the queue never came to its end."""

    def full(file: QueueFile, rows: list[int]) -> None:
        raise Unavailable("the disk is full", reason="disk_full")

    monkeypatch.setattr("inferd_runtime.server.services.topics.kept_values.RETRY_SECONDS", 0.0)
    path = tmp_path / "queues.sqlite3"
    async with open_kept_values(path, same_for_all(Quotas())) as kept:
        first, second = await kept.add("ann", "q", held_values([1, 2]))
        with monkeypatch.context() as meanwhile:
            meanwhile.setattr(QueueFile, "drop", full)
            kept.drop([first.row])
            for _ in range(3):
                assert [value.row for value in await kept.values("ann", "q")] == [second.row]
        await kept.values("ann", "q")  # there is room again
        while kept.left:
            await anyio.lowlevel.checkpoint()
            await kept.values("ann", "q")
    file = QueueFile(path)
    assert [value.row for value in file.values("ann", "q")] == [second.row]
    file.close()


def test_what_a_tenant_keeps_is_counted_without_reading_it_and_again_when_the_file_is_opened(tmp_path: Path) -> None:
    path = tmp_path / "queues.sqlite3"
    file = QueueFile(path)
    value = held_values(["x" * 36])[0]
    size = value.size
    kept = file.add("ann", "q", [value] * 3, 4 * size)
    assert kept is not None
    assert file.add("ann", "q", [value] * 2, 4 * size) is None
    file.drop([kept[0].row, kept[0].row, 10_000])
    assert file.add("ann", "q", [value] * 2, 4 * size) is not None
    file.close()
    file = QueueFile(path)
    assert file.add("ann", "q", [value], 4 * size) is None
    assert file.add("bob", "q", [value], 4 * size) is not None
    assert [one.text for one in file.values("ann", "q")] == [value.text] * 4
    file.close()


def test_long_names_of_queues_are_counted(tmp_path: Path) -> None:
    file = QueueFile(tmp_path / "queues.sqlite3")
    assert file.add("ann", "語" * 128, held_values([0]), 600) is None
    assert file.add("ann", "q", held_values([0]), 600) is not None
    file.close()


async def test_a_push_that_is_refused_leaves_nothing_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_kept_values(tmp_path / "queues.sqlite3", same_for_all(Quotas())) as kept:
        room = MessageRoom()
        async with service_table(Queues(room, kept)) as table:
            with calling(table):
                room.take("ann", MAX_TENANT_HELD)
                with pytest.raises(LimitExceeded):
                    await queue.push("q", 1, durable=True)
                room.give("ann", MAX_TENANT_HELD)
                assert await kept.values("ann", "q") == []
                await queue.push("q", 2, durable=True)
                assert await queue.pull("q", durable=True) == 2
