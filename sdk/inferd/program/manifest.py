"""A program's name, version, limits and dependencies: its PEP 723 block, or its folder's ``pyproject.toml``."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

from inferd.protocol import InvalidRequest

DEFAULT_VERSION = "0.0.0"
# What `[tool.inferd.limits]` may set: seconds, seconds, MiB, bytes, pieces.
LIMITS: dict[str, type[int] | type[float]] = {
    "wall_s": float,
    "cpu_s": float,
    "memory_mb": int,
    "output_bytes": int,
    "output_events": int,
}
TOOL_KEYS = {"name", "version", "limits", "retry_safe", "serves", "http", "mcp"}
SERVICES = ("", "chat")
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
VERSION = re.compile(r"[0-9A-Za-z][0-9A-Za-z.+!-]{0,63}")
BLOCK_START = "# /// "
BLOCK_END = "# ///"
SHOWN = 60
MAX_DECLARED, MAX_PATTERN = 64, 300
"""Entries of `http`, and of `mcp`; characters of one."""
MAX_MANIFEST = 64 << 10
"""Characters of TOML: what reads it takes time in the square of a key's length."""
MOST = 2.0**63


@dataclass(frozen=True)
class Manifest:
    """A program's own description. ``limits`` holds only what it sets (keys of ``LIMITS``).

    ``retry_safe``: its runs may be started again after a crash, unless a launch says otherwise. ``serves``: "chat" for a program
    whose ``main`` takes a ``request``, an :class:`inferd.chat.ChatRequest`, and which clients may name as their model. ``http``:
    the origins that it fetches from; ``mcp``: the servers of tools that it uses.
    """

    name: str
    version: str = DEFAULT_VERSION
    limits: dict[str, int | float] = field(default_factory=dict)
    dependencies: list[str] = field(default_factory=list)
    requires_python: str = ""
    retry_safe: bool = False
    serves: str = ""
    http: list[str] = field(default_factory=list)
    mcp: list[str] = field(default_factory=list)


def script_manifest(source: str, filename: str) -> Manifest:
    """Return the manifest in a script's PEP 723 block; without one, or without a name, the file names the program.

    ``folder/main.py`` is called ``folder``. Raises InvalidRequest, which names the file, for a block that is not
    closed or not TOML, for a second one, and for an unknown key or a value out of range in ``[tool.inferd]``.
    """
    document = _script_document(source.replace("\r\n", "\n"), filename)
    tool = read_table(read_table(document, "tool", filename), "inferd", filename)
    dependencies, python = document.get("dependencies", []), document.get("requires-python", "")
    return _manifest(tool, _name_of_file(filename), DEFAULT_VERSION, dependencies, python, filename)


def project_manifest(text: str, folder: str) -> Manifest:
    """Return the manifest in the text of a ``pyproject.toml``: ``[tool.inferd]`` over ``[project]``; ``folder`` names the
    rest.

    Raises InvalidRequest as :func:`script_manifest` does.
    """
    filename = f"{folder}/pyproject.toml"
    document = read_toml(text, filename)
    project = read_table(document, "project", filename)
    tool = read_table(read_table(document, "tool", filename), "inferd", filename)
    dependencies, python = project.get("dependencies", []), project.get("requires-python", "")
    name, version = project.get("name", PurePath(folder).name), project.get("version", DEFAULT_VERSION)
    return _manifest(tool, name, version, dependencies, python, filename)


def _manifest(
    tool: dict[str, Any], name: Any, version: Any, dependencies: Any, requires_python: Any, filename: str
) -> Manifest:
    for key in tool:
        if key not in TOOL_KEYS:
            there = (
                "limits stand in [tool.inferd.limits]" if key in LIMITS else f"it has {', '.join(sorted(TOOL_KEYS))}"
            )
            raise InvalidRequest(f"{filename}: [tool.inferd] has no key {_shown(key)}; {there}")
    if not isinstance(dependencies, list) or not all(isinstance(item, str) for item in dependencies):
        raise InvalidRequest(f"{filename}: dependencies must be a list of strings")
    if not isinstance(requires_python, str):
        raise InvalidRequest(f"{filename}: requires-python must be a string")
    return Manifest(
        name=_matching(NAME, "name", tool.get("name", name), filename),
        version=_matching(VERSION, "version", tool.get("version", version), filename),
        limits=_limits(read_table(tool, "limits", filename), filename),
        dependencies=list(dependencies),
        requires_python=requires_python,
        retry_safe=_retry_safe(tool, filename),
        serves=_serves(tool, filename),
        http=_declared(tool, "http", filename),
        mcp=_declared(tool, "mcp", filename),
    )


def _retry_safe(tool: dict[str, Any], filename: str) -> bool:
    value = tool.get("retry_safe", False)
    if not isinstance(value, bool):
        raise InvalidRequest(f"{filename}: retry_safe must be true or false, not {_shown(value)}")
    return value


