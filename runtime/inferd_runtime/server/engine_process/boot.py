"""The engine process: owns the model and its device, serves sessions over ZeroMQ, one thread, one loop."""

from __future__ import annotations

import argparse
import math
import os
import signal
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import zmq

from inferd.protocol import InferdError, InvalidRequest, ModelInfo, NotFound
from inferd_grammar import GrammarCompiler, TokenTable
from inferd_grammar.trials.pool import TrialPool
from inferd_runtime.draft_models.options import DraftOptions, choices_of, read_drafts
from inferd_runtime.engine.adapters import AdapterLimits, AdapterSet
from inferd_runtime.engine.engine import Engine, EngineOptions
from inferd_runtime.engine.scheduling.costs import MEASURED_ROWS, measure_cost, measure_times
from inferd_runtime.engine.scheduling.tenants import Tenancy
from inferd_runtime.kv.snapshots import SnapshotStore
from inferd_runtime.models.adapter_options import AdapterOptions, read_adapters
from inferd_runtime.models.fitting.fit import Placed, check_fit, divide_with_drafts
from inferd_runtime.models.lora.files import AdapterFiles
from inferd_runtime.models.options import ModelOptions, read_models
from inferd_runtime.server.engine_process.draft_models import attach, in_process, in_thread
from inferd_runtime.server.engine_process.followers import Followers
from inferd_runtime.session.constraints.compile_queue import CompileQueue
from inferd_runtime.session.hub import SessionHub
from inferd_runtime.session.served_model import Lookups, ServedModel
from inferd_runtime.speculation.corpus import Corpora

if TYPE_CHECKING:
    from inferd_runtime.engine.drivers.build import DeviceDriver, DriverOptions
    from inferd_runtime.engine.drivers.parallel import LeadingDriver
    from inferd_runtime.models.loading import LoadedModel

MESSAGES_PER_STEP = 256
IDLE_SECONDS = 1.0
BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True)
class EngineSettings:
    """How one engine process serves, and where; ``model`` to ``dtype`` and ``pages`` hold for models that say nothing else.

    ``threads`` 0 and ``pages`` 0 choose by the models' sizes, ``dtype`` "" as :func:`~inferd_runtime.models.loading.load`.
    ``tensor_parallel``: over how many ranks the model is divided. ``plain``: run transformers' own modules even where there is
    a fused pass. ``check``: re-add page ownership when idle.
    ``fixed_rows``: see :class:`~inferd_runtime.engine.engine.EngineOptions`. ``speculation`` on or off: whether to draft for
    generations that leave it to the operator.
    ``snapshots``: the folder for saved contexts, at most ``snapshot_bytes`` of each tenant; "" keeps none.
    """

    endpoint: str
    model: str = "tiny"
    device: str = "cpu"
    dtype: str = ""
    threads: int = 0
    pages: int = 0
    page_size: int = 16
    token_budget: int = 512
    swap_mb: int = 256
    fixed_rows: int = 0
    tensor_parallel: int = 1
    kv_dtype: str = "model"
    graphs: str = "on"
    products: str = "auto"
    tenancy: Tenancy = field(default_factory=Tenancy)
    plain: bool = False
    check: bool = False
    speculation: str = "on"
    snapshots: str = ""
    snapshot_bytes: int = 10 << 30
    drafts: tuple[DraftOptions, ...] = ()
    adapters: tuple[AdapterOptions, ...] = ()
    adapter_limits: AdapterLimits = field(default_factory=AdapterLimits)


def serve_model(settings: EngineSettings) -> ServedModel:
    """Load the model of ``settings`` and build its engine. Raises InferdError."""
    return serve_models(settings, (ModelOptions(settings.model),))[0]


