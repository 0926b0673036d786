"""The code of the guides, as it is written there."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from pathlib import Path
from typing import Any

GUIDES = Path(__file__).parents[2] / "docs" / "guides"
INDENTED = re.compile(r"\n\n((?: {4}.*\n|\n(?= {4}))+)")
FENCED = re.compile(r"```python\n(.*?)```", re.DOTALL)


def indented(guide: str) -> list[tuple[int, str]]:
    """The indented blocks of a page, each with its line number counted from 0."""
    return _found(guide, INDENTED)


def fenced(guide: str) -> list[tuple[int, str]]:
    """The blocks of Python between fences, each with its line number counted from 0."""
    return _found(guide, FENCED)


def _found(guide: str, pattern: re.Pattern[str]) -> list[tuple[int, str]]:
    page = (GUIDES / guide).read_text()
    return [(page[: found.start(1)].count("\n"), textwrap.dedent(found[1])) for found in pattern.finditer(page)]


async def run_block(guide: str, block: tuple[int, str], names: dict[str, Any]) -> None:
    """Run a block, which may await at its top level, in a namespace."""
    line, source = block
    code = compile("\n" * line + source, str(GUIDES / guide), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    done = eval(code, names)
    if inspect.isawaitable(done):
        await done
