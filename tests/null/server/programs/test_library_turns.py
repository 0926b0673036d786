"""The one thread of the programs' file: however much one tenant asks of it, another's question waits for one of these."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import anyio
import anyio.lowlevel
from waiting import until

from inferd_runtime.sandbox.messages import Bundle
from inferd_runtime.server.packages.finder import PackageFinder
from inferd_runtime.server.packages.messages import Packages
from inferd_runtime.server.programs.library import ProgramLibrary
from inferd_runtime.server.programs.parser_messages import ParsedUpload
from inferd_runtime.server.programs.parser_pool import ParserPool
from inferd_runtime.server.tenancy.quotas import Quotas, same_for_all


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


class StillFinder(PackageFinder):
    """Notes what it is asked for, and finds nothing until it is told to."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, allowed=True)
        self.asked: list[str] = []
        self.go = anyio.Event()

    async def _ask(self, requirements: tuple[str, ...]) -> Packages:
        self.asked.extend(requirements)
        await self.go.wait()
        return Packages({}, ())


class Parsers(ParserPool):
    """Reads an upload as the names of what it depends on."""

    async def parse(self, upload: bytes) -> Any:
        interface = SimpleNamespace(manifest=SimpleNamespace(dependencies=upload.decode().split()))
        return ParsedUpload(Bundle("p", {}), cast(Any, interface), "p", "1")


class Searches:
    """Uploads of tenants to a library whose packages are slow to find."""

    def __init__(self, folder: Path) -> None:
        self.finder = StillFinder(folder)
        self.library = ProgramLibrary(cast(Any, None), Parsers(), same_for_all(Quotas()), self.finder)
        self.kept: list[str] = []

    async def upload(self, tenant: str, needs: str) -> None:
        async def read() -> bytes:
            return needs.encode()

        async def change(work: Any, of: str) -> Any:
            self.kept.append(needs)

        self.library._change = change  # type: ignore[method-assign]
        await self.library.upload(read, tenant)


async def test_one_tenants_uploads_take_one_place_of_those_where_packages_are_found(tmp_path: Path) -> None:
    """A tenant whose dependencies take minutes to find would keep everybody's uploads waiting."""
    searches = Searches(tmp_path)
    async with anyio.create_task_group() as tasks:
        for number in range(4):
            tasks.start_soon(searches.upload, "mallory", f"slow{number}")
        await until(lambda: len(searches.finder.asked) == 1)
        tasks.start_soon(searches.upload, "bob", "other")
        await until(lambda: "other" in searches.finder.asked)
        assert len(searches.finder.asked) == 2
        searches.finder.go.set()
    assert len(searches.kept) == 5


async def test_an_upload_without_packages_does_not_wait_for_those_of_another(tmp_path: Path) -> None:
    """While one of a tenant's uploads asked the index, for up to two minutes, its others waited, and so did launches."""
    searches = Searches(tmp_path)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(searches.upload, "bob", "slow")
        await until(lambda: searches.finder.asked == ["slow"])
        with anyio.fail_after(20):
            await searches.upload("bob", "")
        assert searches.kept == [""]
        searches.finder.go.set()
