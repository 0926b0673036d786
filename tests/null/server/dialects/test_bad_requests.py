"""Whatever a client sends, a dialect reads it or raises InvalidRequest that names a field: nothing else."""

from __future__ import annotations

import importlib
import json
import typing
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from inferd.protocol import InvalidRequest
from inferd_runtime.server.dialects.anthropic.dialect import read_count_tokens, read_messages
from inferd_runtime.server.dialects.anthropic.fields import (
    COUNT_TOKENS_FIELDS,
    MESSAGES_FIELDS,
    CountTokensBody,
    MessagesBody,
)
from inferd_runtime.server.dialects.exchange import ClientHeaders
from inferd_runtime.server.dialects.field_table import FieldTable, RequestField
from inferd_runtime.server.dialects.responses.answer import read_input_tokens, read_responses
from inferd_runtime.server.dialects.responses.fields import (
    INPUT_TOKENS_FIELDS,
    RESPONSES_FIELDS,
    InputTokensBody,
    ResponsesBody,
)

WORDS = st.sampled_from(
    [
        "", "text", "role", "user", "assistant", "system", "type", "content", "name", "input", "tool_use", "tool_result",
        "id", "thinking", "input_text", "output_text", "function_call", "function_call_output", "call_id", "arguments",
        "{}", "[", "auto", "function", "message", "reasoning", "item_reference", "json_schema", "schema", "format",
        "enabled", "budget_tokens", "\x00",
    ]
)  # fmt: skip
VALUES: Any = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | WORDS | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=4),
    max_leaves=8,
)
GOOD_ANTHROPIC = {"model": "t", "max_tokens": 5, "messages": [{"role": "user", "content": "a"}]}
GOOD_RESPONSES = {"model": "t", "input": "a"}


def names(table: FieldTable) -> tuple[str, ...]:
    return tuple(field.name for field in table.fields)


@pytest.mark.parametrize(
    ("table", "body"),
    [
        (COUNT_TOKENS_FIELDS, CountTokensBody),
        (MESSAGES_FIELDS, MessagesBody),
        (RESPONSES_FIELDS, ResponsesBody),
        (INPUT_TOKENS_FIELDS, InputTokensBody),
    ],
)
def test_the_table_says_what_the_struct_takes(table: FieldTable, body: Any) -> None:
    assert len(set(names(table))) == len(table.fields)
    assert table.working == set(body.__struct_fields__)


IN_HEADERS = {"betas"}
VENDORS = [
    (COUNT_TOKENS_FIELDS, "anthropic.types.message_count_tokens_params", "MessageCountTokensParams"),
    (MESSAGES_FIELDS, "anthropic.types.message_create_params", "MessageCreateParamsStreaming"),
    (COUNT_TOKENS_FIELDS, "anthropic.types.beta.message_count_tokens_params", "MessageCountTokensParams"),
    (MESSAGES_FIELDS, "anthropic.types.beta.message_create_params", "MessageCreateParamsStreaming"),
    (RESPONSES_FIELDS, "openai.types.responses.response_create_params", "ResponseCreateParamsStreaming"),
    (INPUT_TOKENS_FIELDS, "openai.types.responses.input_token_count_params", "InputTokenCountParams"),
]


@pytest.mark.parametrize(("table", "module", "parameters"), VENDORS)
def test_every_field_of_the_vendors_package_is_known(table: FieldTable, module: str, parameters: str) -> None:
    documented = typing.get_type_hints(getattr(importlib.import_module(module), parameters))
    assert documented.keys() - {*names(table), *IN_HEADERS} == set()


def test_what_a_refusal_repeats_is_json() -> None:
    table = FieldTable((RequestField("a", "a note", (False, {"b": None}, "x")),))
    with pytest.raises(InvalidRequest, match=r'a: only false or \{"b": null\} or "x" is supported'):
        table.take({"a": True})


def bodies(good: dict[str, Any], fields: tuple[str, ...]) -> Any:
    """Return good bodies with some fields that may be anything."""
    changes = st.dictionaries(st.sampled_from(fields) | WORDS, VALUES, max_size=3)
    return changes.map(lambda change: json.dumps({**good, **change}).encode())


def check(dialect: Any, body: bytes) -> None:
    param = "read"
    try:
        dialect(body, ClientHeaders())
    except InvalidRequest as error:
        error.to_wire()
        param = error.detail["param"]
    assert isinstance(param, str)


@settings(max_examples=300, deadline=None)
@given(bodies(GOOD_ANTHROPIC, names(MESSAGES_FIELDS)))
def test_anthropic(body: bytes) -> None:
    check(read_messages, body)
    check(read_count_tokens, body)


@settings(max_examples=300, deadline=None)
@given(bodies(GOOD_RESPONSES, names(RESPONSES_FIELDS)))
def test_responses(body: bytes) -> None:
    check(read_responses, body)
    check(partial(read_input_tokens, "t"), body)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.dictionaries(WORDS, VALUES, max_size=5), max_size=4))
def test_items_and_messages_of_any_shape(values: list[Any]) -> None:
    check(read_responses, json.dumps({**GOOD_RESPONSES, "input": values}).encode())
    check(read_messages, json.dumps({**GOOD_ANTHROPIC, "messages": values}).encode())
    content = [{"role": "user", "content": values}, {"role": "assistant", "content": values}]
    check(read_responses, json.dumps({**GOOD_RESPONSES, "input": content}).encode())
    check(read_messages, json.dumps({**GOOD_ANTHROPIC, "messages": content}).encode())


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=40))
def test_bytes_of_any_kind(body: bytes) -> None:
    for dialect in (read_messages, read_count_tokens, read_responses):
        with pytest.raises(InvalidRequest) as caught:
            dialect(body, ClientHeaders())
        assert "param" in caught.value.detail
