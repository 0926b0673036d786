"""Settings, resolved once into a frozen value: a flag wins over the environment, that over the file, that over the default.

The environment name of a setting is its name in capitals after ``INFERD_``; the file is TOML with the same names at the top
level. It is the one that ``--config`` or ``INFERD_CONFIG`` names, else ``inferd/config.toml`` under ``$XDG_CONFIG_HOME``.
Several models are ``--model`` several times, a list (of texts, or of tables with ``name`` and options) in the file, and
separated by ``;`` in the environment.
"""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_type_hints

import msgspec

from inferd.protocol import MAX_DRAFT, InvalidRequest
from inferd_runtime.draft_models.options import DraftOptions, read_drafts
from inferd_runtime.models.adapter_options import AdapterOptions, read_adapters
from inferd_runtime.models.options import ModelOptions, read_models
from inferd_runtime.sandbox.messages import Limits

CONFIG_FILE = "config.toml"
READERS: Mapping[Any, Callable[[Any], Any]] = {
    tuple[ModelOptions, ...]: read_models,
    tuple[AdapterOptions, ...]: read_adapters,
    tuple[DraftOptions, ...]: read_drafts,
}
LIMIT_FLAGS = {
    "wall_s": "--limit-wall",
    "cpu_s": "--limit-cpu",
    "memory_mb": "--limit-memory",
    "output_bytes": "--limit-output",
}
"""The settings whose flag is not their name: a program's own parameters may well be called like these."""


@dataclass(frozen=True)
class Settings:
    """Everything that can be set. Times in seconds, memory in MiB, other sizes in bytes.

    ``model``: what to serve, the default model first; ``device``, ``dtype`` ("": float32 on the CPU, elsewhere the
    checkpoint's own) and ``pages`` hold for each model that says nothing else. ``adapter``: the LoRA adapters of every tenant.
    ``draft``: draft models for them.
    ``url`` is where a client looks for a server; without it, where this user's own server says it is, else ``host`` and
    ``port``. ``wall_s`` to ``output_bytes`` are what a run may use when nobody says otherwise; ``max_*`` what anybody may ask for
    over the network. ``token``: who holds it is the tenant ``default``; without one, ``serve`` makes one and keeps it in
    ``state_dir``. ``tokens_file``: lines of ``token tenant [kv_pages=N] [weight=W]``. ``tenant_pages``: pages of the KV cache
    that a tenant may hold when its line says nothing; ``swap_mb``: host memory for contexts that had to leave the cache
    (0: they are recomputed). ``fixed_rows``: every sequence computes so many rows in each step, drafted or not, so that on
    the CPU drafts change no bit, in reduced precision neither (0: as many as it needs). ``tensor_parallel``: over how many
    processes the model is divided. ``kv_dtype`` fp8: keys and values in 8 bits, which halves the cache of a 16-bit model and
    rounds. ``graphs``: whether a GPU's steps are recorded once per shape and replayed. ``products``: what
    multiplies up to 16 rows on a GPU: PyTorch, our kernel, or whichever is faster. ``check``: look for leaked pages
    whenever the engine is idle. ``speculation``: whether the runtime drafts for generations that leave it to the operator
    (``system_speculation="auto"``). ``snapshot_bytes``: what each tenant's saved contexts may take in ``data_dir``.
    """

    model: tuple[ModelOptions, ...] = (ModelOptions("tiny"),)
    device: str = "cpu"
    dtype: str = ""
    threads: int | None = None
    pages: int | None = None
    page_size: int = 16
    token_budget: int = 512
    swap_mb: int = 256
    fixed_rows: int = 0
    tensor_parallel: int = 1
    kv_dtype: Literal["model", "fp8"] = "model"
    graphs: Literal["on", "off"] = "on"
    products: Literal["auto", "torch", "kernel"] = "auto"
    tenant_pages: int | None = None
    check: bool = False
    speculation: Literal["on", "off"] = "on"
    adapter: tuple[AdapterOptions, ...] = ()
    draft: tuple[DraftOptions, ...] = ()
    host: str = "127.0.0.1"
    port: int = 7070
    url: str | None = None
    token: str | None = None
    tokens_file: Path | None = None
    data_dir: Path = Path("~/.local/share/inferd")
    snapshot_bytes: int = 10 << 30
    state_dir: Path = Path("~/.local/state/inferd")
    workers: int = 1
    max_workers: int = 4
    runs_per_worker: int = 64
    max_waiting: int = 256
    engine_start_s: float = 600.0
    worker_start_s: float = 120.0
    wall_s: float = 300.0
    cpu_s: float = 30.0
    memory_mb: int = 256
    output_bytes: int = 4 << 20
    max_wall_s: float = 3600.0
    max_cpu_s: float = 600.0
    max_memory_mb: int = 1024
    max_output_bytes: int = 64 << 20
    max_body_bytes: int = 4 << 20
    max_adapters: int = 8
    max_adapter_bytes: int = 256 << 20
    max_adapter_rank: int = 256
    keep_runs: int = 1000
    keep_event_bytes: int = 64 << 20
    run_event_bytes: int = 1 << 20

    @property
    def models(self) -> tuple[ModelOptions, ...]:
        """The models with what they leave to the other settings."""
        defaults = ModelOptions("", self.dtype, self.device, self.pages or 0)
        return tuple(model.over(defaults) for model in self.model)

    @property
    def limits(self) -> Limits:
        """What a run may use when nobody says otherwise."""
        return Limits(self.wall_s, self.cpu_s, self.memory_mb, self.output_bytes)

    @property
    def max_limits(self) -> Limits:
        """What a run that comes over the network may ask for."""
        return Limits(self.max_wall_s, self.max_cpu_s, self.max_memory_mb, self.max_output_bytes)


