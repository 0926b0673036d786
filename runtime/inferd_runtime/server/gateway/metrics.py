"""The page for Prometheus: what ran since the start, what runs now, and how often a child had to be started again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, Metric, generate_latest
from starlette.responses import Response

from inferd_runtime.server.gateway.metric_families import family
from inferd_runtime.server.gateway.speculation_metrics import speculation_families
from inferd_runtime.server.gateway.tenant_metrics import tenant_families
from inferd_runtime.server.gateway.vllm_metrics import vllm_families
from inferd_runtime.server.supervisor.run_totals import RunTotals
from inferd_runtime.server.supervisor.runtime import Runtime
from inferd_runtime.session.wire import EngineStats, GetEngineStats, ModelStats

USED = {
    "tokens": ("inferd_generation_tokens_total", "Tokens that ended runs generated."),
    "steps": ("inferd_generation_steps_total", "Steps of generations of ended runs."),
    "drafted": ("inferd_spec_decode_num_draft_tokens_total", "Draft tokens verified for ended runs."),
    "accepted": ("inferd_spec_decode_num_accepted_tokens_total", "Draft tokens accepted for ended runs."),
    "prompt_tokens": ("inferd_prompt_tokens_total", "Prompt tokens of ended runs."),
    "cached_tokens": (
        "inferd_prompt_cached_tokens_total",
        "Prompt tokens of ended runs that were not computed for them.",
    ),
}
"""Name and help of each field of a run's usage that is summed."""
FIGURES = {
    "inferd_runs_waiting": "Runs that wait for a worker.",
    "inferd_runs_running": "Runs that a worker has.",
    "inferd_workers": "Sandbox workers that are up.",
    "inferd_engine_up": "1 while an engine process answers.",
    "inferd_run_store_up": "1 while finished runs are kept on disk, 0 while that does not work.",
    "inferd_connections": "Open connections that have shown a token.",
    "inferd_worker_restarts_total": "Workers that ended unasked and were replaced.",
    "inferd_engine_restarts_total": "Engine processes that ended unasked and were replaced.",
    "inferd_engine_steps_total": "Steps of the engines of all models.",
    "inferd_engine_sessions": "Open sessions of programs and scripts.",
    "inferd_engine_jobs": "Jobs that the engines of all models work on.",
    "inferd_kv_pages": "Pages of the KV caches of all models.",
    "inferd_kv_pages_free": "Pages of all KV caches that nothing holds.",
}
MODEL_FIGURES = {
    "steps": ("inferd_model_steps_total", "Steps of the model's engine."),
    "jobs": ("inferd_model_jobs", "Jobs that the model's engine works on."),
    "pages": ("inferd_model_kv_pages", "Pages of the model's KV cache."),
    "pages_free": ("inferd_model_kv_pages_free", "Pages of the model's KV cache that nothing holds."),
    "reused_tokens": (
        "inferd_model_prefix_reused_tokens_total",
        "Tokens that were not computed because their prefix was cached.",
    ),
    "swapped": ("inferd_model_contexts_swapped_total", "Contexts that left the cache for host memory."),
    "recomputed": ("inferd_model_contexts_recomputed_total", "Contexts that left the cache to be computed again."),
}
"""Name and help of the fields of :class:`ModelStats`."""


@dataclass(frozen=True)
class MetricsPage:
    """The figures of one scrape, as a collector of the Prometheus client. ``figures``: values of FIGURES, by name; ``tenants``:
    the families by tenant; ``answers``: how many there were of each status.
    """

    totals: RunTotals
    figures: Mapping[str, float]
    models: Sequence[ModelStats] = ()
    tenants: Sequence[Metric] = ()
    answers: Mapping[int, int] = field(default_factory=dict)

    def collect(self) -> Iterator[Metric]:
        """Yield every metric family."""
        ended = sorted(self.totals.ended.items())
        yield family("inferd_runs_total", "Runs that ended, by state and error code.", ("state", "error"), ended)
        statuses = [((str(status),), count) for status, count in sorted(self.answers.items())]
        yield family("inferd_http_responses_total", "Answers over HTTP, by status.", ("status",), statuses)
        for name, used in self.totals.used.items():
            yield family(*USED[name], (), [((), used)])
        for name, figure in self.figures.items():
            yield family(name, FIGURES[name], (), [((), figure)])
        for part, (name, text) in MODEL_FIGURES.items() if self.models else ():
            yield family(name, text, ("model",), [((model.name,), getattr(model, part)) for model in self.models])
        yield from speculation_families(self.models)
        yield from vllm_families(self.models)
        yield from self.tenants

    def text(self) -> str:
        """Return the page in the text format."""
        return generate_latest(self).decode()


async def metrics_page(runtime: Runtime, only: str | None = None) -> MetricsPage:
    """Return the figures as they are now; those of the engine while one answers. ``only``: the one tenant whose own figures
    are shown; None: those of all.
    """
    waiting = len(runtime.fleet.pool.waiting)
    figures = {
        "inferd_runs_waiting": waiting,
        "inferd_runs_running": len(runtime.runs.active) - waiting,
        "inferd_workers": len(runtime.fleet.pids),
        "inferd_engine_up": int(runtime.engine.answers),
        "inferd_run_store_up": int(runtime.keeper.failure is None),
        "inferd_connections": sum(map(runtime.use.connections.held, runtime.use.connections.tenants)),
        "inferd_worker_restarts_total": runtime.fleet.restarts,
        "inferd_engine_restarts_total": runtime.engine.restarts,
    }
    answers = runtime.use.answers
    tenants = list(tenant_families(runtime.tenant_totals, runtime.runs.active, only))
    if not runtime.engine.answers:
        return MetricsPage(runtime.totals, figures, (), tenants, answers)
    stats = await runtime.engine.call(GetEngineStats(), EngineStats)
    figures |= {"inferd_engine_steps_total": stats.steps, "inferd_engine_sessions": stats.sessions}
    figures |= {"inferd_engine_jobs": stats.jobs}
    figures |= {"inferd_kv_pages": stats.pages, "inferd_kv_pages_free": stats.pages_free}
    return MetricsPage(runtime.totals, figures, stats.models, tenants, answers)


async def metrics_response(runtime: Runtime, only: str | None) -> Response:
    """Answer a scrape; see :func:`metrics_page`."""
    page = await metrics_page(runtime, only)
    return Response(page.text(), media_type=CONTENT_TYPE_PLAIN_0_0_4)
