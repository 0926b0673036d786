"""What an operation does not have is refused by its name, in both encodings, at every depth: nobody believes it was heeded."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from inferd import protocol as p
from inferd_runtime.known_fields import known_fields
from inferd_runtime.server.services.wires import JSON_WIRE, MSGPACK_WIRE

ALL = {**p.OPERATIONS, **p.GATEWAY_OPERATIONS}
NESTED = [
    (p.StartGenerate, {"context": 1, "sampling": {"top_q": 1}}, "top_q` - at `$.sampling"),
    (p.StartGenerate, {"context": 1, "speculation": {"max_drafts": 1}}, "max_drafts` - at `$.speculation"),
    (
        p.AppendContext,
        {"context": 1, "parts": [{"kind": "text"}, {"kind": "text", "speaker": "x"}]},
        "speaker` - at `$.parts[1]",
    ),
    (
        p.CompileGrammar,
        {"constraint": {"kind": "any_of", "members": [{"kind": "text", "flag": 1}]}},
        "$.constraint.members[0]",
    ),
    (
        p.CompileGrammar,
        {"constraint": {"kind": "tagged", "tags": [{"begin": "<", "stop": ">"}]}},
        "$.constraint.tags[0]",
    ),
]


@pytest.mark.parametrize("codec", [msgspec.json, msgspec.msgpack])
@pytest.mark.parametrize("op", ALL)
def test_no_operation_has_a_field_that_is_taken_and_ignored(op: str, codec: Any) -> None:
    decoder = codec.Decoder(known_fields(ALL[op]))
    decoder.decode(codec.encode({}))
    with pytest.raises(msgspec.ValidationError, match="unknown field `surplus`"):
        decoder.decode(codec.encode({"surplus": None}))


@pytest.mark.parametrize(("kind", "request_", "where"), NESTED)
def test_a_field_that_is_unknown_further_in_is_named_with_its_place(kind: Any, request_: Any, where: str) -> None:
    with pytest.raises(msgspec.ValidationError) as refused:
        msgspec.json.decode(json.dumps(request_), type=known_fields(kind))
    assert where in str(refused.value)


def test_what_the_gateway_answers_has_no_other_fields_either() -> None:
    asked = {"queue": "q", "values": [], "durables": True}
    for wire, codec in ((JSON_WIRE, msgspec.json), (MSGPACK_WIRE, msgspec.msgpack)):
        with pytest.raises(p.InvalidRequest, match=r"queue\.push: .*unknown field `durables`"):
            wire.request("queue.push", codec.encode(asked))  # type: ignore[attr-defined]