@dataclass(frozen=True)
class Sources:
    """Where settings come from. ``flags`` holds only what was given on the command line, by setting name."""

    flags: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    config: Path | None = None


def resolve(sources: Sources) -> Settings:
    """The settings in force. Raises InvalidRequest that names the flag, variable or file key that is wrong."""
    environment = sources.environment
    layers: list[tuple[Callable[[str], str], Mapping[str, Any]]] = [
        (str, _directories(environment)),
        (lambda name: f"key {name} of the configuration file", _read_file(sources)),
        (lambda name: f"INFERD_{name.upper()}", _from_environment(environment)),
        (flag_of, {name: value for name, value in sources.flags.items() if value is not None}),
    ]
    values: dict[str, Any] = {}
    types = get_type_hints(Settings)
    for place, layer in layers:
        for name, value in layer.items():
            values[name] = _convert(place(name), value, types[name])
    settings = Settings(**values)
    _check(settings)
    return dataclasses.replace(
        settings, data_dir=settings.data_dir.expanduser(), state_dir=settings.state_dir.expanduser()
    )


def flag_of(name: str) -> str:
    """The command line's flag for a setting."""
    return LIMIT_FLAGS.get(name, "--" + name.replace("_", "-"))


def _directories(environment: Mapping[str, str]) -> dict[str, str]:
    """The XDG directories, where the environment moves them."""
    moved = {"data_dir": "XDG_DATA_HOME", "state_dir": "XDG_STATE_HOME"}
    return {name: f"{environment[key]}/inferd" for name, key in moved.items() if environment.get(key)}


def _from_environment(environment: Mapping[str, str]) -> dict[str, str]:
    names = {f"INFERD_{field.name.upper()}": field.name for field in dataclasses.fields(Settings)}
    return {names[key]: value for key, value in environment.items() if key in names}


def _read_file(sources: Sources) -> dict[str, Any]:
    named = sources.config or (
        Path(sources.environment["INFERD_CONFIG"]) if "INFERD_CONFIG" in sources.environment else None
    )
    path = (
        named or Path(sources.environment.get("XDG_CONFIG_HOME") or "~/.config") / "inferd" / CONFIG_FILE
    ).expanduser()
    if not path.exists():
        if named is not None:
            raise InvalidRequest(f"the configuration file {path} does not exist")
        return {}
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise InvalidRequest(f"{path}: {error}") from None
    unknown = values.keys() - {field.name for field in dataclasses.fields(Settings)}
    if unknown:
        raise InvalidRequest(f"{path}: there is no setting {', '.join(sorted(unknown))}")
    return values


def _convert(place: str, value: Any, kind: Any) -> Any:
    if kind in (Path, Path | None):
        if not isinstance(value, (str, Path)):
            raise InvalidRequest(f"{place}: expected a path, got {value!r}")
        return Path(value)
    if kind in READERS:
        try:
            return READERS[kind](value)
        except InvalidRequest as error:
            raise InvalidRequest(f"{place}: {error.message}") from None
    try:
        return msgspec.convert(value, kind, strict=False)
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"{place}: {error}, got {value!r}") from None


def _check(settings: Settings) -> None:
    """Refuse what no runtime can hold."""
    positive = [
        f.name for f in dataclasses.fields(Settings) if f.name not in ("port", "swap_mb", "fixed_rows", "check")
    ]
    for name in positive:
        value = getattr(settings, name)
        if isinstance(value, (int, float)) and value <= 0:
            raise InvalidRequest(f"{name} must be positive, got {value}")
    for model in settings.models:
        model.checked()
    if settings.swap_mb < 0:
        raise InvalidRequest(f"swap_mb must not be negative, got {settings.swap_mb}")
    if settings.fixed_rows and not 2 <= settings.fixed_rows <= MAX_DRAFT:
        raise InvalidRequest(f"fixed_rows must be 0 or in 2..{MAX_DRAFT}, got {settings.fixed_rows}")
    if not 0 <= settings.port <= 65535:
        raise InvalidRequest(f"port must be in 0..65535, got {settings.port}")
    if settings.max_workers < settings.workers:
        raise InvalidRequest(f"max_workers ({settings.max_workers}) is less than workers ({settings.workers})")
