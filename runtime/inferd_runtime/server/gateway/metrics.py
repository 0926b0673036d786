"""Figures for Prometheus: what ran since the start, what runs now, and how often a child had to be started again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from inferd_runtime.server.gateway.speculation_metrics import escaped, speculation_lines
from inferd_runtime.server.supervisor.runs import Ending
from inferd_runtime.session.wire import ModelStats

TEXT_FORMAT = "text/plain; version=0.0.4"


class RunTotals:
    """Sums over all runs that have ended since the start, forgotten ones included."""

    def __init__(self) -> None:
        self._ended: Counter[tuple[str, str]] = Counter()
        self._used: Counter[str] = Counter()

    def add(self, ending: Ending) -> None:
        """Count a run that is over."""
        usage = ending.usage
        self._ended[ending.state, "" if ending.error is None else ending.error.code] += 1
        self._used["inferd_generation_tokens_total"] += usage.tokens
        self._used["inferd_generation_steps_total"] += usage.steps
        self._used["inferd_spec_decode_num_draft_tokens_total"] += usage.drafted
        self._used["inferd_spec_decode_num_accepted_tokens_total"] += usage.accepted

    def lines(self) -> Iterator[str]:
        """The sums as lines of the text format."""
        yield "# TYPE inferd_runs_total counter"
        for (state, code), count in sorted(self._ended.items()):
            yield f'inferd_runs_total{{state="{state}",error="{code}"}} {count}'
        for name, value in self._used.items():
            yield from _line(name, "counter", value)


def render(
    totals: RunTotals, gauges: dict[str, int], counters: dict[str, int], models: Sequence[ModelStats] = ()
) -> str:
    """The whole page. ``models``: figures of each model's engine, labelled with its name."""
    lines = list(totals.lines())
    for kind, values in (("gauge", gauges), ("counter", counters)):
        for name, value in values.items():
            lines += _line(name, kind, value)
    return "\n".join([*lines, *_model_lines(models), *speculation_lines(models), ""])


def _model_lines(models: Sequence[ModelStats]) -> Iterator[str]:
    names = {"steps": "inferd_model_steps_total", "jobs": "inferd_model_jobs"}
    names |= {"pages": "inferd_model_kv_pages", "pages_free": "inferd_model_kv_pages_free"}
    names |= {"reused_tokens": "inferd_model_prefix_reused_tokens_total"}
    names |= {"swapped": "inferd_model_contexts_swapped_total", "recomputed": "inferd_model_contexts_recomputed_total"}
    for field, name in names.items() if models else ():
        yield f"# TYPE {name} {'counter' if name.endswith('_total') else 'gauge'}"
        for model in models:
            yield f'{name}{{model="{escaped(model.name)}"}} {getattr(model, field)}'


def _line(name: str, kind: str, value: int) -> list[str]:
    return [f"# TYPE {name} {kind}", f"{name} {value}"]
