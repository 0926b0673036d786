"""Everything that can be set, each field once: type, default, help text and check.

The flag, the environment variable, the file's key, the engine process's value and docs/reference/settings.md come from here.
Times are in seconds, memory in MiB, other sizes in bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from inferd.protocol import MAX_DRAFT
from inferd_runtime.draft_models.options import DraftOptions, read_drafts
from inferd_runtime.engine.scheduling.tenants import Tenancy
from inferd_runtime.models.adapter_options import AdapterOptions, read_adapters
from inferd_runtime.models.options import ModelOptions, read_models
from inferd_runtime.sandbox.messages import Limits
from inferd_runtime.settings.setting import NOT_NEGATIVE, Check, SettingField, read_texts, setting, setting_fields

PORT = Check("be in 0..65535", lambda value: 0 <= value <= 65535)
SECRETS_FILE = "secrets.sqlite3"
CONTEXTS_FOLDER = "snapshots"
GPU_ROWS = 2048
"""Rows of a step on a GPU where nothing else is said: the most that are recorded."""
FIXED_ROWS = Check(f"be 0 or in 2..{MAX_DRAFT}", lambda value: value == 0 or 2 <= value <= MAX_DRAFT)


@dataclass(frozen=True, kw_only=True)
class EngineSettings:
    """How one engine process serves; it gets exactly this value, so no token may stand here.

    The last three fields cannot be set from outside: ``tenancy`` is read from the tokens file, ``snapshots`` is the folder of
    saved contexts (None: none are kept), ``plain`` runs transformers' own modules even where there is a fused pass.
    """

    model: tuple[ModelOptions, ...] = setting(
        (ModelOptions("tiny"),),
        "tiny (embedded), what `inferd pull` brought, a folder, a .gguf file, or a name on the hub, with options of its "
        "own: tiny,dtype=bfloat16,pages=64; "
        "several models: give it several times, the first is the default",
        read=read_models,
    )
    device: str = setting("cpu", "cpu, cuda or cuda:N, for models that say nothing else")
    dtype: str = setting(
        "",
        "float32, bfloat16, float16 or auto; default: on the CPU float32, with rows of 16 bits before weights in blocks (as a "
        "GGUF file's) where those are faster, else the checkpoint's own; auto: on the CPU bfloat16 where the checkpoint is in it "
        "and that was measured to be faster",
    )
    weights: Literal["", "half", "fp8", "int8", "int4"] = setting(
        "",
        "how weights are held: half, int8 or int4 on the CPU, fp8, int8 or int4 on a GPU; default: exactly, on the CPU in the "
        "form measured to be fastest",
    )
    activations: Literal["", "int8"] = setting(
        "",
        "int8: on the CPU rows are rounded to 8 bits for each group of inputs before weights in blocks (a GGUF file's, or by "
        "--weights int4 or int8), as llama.cpp does; default: to 16 bits at most",
    )
    threads: int | None = setting(None, "threads of the engine; default: by the models' sizes")
    pages: int | None = setting(None, "pages of the KV cache; default: by the memory that is free")
    page_size: int = setting(16, "tokens per page")
    token_budget: int | None = setting(None, "tokens that one step may feed; default: 512, for a model on a GPU 2048")
    swap_mb: int = setting(
        256, "MiB of host memory for contexts that had to leave the cache; 0: they are computed again", NOT_NEGATIVE
    )
    fixed_rows: int = setting(
        0,
        "rows that every sequence computes in each step, so that drafts change no bit; 0: as many as it needs",
        FIXED_ROWS,
    )
    tensor_parallel: int = setting(
        1, "processes that the model is divided between, each with its own GPU or a part of the CPU"
    )
    kv_dtype: Literal["model", "fp8"] = setting(
        "model", "model or fp8: of the KV cache; fp8 halves the cache of a 16-bit model and rounds"
    )
    graphs: Literal["on", "off"] = setting("on", "on or off: whether steps are recorded as CUDA graphs, on a GPU")
    products: Literal["auto", "torch", "kernel"] = setting(
        "auto", "auto, torch or kernel: what multiplies up to 16 rows on a GPU; auto times both at load"
    )
    timings: bool = setting(False, "true: log how long each phase of the start took")
    check: bool = setting(False, "true: look for leaked pages whenever the engine is idle")
    speculation: Literal["on", "off"] = setting(
        "on", "on or off: whether to draft for generations that leave it to the operator"
    )
    tool_format: Literal[
        "auto", "hermes", "llama3", "mistral", "mistral_args", "qwen3_coder", "deepseek_v3", "deepseek_v31", "granite",
        "phi4", "nemotron", "jamba", "seed_oss", "glm", "minimax_m2", "minicpm", "gigachat", "lfm2", "harmony", "json",
    ] = setting(
        "auto",
        "auto, hermes, llama3, mistral, mistral_args, qwen3_coder, deepseek_v3, deepseek_v31, granite, phi4, nemotron, jamba, "
        "seed_oss, glm, minimax_m2, minicpm, gigachat, lfm2, harmony or json: how the models write calls of tools; auto: as "
        "their chat templates do",
    )  # fmt: skip
    adapter: tuple[AdapterOptions, ...] = setting(
        (),
        "NAME=FOLDER[,model=MODEL]: a LoRA adapter in PEFT's format for every tenant; may be given several times",
        read=read_adapters,
    )
    draft: tuple[DraftOptions, ...] = setting(
        (),
        "NAME[,for=MODEL][,process=true][,at=HOST:PORT[,tls=true|false]][,timeout_ms=N][,choice=thompson|ucb]: a draft "
        "model, with a model's options; `at` is where `inferd serve-draft` runs; may be given several times",
        read=read_drafts,
    )
    max_adapters: int = setting(8, "adapters that a tenant may have loaded at a time")
    max_adapter_bytes: int = setting(256 << 20, "bytes of the files of one adapter that a tenant loads")
    max_adapter_rank: int = setting(256, "the largest rank of an adapter that a tenant loads")
    snapshot_bytes: int = setting(10 << 30, "bytes that a tenant's saved contexts may take on disk")
    engine_read: tuple[str, ...] = setting(
        (),
        "a folder or file that engine processes may read, beside models, adapters, caches, Python and the system's "
        "libraries; may be given several times",
        read=read_texts,
    )
    engine_write: tuple[str, ...] = setting(
        (),
        "a folder, file or device that engine processes may write to, beside caches, temporary files and the usual "
        "devices; / lets them write anywhere; may be given several times",
        read=read_texts,
    )
    tenancy: Tenancy = field(default_factory=Tenancy)
    snapshots: Path | None = None
    plain: bool = False

    def budget_on(self, device: str) -> int:
        """Return the tokens of a step of a model on that device. Of a large step a GPU computes each token in less time."""
        if self.token_budget is not None:
            return self.token_budget
        return GPU_ROWS // max(1, self.fixed_rows) if device.startswith("cuda") else 512

    @property
    def defaults(self) -> ModelOptions:
        """Return the options of models that say nothing else."""
        return ModelOptions("", self.dtype, self.device, self.pages or 0, self.weights, self.activations)

    @property
    def models(self) -> tuple[ModelOptions, ...]:
        """Return the models, the default one first, with what they leave to the other settings."""
        return tuple(model.over(self.defaults) for model in self.model)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings of one command. A client looks for its server at ``url``, else where this user's own server says it is,
    else at ``host`` and ``port``.
    """

    engine: EngineSettings = field(default_factory=EngineSettings)
    tenant_pages: int | None = setting(
        None, "pages that a tenant may hold, where the tokens file says nothing else; default: no limit"
    )
    host: str = setting("127.0.0.1", "the address to listen on, or to look for a server at")
    port: int = setting(7070, "the port of that address; a server takes any free one for 0", PORT)
    url: str | None = setting(None, "the server's address")
    token: str | None = setting(
        None, "the access token; a server's own, for the tenant `default`, is generated where it has none"
    )
    tokens_file: Path | None = setting(
        None, "lines of `token tenant [role=admin] [QUOTA=VALUE]...`; nobody else may be able to read it"
    )
    tls_cert: Path | None = setting(None, "a certificate with its chain, in PEM format: the server speaks TLS")
    tls_key: Path | None = setting(None, "the certificate's private key; nobody else may be able to read it")
    ca: Path | None = setting(
        None,
        "certificates in PEM format that a client, or a server of its draft engines, trusts instead of the system's",
    )
    draft_key_file: Path | None = setting(
        None, "a file with the key that `inferd serve-draft` and its targets share; nobody else may be able to read it"
    )
    insecure: bool = setting(False, "true: listen without TLS where other machines can connect, as behind a proxy")
    metrics_for: Literal["admin", "all"] = setting("admin", "admin or all: whose token opens /metrics")
    audit_log: Path | None = setting(
        None, "a file that gets a line of JSON for each request: who, what, from where, and what came of it"
    )
    cors_origin: tuple[str, ...] = setting(
        (),
        "https://app.example or the like: an origin whose pages may call this server from a browser; *: any; may be given "
        "several times",
        read=read_texts,
    )
    quota: tuple[str, ...] = setting(
        (),
        "user,NAME=VALUE,..., admin,... or tenant:TENANT,...: what a role or a tenant may have (0: no limit); may be given "
        "several times",
        read=read_texts,
    )
    http_allow: tuple[str, ...] = setting(
        (),
        "WHO,ORIGIN,...[,private=RANGE]: whom programs may fetch from; WHO: all, admin, user or tenant:TENANT; ORIGIN: "
        "api.example.com, *.example.com, *, with http:// before or :PORT behind; RANGE: addresses that are allowed though they "
        "are not public, as 10.0.0.0/8; may be given several times; default: nobody",
        read=read_texts,
    )
    http_body_bytes: int = setting(64 << 20, "bytes of a response's body that a program fetches, decompressed")
    http_ca: Path | None = setting(
        None, "certificates in PEM format that fetches of programs trust beside the system's"
    )
    secrets_file: Path | None = setting(
        None, "the file of `inferd secret`; servers may share it; default: secrets.sqlite3 in the data folder"
    )
    mcp_file: Path | None = setting(
        None, 'a JSON file of MCP servers, {"mcpServers": {NAME: ...}}; nobody else may be able to read it'
    )
    mcp_memory_mb: int = setting(
        4096, "MiB that a tenant's MCP servers, which the operator named, may take together with all that they start"
    )
    chat_program: str = setting(
        "", "NAME or NAME@VERSION: a tenant's own program of that name answers its chat requests, not the built-in one"
    )
    alias: tuple[str, ...] = setting(
        (),
        "NAME=MODEL: another name under which LLM clients may ask for a model, or an adapter, that is served, as gpt-4o=tiny; "
        "may be given several times",
        read=read_texts,
    )
    models_bytes: int = setting(0, "bytes that pulled models may take on disk; 0: no limit", NOT_NEGATIVE)
    packages: Literal["pure", "none"] = setting(
        "pure",
        "pure or none: whether uploaded programs may depend on packages in Python alone, which are found with pip as it is "
        "configured",
    )
    data_dir: Path = setting(Path("~/.local/share/inferd"), "where uploaded programs and saved contexts are kept")
    context_dir: Path | None = setting(
        None, "where saved contexts are kept, instead of in the data folder: servers of this machine may share it"
    )
    context_store: str = setting(
        "",
        "s3://bucket/folder, gs://..., file:///mnt/shared or another URL of fsspec: where saved contexts are kept instead, so "
        "that servers of several machines share them",
    )
    context_store_options: Path | None = setting(
        None,
        "a file of JSON with arguments of that store's fsspec backend, such as keys; nobody else may be able to read it",
    )
    context_store_s: float = setting(60.0, "seconds that a request to that store may take")
    state_dir: Path = setting(
        Path("~/.local/state/inferd"), "where a server leaves its address and token for this user's commands"
    )
    require_isolation: bool = setting(
        False, "true: start nothing where one of the layers between workers and the machine is not to be had"
    )
    workers: int = setting(1, "sandbox workers to keep running")
    max_workers: int = setting(8, "sandbox workers at most; half of them are kept for tenants that have none")
    runs_per_worker: int = setting(512, "runs of one tenant that a worker takes at a time")
    worker_memory_mb: int | None = setting(
        None, "MiB that all runs of a worker may map for writing; default: twice what the machine has"
    )
    max_waiting: int = setting(
        1024, "runs that may wait for a worker; a quarter of the places is kept for tenants that have none"
    )
    max_connections: int = setting(
        4096,
        "open connections at most, of which half is kept for tenants that have none; fewer where the system "
        "allows fewer open files",
    )
    max_sockets: int = setting(
        1024, "open sessions of scripts and of LLM clients' requests, of which half is kept for tenants that have none"
    )
    max_body_total: int = setting(64 << 20, "bytes of all requests' bodies that are read at a time")
    header_s: float = setting(10.0, "seconds that a client may take for a TLS handshake, or to send a request's head")
    body_s: float = setting(60.0, "seconds that a client may take to send a request's body")
    keep_alive_s: float = setting(15.0, "seconds that a connection without a request stays open")
    unread_s: float = setting(30.0, "seconds that a client may leave an answer unread")
    engine_start_s: float = setting(600.0, "seconds that the engine may take to start")
    worker_start_s: float = setting(120.0, "seconds that a worker may take to start")
    idle_minutes: float = setting(
        0.0, "minutes without a connection or a run after which a server ends by itself; 0: it never does", NOT_NEGATIVE
    )
    server: Literal["own", "auto"] = setting(
        "own",
        "own or auto: whether `inferd run` starts a runtime of its own although a server of this user has the model",
    )
    keep_warm: float = setting(
        0.0,
        "minutes that the model stays loaded after `inferd run`, for the next one with the same settings",
        NOT_NEGATIVE,
    )
    drain_seconds: float = setting(
        30.0,
        "seconds that runs and answers to LLM clients have to end once a server is to stop; then they are cancelled",
        NOT_NEGATIVE,
    )
    wall_s: float = setting(300.0, "seconds that the run may take", flag="--limit-wall")
    cpu_s: float = setting(30.0, "seconds of processor time that the program may use", flag="--limit-cpu")
    memory_mb: int = setting(256, "MiB of memory that the program may use", flag="--limit-memory")
    output_bytes: int = setting(4 << 20, "bytes that the program may print", flag="--limit-output")
    output_events: int = setting(
        50_000, "pieces that the program's output may come in, messages included", flag="--limit-events"
    )
    max_wall_s: float = setting(3600.0, "the highest wall_s that a run over the network may ask for")
    max_cpu_s: float = setting(600.0, "the highest cpu_s that a run over the network may ask for")
    max_memory_mb: int = setting(1024, "the highest memory_mb that a run over the network may ask for")
    max_output_bytes: int = setting(64 << 20, "the highest output_bytes that a run over the network may ask for")
    max_output_events: int = setting(1_000_000, "the highest output_events that a run over the network may ask for")
    log_format: Literal["console", "json"] = setting(
        "console", "console or json: how log lines are written, with the ids of run, request and tenant"
    )
    log_level: Literal["debug", "info", "warning", "error"] = setting(
        "info", "debug, info, warning or error: the least that is logged; debug has a line for each request"
    )
    otel_endpoint: str | None = setting(
        None, "where traces of runs are sent by OTLP over HTTP: http://HOST:4318/v1/traces; needs inferd[otel]"
    )
    max_body_bytes: int = setting(4 << 20, "bytes of a request's body")
    run_event_bytes: int = setting(1 << 20, "bytes of events that are kept of one run")

    @property
    def secrets(self) -> Path:
        """Return the file of secrets that programs use by name."""
        return (self.secrets_file or self.data_dir / SECRETS_FILE).expanduser().absolute()

    @property
    def contexts(self) -> Path:
        """Return the folder of saved contexts, where no store that servers share has them."""
        return (self.context_dir or self.data_dir / CONTEXTS_FOLDER).expanduser().absolute()

    @property
    def shared_context_dir(self) -> Path | None:
        """Return the ``context_dir`` of a server with another data folder that is to find the same saved contexts."""
        return None if self.context_store else self.contexts

    @property
    def limits(self) -> Limits:
        """Return what a run may use if its launch says nothing else."""
        return Limits(self.wall_s, self.cpu_s, self.memory_mb, self.output_bytes, self.output_events)

    @property
    def max_limits(self) -> Limits:
        """Return what a run that comes over the network may ask for."""
        return Limits(
            self.max_wall_s, self.max_cpu_s, self.max_memory_mb, self.max_output_bytes, self.max_output_events
        )


ENGINE_FIELDS: Mapping[str, SettingField] = {field.name: field for field in setting_fields(EngineSettings)}
OTHER_FIELDS: Mapping[str, SettingField] = {field.name: field for field in setting_fields(Settings)}
FIELDS: Mapping[str, SettingField] = {**ENGINE_FIELDS, **OTHER_FIELDS}
"""Every setting by its name. The flags of a run's limits differ from their names: a program's own parameters may well be
called like these."""
