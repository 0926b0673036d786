"""Figures under the names and labels of vLLM's ``v1/metrics/loggers.py``, so that dashboards made for it work.

What they count here: a request is a generation, and ``model_name`` its model. A preemption is a context that left the cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate

from prometheus_client import Metric
from prometheus_client.core import HistogramMetricFamily

from inferd_runtime.engine.jobs.timeline import GenerationFigures, Histogram
from inferd_runtime.server.gateway.metric_families import family
from inferd_runtime.session.wire import ModelStats

MODEL_LABEL = "model_name"
SIMPLE: dict[str, tuple[str, Callable[[ModelStats], float]]] = {
    "vllm:num_requests_running": ("Generations that a step has taken in.", lambda one: one.generations.running),
    "vllm:num_requests_waiting": ("Generations that no step has taken in yet.", lambda one: one.generations.waiting),
    "vllm:kv_cache_usage_perc": ("Part of the KV cache's pages that are held, 0 to 1.", lambda one: _held(one)),
    "vllm:prefix_cache_queries_total": ("Tokens whose prefix was looked for.", lambda one: one.looked_up_tokens),
    "vllm:prefix_cache_hits_total": ("Tokens whose prefix was cached.", lambda one: one.reused_tokens),
    "vllm:num_preemptions_total": ("Contexts that left the cache.", lambda one: one.swapped + one.recomputed),
    "vllm:prompt_tokens_total": ("Tokens of prompts.", lambda one: one.generations.prompt_tokens),
    "vllm:generation_tokens_total": ("Tokens that generations wrote.", lambda one: one.generations.tokens),
}
DURATIONS: dict[str, tuple[str, Callable[[GenerationFigures], Histogram]]] = {
    "vllm:time_to_first_token_seconds": ("From submission to the first token.", lambda one: one.first_token),
    "vllm:inter_token_latency_seconds": ("Between the steps of a generation.", lambda one: one.inter_token),
    "vllm:request_queue_time_seconds": ("From submission to the first step.", lambda one: one.queue),
    "vllm:request_prefill_time_seconds": ("From the first step to the first token.", lambda one: one.prefill),
    "vllm:request_decode_time_seconds": ("From the first token to the end.", lambda one: one.decode),
    "vllm:e2e_request_latency_seconds": ("From submission to the end.", lambda one: one.whole),
}
FINISHED = ("vllm:request_success_total", "Generations that ended, by reason.")
REASONS = {"stop": "stop", "length": "length", "closed": "abort", "error": "error"}
"""vLLM's words for how a generation ends."""


def vllm_families(models: Sequence[ModelStats]) -> Iterator[Metric]:
    """Yield the families; none without models."""
    if not models:
        return
    for name, (text, figure) in SIMPLE.items():
        yield family(name, text, (MODEL_LABEL,), [((one.name,), figure(one)) for one in models])
    for name, (text, durations) in DURATIONS.items():
        made = HistogramMetricFamily(name, text, labels=(MODEL_LABEL,))
        for one in models:
            histogram = durations(one.generations)
            made.add_metric((one.name,), _buckets(histogram), histogram.sum)
        yield made
    ended = [
        ((one.name, word), one.generations.finished.get(reason, 0))
        for one in models
        for reason, word in REASONS.items()
    ]
    yield family(*FINISHED, (MODEL_LABEL, "finished_reason"), ended)


def _held(one: ModelStats) -> float:
    return 1 - one.pages_free / one.pages if one.pages else 0.0


def _buckets(histogram: Histogram) -> list[tuple[str, float]]:
    """Return the cumulative counts by upper bound, as text."""
    bounds = [*(str(bound) for bound in histogram.bounds), "+Inf"]
    return list(zip(bounds, map(float, accumulate(histogram.counts)), strict=True))
