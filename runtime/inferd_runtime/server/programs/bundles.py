"""A program as the runtime keeps it: its source files, what they say about themselves, and their content hash.

Foreign source is read in a process of its own (:mod:`inferd_runtime.server.programs.parser_pool`): the
gateway calls :func:`assemble_program` with what that process answered, never :func:`make_program` or :func:`describe_bundle`.

A program is one ``.py`` file, or a folder with a ``main.py``, other ``.py`` files beside and below it, and whatever else it
reads with :mod:`inferd.files`. Its name, version, limits and dependencies stand
in ``[tool.inferd]``: of the file's PEP 723 block, or of the folder's ``pyproject.toml``.
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import json
import sys
import traceback
import warnings
from collections.abc import Set
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec

from inferd.program.interface import Interface, describe_module
from inferd.program.json_values import is_carried
from inferd.program.manifest import (
    DEFAULT_VERSION,
    NAME,
    VERSION,
    Manifest,
    has_script_block,
    project_manifest,
    script_manifest,
)
from inferd.program.pie import PIE_FILE, PieFile, imports_inferlet, read_pie_file
from inferd.program.sources import ENTRY, MAX_DATA_BYTES, MAX_FILES, MAX_SOURCE_BYTES, PROJECT, read_program, too_large
from inferd.protocol import InvalidRequest, ProgramSyntaxError
from inferd.protocol.mcp import check_server_name
from inferd_runtime.carriable import is_deeper
from inferd_runtime.sandbox.messages import Bundle, Limits
from inferd_runtime.server.egress.origins import read_pattern
from inferd_runtime.server.packages.requirements import check_python, checked_requirements
from inferd_runtime.server.programs.newer_syntax import older

MAX_LINES = 60_000
"""About twice what a MiB of ordinary code has."""
MAX_PATH = 200
MAX_PARAMETERS = 256
MAX_INTERFACE_BYTES = 256 << 10
MAX_INTERFACE_DEPTH = 64
VALUES_TAKE = 10
"""How many times its JSON a value takes."""
SHOWN = 200
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

    @property
    def key(self) -> str:
        """The same for programs whose bundles are the same."""
        return f"{self.id} {self.name}"

    @cached_property
    def size(self) -> int:
        """About how many bytes it takes: its files and packages, and its interface, which holds schemas as Python's values."""
        return self.bundle.size + VALUES_TAKE * len(msgspec.json.encode(self.interface))

    def without_files(self) -> Program:
        """Return what names it, without its files and its interface, which are what it takes."""
        return Program(self.id, self.name, self.version, Bundle(self.name, {}), Interface(Manifest(self.name), []), {})

    @property
    def retry_safe(self) -> bool:
        """Whether the program says that its runs may be started again after a crash."""
        return self.interface.manifest.retry_safe

    @property
    def serves(self) -> str:
        """ "chat" for a program that clients may name as their model, else ""."""
        return self.interface.manifest.serves

    def limits_over(self, default: Limits) -> Limits:
        """Return ``default`` with the limits that the program sets itself."""
        return with_limits(default, self.limits)


def with_limits(base: Limits, changes: dict[str, Any]) -> Limits:
    """Return ``base`` with some limits set. Raises InvalidRequest for an unknown name, a wrong type and a value <= 0."""
    unknown = changes.keys() - LIMIT_NAMES
    if unknown:
        known = ", ".join(sorted(LIMIT_NAMES))
        raise InvalidRequest(f"there is no limit {', '.join(sorted(unknown))[:SHOWN]}; the limits are {known}")
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
    sources = read_program(path)
    return Bundle(sources.name, sources.files, sources.entry, sources.data)


def make_program(bundle: Bundle, name: str = "", version: str = "") -> Program:
    """Check and parse a bundle in this process; ``name`` and ``version`` win over what it says about itself.

    For a command that runs or uploads a file of its own user, and for tests. Raises what :func:`check_bundle`,
    :func:`describe_bundle` and :func:`assemble_program` raise.
    """
    check_bundle(bundle)
    return assemble_program(bundle, describe_bundle(bundle), name, version)


def describe_bundle(bundle: Bundle) -> Interface:
    """Parse a bundle that is checked, and return what it says about itself.

    Raises InvalidRequest for a bad manifest and for an interface that cannot be sent, LimitExceeded for one that is too large,
    ProgramError without a ``main`` to call, and ProgramSyntaxError with the line
    and a caret.
    """
    modules = {path: check_syntax(text, path) for path, text in bundle.files.items() if path.endswith(".py")}
    pie = read_pie(bundle)
    manifest = read_manifest(bundle, pie)
    try:
        interface = describe_module(modules[bundle.entry], manifest, bundle.entry, pie)
    except RecursionError:
        raise ProgramSyntaxError(
            f"{bundle.entry}: main's annotations are nested too deeply", file=bundle.entry
        ) from None
    _check_interface(interface)
    return interface


