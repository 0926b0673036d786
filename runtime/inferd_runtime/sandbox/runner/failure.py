"""Exceptions as the errors that are reported: whose fault, and a traceback of the program's own lines."""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable, Container
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType
from typing import Any
from zoneinfo import ZoneInfoNotFoundError

from inferd.protocol import (
    ErrorInfo,
    InferdError,
    InvalidRequest,
    LimitExceeded,
    ProgramError,
    ProgramSyntaxError,
    to_plain,
)
from inferd_runtime.sandbox.runner.python_hints import python_hint
from inferd_runtime.sandbox.runner.sdk_hints import hint_for

OUT_OF_MEMORY = LimitExceeded("the program ran out of memory", limit="memory_mb")
"""The host adds the limit's value: only it knows the run's limits."""
NO_MODULE = (
    "a program has the standard library, inferd, its own files (all of its folder, where the folder with its main.py is run or "
    "uploaded), and the packages that it names as its dependencies, which have to be Python alone (docs/guides/dependencies.md)"
)
SCRIPTS = "the sandbox has inferd without what scripts and tests use: inferd.client, inferd.outlines, inferd.testing"
COMPILED = "it is compiled, and programs are Python alone"
FETCH = "`await inferd.http.fetch(url)` fetches in the sandbox, which has no sockets"
INSTEAD = {
    "anyio": 'asyncio has task groups, time-outs and queues; or name "anyio" among the dependencies',
    **dict.fromkeys(("aiohttp", "httpx", "requests", "ssl", "_ssl", "urllib3"), FETCH),
    "inferd": SCRIPTS,
    "pydantic": 'name "pydantic<2" among its dependencies, as version 2 is compiled',
    **dict.fromkeys(("multiprocessing", "_multiprocessing"), "`await inferd.launch(...)` starts another program"),
    **dict.fromkeys(
        ("torch", "transformers", "vllm", "openai", "anthropic"), "inferd.Context is the model that is served"
    ),
    **dict.fromkeys(("numpy", "pandas", "scipy", "orjson", "msgspec", "pydantic_core"), COMPILED),
}
"""What there is instead of a module that programs ask for."""
PIE = "inferlet has the names of Pie 0.4, and none of earlier and later versions (docs/guides/pie.md)"
NO_ZONES = (
    'names of time zones come with the package "tzdata": name it among the dependencies (docs/guides/dependencies.md)'
)
NOT_IN_SANDBOX = "the sandbox has no threads, processes, sockets, devices or C libraries, which this module needs"
NESTED = (
    "cannot be called from a running event loop",
    "event loop is already running",
    "while another loop is running",
)
"""What asyncio says where a coroutine is run inside of another one."""
AWAIT = "a program's main runs in an event loop: `await` the coroutine there"
LACKS = "if Python has it elsewhere: the sandbox has no users, threads, processes, sockets, devices or C libraries"
MAX_TRACEBACK = 64 << 10
MAX_MEMBERS = 1000
"""Exceptions in a group, those that stand in it several times as often: one that holds itself twice doubles with each level."""
MOST_NAMED = 3
"""So many of the exceptions of a group are in its message."""
OUT_OF_MEMORY_JSON = json.dumps(to_plain(OUT_OF_MEMORY.to_wire()))


def to_json(error: BaseException, files: Container[str], let_go: Callable[[], None]) -> str:
    """Return the JSON of the ErrorInfo that ``error`` is reported as; ``files`` are the program's own.

    Where that takes more memory than is left, ``let_go`` is called, which has to free what the program holds.
    """
    try:
        return _dump(describe(error, files))
    except MemoryError:
        pass
    try:
        let_go()
        traceback.clear_frames(error.__traceback__)
        return _dump(describe(error, files))
    except MemoryError:
        return OUT_OF_MEMORY_JSON


def describe(error: BaseException, files: Container[str]) -> ErrorInfo:
    """Return what is reported for an exception that left the program, or that stopped it from being loaded."""
    cause = _only_cause(error)
    known = _known(cause, files)
    trace = _format(error, files)
    detail = {**known.detail, "exception": _type_name(cause)}
    return ErrorInfo(known.code, known.message, detail | ({"traceback": trace} if trace else {}))


def _known(error: BaseException, files: Container[str]) -> InferdError:
    if isinstance(error, InferdError):
        return error
    if isinstance(error, MemoryError):
        return OUT_OF_MEMORY
    if isinstance(error, SyntaxError) and error.filename is not None and error.filename in files:
        return ProgramSyntaxError(f"{error.filename}:{error.lineno}: {error.msg}")
    if isinstance(error, SystemExit):
        return ProgramError(f"the program exited with {_said(error.code, repr)}")
    text = _said(error)
    if isinstance(error, (ImportError, AttributeError, RuntimeError)):
        text = "; ".join(filter(None, (text, _instead_of(error))))
    if hint := python_hint(error) or hint_for(error):
        text = f"{text}; {hint}"
    if isinstance(error, ZoneInfoNotFoundError):
        text = f"{error.args[0]}; {NO_ZONES}"
    if isinstance(error, BaseExceptionGroup):
        causes = map(_only_cause, error.exceptions[:MOST_NAMED])
        text = f"{text}: {'; '.join(f'{_type_name(cause)}: {_said(cause)}' for cause in causes)}"
    return ProgramError(f"{_type_name(error)}: {text}" if text else _type_name(error))


