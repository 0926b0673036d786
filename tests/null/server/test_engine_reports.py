"""What the gateway makes of an engine's last words and of its figures."""

from __future__ import annotations

import msgspec
import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from inferd.protocol import SOURCES, Cancelled, InferdError, InvalidRequest, LimitExceeded
from inferd.speculation_stats import SourceStats
from inferd_runtime.sandbox.messages import RunUsage
from inferd_runtime.server.gateway.metrics import FIGURES, MetricsPage
from inferd_runtime.server.processes.child_protocol import printed_error
from inferd_runtime.server.supervisor.run_events import Ending
from inferd_runtime.server.supervisor.run_totals import RunTotals
from inferd_runtime.session.wire import ModelStats
from inferd_runtime.speculation.counters import DraftModelCounters, SpeculationCounters


@pytest.mark.parametrize(
    "error",
    [InvalidRequest("no such device"), LimitExceeded("too large", limit="memory", value=7, raise_with="--pages 3")],
)
def test_an_engines_error_arrives_as_the_error_that_it_was(error: InferdError) -> None:
    printed = "a warning\n" + msgspec.json.encode(error.to_wire()).decode()
    told = printed_error(printed)
    assert type(told) is type(error)
    assert told is not None
    assert (told.message, told.detail) == (error.message, error.detail)


@pytest.mark.parametrize("printed", ["", "Killed", "Traceback ...\nValueError: {", '{"code": 3}', '{"a": "b"}', "[1]"])
def test_other_last_words_are_no_error_of_ours(printed: str) -> None:
    assert printed_error(printed) is None


def parsed(page: str) -> list[Metric]:
    return list(text_string_to_metric_families(page))


def sample(page: str, name: str, **labels: str) -> float:
    samples = [sample for family in parsed(page) for sample in family.samples]
    (value,) = [sample.value for sample in samples if (sample.name, sample.labels) == (name, labels)]
    return value


def page_of(*models: ModelStats) -> str:
    return MetricsPage(RunTotals(), {}, models).text()


def test_models_are_labelled_and_their_names_cannot_break_the_page() -> None:
    page = page_of(ModelStats("tiny", 5, 1, 64, 60), ModelStats('a"b\\c\nd', 0, 0, 16, 16))
    lines = page.splitlines()
    assert "# TYPE inferd_model_steps_total counter" in lines
    assert "# TYPE inferd_model_kv_pages gauge" in lines
    assert 'inferd_model_steps_total{model="tiny"} 5.0' in lines
    assert r'inferd_model_kv_pages_free{model="a\"b\\c\nd"} 16.0' in lines
    assert lines.count("# TYPE inferd_model_jobs gauge") == 1
    values = {(sample.name, sample.labels.get("model")) for family in parsed(page) for sample in family.samples}
    assert ("inferd_model_kv_pages_free", 'a"b\\c\nd') in values


def test_every_family_has_its_help_and_type_and_nothing_is_told_twice() -> None:
    draft = {"small": DraftModelCounters(9, 5, 3, 2, 1, 0.25)}
    models = [ModelStats("tiny", 5, 1, 64, 60, draft_models=draft), ModelStats("b", 0, 0, 4, 4)]
    totals = RunTotals()
    totals.add(Ending(RunUsage(tokens=7), error=Cancelled("stopped").to_wire()))
    totals.add(Ending(RunUsage(tokens=5), ("1",)))
    text = MetricsPage(totals, dict.fromkeys(FIGURES, 3), models).text()
    families = parsed(text)
    assert all(family.documentation and family.type in ("counter", "gauge", "histogram") for family in families)
    names = [family.name for family in families]
    assert len(names) == len(set(names)) > 30
    assert all(
        (family.type == "counter") == (family.samples[0].name.endswith("_total"))
        for family in families
        if family.samples
    )
    assert "_created" not in text
    assert sample(text, "inferd_runs_total", state="cancelled", error="cancelled") == 1
    assert sample(text, "inferd_runs_total", state="succeeded", error="") == 1
    assert sample(text, "inferd_generation_tokens_total") == 12
    assert sample(text, "inferd_kv_pages_free") == 3


def test_without_an_engine_there_are_no_models_figures() -> None:
    assert "inferd_model" not in page_of()
    assert "spec" not in page_of()


def test_speculation_is_told_by_source_and_under_vllms_names() -> None:
    done = SpeculationCounters(
        steps=100, drafts=40, emitted=155, accepted=60, accepted_per_position=[38, 22],
        sources={"ngram": SourceStats(60, 3, 50), "program": SourceStats(20, 0, 10)},
    )  # fmt: skip
    draft = {"small": DraftModelCounters(9, 5, 3, 2, 1, 0.25, 4, 3, 0.125)}
    page = page_of(ModelStats("tiny", 5, 1, 64, 60, 0, 0, 0, done, True, draft), ModelStats("b", 0, 0, 4, 4))
    lines = page.splitlines()
    for line in (
        'inferd_spec_steps_total{model="tiny"} 100.0',
        'inferd_spec_drafts_total{model="tiny"} 40.0',
        'inferd_spec_emitted_tokens_total{model="tiny"} 155.0',
        'inferd_spec_truncated_tokens_total{model="tiny"} 5.0',
        'inferd_spec_wasted_tokens_total{model="tiny"} 20.0',
        'inferd_spec_drafted_tokens_total{model="tiny",source="ngram"} 60.0',
        'inferd_spec_filtered_tokens_total{model="tiny",source="ngram"} 3.0',
        'inferd_spec_accepted_tokens_total{model="tiny",source="program"} 10.0',
        'inferd_spec_accepted_tokens_total{model="b",source="program"} 0.0',
        'inferd_spec_accepted_tokens_per_pos_total{model="tiny",position="1"} 22.0',
        'inferd_spec_breaker_open{model="tiny"} 1.0',
        'inferd_spec_breaker_open{model="b"} 0.0',
        'vllm:spec_decode_num_drafts_total{model_name="tiny"} 40.0',
        'vllm:spec_decode_num_draft_tokens_total{model_name="tiny"} 80.0',
        'vllm:spec_decode_num_accepted_tokens_total{model_name="tiny"} 60.0',
        'vllm:spec_decode_num_accepted_tokens_per_pos_total{model_name="tiny",position="0"} 38.0',
        'vllm:spec_decode_num_drafts_total{model_name="b"} 0.0',
        'inferd_draft_model_hits_total{draft_model="small",model="tiny"} 5.0',
        'inferd_draft_model_timeouts_total{draft_model="small",model="tiny"} 2.0',
        'inferd_draft_model_waited_seconds_total{draft_model="small",model="tiny"} 0.25',
        'inferd_draft_model_late_total{draft_model="small",model="tiny"} 4.0',
        'inferd_draft_model_connections_total{draft_model="small",model="tiny"} 3.0',
        'inferd_draft_model_round_trip_seconds{draft_model="small",model="tiny"} 0.125',
        "# TYPE vllm:spec_decode_num_drafts_total counter",
        "# TYPE inferd_spec_breaker_open gauge",
    ):
        assert line in lines
    assert len(lines) == len(set(lines))
    assert "draft_model_" not in page_of(ModelStats("b", 0, 0, 4, 4))
    assert sum(line.startswith("inferd_spec_drafted_tokens_total{") for line in lines) == 2 * len(SOURCES)
