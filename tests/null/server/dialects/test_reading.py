"""Reading bodies: what every dialect takes, and how an error names its field."""

from __future__ import annotations

import importlib
import json
import pkgutil
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from inferd.protocol import InvalidRequest
from inferd_runtime.server import dialects
from inferd_runtime.server.dialects.anthropic.dialect import read_messages
from inferd_runtime.server.dialects.exchange import ClientHeaders
from inferd_runtime.server.dialects.openai.chat import read_chat
from inferd_runtime.server.dialects.reading import as_kind, read_object

ASK = {"model": "m", "messages": [{"role": "user", "content": "Hello"}]}


def test_a_whole_number_may_be_written_with_a_fraction_of_zero() -> None:
    body = b'{"max_tokens": 3.0, "n": 2.0, "seed": 7.0, "temperature": 1.0, ' + json.dumps(ASK).encode()[1:]
    request = read_chat(body, ClientHeaders()).request
    assert (request.max_tokens, request.n, request.sampling.seed) == (3, 2, 7)
    assert all(type(each) is int for each in (request.max_tokens, request.n, request.sampling.seed))


@pytest.mark.parametrize("value", [3.5, 1e30, -1.5])
def test_other_fractions_are_refused(value: Any) -> None:
    with pytest.raises(InvalidRequest, match=r"max_tokens: Expected `int \| null`, got `float`"):
        read_chat(json.dumps({**ASK, "max_tokens": value}).encode(), ClientHeaders())


def test_a_number_in_free_json_stays_as_it_was_written() -> None:
    assert as_kind({"x": 1.0}, dict[str, Any]) == {"x": 1.0}
    assert type(as_kind({"x": 1.0}, dict[str, Any])["x"]) is float


def test_what_no_wire_carries_is_told_with_its_field_alone() -> None:
    with pytest.raises(InvalidRequest) as caught:
        read_object(b'{"prompt": [100000000000000000000]}')
    assert caught.value.message == "prompt: an integer does not fit into 64 bits"
    assert caught.value.detail["param"] == "prompt"


def test_too_many_fields_are_refused_with_how_many_are_allowed() -> None:
    with pytest.raises(InvalidRequest, match="the body has 300 fields; 256 are allowed"):
        read_object(json.dumps({f"k{number}": 1 for number in range(300)}).encode())


LONG = {"n": -(10**40), "deep": [{"n": 2**64}]}
CALLED = {
    "id": "c",
    "type": "function",
    "function": {"name": "f", "arguments": json.dumps(LONG), "parsed_arguments": LONG},
}


def test_a_call_comes_back_with_integers_of_any_length() -> None:
    """A model writes as many digits as its tool's schema lets it."""
    openai = {"model": "m", "messages": [*ASK["messages"], {"role": "assistant", "tool_calls": [CALLED]}]}
    block = {"type": "tool_use", "id": "c", "name": "f", "input": LONG}
    answered = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": "x"}]}
    anthropic = [*ASK["messages"], {"role": "assistant", "content": [block]}, answered]
    readers = ((read_chat, openai), (read_messages, {"model": "m", "max_tokens": 9, "messages": anthropic}))
    for dialect, body in readers:
        called = dialect(json.dumps(body).encode(), ClientHeaders()).request.messages[1].tool_calls
        assert json.loads(called[0].arguments) == LONG


def test_integers_of_any_length_are_no_place_for_others() -> None:
    """What goes on of a conversation is text; what goes on of a schema is not."""
    long = {"type": "function", "function": {"name": "f", "parameters": {"maximum": 10**40}}}
    with pytest.raises(InvalidRequest) as caught:
        read_chat(json.dumps({"model": "m", "messages": [LONG], "tools": [long]}).encode(), ClientHeaders())
    assert caught.value.detail["param"] == "tools"


def test_a_key_that_is_too_long_is_told_with_its_field() -> None:
    with pytest.raises(InvalidRequest) as caught:
        read_chat(json.dumps({**ASK, "metadata": {"a" * 100: "b"}}).encode(), ClientHeaders())
    assert caught.value.detail["param"] == "metadata"


def test_a_field_of_other_servers_is_said_not_to_be_supported() -> None:
    """It said that null was expected."""
    body = {**ASK, "structured_outputs": {"regex": "a", "whitespace_pattern": " "}}
    with pytest.raises(InvalidRequest, match=r"whitespace_pattern: a value other than null is not supported") as caught:
        read_chat(json.dumps(body).encode(), ClientHeaders())
    assert caught.value.detail["param"] == "structured_outputs.whitespace_pattern"


def structs() -> Iterator[type[msgspec.Struct]]:
    for found in pkgutil.walk_packages(dialects.__path__, f"{dialects.__name__}."):
        for kind in vars(importlib.import_module(found.name)).values():
            if isinstance(kind, type) and issubclass(kind, msgspec.Struct) and kind.__module__ == found.name:
                yield kind


def takes_null(kind: msgspec.inspect.Type) -> bool:
    if isinstance(kind, msgspec.inspect.Metadata):
        return takes_null(kind.type)
    if isinstance(kind, msgspec.inspect.UnionType):
        return any(map(takes_null, kind.types))
    return isinstance(kind, msgspec.inspect.AnyType | msgspec.inspect.NoneType)


def test_null_stands_for_every_field_that_may_be_left_out() -> None:
    """Clients that write all fields of their types send null for those that nobody set."""
    refused = [
        f"{kind.__name__}.{field.name}"
        for kind in structs()
        for field in msgspec.inspect.type_info(kind).fields  # type: ignore[attr-defined]
        if not field.required and field.name != "type" and not takes_null(field.type)
    ]
    assert not refused