def assemble_program(bundle: Bundle, interface: Interface, name: str = "", version: str = "") -> Program:
    """Return the program of a checked bundle and its interface, whose parts are checked again: it may come from a parser's
    child. Raises InvalidRequest for a bad name or version and for an interface that cannot be sent, LimitExceeded for one
    that is too large.
    """
    manifest = interface.manifest
    name = name or manifest.name
    version = version or ("" if manifest.version == DEFAULT_VERSION else manifest.version)
    check_names(name, version)
    with_limits(Limits(), manifest.limits)
    if manifest.serves and [parameter.name for parameter in interface.parameters] != ["request"]:
        raise InvalidRequest(f"{name} serves {manifest.serves}: main must have one parameter, request")
    for origin in manifest.http:
        read_pattern(origin)
    for server in manifest.mcp:
        check_server_name(server)
    _check_interface(interface)
    named = msgspec.structs.replace(bundle, name=name)
    return Program(content_id(bundle), name, version, named, interface, manifest.limits)


def check_names(name: str, version: str) -> None:
    """Raises InvalidRequest for what can be no program's name or version; a version may be ""."""
    if not NAME.fullmatch(name):
        text = f"{name[:SHOWN]!r} cannot be a program's name: it must match {NAME.pattern}"
        raise InvalidRequest(f"{text}; `name` under [tool.inferd] gives a program another one than its file's")
    if version and not VERSION.fullmatch(version):
        raise InvalidRequest(f"{version[:SHOWN]!r} cannot be a program's version: it must match {VERSION.pattern}")


def _check_interface(interface: Interface) -> None:
    """Raise for what could not be sent to a client, or is too much to keep."""
    if len(interface.parameters) > MAX_PARAMETERS:
        raise too_large(f"main has {len(interface.parameters)} parameters", "parameters", MAX_PARAMETERS)
    value: list[Any] = [interface.doc, interface.returns, interface.returns_schema, interface.definitions]
    value += [[one.name, one.annotation, one.schema, one.default, one.default_text] for one in interface.parameters]
    if is_deeper(value, MAX_INTERFACE_DEPTH):
        raise InvalidRequest(f"main's annotations make a schema that is nested more than {MAX_INTERFACE_DEPTH} deep")
    if not is_carried(value):
        raise InvalidRequest(
            "a docstring, name or default of main holds half a surrogate pair or a number beyond 64 bits, which no message "
            "can carry: write it in another way"
        )
    if (size := len(msgspec.json.encode(value))) > MAX_INTERFACE_BYTES:
        raise too_large(f"main's docstring and annotations take {size} bytes", "interface_bytes", MAX_INTERFACE_BYTES)


def content_id(bundle: Bundle) -> str:
    """Return the hash that names a program: of its entry, its files and its packages, whatever it is called by."""
    parts: list[Any] = [bundle.entry, sorted(bundle.files.items())]
    if bundle.data or bundle.lock:
        data = [(path, hashlib.sha256(content).hexdigest()) for path, content in sorted(bundle.data.items())]
        parts += [data, sorted(package.sha256 for package in bundle.lock)]
    canonical = json.dumps(parts, ensure_ascii=True, separators=(",", ":"))
    return "sha256:" + hashlib.sha256(canonical.encode()).hexdigest()


def check_bundle(bundle: Bundle) -> None:
    """Check files, paths and sizes, in time that is linear in the bytes, without parsing anything.

    Raises InvalidRequest, and LimitExceeded (1 MiB of source, MAX_LINES, MAX_FILES, MAX_DATA_BYTES).
    """
    paths = bundle.files.keys() | bundle.data.keys()
    if len(paths) > MAX_FILES:
        raise too_large(f"the program has {len(paths)} files", "files", MAX_FILES)
    for path in bundle.files:
        _check_path(path, paths, is_source=True)
    for path in bundle.data:
        _check_path(path, paths, is_source=False)
    if (held := sum(map(len, bundle.data.values()))) > MAX_DATA_BYTES:
        raise too_large(f"the program's other files have {held} bytes", "data_bytes", MAX_DATA_BYTES)
    if bundle.entry not in bundle.files or not bundle.entry.endswith(".py"):
        raise InvalidRequest(f"the program has no .py file {bundle.entry[:SHOWN]!r}, which is its entry")
    size = sum(len(text.encode(errors="surrogatepass")) for text in bundle.files.values())
    if size > MAX_SOURCE_BYTES:
        raise too_large(f"the program's source has {size} bytes", "source_bytes", MAX_SOURCE_BYTES)
    lines = sum(text.count("\n") for text in bundle.files.values())
    if lines > MAX_LINES:
        raise too_large(f"the program's source has {lines} lines", "source_lines", MAX_LINES)
    for path, text in bundle.files.items():
        if not is_carried(text):
            raise InvalidRequest(f"{path} holds half a surrogate pair, which is no text: save it as UTF-8")


