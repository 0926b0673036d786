"""Which sources draft for a generation: what its request asks for, out of what the server has for the model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from inferd import protocol as p
from inferd_runtime.engine.sampling.host_sampling import RowSampler
from inferd_runtime.engine.sequences.cached_sequence import CachedSequence
from inferd_runtime.session.served_model import ServedModel
from inferd_runtime.speculation.drafter import Drafter, OfferedDraft
from inferd_runtime.speculation.ngram import NgramDrafter
from inferd_runtime.speculation.predicted import PredictedText
from inferd_runtime.speculation.sources import SourceSet

BY_DEFAULT = ("predicted", "grammar", "ngram", "draft_model")
"""What a request gets that names no sources, by priority; a corpus learns from it and has to be named."""
DEFAULTS = p.SpeculationSettings()
LONG_TOKEN = 32
"""Characters. A text of more per token of the context is refused before it costs everybody the time to split it."""


@dataclass(frozen=True)
class SpeculationRequest:
    """A checked request's wishes. ``names``: the sources it may use, ``predicted`` what it says will come.

    ``forced``: whether tokens that its constraint leaves no choice about are drafted.
    """

    names: Sequence[str]
    forced: bool
    predicted: Sequence[int]
    settings: p.SpeculationSettings

    @classmethod
    def of(cls, request: p.StartGenerate, model: ServedModel) -> SpeculationRequest:
        """Raises LimitExceeded for a prediction that is longer than a context."""
        _check_length(len(request.predicted_text) // LONG_TOKEN, model)
        predicted = request.predicted or model.tokenizer.encode(request.predicted_text)
        _check_length(len(predicted), model)
        settings = request.speculation or DEFAULTS
        names: Sequence[str] = ()
        if request.system_speculation and (model.auto_speculation or not settings.auto):
            names = settings.sources or BY_DEFAULT
        return cls(names, "grammar" in names and request.constraint is not None, predicted, settings)


def _check_length(tokens: int, model: ServedModel) -> None:
    if tokens > model.info.max_context:
        raise p.LimitExceeded(
            f"the prediction holds {tokens} tokens or more, the model's context {model.info.max_context}",
            limit="predicted", value=model.info.max_context, raise_with="a shorter prediction",
        )  # fmt: skip


def check_speculation(request: p.StartGenerate) -> None:
    """Refuse wishes that no server could fulfil. Raises InvalidRequest, which names the field."""
    predicts = bool(request.predicted or request.predicted_text)
    if request.predicted and request.predicted_text:
        raise p.InvalidRequest("predicted and predicted_text exclude each other")
    for name, wanted in (("system_speculation", request.system_speculation), ("a prediction", predicts)):
        if wanted and request.program_speculation:
            raise p.InvalidRequest(f"{name} and program_speculation (speculator=) exclude each other")
        if wanted and request.program_constraint:
            raise p.InvalidRequest(f"program_constraint and {name} exclude each other: each step waits for its mask")
    if request.program_constraint and request.program_speculation:
        raise p.InvalidRequest(
            "program_constraint and program_speculation exclude each other: each step waits for its mask"
        )
    if request.speculation is not None:
        if not request.system_speculation:
            raise p.InvalidRequest("speculation (how to draft) needs system_speculation")
        _check_sources(request.speculation, predicts, request.constraint is not None)
        _check_settings(request.speculation)


def _check_sources(settings: p.SpeculationSettings, predicts: bool, constrained: bool) -> None:
    for source in settings.sources:
        if source == "program" or source not in p.SOURCES:
            raise p.InvalidRequest(f"speculation: there is no source {source!r} to choose")
    if len(set(settings.sources)) < len(settings.sources):
        raise p.InvalidRequest(f"speculation: the sources {', '.join(settings.sources)} name one twice")
    if "grammar" in settings.sources and not constrained:
        raise p.InvalidRequest('speculation: the source "grammar" needs a constraint')
    if settings.sources and predicts != ("predicted" in settings.sources):
        raise p.InvalidRequest('speculation: a prediction and "predicted" among the sources go together')


def _check_settings(settings: p.SpeculationSettings) -> None:
    if not 1 <= settings.max_draft <= p.MAX_DRAFT:
        raise p.InvalidRequest(f"speculation: max_draft = {settings.max_draft} is outside 1 to {p.MAX_DRAFT}")
    if settings.verifier not in p.VERIFIERS:
        raise p.InvalidRequest(f"speculation: there is no verifier {settings.verifier!r}")
    if settings.verifier == "rejection" and list(settings.sources) != ["draft_model"]:
        raise p.InvalidRequest('speculation: the verifier "rejection" needs "draft_model" as the only source')
    if settings.draft_model and settings.sources and "draft_model" not in settings.sources:
        raise p.InvalidRequest(f'speculation: draft_model = {settings.draft_model!r}, but no source "draft_model"')


def build_sources(
    request: p.StartGenerate, model: ServedModel, context: CachedSequence, sampler: RowSampler
) -> SourceSet | None:
    """The sources of a checked request, None where it has none. Raises InvalidRequest, NotFound or LimitExceeded."""
    wish = SpeculationRequest.of(request, model)
    context.check_tokens(wish.predicted)
    drafters = list(open_drafters(wish, model, context, sampler))
    if not drafters and not wish.forced:
        return None
    return model.engine.speculation.sources(
        drafters, max_draft=wish.settings.max_draft, tree=wish.settings.tree, forced=wish.forced
    )


def open_lookup(wish: SpeculationRequest, model: ServedModel, context: CachedSequence) -> NgramDrafter:
    """The n-gram index that the last generation left with the context, or a new one. Whoever cannot begin puts it back."""
    settings = wish.settings
    memory, context.memory = context.memory, None
    if memory is not None and isinstance(memory.drafter, NgramDrafter):
        return memory.drafter.resume(settings.max_draft, settings.tree)
    return NgramDrafter(settings.max_draft, model.lookups.builder, settings.tree)


def offered_source(offered: OfferedDraft, model: ServedModel) -> SourceSet:
    """The program's own speculator as the only source."""
    return model.engine.speculation.sources([offered], max_draft=p.MAX_DRAFT, forced=False)


def open_drafters(
    wish: SpeculationRequest, model: ServedModel, context: CachedSequence, sampler: RowSampler
) -> Iterator[Drafter]:
    """One per source that the server has, by priority. Raises NotFound or InvalidRequest for a draft model that it has not."""
    settings, lookups = wish.settings, model.lookups
    if wish.predicted:
        yield PredictedText(wish.predicted, lookups.builder)
    if "ngram" in wish.names:
        yield open_lookup(wish, model, context)
    if "corpus" in wish.names:
        yield lookups.corpora.drafter(context.tenant, settings.max_draft, settings.tree)
    if "draft_model" in wish.names and model.drafts is not None:
        yield model.drafts.open(
            tenant=context.tenant, sampler=sampler, name=settings.draft_model,
            verifier=settings.verifier, max_draft=settings.max_draft, prompt=len(context.tokens),
        )  # fmt: skip
    elif "draft_model" in wish.names and (settings.draft_model or "draft_model" in settings.sources):
        raise p.NotFound(f"no draft model is served for {model.info.name!r}")
