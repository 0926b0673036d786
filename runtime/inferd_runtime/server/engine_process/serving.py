"""From settings to served models: engines, grammar compilers, adapters and draft models around the drivers."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import replace
from functools import partial

from inferd.protocol import InvalidRequest, ModelInfo, NotFound
from inferd_grammar import GrammarCompiler, TokenTable
from inferd_grammar.trials.pool import TrialPool
from inferd_runtime.engine.adapters import AdapterLimits, AdapterSet
from inferd_runtime.engine.engine import Engine, EngineOptions
from inferd_runtime.engine.scheduling.fairness import LINGER_LEADS, FairClock
from inferd_runtime.engine.scheduling.tenants import Accounts, Tenancy
from inferd_runtime.models.adapter_options import AdapterOptions
from inferd_runtime.models.host_memory import reuse_freed
from inferd_runtime.models.lora.files import AdapterFiles
from inferd_runtime.models.parallel import use_threads
from inferd_runtime.phases import Phases
from inferd_runtime.server.engine_process.command import NO_SECRETS, DraftSecrets
from inferd_runtime.server.engine_process.draft_models import (
    ReadyDraft,
    attach,
    draft_process_settings,
    in_process,
    in_thread,
)
from inferd_runtime.server.engine_process.followers import Followers
from inferd_runtime.server.engine_process.model_loading import DrivenModel, ModelPlan, load_drivers, step_costs
from inferd_runtime.session.served_model import Lookups, ServedModel
from inferd_runtime.settings.settings import EngineSettings
from inferd_runtime.speculation.corpus import Corpora


def serve_model(settings: EngineSettings) -> ServedModel:
    """Load the default model of ``settings`` and build its engine. Raises InferdError."""
    return serve_models(settings)[0]


def serve_models(
    settings: EngineSettings,
    trials: TrialPool | None = None,
    followers: Followers | None = None,
    clock: FairClock[str] | None = None,
    phases: Phases | None = None,
    drafts: DraftSecrets = NO_SECRETS,
) -> list[ServedModel]:
    """Load the models of ``settings`` and build their engines, with adapters and draft models.

    Constraints are compiled without a limit unless there are ``trials``. The ranks of a divided model end with this process;
    a caller that passes ``followers`` can end them earlier. All served models share the tenants' ``clock``.
    ``phases`` records how long each part took. ``drafts``: the secrets of draft engines on other machines.
    Raises InferdError; LimitExceeded before any weight is read when the models do not fit together.
    """
    plan = ModelPlan.of(settings)
    phases = phases or Phases()
    driven = load_drivers(settings, plan, followers or Followers(settings.tensor_parallel), phases)
    reuse_freed()
    builder = ThreadPoolExecutor(1, "index")
    count = len(plan.served)
    clock = clock or tenants_clock(settings.tenancy)
    clocks = [clock] * count + [None] * (len(driven) - count)  # draft models have threads of their own
    served = [_build_served(model, trials, builder, own) for model, own in zip(driven, clocks, strict=True)]
    phases.end("costs of steps, constraints")
    load_adapters(settings.adapter, served[:count])
    threaded = [
        in_thread(draft, model, partial(use_threads, settings.threads or 0, one.loaded.module))
        for draft, model, one in zip(plan.drafts, served[count:], driven[count:], strict=True)
    ]
    elsewhere = [draft for draft in settings.draft if draft.at is not None]
    models = attach(served[:count], threaded + _draft_processes(settings), elsewhere, drafts)
    phases.end("adapters, draft models")
    return models


def load_adapters(adapters: Sequence[AdapterOptions], models: Sequence[ServedModel]) -> None:
    """Load the operator's adapters. Raises InferdError that names the adapter."""
    for adapter in adapters:
        model = next((model for model in models if adapter.model in ("", model.info.name)), None)
        if model is None:
            raise NotFound(f"adapter {adapter.name!r}: no model {adapter.model!r} is served")
        try:
            read = model.adapters.reader(None)(AdapterFiles.read(adapter.folder))
            model.adapters.load(None, adapter.name, read)
        except InvalidRequest as error:
            raise InvalidRequest(f"adapter {adapter.name!r}: {error.message}") from error


def _draft_processes(settings: EngineSettings) -> list[ReadyDraft]:
    apart = [draft for draft in settings.draft if draft.process]
    return [in_process(draft, draft_process_settings(settings, draft)) for draft in apart]


def tenants_clock(tenancy: Tenancy) -> FairClock[str]:
    """Return the clock of the tenants of one process."""
    return FairClock(Accounts(tenancy).weight, linger=LINGER_LEADS)


def _build_served(
    model: DrivenModel, trials: TrialPool | None, builder: Executor, clock: FairClock[str] | None
) -> ServedModel:
    """Build the engine, adapter set and grammar compiler of a loaded model."""
    settings, loaded = model.settings, model.loaded
    eos_tokens = loaded.tokenizer.eos_tokens
    loaded.tokenizer.prepare_template()
    table = TokenTable.from_tokenizer_json(loaded.tokenizer.json, vocab_size=loaded.vocab_size, eos_ids=eos_tokens)
    info = ModelInfo(
        loaded.name, loaded.vocab_size, loaded.max_context, settings.page_size, list(eos_tokens), loaded.fingerprint
    )
    engine = Engine(model.driver, replace(_engine_options(model), fairness=clock))
    limits = AdapterLimits(settings.max_adapter_rank, settings.max_adapter_bytes, settings.max_adapters)
    return ServedModel(
        info, engine, loaded.tokenizer, GrammarCompiler(table, trials=trials), AdapterSet(model.driver, limits),
        auto_speculation=settings.speculation == "on", lookups=Lookups(builder, Corpora(builder)), trees=model.trees,
        tool_format=settings.tool_format,
    )  # fmt: skip


def _engine_options(model: DrivenModel) -> EngineOptions:
    """Return the engine's options. What steps cost is measured, on a CPU once for all starts."""
    settings = model.settings
    cost, times = step_costs(model)
    return EngineOptions(
        settings.budget_on(model.options.device),
        settings.swap_mb << 20,
        settings.tenancy,
        cost,
        settings.fixed_rows,
        times,
    )
