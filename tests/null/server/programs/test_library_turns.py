"""The one thread of the programs' file: however much one tenant asks of it, another's question waits for one of these."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any, cast

import anyio
import anyio.lowlevel
import pytest

from inferd_runtime.server.programs.library import ProgramLibrary
from inferd_runtime.server.programs.parser_pool import ParserPool
from inferd_runtime.server.tenancy.quotas import Quotas, same_for_all

pytestmark = pytest.mark.anyio


class StillRegistry:
    """Answers nothing before it is told to, and notes who asked, in order."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.asked: list[str] = []

    def resolve(self, reference: str, tenant: str) -> tuple[str, str, str]:
        assert self.go.wait(20)
        self.asked.append(tenant)
        return (reference, reference, "1")


async def test_a_flood_of_names_of_programs_leaves_the_thread_to_others() -> None:
    registry: Any = StillRegistry()
    parsers: Any = None
    library = ProgramLibrary(registry, parsers, same_for_all(Quotas()))
    async with anyio.create_task_group() as tasks:
        for number in range(200):
            tasks.start_soon(library.resolve, f"p{number}", "mallory")
        for _ in range(5):
            await anyio.lowlevel.checkpoint()
        tasks.start_soon(library.resolve, "p", "bob")
        for _ in range(5):
            await anyio.lowlevel.checkpoint()
        registry.go.set()
    assert registry.asked.index("bob") <= 2
    assert len(registry.asked) == 201


async def test_one_tenants_uploads_take_one_place_of_those_where_packages_are_found() -> None:
    """A tenant whose dependencies take minutes to find would keep everybody's uploads waiting."""
    asked: list[str] = []

    class Finder:
        async def find(self, requirements: tuple[str, ...]) -> Any:
            asked.extend(requirements)
            await anyio.sleep_forever()

    class Parsers(ParserPool):
        async def parse(self, upload: bytes) -> Any:
            manifest = SimpleNamespace(dependencies=[upload.decode()])
            return SimpleNamespace(
                bundle=SimpleNamespace(packages={}, lock=[]), interface=SimpleNamespace(manifest=manifest)
            )

    finder: Any = Finder()
    library = ProgramLibrary(cast(Any, None), Parsers(), same_for_all(Quotas()), finder)

    async def upload(tenant: str, name: str) -> None:
        async def read() -> bytes:
            return name.encode()

        await library.upload(read, tenant)

    async with anyio.create_task_group() as tasks:
        for number in range(4):
            tasks.start_soon(upload, "mallory", f"slow{number}")
        await anyio.wait_all_tasks_blocked()
        tasks.start_soon(upload, "bob", "other")
        await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()
    assert asked == ["slow0", "other"]
