"""Figures of speculation for Prometheus: per model and source, and under the names that dashboards for vLLM know."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from prometheus_client import Metric

from inferd.protocol import SOURCES
from inferd.speculation_stats import SourceStats
from inferd_runtime.server.gateway.metric_families import MetricValues, family
from inferd_runtime.session.wire import ModelStats
from inferd_runtime.speculation.counters import SpeculationCounters

TOTALS = {
    "steps": ("inferd_spec_steps_total", "Delivered steps of generations."),
    "drafts": ("inferd_spec_drafts_total", "Delivered steps that verified a draft."),
    "emitted": ("inferd_spec_emitted_tokens_total", "Tokens that steps delivered."),
    "truncated": ("inferd_spec_truncated_tokens_total", "Sampled tokens that the end of a generation cut off."),
    "wasted": ("inferd_spec_wasted_tokens_total", "Draft tokens that were verified and not accepted."),
}
"""Name and help of fields of :class:`SpeculationCounters`."""
BREAKER_OPEN = ("inferd_spec_breaker_open", "1 while drafting is off because it cost more than it brought.")
SOURCE_TOTALS = {
    "drafted": ("inferd_spec_drafted_tokens_total", "Draft tokens that were verified, by source."),
    "filtered": ("inferd_spec_filtered_tokens_total", "Draft tokens that the grammar ruled out, by source."),
    "accepted": ("inferd_spec_accepted_tokens_total", "Draft tokens that were accepted, by source."),
}
DRAFT_MODEL_TOTALS = {
    "requests": ("inferd_draft_model_requests_total", "Requests to the draft model."),
    "hits": ("inferd_draft_model_hits_total", "Drafts written ahead that were as the target went on."),
    "misses": ("inferd_draft_model_misses_total", "Drafts written ahead that were thrown away."),
    "timeouts": ("inferd_draft_model_timeouts_total", "Drafts that were waited for in vain."),
    "failures": ("inferd_draft_model_failures_total", "Requests to the draft model that ended with an error."),
    "waited": ("inferd_draft_model_waited_seconds_total", "Seconds that steps waited for the draft model."),
    "late": ("inferd_draft_model_late_total", "Answers that came when nothing was left of their drafts."),
    "connections": ("inferd_draft_model_connections_total", "Connections made to a draft engine on another machine."),
    "round_trip": ("inferd_draft_model_round_trip_seconds", "How long a message usually travels there and back."),
}
PER_POSITION = "Draft tokens that were accepted, by position in the draft."
UNUSED = SourceStats()


def speculation_families(models: Sequence[ModelStats]) -> Iterator[Metric]:
    """Yield the families; none without models.

    ``inferd_spec_{steps,drafts}_total`` count steps of generations, the other counters tokens. Every source has its samples
    from the start, so that a rate over them never begins with a gap.
    """
    if not models:
        return
    for field, (name, text) in TOTALS.items():
        yield family(name, text, ("model",), [((one.name,), int(getattr(one.speculation, field))) for one in models])
    yield family(*BREAKER_OPEN, ("model",), [((one.name,), int(one.breaker_open)) for one in models])
    for field, (name, text) in SOURCE_TOTALS.items():
        yield family(name, text, ("model", "source"), _by_source(models, field))
    name = "inferd_spec_accepted_tokens_per_pos_total"
    yield family(name, PER_POSITION, ("model", "position"), _by_position(models))
    yield from _draft_models(models)
    yield from _as_vllm(models)


def _draft_models(models: Sequence[ModelStats]) -> Iterator[Metric]:
    """Yield what draft models did; nothing where there is none."""
    drafts = [((model.name, name), done) for model in models for name, done in model.draft_models.items()]
    for field, (name, text) in DRAFT_MODEL_TOTALS.items() if drafts else ():
        values = [(labels, getattr(done, field)) for labels, done in drafts]
        yield family(name, text, ("model", "draft_model"), values)


def _as_vllm(models: Sequence[ModelStats]) -> Iterator[Metric]:
    """Yield the names and labels of vLLM's ``v1/spec_decode/metrics.py``."""
    figures: dict[str, tuple[str, Callable[[SpeculationCounters], int]]] = {
        "drafts": ("Steps that verified a draft.", lambda done: done.drafts),
        "draft_tokens": ("Draft tokens that were verified.", lambda done: done.drafted),
        "accepted_tokens": (
            "Draft tokens that were accepted.",
            lambda done: sum(one.accepted for one in done.sources.values()),
        ),
    }
    for name, (text, figure) in figures.items():
        values = [((model.name,), figure(model.speculation)) for model in models]
        yield family(f"vllm:spec_decode_num_{name}_total", text, ("model_name",), values)
    name = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
    yield family(name, PER_POSITION, ("model_name", "position"), _by_position(models))


def _by_source(models: Sequence[ModelStats], field: str) -> MetricValues:
    for model in models:
        for source in SOURCES:
            yield (model.name, source), int(getattr(model.speculation.sources.get(source, UNUSED), field))


def _by_position(models: Sequence[ModelStats]) -> MetricValues:
    for model in models:
        for position, count in enumerate(model.speculation.accepted_per_position):
            yield (model.name, str(position)), count
