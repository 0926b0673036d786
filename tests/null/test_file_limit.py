"""The limit on open files, on systems that grant the hard limit and on those that refuse it."""

from __future__ import annotations

import resource
import sys

import pytest

from inferd_runtime.file_limit import OPEN_MAX, raise_file_limit

INFINITE = 2**63 - 1


@pytest.mark.parametrize(
    ("platform", "before", "after"),
    [
        ("linux", (1024, 65536), (65536, 65536)),
        ("darwin", (256, INFINITE), (OPEN_MAX, INFINITE)),
        ("darwin", (65536, INFINITE), (65536, INFINITE)),
        ("darwin", (256, 4096), (4096, 4096)),
    ],
)
def test_the_soft_limit_is_raised_to_what_the_system_grants(
    platform: str, before: tuple[int, int], after: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(resource, "getrlimit", lambda which: before)
    monkeypatch.setattr(resource, "setrlimit", lambda which, limits: asked.append(limits))
    assert raise_file_limit() == after[0]
    assert asked == [after]
