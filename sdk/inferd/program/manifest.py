"""A program's name, version, limits and dependencies: its PEP 723 block, or its folder's ``pyproject.toml``."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

from inferd.protocol import InvalidRequest

DEFAULT_VERSION = "0.0.0"
# What `[tool.inferd.limits]` may set: seconds, seconds, MiB, bytes.
LIMITS: dict[str, type[int] | type[float]] = {
    "wall_s": float,
    "cpu_s": float,
    "memory_mb": int,
    "output_bytes": int,
}
TOOL_KEYS = {"name", "version", "limits"}
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
VERSION = re.compile(r"[0-9A-Za-z][0-9A-Za-z.+!-]{0,63}")
# As in PEP 723.
SCRIPT_BLOCK = re.compile(r"(?m)^# /// (?P<type>[a-zA-Z0-9-]+)$\s(?P<content>(^#(| .*)$\s)+)^# ///$")
SCRIPT_START = re.compile(r"(?m)^# /// script\s*$")


@dataclass(frozen=True)
class Manifest:
    """A program's own description. ``limits`` holds only what it sets (keys of ``LIMITS``)."""

    name: str
    version: str = DEFAULT_VERSION
    limits: dict[str, int | float] = field(default_factory=dict)
    dependencies: list[str] = field(default_factory=list)
    requires_python: str = ""


def script_manifest(source: str, filename: str) -> Manifest:
    """Return the manifest in a script's PEP 723 block; without one, or without a name, the file names the program.

    ``folder/main.py`` is called ``folder``. Raises InvalidRequest, which names the file, for a block that is not
    closed or not TOML, for a second one, and for an unknown key or a value out of range in ``[tool.inferd]``.
    """
    document = _script_document(source.replace("\r\n", "\n"), filename)
    tool = _table(_table(document, "tool", filename), "inferd", filename)
    dependencies, python = document.get("dependencies", []), document.get("requires-python", "")
    return _manifest(tool, _name_of_file(filename), DEFAULT_VERSION, dependencies, python, filename)


def project_manifest(text: str, folder: str) -> Manifest:
    """Return the manifest in the text of a ``pyproject.toml``: ``[tool.inferd]`` over ``[project]``; ``folder`` names the
    rest.

    Raises InvalidRequest as :func:`script_manifest` does.
    """
    filename = f"{folder}/pyproject.toml"
    document = _toml(text, filename)
    project = _table(document, "project", filename)
    tool = _table(_table(document, "tool", filename), "inferd", filename)
    dependencies, python = project.get("dependencies", []), project.get("requires-python", "")
    name, version = project.get("name", PurePath(folder).name), project.get("version", DEFAULT_VERSION)
    return _manifest(tool, name, version, dependencies, python, filename)


def _manifest(
    tool: dict[str, Any], name: Any, version: Any, dependencies: Any, requires_python: Any, filename: str
) -> Manifest:
    for key in tool:
        if key not in TOOL_KEYS:
            raise InvalidRequest(f"{filename}: [tool.inferd] has no key {key!r}; it has {', '.join(sorted(TOOL_KEYS))}")
    if not isinstance(dependencies, list) or not all(isinstance(item, str) for item in dependencies):
        raise InvalidRequest(f"{filename}: dependencies must be a list of strings")
    if not isinstance(requires_python, str):
        raise InvalidRequest(f"{filename}: requires-python must be a string")
    return Manifest(
        name=_matching(NAME, "name", tool.get("name", name), filename),
        version=_matching(VERSION, "version", tool.get("version", version), filename),
        limits=_limits(_table(tool, "limits", filename), filename),
        dependencies=list(dependencies),
        requires_python=requires_python,
    )


def _limits(table: dict[str, Any], filename: str) -> dict[str, int | float]:
    limits: dict[str, int | float] = {}
    for key, value in table.items():
        if key not in LIMITS:
            raise InvalidRequest(f"{filename}: there is no limit {key!r}; there are {', '.join(LIMITS)}")
        whole = isinstance(value, int) and not isinstance(value, bool)
        if not (whole or (LIMITS[key] is float and isinstance(value, float))) or not 0 < value < float("inf"):
            kind = "whole number" if LIMITS[key] is int else "number"
            raise InvalidRequest(f"{filename}: the limit {key} must be a {kind} above 0, not {value!r}")
        limits[key] = LIMITS[key](value)
    return limits


def _matching(pattern: re.Pattern[str], what: str, value: Any, filename: str) -> str:
    if not isinstance(value, str) or not pattern.fullmatch(value):
        raise InvalidRequest(f"{filename}: {value!r} cannot be a program's {what}: it must match {pattern.pattern}")
    return value


def _name_of_file(filename: str) -> str:
    path = PurePath(filename)
    return path.parent.name if path.name == "main.py" and path.parent.name else path.stem


def _script_document(source: str, filename: str) -> dict[str, Any]:
    blocks = [match for match in SCRIPT_BLOCK.finditer(source) if match.group("type") == "script"]
    if len(blocks) > 1:
        raise InvalidRequest(f"{filename}: there are {len(blocks)} `# /// script` blocks; one is allowed")
    if not blocks:
        if SCRIPT_START.search(source):
            raise InvalidRequest(f"{filename}: the `# /// script` block is not closed by a line `# ///`")
        return {}
    lines = blocks[0].group("content").splitlines()
    return _toml("\n".join(line[2:] if line.startswith("# ") else line[1:] for line in lines), filename)


def _toml(text: str, filename: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InvalidRequest(f"{filename}: {error}") from error


def _table(document: dict[str, Any], key: str, filename: str) -> dict[str, Any]:
    value = document.get(key, {})
    if not isinstance(value, dict):
        raise InvalidRequest(f"{filename}: {key} must be a table")
    return value
