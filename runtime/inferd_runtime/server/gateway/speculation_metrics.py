"""Figures of speculation for Prometheus: per model and source, and under the names that dashboards for vLLM know."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from inferd.protocol import SOURCES, SourceCount
from inferd_runtime.session.wire import ModelStats, SpeculationTotals

TOTALS = ("steps", "drafts", "emitted", "truncated", "wasted")
SOURCE_TOTALS = ("drafted", "filtered", "accepted")
UNUSED = SourceCount("")


def speculation_lines(models: Sequence[ModelStats]) -> Iterator[str]:
    """The lines of the text format; none without models.

    ``inferd_spec_{steps,drafts}_total`` count steps of generations, the other counters tokens. Every source has its lines
    from the start, so that a rate over them never begins with a gap.
    """
    if not models:
        return
    for name in TOTALS:
        unit = "" if name in ("steps", "drafts") else "_tokens"
        values = {_model(model): int(getattr(model.speculation, name)) for model in models}
        yield from _metric(f"inferd_spec_{name}{unit}_total", "counter", values)
    for name in SOURCE_TOTALS:
        yield from _metric(f"inferd_spec_{name}_tokens_total", "counter", _by_source(models, name))
    yield from _metric("inferd_spec_accepted_tokens_per_pos_total", "counter", _by_position(models, "model"))
    breakers = {_model(model): int(model.speculation.breaker_open) for model in models}
    yield from _metric("inferd_spec_breaker_open", "gauge", breakers)
    yield from _draft_models(models)
    yield from _as_vllm(models)


def escaped(label: str) -> str:
    """A label's value as the text format wants it."""
    return label.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _as_vllm(models: Sequence[ModelStats]) -> Iterator[str]:
    """The names and labels of vLLM's ``v1/spec_decode/metrics.py``."""
    figures: dict[str, Callable[[SpeculationTotals], int]] = {
        "drafts": lambda done: done.drafts,
        "draft_tokens": lambda done: sum(one.drafted for one in done.sources),
        "accepted_tokens": lambda done: sum(one.accepted for one in done.sources),
    }
    for name, figure in figures.items():
        values = {_model(model, "model_name"): figure(model.speculation) for model in models}
        yield from _metric(f"vllm:spec_decode_num_{name}_total", "counter", values)
    yield from _metric(
        "vllm:spec_decode_num_accepted_tokens_per_pos_total", "counter", _by_position(models, "model_name")
    )


def _draft_models(models: Sequence[ModelStats]) -> Iterator[str]:
    """What draft models did; no line where there is none."""
    names = {name: f"{name}_total" for name in ("requests", "hits", "misses", "timeouts", "failures")}
    names["waited"] = "waited_seconds_total"
    for field, name in names.items() if any(model.draft_models for model in models) else ():
        values = {
            f'{_model(model)},draft_model="{escaped(draft.name)}"': getattr(draft, field)
            for model in models
            for draft in model.draft_models
        }
        yield from _metric(f"inferd_draft_model_{name}", "counter", values)


def _by_source(models: Sequence[ModelStats], field: str) -> Mapping[str, int]:
    return {
        f'{_model(model)},source="{source}"': int(getattr(_source(model.speculation, source), field))
        for model in models
        for source in SOURCES
    }


def _source(done: SpeculationTotals, name: str) -> SourceCount:
    return next((one for one in done.sources if one.source == name), UNUSED)


def _by_position(models: Sequence[ModelStats], label: str) -> Mapping[str, int]:
    return {
        f'{_model(model, label)},position="{position}"': count
        for model in models
        for position, count in enumerate(model.speculation.accepted_per_position)
    }


def _model(model: ModelStats, label: str = "model") -> str:
    return f'{label}="{escaped(model.name)}"'


def _metric(name: str, kind: str, values: Mapping[str, float]) -> Iterator[str]:
    yield f"# TYPE {name} {kind}"
    for labels, value in values.items():
        yield f"{name}{{{labels}}} {value}"
