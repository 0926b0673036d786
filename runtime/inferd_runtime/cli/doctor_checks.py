"""What `inferd doctor` looks at: each check returns findings, and raises nothing."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import resource
import shutil
import stat
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from inferd.protocol import InferdError, Unavailable
from inferd_runtime.cli.answers import Readiness, Version, answer_as
from inferd_runtime.cli.client import Server
from inferd_runtime.draft_models.options import is_loopback
from inferd_runtime.file_cache import cache_folder, private_folder, refuse_noexec
from inferd_runtime.isolation.report import report
from inferd_runtime.kernels.native.compiler import hindrance
from inferd_runtime.models.fitting.cores import usable_cores
from inferd_runtime.models.fitting.memory import available_host_bytes
from inferd_runtime.models.names import EMBEDDED
from inferd_runtime.models.store.store import ModelStore
from inferd_runtime.sandbox.runner_build.component import runner_is_built
from inferd_runtime.sandbox.worker_start import ADDRESS_BYTES
from inferd_runtime.server.gateway.room import connections_at_most
from inferd_runtime.server.gateway.stored_formats import refuse_newer_formats
from inferd_runtime.server.processes.rundir import temporary_folder
from inferd_runtime.settings.settings import Settings
from inferd_runtime.settings.sources import unknown_variables

NEEDED = ("msgspec", "pyzmq", "starlette", "uvicorn", "wasmtime", "torch", "transformers", "tokenizers", "llguidance")
OPTIONAL = ("triton", "outlines_core", "xgrammar", "opentelemetry-sdk")
USEFUL_FEATURES = ("avx2", "avx512f", "avx512_bf16", "amx_tile", "asimd", "sve")
LOW_MEMORY = 2 << 30
LOW_DISK = 1 << 30
OPEN_TO_OTHERS = stat.S_IRWXG | stat.S_IRWXO
CPUINFO = Path("/proc/cpuinfo")


@dataclass(frozen=True)
class Finding:
    """One line: ``ok``, ``note`` (nothing to do), ``warning``, or ``missing`` (inferd does not work as asked without)."""

    area: str
    state: Literal["ok", "note", "warning", "missing"]
    text: str


Findings = Iterator[Finding]


def versions(settings: Settings) -> Findings:
    """Look at Python and at the packages that are needed, or used where they are there."""
    yield Finding("versions", "ok", f"Python {platform.python_version()} on {platform.platform()}")
    for name in ("inferd", *NEEDED):
        found = _version(name)
        yield Finding("versions", "ok" if found else "missing", f"{name} {found or 'is not installed'}")
    for name in OPTIONAL:
        yield Finding("versions", "note", f"{name} {_version(name) or 'is not installed (optional)'}")


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""


def processor(settings: Settings) -> Findings:
    """Look at cores, at the instructions that matter for speed, and whether kernels can be compiled for them."""
    cores = usable_cores()
    state: Literal["ok", "warning"] = "ok" if cores > 1 else "warning"
    yield Finding("processor", state, f"{cores} cores for this process, {platform.machine()}")
    words = set(CPUINFO.read_text().split()) if CPUINFO.exists() else set()
    found = [name for name in USEFUL_FEATURES if name in words]
    yield Finding("processor", "ok" if found else "note", f"features: {' '.join(found) or 'not known'}")
    reason = hindrance()
    text = f"models run without kernels of our own, at a half to a quarter of the speed: {reason}"
    yield Finding("processor", "note" if reason else "ok", text if reason else "models run in kernels of our own")


def memory(settings: Settings) -> Findings:
    """Look at the memory that is free, for this process's control group."""
    free = available_host_bytes()
    yield Finding("memory", "warning" if free < LOW_MEMORY else "ok", f"{free / 1e9:.1f} GB are available")


def limits(settings: Settings) -> Findings:
    """Look at what the system lets this process take: address space and open files."""
    address = resource.getrlimit(resource.RLIMIT_AS)[0]
    if address not in (resource.RLIM_INFINITY, -1) and address < ADDRESS_BYTES:
        text = f"an address space of {address / 1e9:.1f} GB (ulimit -v): a run alone reserves {ADDRESS_BYTES / 1e9:.0f}"
        yield Finding("limits", "missing", text)
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    connections = connections_at_most(settings, files if 0 <= files < sys.maxsize else sys.maxsize)
    few = connections < settings.max_connections
    text = f"{files} open files (ulimit -Hn), so {connections} connections at most"
    yield Finding("limits", "warning" if few else "ok", text)


