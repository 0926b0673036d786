"""Traces of runs, with the SDK's own exporter in memory."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace
from typing import cast

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from inferd.protocol import Cancelled, InvalidRequest, Unavailable
from inferd_runtime.engine.jobs.timeline import EndedGeneration, GenerationClock
from inferd_runtime.log_lines import log_fields
from inferd_runtime.sandbox.messages import Bundle, Limits, RunUsage
from inferd_runtime.server.programs.bundles import make_program
from inferd_runtime.server.supervisor.run_events import Ending, EventBuffer
from inferd_runtime.server.supervisor.runs import Run
from inferd_runtime.server.supervisor.runtime import Runtime
from inferd_runtime.server.telemetry import traces as module
from inferd_runtime.server.telemetry.traces import RunTraces, otlp_provider, traced
from inferd_runtime.session.wire import EndedGenerations, GetGenerations

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
PROGRAM = make_program(Bundle("p", {"main.py": "async def main(): pass"}))
DONE = EndedGeneration(0, "", 100.0, 0.25, 1.0, 3.0, 12, 7, "stop", 0.5)


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def provider(exporter: InMemorySpanExporter) -> TracerProvider:
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return provider


def run_of(tenant: str = "ann") -> Run:
    run = Run(PROGRAM, "{}", tenant, Limits(), EventBuffer(1000), created_at=90.0, request="req-1")
    run.started_at = 92.0
    return run


def generation(run: Run, **changes: object) -> EndedGeneration:
    values = {name: getattr(DONE, name) for name in DONE.__dataclass_fields__}
    return EndedGeneration(**{**values, "session": f"run/{run.id}/2", **changes})  # type: ignore[arg-type]


def spans(exporter: InMemorySpanExporter) -> dict[str, list[ReadableSpan]]:
    found: dict[str, list[ReadableSpan]] = {}
    for span in exporter.get_finished_spans():
        found.setdefault(span.name, []).append(span)
    return found


def seconds(span: ReadableSpan) -> tuple[float, float]:
    assert span.start_time is not None
    assert span.end_time is not None
    return span.start_time / 1e9, span.end_time / 1e9


def test_a_run_is_a_child_of_its_launchs_trace_with_spans_for_each_phase(
    provider: TracerProvider, exporter: InMemorySpanExporter
) -> None:
    traces, run = RunTraces(provider), run_of()
    with log_fields(traceparent=f"00-{TRACE}-{PARENT}-01"):
        traces.launched(run)
    run.ending, run.finished_at = Ending(RunUsage(tokens=7, cpu_ms=5.0), ("1",)), 104.0
    traces.ended(run)
    traces.generated({"tiny": [generation(run)]})
    found = spans(exporter)
    assert {name: len(each) for name, each in found.items()} == {
        "run": 1, "queue": 2, "sandbox": 1, "generation": 1, "grammar compile": 1, "prefill": 1, "decode": 1,
    }  # fmt: skip
    (whole,) = found["run"]
    assert whole.parent is not None
    assert (f"{whole.context.trace_id:032x}", f"{whole.parent.span_id:016x}") == (TRACE, PARENT)
    assert len({span.context.trace_id for span in exporter.get_finished_spans()}) == 1
    assert seconds(whole) == (90.0, 104.0)
    assert [seconds(span) for span in found["queue"]] == [(90.0, 92.0), (100.0, 100.25)]
    assert seconds(found["sandbox"][0]) == (92.0, 104.0)
    assert seconds(found["grammar compile"][0]) == (99.5, 100.0)
    assert seconds(found["prefill"][0]) == (100.25, 101.0)
    assert seconds(found["decode"][0]) == (101.0, 103.0)
    attributes = found["generation"][0].attributes
    assert attributes is not None
    assert attributes["gen_ai.response.model"] == "tiny"
    assert attributes["gen_ai.usage.output_tokens"] == 7


def test_a_run_that_never_started_and_a_generation_that_wrote_nothing(
    provider: TracerProvider, exporter: InMemorySpanExporter
) -> None:
    traces, run = RunTraces(provider), run_of()
    traces.launched(run)
    run.started_at = None
    run.ending, run.finished_at = Ending(RunUsage(), error=Cancelled("x").to_wire()), 95.0
    traces.ended(run)
    traces.generated({"tiny": [generation(run, planned=None, first_token=None, compiling=0.0)]})
    found = spans(exporter)
    assert set(found) == {"run", "queue", "generation"}
    assert not found["run"][0].status.is_ok
    assert found["run"][0].parent is None


@pytest.mark.parametrize("nonsense", ["", "00", "00-" + "0" * 32 + "-" + "0" * 16 + "-01", "\ud800", "x" * 500])
def test_a_traceparent_that_is_none_begins_a_new_trace(
    provider: TracerProvider, exporter: InMemorySpanExporter, nonsense: str
) -> None:
    traces, run = RunTraces(provider), run_of()
    with log_fields(traceparent=nonsense):
        traces.launched(run)
    run.ending = Ending(RunUsage(), ("1",))
    traces.ended(run)
    assert spans(exporter)["run"][0].parent is None


def test_runs_that_nobody_knows_have_no_spans_and_few_are_kept(
    provider: TracerProvider, exporter: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_RUNS", 3)
    traces, runs = RunTraces(provider), [run_of() for _ in range(5)]
    for run in runs:
        traces.launched(run)
    for run in runs:
        traces.generated({"tiny": [generation(run)]})
    traces.generated({"tiny": [generation(runs[4], session="ws/1")]})
    assert len(spans(exporter)["generation"]) == 3


class FakeRuntime:
    """A runtime with an engine that tells one generation, then is lost, then tells those of another engine."""

    def __init__(self, run: Run) -> None:
        self.traces: RunTraces | None = None
        self.engine = self
        self.pid = 1
        self.asked: list[dict[str, int]] = []
        self._run = run

    async def call(self, request: GetGenerations, kind: type[EndedGenerations]) -> EndedGenerations:
        self.asked.append(dict(request.after))
        if len(self.asked) == 2:
            self.pid = 2
            raise Unavailable("gone")
        return EndedGenerations({"tiny": [generation(self._run, index=len(self.asked))]})


async def test_the_engine_is_asked_for_what_is_new_and_from_the_start_after_it_was_replaced(
    provider: TracerProvider, exporter: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    import anyio

    monkeypatch.setattr(module, "POLL_SECONDS", 0)
    run = run_of()
    runtime = FakeRuntime(run)
    with anyio.fail_after(20):
        async with traced(cast(Runtime, runtime), provider):
            assert runtime.traces is not None
            runtime.traces.launched(run)
            while len(runtime.asked) < 4:
                await anyio.lowlevel.checkpoint()
    assert runtime.asked[:4] == [{}, {"tiny": 1}, {}, {"tiny": 3}]
    assert runtime.traces is None
    assert len(spans(exporter)["generation"]) >= 2


def test_the_engine_notes_what_a_trace_needs() -> None:
    now = SimpleNamespace(value=10.0)
    clock = GenerationClock(lambda: now.value)
    timeline = clock.begin("run/x", 5, asked=9.5)
    for step in (
        timeline.planned,
        lambda: timeline.wrote(2),
        lambda: timeline.end("stop"),
        lambda: timeline.end("closed"),
    ):
        now.value += 1
        step()
    (ended,) = clock.ended
    assert (ended.session, ended.planned, ended.first_token, ended.ended) == ("run/x", 1.0, 2.0, 3.0)
    assert (ended.tokens, ended.finish, ended.compiling) == (2, "stop", 0.5)


def test_nothing_of_opentelemetry_is_imported_without_the_setting() -> None:
    code = "import sys, inferd_runtime.server.gateway.app; sys.exit('opentelemetry' in ' '.join(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


def test_without_the_extra_the_setting_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(InvalidRequest, match=r"inferd\[otel\]"):
        otlp_provider("http://127.0.0.1:1/v1/traces")
