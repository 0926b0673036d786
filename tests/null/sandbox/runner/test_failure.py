"""How an exception that leaves a program is reported."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest

from inferd.protocol import ProgramError
from inferd_runtime.sandbox.runner.failure import AWAIT, MAX_MEMBERS, describe, to_json


def test_a_group_that_holds_itself_twice_at_each_level_is_reported_at_once() -> None:
    doubled: Exception = ValueError("inner")
    for _ in range(60):
        doubled = ExceptionGroup("both", [doubled, doubled])
    began = time.process_time()
    with pytest.raises(ExceptionGroup) as caught:
        raise doubled
    told = describe(caught.value, {__file__})
    assert time.process_time() - began < 5
    assert told.code == "program"
    assert told.detail["exception"] == "ExceptionGroup"
    assert f"more than {MAX_MEMBERS}" in told.detail["traceback"]
    assert "raise doubled" in told.detail["traceback"]


def test_an_exception_that_cannot_say_what_it_is_is_reported_by_its_type_and_not_as_a_crash() -> None:
    class Odd(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no text")

        __repr__ = __str__

    def reported(error: BaseException) -> dict[str, Any]:
        return dict(json.loads(to_json(error, {__file__}, lambda: None)))

    assert "Odd: <str() of it failed>" in reported(Odd())["message"]
    assert "Odd: <str() of it failed>" in reported(ExceptionGroup("two", [Odd(), Odd()]))["message"]
    assert "exited with <repr() of it failed>" in reported(SystemExit(Odd()))["message"]
    assert reported(ProgramError("told", value=Odd()))["detail"]["value"] == "<repr() of it failed>"


def test_a_group_of_some_errors_is_shown_with_all_of_them() -> None:
    told = describe(ExceptionGroup("several", [ValueError(f"number {each}") for each in range(10)]), {__file__})
    assert all(f"number {each}" in told.detail["traceback"] for each in range(10))


def test_a_package_that_wants_what_is_not_there_is_told_of_and_not_only_what_it_wants(tmp_path: Path) -> None:
    (tmp_path / "anyio.py").write_text("import ssl_of_the_sandbox as ssl")
    finder = spec_from_file_location("anyio", tmp_path / "anyio.py")
    assert finder is not None
    assert finder.loader is not None
    with pytest.raises(ModuleNotFoundError) as caught:
        finder.loader.exec_module(module_from_spec(finder))
    assert "asyncio has task groups" in describe(caught.value, {__file__}).message


def test_a_part_of_inferd_that_the_sandbox_lacks_is_told_of_as_such() -> None:
    error = ModuleNotFoundError("No module named 'inferd.outlines'", name="inferd.outlines")
    assert "what scripts and tests use: inferd.client, inferd.outlines" in describe(error, set()).message


@pytest.mark.parametrize("run", [asyncio.run, lambda each: asyncio.get_running_loop().run_until_complete(each)])
async def test_a_loop_inside_of_a_loop_is_told_what_to_do_instead(run: Callable[[Any], Any]) -> None:
    coroutine = asyncio.sleep(0)
    with pytest.raises(RuntimeError) as caught:
        run(coroutine)
    coroutine.close()
    assert AWAIT in describe(caught.value, {__file__}).message
    assert AWAIT not in describe(RuntimeError("another one"), {__file__}).message