def disk(settings: Settings) -> Findings:
    """Look at the folders that a server writes to, and at what is in them."""
    for name in ("data_dir", "state_dir"):
        folder = getattr(settings, name)
        there = _existing(folder)
        if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
            yield Finding("disk", "missing", f"{name} {folder} cannot be written: set --{name.replace('_', '-')}")
            continue
        yield _room(name, folder, there)
    try:
        yield _cache(cache_folder() / "runner")
        temporary_folder()
        refuse_newer_formats(settings)
    except InferdError as error:
        yield Finding("disk", "missing", error.message)


def _existing(folder: Path) -> Path:
    return next(path for path in (folder, *folder.parents) if path.exists())


def _cache(folder: Path) -> Finding:
    """Look at the folder for machine code. It is not made here: whoever asks may not be who serves. Raises Unavailable."""
    there = _existing(folder)
    if there == folder:
        private_folder(folder)
    elif not os.access(there, os.W_OK | os.X_OK):
        raise Unavailable(f"the cache folder {folder} cannot be made; set INFERD_CACHE_DIR")
    refuse_noexec(there)
    return _room("cache", folder, there)


def _room(name: str, folder: Path, there: Path) -> Finding:
    """Return what is free on the file system of a folder, of which ``there`` exists."""
    free, system = shutil.disk_usage(there).free, os.statvfs(there)
    if system.f_files and not system.f_favail:
        return Finding("disk", "missing", f"{name} {folder}: no more files can be made (no inode is free)")
    return Finding("disk", "warning" if free < LOW_DISK else "ok", f"{name} {folder}: {free / 1e9:.1f} GB are free")


def sandbox(settings: Settings) -> Findings:
    """Look whether the sandbox is built, and which layers stand between it and the machine."""
    if runner_is_built():
        yield Finding("sandbox", "ok", "the runner is built")
    else:
        yield Finding(
            "sandbox", "note", "the runner is built at the first start, in about a minute; now: inferd build-runner"
        )
    wanted: Literal["missing", "warning"] = "missing" if settings.require_isolation else "warning"
    for kind, layers in report().items():
        for layer in layers:
            text = f"{kind}: {layer.name}"
            yield (
                Finding("isolation", "ok", text)
                if layer.active
                else Finding("isolation", wanted, f"{text}: {layer.reason}")
            )


def models(settings: Settings) -> Findings:
    """Look whether the models of the settings are here."""
    store = ModelStore()
    for model in settings.engine.models:
        path = Path(model.name).expanduser()
        if model.name in EMBEDDED or store.find(model.name) is not None:
            yield Finding("models", "ok", f"{model.name} is here")
        elif path.exists():
            whole = path.suffix == ".gguf" or (path / "config.json").is_file()
            yield Finding("models", "ok" if whole else "missing", f"{path}" + ("" if whole else " has no config.json"))
        elif path.is_absolute():
            yield Finding("models", "missing", f"there is no {path}")
        else:
            yield Finding(
                "models", "note", f"{model.name} is not here: `inferd pull {model.name}`, or the hub at the start"
            )


def server(settings: Settings) -> Findings:
    """Look whether this user's server answers."""
    target = Server.of(settings)
    try:
        version = answer_as(Version, target.get("/version"))["version"]
    except InferdError:
        yield Finding("server", "note", f"none answers at {target.url}")
        return
    try:
        ready = answer_as(Readiness, target.get("/readyz"))["ready"]
        yield Finding("server", "ok" if ready else "warning", f"{target.url} serves, version {version}")
    except InferdError as error:
        yield Finding("server", "warning", f"{target.url} (version {version}): {error.message}")


def dangers(settings: Settings) -> Findings:
    """Look for settings that let in others than intended."""
    yield from (Finding("settings", "warning", text) for text in unknown_variables(os.environ))
    if not is_loopback(settings.host) and settings.tls_cert is None:
        yield Finding(
            "settings", "warning", f"host {settings.host} without TLS: tokens and texts can be read on the way"
        )
    if not is_loopback(settings.host) and not settings.require_isolation:
        yield Finding(
            "settings", "warning", f"host {settings.host} without --require-isolation: a layer may be missing"
        )
    if settings.metrics_for == "all":
        yield Finding("settings", "warning", "metrics_for=all: every tenant sees the sums over all tenants")
    for name in ("tokens_file", "tls_key", "state_dir", "data_dir"):
        path = getattr(settings, name)
        if path is not None and path.exists() and path.stat().st_mode & OPEN_TO_OTHERS:
            yield Finding("settings", "warning", f"{name} {path} is open to other users: chmod go= {path}")
    if settings.token is not None and "--token" in " ".join(sys.argv):
        yield Finding("settings", "warning", "a token on the command line is seen by every user: INFERD_TOKEN is not")


CHECKS: tuple[Callable[[Settings], Findings], ...] = (
    versions, processor, memory, limits, disk, sandbox, models, server, dangers,
)  # fmt: skip
