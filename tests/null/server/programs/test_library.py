"""The library: what is remembered of references is never older than the programs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import cast

import pytest

from inferd.protocol import NotFound
from inferd_runtime.server.programs.bundles import Program
from inferd_runtime.server.programs.library import ProgramCache, ProgramLibrary, ResolvedReferences, open_library
from inferd_runtime.server.tenancy.quotas import ADMIN_QUOTAS, same_for_all

SOURCE = "async def main() -> int:\n    return {n}\n"


async def upload(library: ProgramLibrary, number: int) -> str:
    async def body() -> bytes:
        return json.dumps({"files": {"main.py": SOURCE.format(n=number)}, "name": "p"}).encode()

    return (await library.upload(body, "a")).program.id


async def test_a_name_stands_for_the_newest_upload_and_for_nothing_once_removed(tmp_path: Path) -> None:
    async with open_library(tmp_path / "programs.sqlite3", same_for_all(ADMIN_QUOTAS)) as library:
        first = await upload(library, 1)
        assert [(await library.find("p", "a")).id for _ in range(2)] == [first, first]
        second = await upload(library, 2)
        assert (await library.find("p", "a")).id == second
        with pytest.raises(NotFound):
            await library.find("p", "b")
        await library.remove("p", "a")
        with pytest.raises(NotFound):
            await library.find("p", "a")


def test_what_was_looked_up_before_a_change_is_not_kept_after_it() -> None:
    resolved = ResolvedReferences()
    before = resolved.changes
    resolved.forget()
    resolved.put("p", "a", ("old", "p", "1"), before)
    assert resolved.get("p", "a") is None
    resolved.put("p", "a", ("new", "p", "2"), resolved.changes)
    assert resolved.get("p", "a") == ("new", "p", "2")
    assert resolved.get("p", "b") is None


def test_what_one_tenant_has_launched_makes_no_launch_of_another_faster_and_drops_none_of_its_programs() -> None:
    cache, program, key = ProgramCache(100), cast(Program, object()), ("hash", "p", "1")
    cache.put("a", key, program, 30)
    assert cache.get("a", key) is program
    assert cache.get("b", key) is None, "who asks with the same source could tell by the time that another one has it"
    for number in range(9):
        cache.put("b", (f"flood {number}", "p", "1"), program, 20)
    assert cache.get("a", key) is program
    assert cache.bytes <= 100
    assert [cache.get("b", (f"flood {number}", "p", "1")) is program for number in (0, 7, 8)] == [False, True, True]
