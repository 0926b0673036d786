"""What runs used: all of them, and those of each of a bounded number of tenants."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from inferd.protocol import ErrorInfo, ProgramError, known_code
from inferd_runtime.server.supervisor.run_events import Ending

MAX_TENANTS = 50
OTHERS = "(others)"
"""No tenant can be called so."""


class RunTotals:
    """Sums over all runs that have ended since the start, forgotten ones included."""

    def __init__(self) -> None:
        self.ended: Counter[tuple[str, str]] = Counter()
        """Runs by final state and the error's code as the tree has it ("" without an error)."""
        self.used: Counter[str] = Counter()
        """Sums of fields of :class:`RunUsage`, by name."""

    def add(self, ending: Ending) -> None:
        """Count a run that is over."""
        self.ended[ending.state, _label(ending.error)] += 1
        for field_name in ("tokens", "steps", "drafted", "accepted", "prompt_tokens", "cached_tokens"):
            self.used[field_name] += getattr(ending.usage, field_name)


def _label(error: ErrorInfo | None) -> str:
    """Return the code to count an error under. Programs may make codes up, and Prometheus keeps a series for each label."""
    return "" if error is None else known_code(error.code) or ProgramError.code


@dataclass
class TenantTotals:
    """Sums over the runs that ended, of the first MAX_TENANTS tenants each and of all others together."""

    sums: dict[str, Counter[str]] = field(default_factory=dict)

    def add(self, tenant: str, ending: Ending) -> None:
        """Count a run that is over."""
        used = self.sums[self.label(tenant)]
        used["runs"] += 1
        used["failed"] += ending.error is not None
        used["tokens"] += ending.usage.tokens
        used["cpu_ms"] += round(ending.usage.cpu_ms)

    def label(self, tenant: str) -> str:
        """Return the tenant's own label, given when it is asked for first, or that of all others once MAX_TENANTS have one."""
        label = tenant if tenant in self.sums or len(self.sums) < MAX_TENANTS else OTHERS
        self.sums.setdefault(label, Counter())
        return label
