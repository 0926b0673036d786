"""The page for Prometheus: vLLM's names, figures by tenant, and the queries of the dashboard against it."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from pathlib import Path

import msgspec
from hand_clock import HandClock
from prometheus_client.parser import text_string_to_metric_families

from inferd.protocol import ErrorInfo
from inferd_runtime.engine.jobs.timeline import GenerationClock
from inferd_runtime.sandbox.messages import Bundle, Limits, RunUsage
from inferd_runtime.server.gateway.metrics import FIGURES, MetricsPage
from inferd_runtime.server.gateway.tenant_metrics import tenant_families
from inferd_runtime.server.programs.bundles import make_program
from inferd_runtime.server.supervisor.run_events import Ending, EventBuffer
from inferd_runtime.server.supervisor.run_totals import MAX_TENANTS, OTHERS, RunTotals, TenantTotals
from inferd_runtime.server.supervisor.runs import Run
from inferd_runtime.session.wire import EngineStats, ModelStats

DASHBOARD = Path(__file__).resolve().parents[3] / "docs" / "grafana" / "inferd.json"
PROGRAM = make_program(Bundle("p", {"main.py": "async def main(): pass"}))
METRIC = re.compile(r"\b(?:vllm:|inferd_)\w+")
GROUPED = re.compile(r"by \(([^)]*)\)")
LABEL = re.compile(r"\{\{(\w+)\}\}")
ENDED = Ending(RunUsage(tokens=5, cpu_ms=40.0), ("1",))


def run_of(tenant: str) -> Run:
    return Run(PROGRAM, "{}", tenant, Limits(), EventBuffer(1000))


def model() -> ModelStats:
    """A model of which one generation has ended, one writes and one waits."""
    clock = HandClock()
    generations = GenerationClock(clock)
    done, writing, waiting = (generations.begin(f"run/{n}", 10) for n in range(3))
    clock.now += 0.2
    done.planned()
    clock.now += 1.0
    done.wrote(1)
    for _ in range(4):
        clock.now += 0.02
        done.wrote(2)
    writing.planned()
    done.end("stop")
    done.end("closed")
    waiting.end("closed")
    generations.begin("run/4", 7)
    return ModelStats("tiny", 5, 1, 64, 16, 30, 1, 2, looked_up_tokens=40, generations=generations.figures)


def page(tenants: TenantTotals | None = None, active: list[Run] | None = None, only: str | None = None) -> str:
    totals = RunTotals()
    totals.add(ENDED)
    families = list(tenant_families(tenants or TenantTotals(), active or [], only))
    return MetricsPage(totals, dict.fromkeys(FIGURES, 1.0), [model()], families).text()


def labels_by_name(text: str) -> dict[str, set[str]]:
    found: dict[str, set[str]] = defaultdict(set)
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found[sample.name] |= sample.labels.keys()
    return found


def test_generations_are_told_under_vllms_names() -> None:
    lines = page().splitlines()
    for line in (
        'vllm:num_requests_running{model_name="tiny"} 1.0',
        'vllm:num_requests_waiting{model_name="tiny"} 1.0',
        'vllm:kv_cache_usage_perc{model_name="tiny"} 0.75',
        'vllm:prefix_cache_queries_total{model_name="tiny"} 40.0',
        'vllm:prefix_cache_hits_total{model_name="tiny"} 30.0',
        'vllm:num_preemptions_total{model_name="tiny"} 3.0',
        'vllm:prompt_tokens_total{model_name="tiny"} 37.0',
        'vllm:generation_tokens_total{model_name="tiny"} 9.0',
        'vllm:request_success_total{finished_reason="stop",model_name="tiny"} 1.0',
        'vllm:request_success_total{finished_reason="abort",model_name="tiny"} 1.0',
        'vllm:time_to_first_token_seconds_bucket{le="1.0",model_name="tiny"} 0.0',
        'vllm:time_to_first_token_seconds_bucket{le="2.5",model_name="tiny"} 1.0',
        'vllm:time_to_first_token_seconds_count{model_name="tiny"} 1.0',
        'vllm:inter_token_latency_seconds_count{model_name="tiny"} 4.0',
        'vllm:inter_token_latency_seconds_bucket{le="0.025",model_name="tiny"} 4.0',
        'vllm:request_queue_time_seconds_bucket{le="0.3",model_name="tiny"} 1.0',
        'vllm:e2e_request_latency_seconds_count{model_name="tiny"} 2.0',
        "# TYPE vllm:request_prefill_time_seconds histogram",
    ):
        assert line in lines, line


def test_a_models_figures_cross_the_wire() -> None:
    stats = EngineStats(1, 2, 3, 4, 5, [model()])
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(stats), type=EngineStats) == stats


def test_codes_that_programs_make_up_are_no_labels() -> None:
    totals = RunTotals()
    for number in range(3):
        for code in (f"mine{number}", f"program.mine{number}", f"limit.truncated.x{number}"):
            totals.add(Ending(RunUsage(), error=ErrorInfo(code, "")))
    assert totals.ended == {("failed", "program"): 6, ("failed", "limit.truncated"): 3}


def test_a_tenant_sees_its_own_figures_and_an_admin_all() -> None:
    totals = TenantTotals()
    totals.add("ann", ENDED)
    text = page(totals, [run_of("ann"), run_of("bob")])
    assert 'inferd_tenant_generation_tokens_total{tenant="ann"} 5.0' in text
    assert 'inferd_tenant_runs_waiting{tenant="bob"} 1.0' in text
    own = page(totals, [run_of("ann"), run_of("bob")], only="bob")
    assert 'tenant="bob"' in own
    assert "ann" not in own


def test_the_number_of_tenants_with_a_label_is_bounded() -> None:
    totals = TenantTotals()
    for number in range(MAX_TENANTS + 30):
        totals.add(f"t{number}", ENDED)
    text = page(totals, [run_of(f"u{number}") for number in range(100)])
    tenants = set(re.findall(r'tenant="([^"]*)"', text))
    assert len(tenants) == MAX_TENANTS + 1
    assert f'inferd_tenant_runs_total{{tenant="{OTHERS}"}} 30.0' in text
    assert f'inferd_tenant_runs_waiting{{tenant="{OTHERS}"}} 100.0' in text


def test_the_dashboard_asks_for_what_is_there() -> None:
    totals = TenantTotals()
    totals.add("ann", ENDED)
    known = labels_by_name(page(totals, [run_of("ann")]))
    targets = [target for panel in json.loads(DASHBOARD.read_text())["panels"] for target in panel["targets"]]
    assert len(targets) > 20
    for target in targets:
        names = METRIC.findall(target["expr"])
        assert names
        wanted = {label.strip() for group in GROUPED.findall(target["expr"]) for label in group.split(",")}
        wanted |= set(LABEL.findall(target["legendFormat"])) | set(re.findall(r"(\w+)=~", target["expr"]))
        for name in names:
            assert name in known, target["expr"]
            assert wanted <= known[name], target["expr"]
