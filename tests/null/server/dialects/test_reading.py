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
from inferd_runtime.server.dialects.exchange import ClientHeaders
from inferd_runtime.server.dialects.openai.chat import ChatCompletions
from inferd_runtime.server.dialects.reading import as_kind, read_object

ASK = {"model": "m", "messages": [{"role": "user", "content": "Hello"}]}


def test_a_whole_number_may_be_written_with_a_fraction_of_zero() -> None:
    body = b'{"max_tokens": 3.0, "n": 2.0, "seed": 7.0, "temperature": 1.0, ' + json.dumps(ASK).encode()[1:]
    request = ChatCompletions().read(body, ClientHeaders()).request
    assert (request.max_tokens, request.n, request.sampling.seed) == (3, 2, 7)
    assert all(type(each) is int for each in (request.max_tokens, request.n, request.sampling.seed))


@pytest.mark.parametrize("value", [3.5, 1e30, -1.5])
def test_other_fractions_are_refused(value: Any) -> None:
    with pytest.raises(InvalidRequest, match=r"max_tokens: Expected `int \| null`, got `float`"):
        ChatCompletions().read(json.dumps({**ASK, "max_tokens": value}).encode(), ClientHeaders())


def test_a_number_in_free_json_stays_as_it_was_written() -> None:
    assert as_kind({"x": 1.0}, dict[str, Any]) == {"x": 1.0}
    assert type(as_kind({"x": 1.0}, dict[str, Any])["x"]) is float


def test_what_no_wire_carries_is_told_with_its_field_alone() -> None:
    with pytest.raises(InvalidRequest) as caught:
        read_object(b'{"prompt": [100000000000000000000]}')
    assert caught.value.message == "prompt: an integer does not fit into 64 bits"
    assert caught.value.detail["param"] == "prompt"


def test_a_key_that_is_too_long_is_told_with_its_field() -> None:
    with pytest.raises(InvalidRequest) as caught:
        ChatCompletions().read(json.dumps({**ASK, "metadata": {"a" * 100: "b"}}).encode(), ClientHeaders())
    assert caught.value.detail["param"] == "metadata"


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
