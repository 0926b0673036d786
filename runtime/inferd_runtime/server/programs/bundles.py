"""A program as the runtime keeps it: its source files, what they say about themselves, and their content hash.

A program is one ``.py`` file, or a folder with a ``main.py`` (and other ``.py`` files beside and below it). Its name,
version and limits stand in ``[tool.inferd]``: of the file's PEP 723 block, or of the folder's ``pyproject.toml``.
"""

from __future__ import annotations

import ast
import hashlib
import json
import re
import sys
import traceback
import warnings
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec

from inferd.program.interface import Interface, describe_source
from inferd.program.manifest import (
    DEFAULT_VERSION,
    NAME,
    SCRIPT_START,
    VERSION,
    Manifest,
    project_manifest,
    script_manifest,
)
from inferd.protocol import InvalidRequest, LimitExceeded, ProgramSyntaxError
from inferd_runtime.sandbox.messages import Bundle, Limits

MAX_SOURCE_BYTES = 1 << 20
MAX_FILES = 256
ENTRY = "main.py"
PROJECT = "pyproject.toml"
LIMIT_NAMES = frozenset(Limits.__struct_fields__)


@dataclass(frozen=True)
class Program:
    """A program that can be launched.

    ``id`` is ``sha256:`` and the hash of its files and entry. ``version`` is "" until somebody gives it one.
    """

    id: str
    name: str
    version: str
    bundle: Bundle
    interface: Interface
    limits: dict[str, int | float]

    def limits_over(self, default: Limits) -> Limits:
        """Return ``default`` with the limits that the program sets itself."""
        return with_limits(default, self.limits)


def with_limits(base: Limits, changes: dict[str, Any]) -> Limits:
    """Return ``base`` with some limits set. Raises InvalidRequest for an unknown name, a wrong type and a value <= 0."""
    unknown = changes.keys() - LIMIT_NAMES
    if unknown:
        known = ", ".join(sorted(LIMIT_NAMES))
        raise InvalidRequest(f"there is no limit {', '.join(sorted(unknown))}; the limits are {known}")
    try:
        limits = msgspec.convert({**msgspec.to_builtins(base), **changes}, Limits)
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"limits: {error}") from None
    for name in changes:
        if getattr(limits, name) <= 0:
            raise InvalidRequest(f"the limit {name} must be positive, got {changes[name]}")
    return limits


def read_sources(path: Path) -> Bundle:
    """Return the bundle of a file or folder. Raises InvalidRequest for what is no program, LimitExceeded for one too large."""
    if path.is_dir():
        return _read_folder(path)
    if path.suffix != ".py":
        raise InvalidRequest(f"{path} is no program: a program is a .py file or a folder with a {ENTRY}")
    return Bundle(path.stem, {path.name: _read_text(path)}, path.name)


def _read_folder(folder: Path) -> Bundle:
    if not (folder / ENTRY).is_file():
        raise InvalidRequest(f"{folder} is no program: it has no {ENTRY}")
    found = [path for path in sorted(folder.rglob("*.py")) if not _is_hidden(path.relative_to(folder))]
    if (folder / PROJECT).is_file():
        found.append(folder / PROJECT)
    if len(found) > MAX_FILES:
        raise _too_large(f"{folder} has {len(found)} files", "files", MAX_FILES)
    files = {path.relative_to(folder).as_posix(): _read_text(path) for path in found}
    return Bundle(folder.resolve().name, files, ENTRY)


def _is_hidden(path: Path) -> bool:
    return any(part.startswith(".") or part in ("__pycache__", "build", "dist", "tests") for part in path.parts)


def _read_text(path: Path) -> str:
    try:
        if path.stat().st_size > MAX_SOURCE_BYTES:
            raise _too_large(f"{path} has {path.stat().st_size} bytes", "source_bytes", MAX_SOURCE_BYTES)
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise InvalidRequest(f"there is no file {path}") from None
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"{path} is not UTF-8 text: {error}") from None


def _too_large(what: str, limit: str, value: int) -> LimitExceeded:
    return LimitExceeded(
        f"{what}; a program may have {value}", limit=limit, value=value, raise_with="a smaller program"
    )


