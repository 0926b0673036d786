"""A list of millions in a call is refused by its length: going through it would hold up the step loop for seconds."""

from __future__ import annotations

import time
from typing import Any

import msgspec
import pytest
from sessions import new_grants

from inferd import protocol as p
from inferd_runtime.session import wire
from inferd_runtime.session.hub import SessionHub
from inferd_runtime.testing.served import null_model

MILLIONS = 3_000_000


def listed(element: bytes, count: int = MILLIONS) -> msgspec.Raw:
    return msgspec.Raw(b"\xdd" + count.to_bytes(4, "big") + element * count)


ZEROS, TEXTS = listed(b"\x00"), listed(b"\xa0")
PART = msgspec.msgpack.encode({"kind": "text", "value": "a"})
CALLS: dict[str, tuple[str, dict[str, Any]]] = {
    "detokenize": ("model.detokenize", {"tokens": ZEROS}),
    "bytes of tokens": ("model.token_bytes", {"tokens": ZEROS}),
    "rows of a pass": ("forward", {"context": 1, "tokens": [1], "at": ZEROS}),
    "as many rows as a list may have": ("forward", {"context": 1, "tokens": [1], "at": [0] * 1_000_000}),
    "a mask": ("forward", {"context": 1, "tokens": [1], "mask": ZEROS}),
    "a mask of one token again and again": ("forward", {"context": 1, "tokens": [1], "mask": [1] * 1_000_000}),
    "a bias": ("forward", {"context": 1, "tokens": [1], "bias_tokens": ZEROS, "bias_values": []}),
    "a probe": ("forward", {"context": 1, "tokens": [1], "probes": [{"kind": "logprobs", "tokens": ZEROS}]}),
    "a prompt": ("prompt_logprobs", {"context": 1, "tokens": ZEROS}),
    "parts": ("context.append", {"context": 1, "parts": [{"kind": "tokens", "tokens": ZEROS}]}),
    "stop strings": ("generate.start", {"context": 1, "stop": TEXTS}),
    "options": ("grammar.compile", {"constraint": {"kind": "choice", "options": TEXTS}}),
    "parts of a constraint": ("grammar.compile", {"constraint": {"kind": "sequence", "members": listed(PART, 60_000)}}),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_list_of_millions_is_refused_before_it_is_gone_through(name: str) -> None:
    """Rows of a pass were worst: 8 MB of zeros held the loop for two seconds, and half a gigabyte was answered."""
    replies: list[wire.LinkReply] = []
    grants = new_grants()
    hub = SessionHub({"null": null_model()}, lambda _, frames: replies.append(wire.parse_reply(frames)), grants)
    hub.receive(b"a", wire.open_frames(grants.issue("s", "mallory"), "test"))
    hub.receive(b"a", wire.request_frames(1, "context.create", wire.MSGPACK, b"\x80"))
    op, arguments = CALLS[name]
    frames = wire.request_frames(2, op, wire.MSGPACK, msgspec.msgpack.encode(arguments))
    began = time.process_time()
    hub.receive(b"a", frames)
    assert time.process_time() - began < 0.4
    told = msgspec.msgpack.decode(replies[-1].payload, type=p.ErrorInfo)
    assert (replies[-1].ticket, replies[-1].ok) == (2, False)
    assert told.code in ("limit", "client.invalid", "client.constraint"), told
    assert len(replies[-1].payload) < 2000
