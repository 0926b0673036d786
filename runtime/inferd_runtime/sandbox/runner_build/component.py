"""The runner component: built from the guest's sources, compiled for this processor, and cached under a key of both.

In ``<cache>/runner/``: ``<sources>.wasm`` is what componentize-py makes, ``<sources>-<machine>.cwasm`` is the machine code that
wasmtime makes of it. That is trusted when it is loaded, so the folder has to be this user's own, and a file whose checksum
does not fit is made again. Both steps run in child processes of low priority.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import inferd
import inferlet
from inferd.protocol import InternalError
from inferd_runtime.file_cache import (
    POLL_SECONDS,
    CacheEntry,
    cache_folder,
    code_folder,
    drop_oldest,
    locked,
    processor,
)
from inferd_runtime.isolation.kinds import ChildKind
from inferd_runtime.isolation.order import Launch
from inferd_runtime.isolation.start import give_order
from inferd_runtime.sandbox.wasm.engine_settings import COMPILED_WITH

STEPS_MODULE = "inferd_runtime.sandbox.runner_build.steps"
NOT_FOR_GUESTS = ("outlines.py",)  # needs a package that the sandbox has not
GUEST_PACKAGE = "inferd_runtime/sandbox/runner"
WIT = "world.wit"
KEPT_ENTRIES = 4
ERROR_LINES = 30


@dataclass(frozen=True)
class Progress:
    """Where a build is: a stage, in words for people, and the part of it that is done (0 to 1, by the clock)."""

    stage: str
    fraction: float


OnProgress = Callable[[Progress], None]


@dataclass(frozen=True)
class BuildStep:
    """A step of the build: a command of the module ``steps``, its stage for people, and about how long it takes."""

    command: str
    stage: str
    seconds: float


COMPONENTIZE = BuildStep("componentize", "Building the sandbox", 22.0)
COMPILE = BuildStep("compile", "Compiling the sandbox", 32.0)
WAITING = "Waiting for another process that builds the sandbox"


def ensure_runner(on_progress: OnProgress = lambda progress: None) -> Path:
    """Return the compiled runner's file. The first call of a version builds it, which takes about a minute on two cores.

    One process builds; others wait for it. Raises Unavailable if the cache folder cannot be used or trusted, and
    InternalError, with what was printed, if the build fails.
    """
    folder = code_folder(cache_folder() / "runner")
    sources = guest_sources()
    name = _source_key(sources)
    component = CacheEntry(folder / f"{name}.wasm")
    compiled = CacheEntry(folder / f"{name}-{_machine_key()}.cwasm")
    if not compiled.is_whole():
        with locked(folder / "lock", lambda: on_progress(Progress(WAITING, 0.0))):
            _build(sources, component, compiled, on_progress)
            drop_oldest(folder, "*.wasm", KEPT_ENTRIES)
            drop_oldest(folder, "*.cwasm", KEPT_ENTRIES)
    compiled.touch()
    return compiled.path


def runner_is_built() -> bool:
    """Return True if :func:`ensure_runner` would find the runner built."""
    name = f"{_source_key(guest_sources())}-{_machine_key()}.cwasm"
    return CacheEntry(cache_folder() / "runner" / name).is_whole()


def guest_sources() -> dict[str, bytes]:
    """Return every file that goes into the component, by its path there: SDK, Pie's names, guest's modules, WIT world."""
    sdk, runner = Path(inferd.__file__).parent, Path(__file__).parents[1] / "runner"
    files = [path for path in sdk.rglob("*.py") if path.name not in NOT_FOR_GUESTS]
    sources = {f"inferd/{path.relative_to(sdk).as_posix()}": path.read_bytes() for path in files}
    pie = Path(inferlet.__file__).parent
    sources |= {f"inferlet/{path.relative_to(pie).as_posix()}": path.read_bytes() for path in pie.rglob("*.py")}
    sources |= {f"{GUEST_PACKAGE}/{path.name}": path.read_bytes() for path in runner.glob("*.py")}
    sources |= {"inferd_runtime/__init__.py": b"", "inferd_runtime/sandbox/__init__.py": b""}
    return sources | {WIT: (runner / WIT).read_bytes()}


def _source_key(sources: dict[str, bytes]) -> str:
    digest = hashlib.sha256(importlib.metadata.version("componentize-py").encode())
    for path, content in sorted(sources.items()):
        digest.update(f"\0{path}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()[:20]


def _machine_key() -> str:
    """Return a hash of what machine code depends on: the compiler, its settings, and the processor's features."""
    wasmtime = importlib.metadata.version("wasmtime")
    text = "\0".join([wasmtime, COMPILED_WITH, processor()])
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _build(sources: dict[str, bytes], component: CacheEntry, compiled: CacheEntry, on_progress: OnProgress) -> None:
    if compiled.is_whole():  # another process has built it meanwhile
        return
    if not component.is_whole():
        component.put(lambda target: _componentize(sources, target, on_progress))
    compiled.put(lambda target: _run(COMPILE, [str(component.path), str(target)], on_progress))


def _componentize(sources: dict[str, bytes], target: Path, on_progress: OnProgress) -> None:
    with tempfile.TemporaryDirectory(prefix="inferd-runner-") as folder:
        for path, content in sources.items():
            file = Path(folder, path)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
        _run(COMPONENTIZE, [folder, str(target)], on_progress)


def _run(step: BuildStep, arguments: list[str], on_progress: OnProgress) -> None:
    """Run a step in a child process, which ends with this call, whatever happens."""
    launch = Launch(STEPS_MODULE, ChildKind.BUILDER, settings=[step.command, *arguments])
    started = time.monotonic()
    with (
        tempfile.TemporaryFile() as output,
        subprocess.Popen(
            launch.command, env=launch.environment, stdin=subprocess.PIPE, stdout=output, stderr=output
        ) as child,
    ):
        give_order(child, launch)
        try:
            while child.poll() is None:
                elapsed = time.monotonic() - started
                on_progress(Progress(step.stage, min(elapsed / step.seconds, 0.95)))
                time.sleep(POLL_SECONDS)
        finally:
            child.kill()
        output.seek(0)
        printed = output.read().decode(errors="replace").strip()
    if child.returncode != 0:
        tail = "\n".join(printed.partition("Stack backtrace:")[0].splitlines()[-ERROR_LINES:])
        raise InternalError(f"{step.stage.lower()} failed with exit code {child.returncode}:\n{tail}", output=printed)
    on_progress(Progress(step.stage, 1.0))
