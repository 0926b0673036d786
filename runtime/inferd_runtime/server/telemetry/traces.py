"""OpenTelemetry traces of runs: only the gateway makes spans, afterwards, from times that it and the engine noted anyway.

A run's span is a child of the ``traceparent`` that its launch came with. In it: ``queue`` (waiting for a worker), ``sandbox``
(the program), and for each generation ``generation`` with ``grammar compile``, ``queue``, ``prefill`` and ``decode``. No span
has text of prompts or answers. Without the setting nothing of OpenTelemetry is imported.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread

from inferd.protocol import InferdError, InvalidRequest
from inferd_runtime.log_lines import current_traceparent
from inferd_runtime.server.processes.background import background_tasks
from inferd_runtime.server.supervisor.runs import Run
from inferd_runtime.session.wire import RUN_SESSION, EndedGenerations, GetGenerations

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span

    from inferd_runtime.engine.jobs.timeline import EndedGeneration
    from inferd_runtime.server.supervisor.runtime import Runtime

POLL_SECONDS = 1.0
MAX_RUNS = 4096
"""Runs whose span is known: those that go on, and the newest that ended, whose generations may still be told."""


class RunTraces:
    """Makes the spans. Belongs to the event loop; what is sent is sent from the provider's own thread."""

    def __init__(self, provider: TracerProvider) -> None:
        from opentelemetry import trace
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._trace = trace
        self._propagator = TraceContextTextMapPropagator()
        self._tracer = provider.get_tracer("inferd")
        self._runs: OrderedDict[str, Span] = OrderedDict()

    def launched(self, run: Run) -> None:
        """Open a run's span under the trace of the request that launched it."""
        parent = self._propagator.extract({"traceparent": current_traceparent()})
        attributes: dict[str, Any] = {
            "inferd.run": run.id,
            "inferd.tenant": run.tenant,
            "inferd.request": run.request,
            "inferd.program": f"{run.program.name}@{run.program.version}",
        }
        self._runs[run.id] = self._tracer.start_span(
            "run", parent, attributes=attributes, start_time=_ns(run.created_at)
        )
        while len(self._runs) > MAX_RUNS:
            self._runs.popitem(last=False)

    def ended(self, run: Run) -> None:
        """Close a run's span. It stays known for the generations that the engine has not told yet."""
        span, ending = self._runs.get(run.id), run.ending
        if span is None or ending is None:
            return
        over = run.finished_at or time.time()
        self._child(span, "queue", run.created_at, run.started_at or over)
        if run.started_at is not None:
            cpu = {"inferd.cpu_ms": ending.usage.cpu_ms, "inferd.peak_memory_mb": ending.usage.peak_memory_mb}
            self._child(span, "sandbox", run.started_at, over, cpu)
        span.set_attribute("inferd.state", ending.state)
        span.set_attribute("gen_ai.usage.output_tokens", ending.usage.tokens)
        if ending.error is not None:
            span.set_attribute("error.type", ending.error.code)
            span.set_status(self._trace.StatusCode.ERROR)
        span.end(_ns(over))

    def generated(self, models: Mapping[str, list[EndedGeneration]]) -> None:
        """Make the spans of generations that have ended; those of scripts and of unknown runs have none."""
        for model, ended in models.items():
            for one in ended:
                span = self._runs.get(one.session.removeprefix(RUN_SESSION).partition("/")[0])
                if span is not None:
                    self._generation(span, model, one)

    def _generation(self, run: Span, model: str, one: EndedGeneration) -> None:
        began, over = one.submitted, one.submitted + one.ended
        attributes: dict[str, Any] = {
            "gen_ai.response.model": model,
            "gen_ai.usage.input_tokens": one.prompt_tokens,
            "gen_ai.usage.output_tokens": one.tokens,
            "gen_ai.response.finish_reasons": [one.finish],
            "gen_ai.latency.time_in_queue": one.planned or one.ended,
            "gen_ai.latency.e2e": one.compiling + one.ended,
            **({} if one.first_token is None else {"gen_ai.latency.time_to_first_token": one.first_token}),
        }
        whole = self._tracer.start_span(
            "generation", self._inside(run), attributes=attributes, start_time=_ns(began - one.compiling)
        )
        if one.compiling:
            self._child(whole, "grammar compile", began - one.compiling, began)
        self._child(whole, "queue", began, over if one.planned is None else began + one.planned)
        if one.planned is not None:
            self._child(
                whole, "prefill", began + one.planned, over if one.first_token is None else began + one.first_token
            )
        if one.first_token is not None:
            self._child(whole, "decode", began + one.first_token, over)
        whole.end(_ns(over))

    def _child(
        self, of: Span, name: str, start: float, end: float, attributes: Mapping[str, float] | None = None
    ) -> None:
        made = self._tracer.start_span(name, self._inside(of), attributes=attributes, start_time=_ns(start))
        made.end(_ns(max(start, end)))

    def _inside(self, span: Span) -> Context:
        return self._trace.set_span_in_context(span)


def _ns(seconds: float) -> int:
    return int(seconds * 1e9)


def otlp_provider(endpoint: str) -> TracerProvider:
    """Return what sends spans to a collector. Raises InvalidRequest where OpenTelemetry is not installed."""
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        raise InvalidRequest("--otel-endpoint needs OpenTelemetry: pip install 'inferd[otel]'") from None
    provider = TracerProvider(resource=Resource.create({"service.name": "inferd"}), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint, timeout=5)))
    return provider


@asynccontextmanager
async def traced(runtime: Runtime, provider: TracerProvider | None) -> AsyncIterator[None]:
    """Trace a runtime's runs while the body runs; with no provider, do nothing."""
    if provider is None:
        yield
        return
    traces = runtime.traces = RunTraces(provider)
    async with background_tasks() as tasks:
        tasks.start_soon(_follow_generations, runtime, traces)
        try:
            yield
        finally:
            runtime.traces = None
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(provider.shutdown)


async def _follow_generations(runtime: Runtime, traces: RunTraces) -> None:
    """Ask the engine for generations that have ended, again from the first after a new one has started."""
    engine, after = runtime.engine.pid, dict[str, int]()
    while True:
        await anyio.sleep(POLL_SECONDS)
        if runtime.engine.pid != engine:
            engine, after = runtime.engine.pid, {}
        if engine is None:
            continue
        try:
            told = await runtime.engine.call(GetGenerations(after), EndedGenerations)
        except InferdError:  # the engine ended meanwhile
            continue
        traces.generated(told.models)
        after |= {name: ended[-1].index for name, ended in told.models.items() if ended}
