"""The code of the guides, run as a program: every block in order, in one namespace, against a real session."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from pathlib import Path
from typing import Any

import pytest

from inferd_runtime.testing.transport import run_program

GUIDES = Path(__file__).parents[3] / "docs" / "guides"


BLOCK = re.compile(r"\n\n((?: {4}.*\n|\n(?= {4}))+)")


def blocks(page: str) -> list[tuple[int, str]]:
    """The indented blocks of a page, each with its line number counted from 0."""
    return [(page[: found.start(1)].count("\n"), textwrap.dedent(found[1])) for found in BLOCK.finditer(page)]


@pytest.mark.parametrize(("guide", "least"), [("sampling.md", 18), ("speculation.md", 50)])
def test_every_block_of_the_guide_runs(guide: str, least: int, capsys: pytest.CaptureFixture[str]) -> None:
    page = (GUIDES / guide).read_text()
    found = blocks(page)
    assert sum(bool(line) for _, source in found for line in source.splitlines()) == page.count("\n    ") > least
    names: dict[str, Any] = {}

    async def program() -> None:
        for number, source in found:
            code = compile("\n" * number + source, str(GUIDES / guide), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            done = eval(code, names)
            if inspect.isawaitable(done):
                await done

    run_program(program)
    assert capsys.readouterr().err == ""
    CHECKS[guide](names)


def check_sampling(names: dict[str, Any]) -> None:
    """The loop brought the generation's tokens, and every token was scored."""
    assert names["done"].length >= len("tick tock tick ") + len(names["plain"])
    assert names["made"] >= len(names["plain"]) > 10
    assert names["text"]
    assert "-" not in names["text"]
    assert all(logprob < 0 and len(top) == 3 for _, logprob, _, top in names["scores"])
    assert names["scores"]


def check_speculation(names: dict[str, Any]) -> None:
    """What the guide claims about what it ran."""
    stats = names["stats"]
    assert stats.emitted == stats.steps + stats.accepted - stats.truncated
    assert [cycle.step for cycle in names["cycles"]] == list(range(1, len(names["cycles"]) + 1))


CHECKS = {"sampling.md": check_sampling, "speculation.md": check_speculation}
