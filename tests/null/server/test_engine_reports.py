"""What the gateway makes of an engine's last words and of its figures."""

from __future__ import annotations

import msgspec
import pytest

from inferd.protocol import SOURCES, InferdError, InvalidRequest, LimitExceeded, SourceCount
from inferd_runtime.server.gateway.metrics import RunTotals, render
from inferd_runtime.server.supervisor.engine_supervisor import told_error
from inferd_runtime.session.wire import DraftModelStats, ModelStats, SpeculationTotals


@pytest.mark.parametrize(
    "error",
    [InvalidRequest("no such device"), LimitExceeded("too large", limit="memory", value=7, raise_with="--pages 3")],
)
def test_an_engines_error_arrives_as_the_error_that_it_was(error: InferdError) -> None:
    printed = "a warning\n" + msgspec.json.encode(error.to_wire()).decode()
    told = told_error(printed)
    assert type(told) is type(error)
    assert told is not None
    assert (told.message, told.detail) == (error.message, error.detail)


@pytest.mark.parametrize("printed", ["", "Killed", "Traceback ...\nValueError: {", '{"code": 3}', '{"a": "b"}', "[1]"])
def test_other_last_words_are_no_error_of_ours(printed: str) -> None:
    assert told_error(printed) is None


def test_models_are_labelled_and_their_names_cannot_break_the_page() -> None:
    stats = [ModelStats("tiny", 5, 1, 64, 60), ModelStats('a"b\\c\nd', 0, 0, 16, 16)]
    page = render(RunTotals(), {}, {}, stats).splitlines()
    assert "# TYPE inferd_model_steps_total counter" in page
    assert "# TYPE inferd_model_kv_pages gauge" in page
    assert 'inferd_model_steps_total{model="tiny"} 5' in page
    assert r'inferd_model_kv_pages_free{model="a\"b\\c\nd"} 16' in page
    assert page.count("# TYPE inferd_model_jobs gauge") == 1


def test_without_an_engine_there_are_no_models_figures() -> None:
    assert "inferd_model" not in render(RunTotals(), {}, {})
    assert "spec" not in render(RunTotals(), {}, {})


def test_speculation_is_told_by_source_and_under_vllms_names() -> None:
    done = SpeculationTotals(
        steps=100, drafts=40, emitted=155, truncated=5, wasted=20, accepted_per_position=[38, 22],
        sources=[SourceCount("ngram", 60, 3, 50), SourceCount("program", 20, 0, 10)], breaker_open=True,
    )  # fmt: skip
    draft = DraftModelStats("small", 9, 5, 3, 2, 1, 0.25)
    page = render(
        RunTotals(), {}, {}, [ModelStats("tiny", 5, 1, 64, 60, 0, 0, 0, done, [draft]), ModelStats("b", 0, 0, 4, 4)]
    )  # fmt: skip
    lines = page.splitlines()
    for line in (
        'inferd_spec_steps_total{model="tiny"} 100',
        'inferd_spec_drafts_total{model="tiny"} 40',
        'inferd_spec_emitted_tokens_total{model="tiny"} 155',
        'inferd_spec_truncated_tokens_total{model="tiny"} 5',
        'inferd_spec_wasted_tokens_total{model="tiny"} 20',
        'inferd_spec_drafted_tokens_total{model="tiny",source="ngram"} 60',
        'inferd_spec_filtered_tokens_total{model="tiny",source="ngram"} 3',
        'inferd_spec_accepted_tokens_total{model="tiny",source="program"} 10',
        'inferd_spec_accepted_tokens_total{model="b",source="program"} 0',
        'inferd_spec_accepted_tokens_per_pos_total{model="tiny",position="1"} 22',
        'inferd_spec_breaker_open{model="tiny"} 1',
        'inferd_spec_breaker_open{model="b"} 0',
        'vllm:spec_decode_num_drafts_total{model_name="tiny"} 40',
        'vllm:spec_decode_num_draft_tokens_total{model_name="tiny"} 80',
        'vllm:spec_decode_num_accepted_tokens_total{model_name="tiny"} 60',
        'vllm:spec_decode_num_accepted_tokens_per_pos_total{model_name="tiny",position="0"} 38',
        'vllm:spec_decode_num_drafts_total{model_name="b"} 0',
        'inferd_draft_model_hits_total{model="tiny",draft_model="small"} 5',
        'inferd_draft_model_timeouts_total{model="tiny",draft_model="small"} 2',
        'inferd_draft_model_waited_seconds_total{model="tiny",draft_model="small"} 0.25',
        "# TYPE vllm:spec_decode_num_drafts_total counter",
        "# TYPE inferd_spec_breaker_open gauge",
    ):
        assert line in lines
    assert len(lines) == len(set(lines))
    assert "draft_model_" not in render(RunTotals(), {}, {}, [ModelStats("b", 0, 0, 4, 4)])
    assert sum(line.startswith("inferd_spec_drafted_tokens_total{") for line in lines) == 2 * len(SOURCES)
