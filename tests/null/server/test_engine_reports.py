"""What the gateway makes of an engine's last words and of its figures."""

from __future__ import annotations

import msgspec
import pytest

from inferd.protocol import InferdError, InvalidRequest, LimitExceeded
from inferd_runtime.server.engine import told_error
from inferd_runtime.server.metrics import RunTotals, render
from inferd_runtime.session.link import ModelStats


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
