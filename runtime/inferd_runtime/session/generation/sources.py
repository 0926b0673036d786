"""The sources that draft for a generation: those that its request asks for and the server has for the model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from inferd import protocol as p
from inferd_runtime.engine.sampling.host_sampling import RowSampler
from inferd_runtime.engine.sequences.cached_sequence import CachedSequence
from inferd_runtime.session.served_model import ServedModel
from inferd_runtime.speculation.drafter import Drafter, OfferedDraft
from inferd_runtime.speculation.ngram import NgramDrafter
from inferd_runtime.speculation.predicted import PredictedText
from inferd_runtime.speculation.sources import SourceSet

BY_DEFAULT = ("predicted", "grammar", "ngram", "draft_model")
"""The sources of a request that names none, by priority. Without the corpus, which learns from the request."""
DEFAULTS = p.SpeculationSettings()


@dataclass(frozen=True)
class SpeculationRequest:
    """The part of a checked request that is about drafting. ``names``: the sources that it may use, ``predicted``: the output's
    likely tokens. ``forced``: tokens that its constraint leaves no choice about are drafted.
    """

    names: Sequence[str]
    forced: bool
    predicted: Sequence[int]
    settings: p.SpeculationSettings

    @classmethod
    def of(cls, request: p.StartGenerate, model: ServedModel) -> SpeculationRequest:
        """Raises LimitExceeded if the prediction is longer than a context."""
        _check_length(len(request.predicted), model)
        settings = request.speculation or DEFAULTS
        if not model.trees:
            settings = replace(settings, tree=False)
        names: Sequence[str] = ()
        if request.system_speculation and (model.auto_speculation or not settings.auto):
            names = settings.sources or BY_DEFAULT
        return cls(names, "grammar" in names and request.constraint is not None, request.predicted, settings)


def _check_length(tokens: int, model: ServedModel) -> None:
    if tokens > model.info.max_context:
        raise p.LimitExceeded(
            f"the prediction holds {tokens} tokens, the model's context {model.info.max_context}",
            limit="predicted", value=model.info.max_context, raise_with="a shorter prediction",
        )  # fmt: skip


def build_sources(
    request: p.StartGenerate,
    model: ServedModel,
    context: CachedSequence,
    sampler: RowSampler,
    offered: OfferedDraft | None = None,
) -> SourceSet | None:
    """Return the sources of a checked request, ``offered`` (the program's own drafts) alone where there is one; None without.

    Raises InvalidRequest, NotFound or LimitExceeded.
    """
    if offered is not None:
        return model.engine.draft_budget.sources([offered], max_draft=p.MAX_DRAFT, forced=False)
    asked = SpeculationRequest.of(request, model)
    context.check_tokens(asked.predicted)
    drafters = list(open_drafters(asked, model, context, sampler))
    if not drafters and not asked.forced:
        return None
    return model.engine.draft_budget.sources(
        drafters, max_draft=asked.settings.max_draft, tree=asked.settings.tree, forced=asked.forced
    )


def open_drafters(
    asked: SpeculationRequest, model: ServedModel, context: CachedSequence, sampler: RowSampler
) -> Iterator[Drafter]:
    """Yield a drafter per source that the server has, by priority. Raises NotFound or InvalidRequest for a draft model."""
    settings, lookups = asked.settings, model.lookups
    if asked.predicted:
        yield PredictedText(asked.predicted, lookups.builder)
    if "ngram" in asked.names:
        yield open_lookup(asked, model, context)
    if "corpus" in asked.names:
        if context.salt:
            raise p.InvalidRequest('sources: "corpus" does not go with a cache_salt: it is shared by all of a tenant')
        yield lookups.corpora.drafter(context.tenant, settings.max_draft, settings.tree)
    if "draft_model" in asked.names and model.drafts is not None:
        yield model.drafts.open(
            tenant=context.tenant, sampler=sampler, name=settings.draft_model,
            verifier=settings.verifier, max_draft=settings.max_draft, prompt=len(context.tokens), salt=context.salt,
        )  # fmt: skip
    elif "draft_model" in asked.names and (settings.draft_model or "draft_model" in settings.sources):
        raise p.NotFound(
            f"no draft model is served for {model.info.name!r}: ask for none, or have the server started with --draft"
        )


def open_lookup(asked: SpeculationRequest, model: ServedModel, context: CachedSequence) -> NgramDrafter:
    """Return the n-gram index that the last generation left with the context, or a new one.

    It is taken out of ``context.memory``; the caller puts it back if the generation fails to start.
    """
    settings = asked.settings
    memory, context.memory = context.memory, None
    if memory is not None and isinstance(memory.drafter, NgramDrafter):
        return memory.drafter.resume(settings.max_draft, settings.tree)
    return NgramDrafter(settings.max_draft, model.lookups.builder, settings.tree, model.words)
