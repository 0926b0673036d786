"""Figures for Prometheus: what ran since the start, what runs now, and how often a child had to be started again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from inferd_runtime.server.runs import Ending

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


def render(totals: RunTotals, gauges: dict[str, int], counters: dict[str, int]) -> str:
    """The whole page."""
    lines = list(totals.lines())
    for kind, values in (("gauge", gauges), ("counter", counters)):
        for name, value in values.items():
            lines += _line(name, kind, value)
    return "\n".join([*lines, ""])


def _line(name: str, kind: str, value: int) -> list[str]:
    return [f"# TYPE {name} {kind}", f"{name} {value}"]
