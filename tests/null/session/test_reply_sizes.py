"""How large a reply may be is known from its call: no reply is larger than what was counted for it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from inferd import protocol as p
from inferd_runtime.engine.sampling.probes import MAX_NUMBERS
from inferd_runtime.session.reply_sizes import LARGEST, LONG_CALL, MOST_NUMBERS, ModelSizes, reply_size
from inferd_runtime.session.wire import JSON, MSGPACK
from inferd_runtime.testing.direct import DirectSession
from inferd_runtime.testing.served import null_model

SIZES = ModelSizes(258, 4096)
TOKENS = [97] * 40
PROBES = [
    p.Probe("logits"),
    p.Probe("distribution"),
    p.Probe("distribution", k=5),
    p.Probe("logprobs", tokens=[1, 2, 3]),
]
CALLS: list[Any] = [
    p.Forward(0, TOKENS, at=list(range(40)), probes=PROBES, top=10),
    p.Forward(0, TOKENS, probes=[p.Probe("entropy")]),
    p.PromptLogprobs(0, TOKENS, top=20),
    p.PromptLogprobs(0, TOKENS),
    p.Embed(texts=["abc"] * 20),
    p.Embed(texts=["abc" * 30], pooling="none"),
    p.ContextTokens(0),
    p.ContextTokens(0, 39),
    p.Detokenize(TOKENS),
    p.TokenBytes(TOKENS),
    p.GetTokenizerInfo(),
    p.Tokenize("a"),
    p.Tokenize("\u20ac" * 3000, start=True),
    p.RenderChat([{"role": "user", "content": "\u20ac" * 3000}], text=True),
]


@pytest.mark.parametrize("call", CALLS)
def test_no_reply_is_larger_than_was_counted(call: Any) -> None:
    session = DirectSession(null_model())
    if hasattr(call, "context"):
        call = type(call)(**{**vars(call), "context": session.context()})
    if isinstance(call, p.ContextTokens):
        session.call(p.AppendContext(call.context, [p.Part("tokens", tokens=TOKENS)]))
    reply = session.call(call)
    for form, encode in ((JSON, msgspec.json.encode), (MSGPACK, msgspec.msgpack.encode)):
        assert len(encode(reply)) <= reply_size(call.op, encode(call), form, SIZES) <= LARGEST


def test_a_list_of_all_saved_contexts_is_no_larger_than_was_counted() -> None:
    """It counted as nothing: a thousand of them that a script asked for, and did not read, took gigabytes."""
    saved = [p.SavedContext("n" * 128, "m" * 64, (1 << 24) - 1, (1 << 40) - 1, 1795776301.123456)] * p.MAX_SNAPSHOTS
    for form, encode in ((JSON, msgspec.json.encode), (MSGPACK, msgspec.msgpack.encode)):
        assert len(encode(p.SavedContexts(saved))) <= reply_size("context.saved", b"\x80", form)


def test_what_is_not_looked_into_counts_as_the_largest_and_what_is_none_as_nothing() -> None:
    assert MOST_NUMBERS == MAX_NUMBERS
    assert reply_size("forward", bytes(LONG_CALL + 1), MSGPACK) == LARGEST
    assert reply_size("forward", b"\xc1", MSGPACK) == reply_size("forward", b"[" * 9000, JSON) == 0
    assert reply_size("context.create", b"\x80", MSGPACK) == 0
    assert reply_size("context.export", b"\x80", MSGPACK) == p.MAX_EXPORT_BYTES