def serve_models(
    settings: EngineSettings,
    models: Sequence[ModelOptions],
    trials: TrialPool | None = None,
    followers: Followers | None = None,
) -> list[ServedModel]:
    """Load models and build their engines, with their draft models. What a model does not say itself, ``settings`` say.

    Constraints are compiled without a limit unless there are ``trials``. The ranks of a divided model end with this process;
    who gives ``followers`` can end them before.
    Raises InferdError; LimitExceeded before any weight is read when the models do not fit together.
    """
    import torch
    from transformers.utils.logging import disable_progress_bar

    from inferd_runtime.models.fitting.sizing import default_threads
    from inferd_runtime.models.loading import load

    names = [model.name for model in models]
    owners = [(draft, names.index(draft.target_among(names))) for draft in settings.drafts]
    choices_of(settings.drafts, names)  # refused before anything is loaded
    beside = [(draft, owner) for draft, owner in owners if not draft.process]
    disable_progress_bar()  # type: ignore[no-untyped-call]
    torch.set_num_threads(settings.threads or 1)
    defaults = ModelOptions("", settings.dtype, settings.device, settings.pages)
    chosen = [model.over(defaults).checked() for model in (*models, *(draft.model for draft, _ in beside))]
    followers = followers or Followers(settings.tensor_parallel)
    placed = _place(settings, chosen[: len(models)], chosen[len(models) :], followers)
    loaded = [followers.load(chosen[0], settings.threads)]
    loaded += [load(model.name, device=model.device, dtype=model.dtype) for model in chosen[1:]]
    torch.set_num_threads(settings.threads or followers.each(max(default_threads(model.module) for model in loaded)))
    placed = [model.with_kv(_kv_token_bytes(settings, probed)) for model, probed in zip(placed, loaded, strict=True)]
    placed[0] = followers.loaded(placed[0])
    free = _free(settings, loaded, followers.available)
    pages = divide_with_drafts(placed, [owner for _, owner in beside], free, settings.page_size)
    builder = ThreadPoolExecutor(1, "index")
    each = [settings] * len(models) + [for_drafts(settings)] * len(beside)
    drivers = [_driver(*one, followers) for one in zip(each, loaded, pages, strict=True)]
    served = [_build(*one, trials, builder) for one in zip(each, loaded, drivers, strict=True)]
    load_adapters(settings.adapters, served[: len(models)])
    ready = [
        in_thread(draft, model, partial(torch.set_num_threads, settings.threads or default_threads(one.module)))
        for (draft, _), model, one in zip(beside, served[len(models) :], loaded[len(models) :], strict=True)
    ]
    ready += [in_process(draft, process_flags(settings, draft)) for draft in settings.drafts if draft.process]
    return attach(served[: len(models)], ready)