def _check_path(path: str, paths: Set[str], *, is_source: bool) -> None:
    pure = PurePosixPath(path[:MAX_PATH])
    clean = not pure.is_absolute() and ".." not in pure.parts and "\\" not in path and str(pure) == path
    if not clean or not path.isprintable() or path == "." or is_source is not (pure.suffix == ".py" or path == PROJECT):
        raise InvalidRequest(
            f"{path[:SHOWN]!r} cannot be a file of a program: relative paths with at most {MAX_PATH} letters, .py files and "
            f"{PROJECT} in files, others in data"
        )
    folder = next((str(parent) for parent in pure.parents if str(parent) in paths), None)
    if folder is not None:
        raise InvalidRequest(f"{folder!r} cannot be a file of a program, and the folder of {path!r}")


def check_syntax(source: str, filename: str) -> ast.Module:
    """Parse a file. Raises ProgramSyntaxError; its message shows the line and a caret, ``detail`` says where.

    The parser is this process's Python, whose version is in ``detail`` too. What only newer ones parse is parsed without that.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            module = _module(source, filename)
    except SyntaxError as error:
        raise _syntax_error(error, filename) from None
    except (ValueError, RecursionError, MemoryError) as error:
        why = str(error) or "it is nested too deeply, or takes too much memory"
        raise ProgramSyntaxError(f"{filename} cannot be parsed: {why}", file=filename) from None
    return module


def _module(source: str, filename: str) -> ast.Module:
    try:
        return _compiled(source, filename)
    except SyntaxError:
        with contextlib.suppress(SyntaxError):
            return _compiled(older(source), filename)
        raise


def _compiled(source: str, filename: str) -> ast.Module:
    module = compile(source, filename, "exec", flags=ast.PyCF_ONLY_AST, dont_inherit=True)
    assert isinstance(module, ast.Module)
    return module


def _syntax_error(error: SyntaxError, filename: str) -> ProgramSyntaxError:
    line, column, text = error.lineno or 0, error.offset or 0, (error.text or "").rstrip("\n")
    shown = error if len(text) <= SHOWN else SyntaxError(error.msg, (filename, line, None, None))
    where = "".join(traceback.format_exception_only(shown)).strip()
    python = ".".join(map(str, sys.version_info[:2]))
    return ProgramSyntaxError(where, file=filename, line=line, column=column, text=text[:SHOWN], python=python)


def read_pie(bundle: Bundle) -> PieFile | None:
    """Return what the Pie.toml of a program for Pie says, an empty one if it has none; None for any other program.

    Raises InvalidRequest for a bad file.
    """
    if PIE_FILE in bundle.data:
        return read_pie_file(bundle.data[PIE_FILE].decode(errors="replace"), f"{bundle.name}/{PIE_FILE}")
    return PieFile() if imports_inferlet(bundle.files[bundle.entry]) else None


def read_manifest(bundle: Bundle, pie: PieFile | None = None) -> Manifest:
    """Return what a program says about itself; the name and version of its Pie.toml win.

    Raises InvalidRequest for a bad table, and what checking dependencies raises.
    """
    source = bundle.files[bundle.entry]
    if PROJECT in bundle.files:
        if has_script_block(source):
            raise InvalidRequest(f"{bundle.entry} has a '# /// script' block beside a {PROJECT}: keep one of them")
        manifest = project_manifest(bundle.files[PROJECT], bundle.name)
    else:
        manifest = script_manifest(source, f"{bundle.name}/{ENTRY}" if bundle.entry == ENTRY else bundle.entry)
    checked_requirements(manifest.dependencies)
    check_python(manifest.requires_python)
    if pie is None:
        return manifest
    return replace(manifest, name=pie.name or manifest.name, version=pie.version or manifest.version)