def _said(value: object, way: Callable[[Any], str] = str) -> str:
    try:
        return way(value)
    except Exception:  # noqa: BLE001 - its __str__ is the program's own
        return f"<{way.__name__}() of it failed>"


def _instead_of(error: ImportError | AttributeError | RuntimeError) -> str:
    """Return what to do without a module, or without a name of Pie's, of the standard library or of a package, or without an
    event loop of one's own; "" for others.
    """
    if isinstance(error, RuntimeError):
        return AWAIT if _said(error).endswith(NESTED) else ""
    top = _module_of(error).partition(".")[0]
    if top == "inferlet":
        return PIE
    if not isinstance(error, ModuleNotFoundError):
        return LACKS if top in sys.stdlib_module_names else _version_of(top)
    general = NOT_IN_SANDBOX if top in sys.stdlib_module_names else NO_MODULE
    instead = next((INSTEAD[name] for name in (*_importers(error), top) if name in INSTEAD), None)
    return general if instead is None else f"{instead}; {general}"


def _version_of(package: str) -> str:
    """Return which version of a package the program has, an old one if newer ones are compiled; "" for other modules."""
    try:
        return f"the dependencies brought {package} {version(package)}"
    except (PackageNotFoundError, ValueError):
        return ""


def _importers(error: ImportError) -> list[str]:
    """Return the packages whose import led to a module that is not there, the program's own modules first."""
    frames = traceback.walk_tb(error.__traceback__)
    return [str(frame.f_globals.get("__name__")).partition(".")[0] for frame, _ in frames]


def _module_of(error: ImportError | AttributeError) -> str:
    """Return the name of the module that could not be imported, or that lacks something, itself or an object of its classes."""
    if isinstance(error, ImportError):
        return error.name or ""
    if isinstance(error.obj, ModuleType):
        return f"{error.obj.__name__}"
    name = f"{type(error.obj).__module__}"
    return name if name.startswith("inferlet") else ""


def _only_cause(error: BaseException) -> BaseException:
    """Return the one exception inside a task group's, which wraps what its tasks raise; others unchanged."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


def _type_name(error: BaseException) -> str:
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _format(error: BaseException, files: Container[str]) -> str:
    """Return the traceback with the program's own frames, of causes and grouped exceptions too; "" if there is none to show."""
    if _has_more_members(error, MAX_MEMBERS):
        text = f"{_type_name(error)} of more than {MAX_MEMBERS} exceptions: {_said(error)}"
        error = RuntimeError(text).with_traceback(error.__traceback__)
    described = traceback.TracebackException.from_exception(error)
    own = _keep_frames(described, files, set())
    if not own and isinstance(error, InvalidRequest):
        return ""  # an argument or a bundle that does not fit: the program has not run
    text = "".join(described.format())
    return text if len(text) <= MAX_TRACEBACK else f"{text[: MAX_TRACEBACK // 2]}\n[...]\n{text[-MAX_TRACEBACK // 2 :]}"


def _has_more_members(error: BaseException, most: int) -> bool:
    """Return True for an exception with more than ``most`` others in it, counted as often as a traceback would show them."""
    waiting, chained, count = [error], set[int](), 0
    while waiting and count <= most:
        one = waiting.pop()
        count += 1
        if isinstance(one, BaseExceptionGroup):
            waiting.extend(one.exceptions)
        for other in (one.__cause__, one.__context__):
            if other is not None and id(other) not in chained:
                chained.add(id(other))
                waiting.append(other)
    return count > most


def _keep_frames(described: traceback.TracebackException, files: Container[str], seen: set[int]) -> bool:
    if id(described) in seen:
        return False
    seen.add(id(described))
    kept = [frame for frame in described.stack if frame.filename in files]
    described.stack = traceback.StackSummary.from_list(kept)
    own = bool(kept) or getattr(described, "filename", None) in files  # a SyntaxError has one
    for inner in (described.__cause__, described.__context__, *(described.exceptions or ())):
        own = (inner is not None and _keep_frames(inner, files, seen)) or own
    return own


def _dump(info: ErrorInfo) -> str:
    return json.dumps(_plain(to_plain(info)), allow_nan=False)


def _plain(value: Any) -> Any:
    """Return JSON values unchanged, anything else as its ``repr``: a program may put what it likes into an error's detail."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, (bool, int, str)) or (isinstance(value, float) and value - value == 0):
        return value
    return _said(value, repr)
