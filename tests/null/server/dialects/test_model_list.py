"""The list of models as Anthropic's clients read it: pages, cursors, and what is refused."""

from __future__ import annotations

import pytest

from inferd.protocol import InvalidRequest, NotFound
from inferd_runtime.server.dialects.anthropic.errors import error_reply_anthropic
from inferd_runtime.server.dialects.anthropic.model_list import ModelQuery, anthropic_model_json, anthropic_models_body
from inferd_runtime.server.dialects.openai.errors import error_reply_openai
from inferd_runtime.server.dialects.openai.model_list import ModelEntry
from inferd_runtime.server.dialects.routes import error_shape
from inferd_runtime.server.gateway.replies import error_reply

ENTRIES = [ModelEntry(name, 1_700_000_000.9, max_context=4096) for name in "abcde"]


def names(query: ModelQuery) -> tuple[str, bool]:
    body = anthropic_models_body(ENTRIES, query)
    page = [each["id"] for each in body["data"]]
    assert (body["first_id"], body["last_id"]) == ((page[0], page[-1]) if page else (None, None))
    return "".join(page), body["has_more"]


def test_a_model_is_told_with_the_time_and_its_context() -> None:
    told = anthropic_model_json(ModelEntry("mine", 1_700_000_000.9, max_context=0))
    assert (told["type"], told["id"], told["display_name"]) == ("model", "mine", "mine")
    assert told["created_at"] == "2023-11-14T22:13:20Z"
    assert told["max_input_tokens"] is told["max_tokens"] is None
    assert anthropic_model_json(ENTRIES[0])["max_tokens"] == 4096


def test_pages_follow_each_other_in_both_directions() -> None:
    assert names(ModelQuery()) == ("abcde", False)
    assert names(ModelQuery(limit=2)) == ("ab", True)
    assert names(ModelQuery(limit=2, after="b")) == ("cd", True)
    assert names(ModelQuery(limit=2, after="d")) == ("e", False)
    assert names(ModelQuery(limit=2, after="e")) == ("", False)
    assert names(ModelQuery(limit=2, before="d")) == ("bc", True)
    assert names(ModelQuery(limit=2, before="b")) == ("a", False)


def test_every_model_is_active() -> None:
    assert names(ModelQuery(lifecycles=["active", "retired"])) == ("abcde", False)
    assert names(ModelQuery(lifecycles=["retired"])) == ("", False)


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ({"limit": 0}, "limit"),
        ({"limit": 1001}, "limit"),
        ({"after": "a", "before": "b"}, "before_id"),
        ({"lifecycles": ["young"]}, "lifecycle"),
        ({"after": "z"}, "after_id"),
        ({"before": "z"}, "before_id"),
    ],
)
def test_a_page_that_is_none_is_refused_by_name(query: dict[str, object], param: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        anthropic_models_body(ENTRIES, ModelQuery(**query))  # type: ignore[arg-type]
    assert refused.value.detail["param"] == param


def test_errors_of_the_shared_route_are_in_the_shape_of_who_asks() -> None:
    header = "anthropic-version"
    assert error_shape("/v1/models/x", [header]) is error_reply_anthropic
    assert error_shape("/v1/models/x") is error_reply_openai
    assert error_shape("/v1/runs", [header]) is None
    scope = {"path": "/v1/models/x", "headers": [(header.encode(), b"2023-06-01")]}
    assert b'"type":"error"' in error_reply(NotFound("no"), scope).body
