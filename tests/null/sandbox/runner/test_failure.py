"""How an exception that leaves a program is reported."""

from __future__ import annotations

import time

import pytest

from inferd_runtime.sandbox.runner.failure import MAX_MEMBERS, describe


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


def test_a_group_of_some_errors_is_shown_with_all_of_them() -> None:
    told = describe(ExceptionGroup("several", [ValueError(f"number {each}") for each in range(10)]), {__file__})
    assert all(f"number {each}" in told.detail["traceback"] for each in range(10))