def _serves(tool: dict[str, Any], filename: str) -> str:
    value = tool.get("serves", "")
    if not isinstance(value, str) or value not in SERVICES:
        raise InvalidRequest(f'{filename}: serves must be "chat", not {_shown(value)}')
    return value


def _declared(tool: dict[str, Any], key: str, filename: str) -> list[str]:
    value = tool.get(key, [])
    whole = isinstance(value, list) and all(isinstance(one, str) and 0 < len(one) <= MAX_PATTERN for one in value)
    if not whole or len(value) > MAX_DECLARED:
        raise InvalidRequest(f"{filename}: {key} must be a list of at most {MAX_DECLARED} short strings")
    return list(value)


def _limits(table: dict[str, Any], filename: str) -> dict[str, int | float]:
    limits: dict[str, int | float] = {}
    for key, value in table.items():
        if key not in LIMITS:
            raise InvalidRequest(f"{filename}: there is no limit {_shown(key)}; there are {', '.join(LIMITS)}")
        whole = isinstance(value, int) and not isinstance(value, bool)
        if not (whole or (LIMITS[key] is float and isinstance(value, float))) or not 0 < value < MOST:
            kind = "whole number" if LIMITS[key] is int else "number"
            raise InvalidRequest(f"{filename}: the limit {key} must be a {kind} above 0, not {_shown(value)}")
        limits[key] = LIMITS[key](value)
    return limits


def _matching(pattern: re.Pattern[str], what: str, value: Any, filename: str) -> str:
    if not isinstance(value, str) or not pattern.fullmatch(value):
        raise InvalidRequest(
            f"{filename}: {_shown(value)} cannot be a program's {what}: it must match {pattern.pattern}"
        )
    return value


def _shown(value: Any) -> str:
    """Return a value as a message shows it: an int may have more digits than Python writes, a text a million letters."""
    if isinstance(value, int):
        return str(value) if value.bit_length() < 64 else "a number beyond 64 bits"
    text = repr(value[:SHOWN]) if isinstance(value, str) else type(value).__name__
    return text if not isinstance(value, str) or len(value) <= SHOWN else text + "..."


def _name_of_file(filename: str) -> str:
    path = PurePath(filename)
    return path.parent.name if path.name == "main.py" and path.parent.name else path.stem


def has_script_block(source: str) -> bool:
    """Return True if a line of the source begins a ``# /// script`` block, closed or not."""
    return any(line.rstrip() == BLOCK_START + "script" for line in source.split("\n"))


def _script_document(source: str, filename: str) -> dict[str, Any]:
    blocks = [content for kind, content in _blocks(source.split("\n")) if kind == "script"]
    if len(blocks) > 1:
        raise InvalidRequest(f"{filename}: there are {len(blocks)} `# /// script` blocks; one is allowed")
    if not blocks:
        if has_script_block(source):
            raise InvalidRequest(f"{filename}: the `# /// script` block is not closed by a line `# ///`")
        return {}
    return read_toml("\n".join(line[2:] for line in blocks[0]), filename)


def _blocks(lines: list[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield the blocks of PEP 723: a type and the lines between its first line and the last ``# ///`` of the same comment.

    The standard's own regular expression takes time in the square of the text's length. This reads each line once or twice.
    """
    index = 0
    while index < len(lines):
        kind = _block_type(lines[index])
        index += 1
        if not kind:
            continue
        # Where this block is not closed, none that begins later in the same comment is.
        after = next((at for at in range(index, len(lines)) if not _is_block_line(lines[at])), len(lines))
        ends = [at for at in range(index, after) if lines[at] == BLOCK_END]
        if ends and ends[-1] > index:
            yield kind, lines[index : ends[-1]]
            after = ends[-1] + 1
        index = after


def _block_type(line: str) -> str:
    kind = line.removeprefix(BLOCK_START) if line.startswith(BLOCK_START) else ""
    return kind if kind.replace("-", "x").isalnum() and kind.isascii() else ""


def _is_block_line(line: str) -> bool:
    return line == "#" or line.startswith("# ")


def read_toml(text: str, filename: str) -> dict[str, Any]:
    """Return a TOML document. Raises InvalidRequest, which names the file."""
    if len(text) > MAX_MANIFEST:
        raise InvalidRequest(f"{filename}: {len(text)} characters of TOML; there may be {MAX_MANIFEST}")
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InvalidRequest(f"{filename}: {error}") from error
    except (RecursionError, ValueError) as error:  # nested too deeply; a number of thousands of digits
        raise InvalidRequest(f"{filename}: cannot be read as TOML: {str(error) or type(error).__name__}") from None


def read_table(document: dict[str, Any], key: str, filename: str) -> dict[str, Any]:
    """Return a table of a document, an empty one where there is none. Raises InvalidRequest for what is no table."""
    value = document.get(key, {})
    if not isinstance(value, dict):
        raise InvalidRequest(f"{filename}: {key} must be a table")
    return value