def make_program(bundle: Bundle, name: str = "", version: str = "") -> Program:
    """Check a bundle and read what it says about itself; ``name`` and ``version`` win over that when they are given.

    Raises InvalidRequest, LimitExceeded (1 MiB of source), and ProgramSyntaxError with the line and a caret.
    """
    _check_files(bundle)
    for path, text in bundle.files.items():
        if path.endswith(".py"):
            check_syntax(text, path)
    manifest = read_manifest(bundle)
    name = name or manifest.name
    version = version or ("" if manifest.version == DEFAULT_VERSION else manifest.version)
    if not NAME.fullmatch(name):
        raise InvalidRequest(f"{name!r} cannot be a program's name: it must match {NAME.pattern}")
    if version and not VERSION.fullmatch(version):
        raise InvalidRequest(f"{version!r} cannot be a program's version: it must match {VERSION.pattern}")
    try:
        interface = describe_source(bundle.files[bundle.entry], bundle.entry)
    except RecursionError:
        raise ProgramSyntaxError(
            f"{bundle.entry}: main's annotations are nested too deeply", file=bundle.entry
        ) from None
    named = Bundle(name, bundle.files, bundle.entry)
    return Program(content_id(bundle), name, version, named, interface, manifest.limits)


def content_id(bundle: Bundle) -> str:
    """Return the hash that names a program: of its entry and its files, whatever they are called by."""
    canonical = json.dumps([bundle.entry, sorted(bundle.files.items())], ensure_ascii=True, separators=(",", ":"))
    return "sha256:" + hashlib.sha256(canonical.encode()).hexdigest()


def _check_files(bundle: Bundle) -> None:
    if bundle.entry not in bundle.files:
        raise InvalidRequest(f"the program has no file {bundle.entry!r}, which is its entry")
    if len(bundle.files) > MAX_FILES:
        raise _too_large(f"the program has {len(bundle.files)} files", "files", MAX_FILES)
    size = sum(len(text.encode(errors="surrogatepass")) for text in bundle.files.values())
    if size > MAX_SOURCE_BYTES:
        raise _too_large(f"the program's source has {size} bytes", "source_bytes", MAX_SOURCE_BYTES)
    for path in bundle.files:
        pure = PurePosixPath(path)
        clean = not pure.is_absolute() and ".." not in pure.parts and "\\" not in path and str(pure) == path
        if not clean or "\0" in path or not (pure.suffix == ".py" or path == PROJECT):
            raise InvalidRequest(f"{path!r} cannot be a file of a program: relative .py files and {PROJECT} only")


def check_syntax(source: str, filename: str) -> None:
    """Parse a file. Raises ProgramSyntaxError; its message shows the line and a caret, ``detail`` says where.

    The parser is this process's Python, whose version is in ``detail`` too.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(source, filename, "exec", flags=ast.PyCF_ONLY_AST, dont_inherit=True)
    except SyntaxError as error:
        where = "".join(traceback.format_exception_only(error)).strip()
        raise ProgramSyntaxError(
            where, file=filename, line=error.lineno or 0, column=error.offset or 0, text=(error.text or "").rstrip("\n"),
            python=".".join(map(str, sys.version_info[:2])),
        ) from None  # fmt: skip
    except (ValueError, RecursionError, MemoryError) as error:
        raise ProgramSyntaxError(
            f"{filename} cannot be parsed: {error or type(error).__name__}", file=filename
        ) from None


def read_manifest(bundle: Bundle) -> Manifest:
    """Return what a program says about itself. Raises InvalidRequest for a bad table, and for dependencies."""
    source = bundle.files[bundle.entry]
    if PROJECT in bundle.files:
        if SCRIPT_START.search(source):
            raise InvalidRequest(f"{bundle.entry} has a '# /// script' block beside a {PROJECT}: keep one of them")
        manifest = project_manifest(bundle.files[PROJECT], bundle.name)
    else:
        manifest = script_manifest(source, f"{bundle.name}/{ENTRY}" if bundle.entry == ENTRY else bundle.entry)
    others = [entry for entry in manifest.dependencies if not re.match(r"inferd(?![\w.-])", entry)]
    if others:
        raise InvalidRequest(f"dependencies are not supported yet: {', '.join(others)}")
    return manifest
