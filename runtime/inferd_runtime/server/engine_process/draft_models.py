"""From the settings' draft models to served models that draft: their settings, threads, processes and vocabularies."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

from inferd_grammar import TokenTable
from inferd_runtime.draft_models.draft_host import DraftHost
from inferd_runtime.draft_models.drafter import DraftModelLink
from inferd_runtime.draft_models.models import DraftModels, connect
from inferd_runtime.draft_models.options import DraftOptions, choices_of
from inferd_runtime.draft_models.thread import DraftThread
from inferd_runtime.engine.scheduling.tenants import Tenancy
from inferd_runtime.server.engine_process.command import NO_SECRETS, DraftSecrets
from inferd_runtime.server.engine_process.draft_link import ProcessDrafts
from inferd_runtime.server.engine_process.network_drafts import at_address
from inferd_runtime.server.engine_process.vocabularies import vocabulary_of
from inferd_runtime.session.served_model import ServedModel
from inferd_runtime.settings.settings import EngineSettings
from inferd_runtime.speculation.bandit import Bandit, Thompson, UcbTuned
from inferd_runtime.speculation.bridge import Vocabulary

BANDITS: Mapping[str, Callable[[int], Bandit]] = {"thompson": Thompson, "ucb": UcbTuned}


@dataclass(frozen=True)
class ReadyDraft:
    """A loaded draft model, the transport to it and its vocabulary."""

    options: DraftOptions
    link: DraftModelLink
    vocabulary: Vocabulary


def draft_engine_settings(settings: EngineSettings) -> EngineSettings:
    """Return how a draft model's engine serves beside an engine of ``settings``.

    Contexts that leave its cache are computed again. Tenants keep their weights but have no quota, because a draft costs its
    own target's tenants nothing but time.
    """
    tenancy = settings.tenancy
    named = {name: replace(limits, kv_pages=0) for name, limits in tenancy.named.items()}
    own = Tenancy(replace(tenancy.default, kv_pages=0), named)
    return replace(settings, swap_mb=0, fixed_rows=0, tensor_parallel=1, tenancy=own)


def draft_process_settings(settings: EngineSettings, draft: DraftOptions) -> EngineSettings:
    """Return the settings of a draft model's own process."""
    model = draft.model.over(settings.defaults)
    products = "auto" if model.device == "cpu" else settings.products
    own = draft_engine_settings(settings)
    return replace(own, model=(model,), products=products, adapter=(), draft=(), snapshots=None)


def in_thread(options: DraftOptions, served: ServedModel, prepare: Callable[[], None]) -> ReadyDraft:
    """Run a loaded draft model in a thread of its own; ``prepare`` runs there first."""
    transport = DraftThread(DraftHost(served.engine, served.tokenizer.eos_tokens), prepare)
    link = DraftModelLink(transport, served.info.max_context, options.timeout_ms / 1000)
    return ReadyDraft(options, link, vocabulary_of(served.grammars.table))


def in_process(options: DraftOptions, settings: EngineSettings) -> ReadyDraft:
    """Start a draft model in a process of its own with these settings, and wait until it is loaded.

    Raises the InferdError that the process ended with.
    """
    transport = ProcessDrafts(settings)
    with ExitStack() as undo:
        undo.callback(transport.close)
        known = transport.describe()
        table = TokenTable.from_tokenizer_json(known.tokenizer, vocab_size=known.vocab_size, eos_ids=known.eos_tokens)
        undo.pop_all()
    return ReadyDraft(
        options, DraftModelLink(transport, known.max_context, options.timeout_ms / 1000), vocabulary_of(table)
    )


def attach(
    served: Sequence[ServedModel],
    drafts: Sequence[ReadyDraft],
    elsewhere: Sequence[DraftOptions] = (),
    secrets: DraftSecrets = NO_SECRETS,
) -> list[ServedModel]:
    """Return the served models, each with its draft models: the loaded ones, and those at draft engines ``elsewhere``.

    Raises as :func:`~inferd_runtime.draft_models.options.choices_of`, and Unavailable for a draft engine that refuses.
    """
    names = [model.info.name for model in served]
    choices = choices_of([*(draft.options for draft in drafts), *elsewhere], names)
    attached = []
    for model in served:
        own = [draft for draft in drafts if draft.options.target_among(names) == model.info.name]
        away = [draft for draft in elsewhere if draft.target_among(names) == model.info.name]
        if own or away:
            target = vocabulary_of(model.grammars.table)
            models = [connect(one.options.model.name, one.link, target, one.vocabulary) for one in own]
            remote = [at_address(one, target, secrets) for one in away]
            model = replace(model, drafts=DraftModels([*models, *remote], bandit=BANDITS[choices[model.info.name]]))
        attached.append(model)
    return attached
