"""Everything that can be set, each field once: type, default, help text and check.

The flag, the environment variable, the file's key, the engine process's value and docs/reference/settings.md come from here.
Times are in seconds, memory in MiB, other sizes in bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from inferd.protocol import MAX_DRAFT
from inferd_runtime.draft_models.options import DraftOptions, read_drafts
from inferd_runtime.engine.scheduling.tenants import Tenancy
from inferd_runtime.models.adapter_options import AdapterOptions, read_adapters
from inferd_runtime.models.options import ModelOptions, read_models
from inferd_runtime.sandbox.messages import Limits
from inferd_runtime.settings.setting import NOT_NEGATIVE, Check, Setting, SettingField, setting_fields

PORT = Check("be in 0..65535", lambda value: 0 <= value <= 65535)
FIXED_ROWS = Check(f"be 0 or in 2..{MAX_DRAFT}", lambda value: value == 0 or 2 <= value <= MAX_DRAFT)


@dataclass(frozen=True, kw_only=True)
class EngineSettings:
    """How one engine process serves; it gets exactly this value, so no token may stand here.

    The last three fields cannot be set from outside: ``tenancy`` is read from the tokens file, ``snapshots`` is the folder of
    saved contexts (None: none are kept), ``plain`` runs transformers' own modules even where there is a fused pass.
    """

    model: Annotated[
        tuple[ModelOptions, ...],
        Setting(
            "tiny (embedded), a folder, or a name on the hub, with options of its own: tiny,dtype=bfloat16,pages=64; "
            "several models: give it several times, the first is the default",
            read=read_models,
        ),
    ] = (ModelOptions("tiny"),)
    device: Annotated[str, Setting("cpu, cuda or cuda:N, for models that say nothing else")] = "cpu"
    dtype: Annotated[
        str, Setting("float32, bfloat16 or float16; default: float32 on the CPU, else the checkpoint's own")
    ] = ""
    threads: Annotated[int | None, Setting("threads of the engine; default: by the models' sizes")] = None
    pages: Annotated[int | None, Setting("pages of the KV cache; default: by the memory that is free")] = None
    page_size: Annotated[int, Setting("tokens per page")] = 16
    token_budget: Annotated[int, Setting("tokens that one step may feed")] = 512
    swap_mb: Annotated[
        int,
        Setting(
            "MiB of host memory for contexts that had to leave the cache; 0: they are computed again", NOT_NEGATIVE
        ),
    ] = 256
    fixed_rows: Annotated[
        int,
        Setting(
            "rows that every sequence computes in each step, so that drafts change no bit; 0: as many as it needs",
            FIXED_ROWS,
        ),
    ] = 0
    tensor_parallel: Annotated[
        int, Setting("processes that the model is divided between, each with its own GPU or a part of the CPU")
    ] = 1
    kv_dtype: Annotated[
        Literal["model", "fp8"],
        Setting("model or fp8: of the KV cache; fp8 halves the cache of a 16-bit model and rounds"),
    ] = "model"
    graphs: Annotated[
        Literal["on", "off"], Setting("on or off: whether steps are recorded as CUDA graphs, on a GPU")
    ] = "on"
    products: Annotated[
        Literal["auto", "torch", "kernel"],
        Setting("auto, torch or kernel: what multiplies up to 16 rows on a GPU; auto times both at load"),
    ] = "auto"
    check: Annotated[bool, Setting("true: look for leaked pages whenever the engine is idle")] = False
    speculation: Annotated[
        Literal["on", "off"], Setting("on or off: whether to draft for generations that leave it to the operator")
    ] = "on"
    adapter: Annotated[
        tuple[AdapterOptions, ...],
        Setting(
            "NAME=FOLDER[,model=MODEL]: a LoRA adapter in PEFT's format for every tenant; may be given several times",
            read=read_adapters,
        ),
    ] = ()
    draft: Annotated[
        tuple[DraftOptions, ...],
        Setting(
            "NAME[,for=MODEL][,process=true][,timeout_ms=N][,choice=thompson|ucb]: a draft model, with a model's "
            "options; may be given several times",
            read=read_drafts,
        ),
    ] = ()
    max_adapters: Annotated[int, Setting("adapters that a tenant may have loaded at a time")] = 8
    max_adapter_bytes: Annotated[int, Setting("bytes of the files of one adapter that a tenant loads")] = 256 << 20
    max_adapter_rank: Annotated[int, Setting("the largest rank of an adapter that a tenant loads")] = 256
    snapshot_bytes: Annotated[int, Setting("bytes that a tenant's saved contexts may take on disk")] = 10 << 30
    tenancy: Tenancy = field(default_factory=Tenancy)
    snapshots: Path | None = None
    plain: bool = False

    @property
    def defaults(self) -> ModelOptions:
        """The options of models that say nothing else."""
        return ModelOptions("", self.dtype, self.device, self.pages or 0)

    @property
    def models(self) -> tuple[ModelOptions, ...]:
        """The models, the default one first, with what they leave to the other settings."""
        return tuple(model.over(self.defaults) for model in self.model)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings of one command. A client looks for its server at ``url``, else where this user's own server says it is,
    else at ``host`` and ``port``.
    """

    engine: EngineSettings = field(default_factory=EngineSettings)
    tenant_pages: Annotated[
        int | None, Setting("pages that a tenant may hold, where the tokens file says nothing else; default: no limit")
    ] = None
    host: Annotated[str, Setting("the address to listen on, or to look for a server at")] = "127.0.0.1"
    port: Annotated[int, Setting("the port of that address; a server takes any free one for 0", PORT)] = 7070
    url: Annotated[str | None, Setting("the server's address")] = None
    token: Annotated[
        str | None,
        Setting("the access token; a server's own, for the tenant `default`, is generated where it has none"),
    ] = None
    tokens_file: Annotated[Path | None, Setting("lines of `token tenant [kv_pages=N] [weight=W]`")] = None
    data_dir: Annotated[Path, Setting("where uploaded programs and saved contexts are kept")] = Path(
        "~/.local/share/inferd"
    )
    state_dir: Annotated[Path, Setting("where a server leaves its address and token for this user's commands")] = Path(
        "~/.local/state/inferd"
    )
    workers: Annotated[int, Setting("sandbox workers to keep running")] = 1
    max_workers: Annotated[int, Setting("sandbox workers at most")] = 4
    runs_per_worker: Annotated[int, Setting("runs of one tenant that a worker takes at a time")] = 64
    max_waiting: Annotated[int, Setting("runs that may wait for a worker")] = 256
    engine_start_s: Annotated[float, Setting("seconds that the engine may take to start")] = 600.0
    worker_start_s: Annotated[float, Setting("seconds that a worker may take to start")] = 120.0
    wall_s: Annotated[float, Setting("seconds that the run may take", flag="--limit-wall")] = 300.0
    cpu_s: Annotated[float, Setting("seconds of processor time that the program may use", flag="--limit-cpu")] = 30.0
    memory_mb: Annotated[int, Setting("MiB of memory that the program may use", flag="--limit-memory")] = 256
    output_bytes: Annotated[int, Setting("bytes that the program may print", flag="--limit-output")] = 4 << 20
    max_wall_s: Annotated[float, Setting("the highest wall_s that a run over the network may ask for")] = 3600.0
    max_cpu_s: Annotated[float, Setting("the highest cpu_s that a run over the network may ask for")] = 600.0
    max_memory_mb: Annotated[int, Setting("the highest memory_mb that a run over the network may ask for")] = 1024
    max_output_bytes: Annotated[int, Setting("the highest output_bytes that a run over the network may ask for")] = (
        64 << 20
    )
    max_body_bytes: Annotated[int, Setting("bytes of a request's body")] = 4 << 20
    keep_runs: Annotated[int, Setting("finished runs that are remembered")] = 1000
    keep_event_bytes: Annotated[int, Setting("bytes of events that are kept of all finished runs")] = 64 << 20
    run_event_bytes: Annotated[int, Setting("bytes of events that are kept of one run")] = 1 << 20

    @property
    def limits(self) -> Limits:
        """What a run may use when nobody says otherwise."""
        return Limits(self.wall_s, self.cpu_s, self.memory_mb, self.output_bytes)

    @property
    def max_limits(self) -> Limits:
        """What a run that comes over the network may ask for."""
        return Limits(self.max_wall_s, self.max_cpu_s, self.max_memory_mb, self.max_output_bytes)


ENGINE_FIELDS: Mapping[str, SettingField] = {field.name: field for field in setting_fields(EngineSettings)}
OTHER_FIELDS: Mapping[str, SettingField] = {field.name: field for field in setting_fields(Settings)}
FIELDS: Mapping[str, SettingField] = {**ENGINE_FIELDS, **OTHER_FIELDS}
"""Every setting by its name. The flags of a run's limits differ from their names: a program's own parameters may well be
called like these."""
