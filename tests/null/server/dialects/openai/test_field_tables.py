"""The tables of fields: they say what the requests' structs take, and no bad value brings another error than a refusal."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings, strategies as st

from inferd.protocol import InvalidRequest
from inferd_runtime.server.dialects.exchange import ClientHeaders
from inferd_runtime.server.dialects.field_table import FieldTable
from inferd_runtime.server.dialects.openai.chat import read_chat
from inferd_runtime.server.dialects.openai.chat_fields import CHAT_FIELDS, ChatFields
from inferd_runtime.server.dialects.openai.completion_fields import COMPLETION_FIELDS, CompletionFields
from inferd_runtime.server.dialects.openai.completions import read_completions
from inferd_runtime.server.dialects.openai.embeddings import EMBEDDING_FIELDS, EmbeddingFields, read_embeddings
from inferd_runtime.server.dialects.openai.tokens import (
    DETOKENIZE_FIELDS,
    TOKENIZE_FIELDS,
    DetokenizeFields,
    TokenizeFields,
    read_detokenize,
    read_tokenize,
)

TABLES = {
    "chat": (CHAT_FIELDS, ChatFields),
    "completions": (COMPLETION_FIELDS, CompletionFields),
    "embeddings": (EMBEDDING_FIELDS, EmbeddingFields),
    "tokenize": (TOKENIZE_FIELDS, TokenizeFields),
    "detokenize": (DETOKENIZE_FIELDS, DetokenizeFields),
}
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
FULL_CHAT: dict[str, Any] = {
    "model": "m", "stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    "messages": [
        {"role": "system", "content": "s"}, {"role": "user", "content": [{"type": "text", "text": "t"}]},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "content": "x", "tool_call_id": "c"}, {"role": "assistant", "content": "a"},
    ],
    "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}, "strict": True}}],
    "tool_choice": {"type": "function", "function": {"name": "f"}}, "logit_bias": {"1": 2}, "stop": ["a"],
    "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}},
    "prediction": {"type": "content", "content": [{"type": "text", "text": "t"}]}, "metadata": {"a": "b"},
    "continue_final_message": True, "add_generation_prompt": False, "chat_template_kwargs": {"a": 1},
    "logprobs": True, "top_logprobs": 2, "n": 2, "seed": -1, "max_tokens": 3,
}  # fmt: skip
FULL_COMPLETION: dict[str, Any] = {
    "model": "m", "prompt": ["a", "b"], "n": 2, "best_of": 2, "logprobs": 1, "stop": "x", "logit_bias": {"1": 1},
    "structured_outputs": {"choice": ["a"]}, "stream": True, "stream_options": {"include_usage": True},
}  # fmt: skip
FULL_EMBEDDING: dict[str, Any] = {"model": "m", "input": [[1, 2], [3]], "encoding_format": "base64", "dimensions": 3}
READERS: dict[str, tuple[Callable[[bytes], Any], dict[str, Any]]] = {
    "chat": (lambda body: read_chat(body, ClientHeaders()), FULL_CHAT),
    "completions": (lambda body: read_completions(body, ClientHeaders()), FULL_COMPLETION),
    "embeddings": (lambda body: read_embeddings(body, ClientHeaders()), FULL_EMBEDDING),
    "tokenize": (read_tokenize, {"model": "m", "prompt": "a", "return_token_strs": True}),
    "tokenize a conversation": (read_tokenize, {"messages": FULL_CHAT["messages"], "tools": FULL_CHAT["tools"]}),
    "detokenize": (read_detokenize, {"tokens": [1, 2]}),
}
NAMES = {
    "chat": CHAT_FIELDS, "completions": COMPLETION_FIELDS, "embeddings": EMBEDDING_FIELDS, "tokenize": TOKENIZE_FIELDS,
    "tokenize a conversation": CHAT_FIELDS, "detokenize": DETOKENIZE_FIELDS,
}  # fmt: skip
scalars = (
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=8) | st.sampled_from(["", "auto", "none", "text", "a`b", "x\n"])
)  # fmt: skip
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["type", "role", "name", "`", "a.b"]), inner, max_size=3)
    ),
    max_leaves=6,
)


@pytest.mark.parametrize("name", TABLES)
def test_a_table_and_its_struct_have_the_same_fields(name: str) -> None:
    table, struct = TABLES[name]
    assert isinstance(table, FieldTable)
    assert {field.name for field in msgspec.structs.fields(struct)} == table.working
    names = [field.name for field in table.fields]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("name", TABLES)
def test_each_field_says_how_it_stands(name: str) -> None:
    standings = {field.standing for field in TABLES[name][0].fields}
    assert standings <= {"works", "accepted only as", "refused"}
    assert all(field.note for field in TABLES[name][0].fields)


@pytest.mark.parametrize("name", READERS)
def test_a_request_with_everything_in_it_is_read(name: str) -> None:
    read, full = READERS[name]
    assert read(json.dumps(full).encode()) is not None


def read_or_refuse(name: str, value: dict[str, Any]) -> str | None:
    """Return the param of the refusal, None for a request that was read."""
    try:
        READERS[name][0](json.dumps(value).encode())
    except InvalidRequest as error:
        param = error.detail["param"]
        assert isinstance(param, str)
        assert param
        return param
    return None


@pytest.mark.parametrize("name", READERS)
@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_any_value_of_any_field_is_taken_or_refused_by_name(name: str, data: st.DataObject) -> None:
    field = data.draw(st.sampled_from([field.name for field in NAMES[name].fields]))
    read_or_refuse(name, {**READERS[name][1], field: data.draw(values)})


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the paths of all that lies inside of a value."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [place for key, each in inside for place in ((*path, key), *places(each, (*path, key)))]


def changed(value: dict[str, Any], path: tuple[Any, ...], kind: str, new: Any) -> dict[str, Any]:
    """Return a copy of a request with something replaced, left out, or added."""
    copy: dict[str, Any] = json.loads(json.dumps(value))
    place: Any = copy
    for key in path[:-1]:
        place = place[key]
    if kind == "replace":
        place[path[-1]] = new
    elif kind == "leave out":
        del place[path[-1]]
    elif isinstance(place, dict):
        place["surprise"] = new
    else:
        place.append(new)
    return copy


@pytest.mark.parametrize("name", READERS)
@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_a_change_anywhere_in_a_request_is_taken_or_refused_by_name(name: str, data: st.DataObject) -> None:
    full = READERS[name][1]
    path = data.draw(st.sampled_from(places(full)))
    kind = data.draw(st.sampled_from(["replace", "leave out", "add"]))
    read_or_refuse(name, changed(full, path, kind, data.draw(values)))


@pytest.mark.parametrize("name", READERS)
@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_a_field_that_does_not_work_is_refused_by_its_own_name(name: str, data: st.DataObject) -> None:
    refused = [field for field in NAMES[name].fields if field.only is not None]
    if not refused:
        return
    field = data.draw(st.sampled_from(refused))
    value = data.draw(values)
    if not field.accepts(value) and field.name not in READERS[name][1]:
        assert read_or_refuse(name, {**READERS[name][1], field.name: value}) == field.name


def test_true_is_not_one_and_false_is_not_zero() -> None:
    for name, value in (
        ("skip_special_tokens", 1),
        ("use_beam_search", 0),
        ("length_penalty", True),
        ("stream_interval", True),
    ):
        assert read_or_refuse("chat", {**FULL_CHAT, name: value}) == name


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("field", ["typical_p", "xtc_probability", "xtc_threshold", "dry_multiplier", "mirostat_tau"])
def test_samplers_that_work_in_programs_alone_are_refused_by_name(name: str, field: str) -> None:
    assert read_or_refuse(name, {**READERS[name][1], field: 0.5}) == field
