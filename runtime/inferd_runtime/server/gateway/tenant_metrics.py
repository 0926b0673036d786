"""Figures by tenant, for a bounded number of tenants: each label's value is a series that Prometheus keeps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from prometheus_client import Metric

from inferd_runtime.server.gateway.metric_families import family
from inferd_runtime.server.supervisor.run_events import RunState
from inferd_runtime.server.supervisor.run_totals import TenantTotals
from inferd_runtime.server.supervisor.runs import Run

USED = {
    "runs": ("inferd_tenant_runs_total", "Runs of the tenant that ended."),
    "failed": ("inferd_tenant_runs_failed_total", "Runs of the tenant that ended with an error."),
    "tokens": ("inferd_tenant_generation_tokens_total", "Tokens that the tenant's ended runs generated."),
    "cpu_ms": ("inferd_tenant_cpu_milliseconds_total", "Milliseconds of processor time of the tenant's ended runs."),
}
ACTIVE = {
    RunState.QUEUED: ("inferd_tenant_runs_waiting", "Runs of the tenant that wait for a worker."),
    RunState.RUNNING: ("inferd_tenant_runs_running", "Runs of the tenant that a worker has."),
}


NOTHING: Mapping[str, int] = {}


def tenant_families(totals: TenantTotals, active: Iterable[Run], only: str | None) -> Iterator[Metric]:
    """Yield the families. ``only``: the tenant whose figures may be shown; None: all of them."""
    states = Counter((totals.label(run.tenant), run.state) for run in active)
    labels = sorted({tenant for tenant, _ in states} | totals.sums.keys())
    shown = [label for label in labels if only is None or label == only]
    for name, described in USED.items():
        yield family(*described, ("tenant",), [((one,), totals.sums.get(one, NOTHING).get(name, 0)) for one in shown])
    for state, described in ACTIVE.items():
        yield family(*described, ("tenant",), [((one,), states[one, state]) for one in shown])
