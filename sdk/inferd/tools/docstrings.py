"""What a docstring says of a function and of its parameters, as Google's style writes it."""

from __future__ import annotations

import inspect
import re
from typing import Any

ARGUMENTS = ("args", "arguments", "parameters", "params")
SECTION = re.compile(r"[A-Z][A-Za-z ]*:")
PARAMETER = re.compile(r"\*{0,2}(\w+)\s*(?:\([^)]*\))?\s*:\s*(.*)")


def described(function: Any) -> tuple[str, dict[str, str]]:
    """Return the first paragraph of a function's docstring, as one line, and what its ``Args:`` section says by parameter."""
    lines = inspect.cleandoc(function.__doc__ or "").splitlines()
    first = next((at for at, line in enumerate(lines) if not line.strip()), len(lines))
    summary = " ".join(line.strip() for line in lines[:first])
    start = next((at for at, line in enumerate(lines) if line.rstrip(": ").lower() in ARGUMENTS), len(lines))
    return summary, _parameters(lines[start + 1 :])


def _parameters(lines: list[str]) -> dict[str, str]:
    """Return the texts of an ``Args:`` section by their parameters; deeper lines go on with the one before."""
    told: dict[str, list[str]] = {}
    margin = last = ""
    for line in lines:
        indent = line[: len(line) - len(line.lstrip())]
        if not line.strip():
            continue
        if not indent and SECTION.fullmatch(line.strip()):
            break
        margin = margin or indent
        found = PARAMETER.fullmatch(line.strip()) if len(indent) <= len(margin) else None
        if found:
            last = found[1]
        told.setdefault(last, []).append(found[2] if found else line.strip())
    return {name: " ".join(text for text in texts if text) for name, texts in told.items() if name}