def _place(
    settings: EngineSettings, models: Sequence[ModelOptions], drafts: Sequence[ModelOptions], followers: Followers
) -> list[Placed]:
    """What each model takes, and where, as far as that is known before it is loaded.

    Raises InvalidRequest for what does not go together, LimitExceeded for models that do not fit together.
    """
    from inferd_runtime.models.fitting.inspection import available_bytes, check_device, measure

    if settings.products == "kernel" and (settings.tensor_parallel > 1 or all(one.device == "cpu" for one in models)):
        raise InvalidRequest("--products kernel is for models on a GPU, each in one process")
    fp8 = settings.kv_dtype == "fp8"
    followers.check(models, adapters=bool(settings.adapters), fixed_rows=settings.fixed_rows > 0, fp8=fp8)
    placed = [Placed(measure(model), check_device(model.device), model.pages) for model in (*models, *drafts)]
    if fp8:
        placed = [model.with_kv(model.size.kv_token_bytes // BYTES[model.size.dtype]) for model in placed]
    placed[0] = followers.placed(placed[0])
    check_fit(placed, available_bytes, settings.page_size)
    return placed


def for_drafts(settings: EngineSettings) -> EngineSettings:
    """How a draft model's engine differs: contexts that leave its cache are computed again, and tenants keep their weights
    but have no quota, because a draft costs its own target's tenants nothing but time.
    """
    tenancy = settings.tenancy
    named = {name: replace(limits, kv_pages=0) for name, limits in tenancy.named.items()}
    own = Tenancy(replace(tenancy.default, kv_pages=0), named)
    return replace(settings, swap_mb=0, fixed_rows=0, tensor_parallel=1, tenancy=own)


def process_flags(settings: EngineSettings, draft: DraftOptions) -> list[str]:
    """The command line of a draft model's own process."""
    model = draft.model.over(ModelOptions("", settings.dtype, settings.device, settings.pages))
    flags = [
        "--model",
        str(model),
        "--page-size",
        str(settings.page_size),
        "--token-budget",
        str(settings.token_budget),
    ]
    flags += ["--tenancy", msgspec.json.encode(for_drafts(settings).tenancy).decode()]
    flags += ["--plain"] if settings.plain else []
    products = "auto" if model.device == "cpu" else settings.products
    flags += ["--kv-dtype", settings.kv_dtype, "--graphs", settings.graphs, "--products", products]
    return flags + (["--threads", str(settings.threads)] if settings.threads else [])


def _kv_token_bytes(settings: EngineSettings, loaded: LoadedModel) -> int:
    """One token's keys and values in all layers, as the probe saw them; the estimate may have had to guess."""
    from inferd_runtime.engine.drivers.build import element_size

    return loaded.probe.kv.bytes_per_token(element_size(loaded, _driver_options(settings, 1)))


def _driver_options(settings: EngineSettings, pages: int) -> DriverOptions:
    """What the driver is told. There is room for the steps by which the cost model is measured, too."""
    from inferd_runtime.engine.drivers.build import DriverOptions

    return DriverOptions(
        pages,
        settings.page_size,
        most_rows=max(MEASURED_ROWS, settings.token_budget * max(1, settings.fixed_rows)),
        plain=settings.plain,
        fixed_rows=settings.fixed_rows,
        kv_dtype="" if settings.kv_dtype == "model" else settings.kv_dtype,
        graphs=settings.graphs == "on",
        products=settings.products,
    )


def _free(
    settings: EngineSettings, loaded: Sequence[LoadedModel], available: Callable[[str], int]
) -> Callable[[str], int]:
    """Bytes for KV pages by device: what is available, less what steps will take beside."""
    from inferd_runtime.engine.drivers.build import step_bytes

    taken: Counter[str] = Counter()
    for model in loaded:
        device = next(model.module.parameters()).device
        taken[str(device)] += step_bytes(model, _driver_options(settings, 1))
    return lambda device: max(0, available(device) - taken[device])


def _driver(
    settings: EngineSettings, loaded: LoadedModel, pages: int, followers: Followers
) -> DeviceDriver | LeadingDriver:
    """The driver of a loaded model."""
    if settings.tensor_parallel > 1:
        return followers.lead(loaded, pages, settings.page_size)
    from inferd_runtime.engine.drivers.build import build_driver

    return build_driver(loaded, _driver_options(settings, pages))


def _build(
    settings: EngineSettings,
    loaded: LoadedModel,
    driver: DeviceDriver | LeadingDriver,
    trials: TrialPool | None,
    builder: Executor,
) -> ServedModel:
    """The engine, page pool and grammar compiler of a loaded model."""
    table = TokenTable.from_tokenizer_json(
        loaded.tokenizer.json, vocab_size=loaded.vocab_size, eos_ids=loaded.tokenizer.eos_tokens
    )
    info = ModelInfo(
        loaded.name, loaded.vocab_size, loaded.max_context, settings.page_size,
        list(loaded.tokenizer.eos_tokens), loaded.fingerprint,
    )  # fmt: skip
    cost, times = measure_cost(driver), measure_times(driver)
    options = EngineOptions(
        settings.token_budget, settings.swap_mb << 20, settings.tenancy, cost, settings.fixed_rows, times
    )
    engine = Engine(driver, options)
    adapters = AdapterSet(driver, settings.adapter_limits)
    compiler = GrammarCompiler(table, trials=trials)
    return ServedModel(
        info, engine, loaded.tokenizer, compiler, adapters,
        auto_speculation=settings.speculation == "on", lookups=Lookups(builder, Corpora(builder)),
    )  # fmt: skip


def load_adapters(adapters: Sequence[AdapterOptions], models: Sequence[ServedModel]) -> None:
    """Load the operator's adapters. Raises InferdError that names the adapter."""
    for adapter in adapters:
        model = next((model for model in models if adapter.model in ("", model.info.name)), None)
        if model is None:
            raise NotFound(f"adapter {adapter.name!r}: no model {adapter.model!r} is served")
        try:
            model.adapters.load(None, adapter.name, AdapterFiles.read(adapter.folder))
        except InvalidRequest as error:
            raise InvalidRequest(f"adapter {adapter.name!r}: {error.message}") from error


def run(settings: EngineSettings, models: Sequence[ModelOptions]) -> None:
    """Bind, load, serve until SIGTERM or SIGINT. The first model is the default one."""
    context: zmq.Context[Any] = zmq.Context()
    socket = context.socket(zmq.ROUTER)
    socket.setsockopt(zmq.LINGER, 0)
    socket.bind(settings.endpoint)
    stopping: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda received, _frame: stopping.append(received))
    trials = TrialPool((sys.executable, "-m", "inferd_runtime.server.processes.tether", str(os.getpid())))
    followers = Followers(settings.tensor_parallel)
    served = serve_models(settings, models, trials, followers)
    by_name = {model.info.name: model for model in served}
    store = SnapshotStore(Path(settings.snapshots), settings.snapshot_bytes) if settings.snapshots else None
    compiles = CompileQueue(trials)
    hub = SessionHub(by_name, lambda identity, frames: socket.send_multipart([identity, *frames]), store, compiles)
    poller = zmq.Poller()
    drafts = [model.drafts for model in served if model.drafts is not None]
    for source in (socket, store, compiles, *(source for one in drafts for source in one.waits_on)):
        if source is not None:
            poller.register(source, zmq.POLLIN)
    busy = False
    parent = os.getppid()
    while not stopping and os.getppid() == parent:
        rest = 0.0 if busy else min([IDLE_SECONDS, *(one.patience(IDLE_SECONDS) for one in drafts)])
        if poller.poll(math.ceil(1000 * rest)):
            receive(socket, hub)
        elif rest == IDLE_SECONDS:
            compiles.warm([model.grammars for model in served])  # not at the start: others need the processors then
        if store is not None:
            store.poll()
        compiles.poll()
        for one in drafts:
            one.poll()
        busy = step(served)
        if settings.check and not busy:
            for model in served:
                model.engine.pool.check_integrity(hub.held_pages(model))
                model.engine.check_integrity()
    hub.close_all()
    for model in served:
        model.engine.close()
    compiles.close()
    for one in drafts:
        one.close()
    followers.close()
    if store is not None:
        store.close()
    socket.close()
    context.term()


def step(models: Sequence[ServedModel]) -> bool:
    """One step of every model's engine. False when nobody wanted anything of any of them."""
    progressed = [model.engine.step() for model in models]
    return any(progressed)


def receive(socket: zmq.Socket[bytes], hub: SessionHub) -> None:
    """Take the messages that have arrived, but not so many that the running streams would wait."""
    for _ in range(MESSAGES_PER_STEP):
        try:
            identity, *frames = socket.recv_multipart(zmq.NOBLOCK)
        except zmq.Again:
            return
        hub.receive(identity, frames)


def main(argv: Sequence[str] | None = None) -> int:
    """``python -m inferd_runtime.server.engine_process.boot --endpoint ipc://... --model tiny``.

    An error ends it with exit code 2, and is the last line that it prints, as JSON: the supervisor reads it.
    """
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--endpoint", required=True)
    parser.add_argument("--model", action="append", metavar="NAME[,OPTION=VALUE]", help="may be given several times")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="")
    for name, value in (
        ("threads", 0),
        ("pages", 0),
        ("page-size", 16),
        ("token-budget", 512),
        ("swap-mb", 256),
        ("fixed-rows", 0),
        ("tensor-parallel", 1),
    ):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--tenancy", type=partial(msgspec.json.decode, type=Tenancy), default=Tenancy(), help="JSON")
    parser.add_argument("--kv-dtype", choices=("model", "fp8"), default="model", help="of the KV cache")
    parser.add_argument("--graphs", choices=("on", "off"), default="on", help="whether steps are recorded on a GPU")
    ways = ("auto", "torch", "kernel")
    parser.add_argument("--products", choices=ways, default="auto", help="what multiplies up to 16 rows on a GPU")
    parser.add_argument("--plain", action="store_true", help="run transformers' own modules, never the fused pass")
    parser.add_argument("--check", action="store_true", help="re-add page ownership whenever the engine is idle")
    parser.add_argument("--speculation", choices=("on", "off"), default="on", help='for system_speculation="auto"')
    parser.add_argument(
        "--snapshots", default="", metavar="DIR", help="where saved contexts are kept; without it, none are"
    )
    parser.add_argument("--snapshot-bytes", type=int, default=10 << 30, help="bytes of snapshots for each tenant")
    parser.add_argument("--draft", action="append", metavar="NAME[,OPTION=VALUE]", help="a draft model; as --model")
    parser.add_argument("--adapter", action="append", metavar="NAME=FOLDER[,model=MODEL]", help="as --model")
    for name, value in (("adapters", 8), ("adapter-bytes", 256 << 20), ("adapter-rank", 256)):
        parser.add_argument(f"--max-{name}", type=int, default=value)
    options = vars(parser.parse_args(argv))
    try:
        models = read_models(options.pop("model") or ["tiny"])
        adapters = read_adapters(options.pop("adapter") or [])
        drafts = read_drafts(options.pop("draft") or [])
        limits = AdapterLimits(*(options.pop(f"max_adapter{name}") for name in ("_rank", "_bytes", "s")))
        run(EngineSettings(**options, drafts=drafts, adapters=adapters, adapter_limits=limits), models)
    except InferdError as error:
        print(msgspec.json.encode(error.to_wire()).decode(), file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
