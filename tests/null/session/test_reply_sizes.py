"""How large a reply may be is known from its call: no reply is larger than what was counted for it."""

from __future__ import annotations

import base64
from typing import Any, get_type_hints

import msgspec
import pytest

from inferd import protocol as p
from inferd_runtime.engine.jobs import step_probes
from inferd_runtime.engine.sampling.probes import MAX_NUMBERS
from inferd_runtime.session.constraints import held_grammars
from inferd_runtime.session.reply_sizes import (
    BY_MODEL,
    FIXED,
    KINDS,
    LARGEST,
    LONG_CALL,
    LONG_START,
    MOST_NUMBERS,
    PER_BYTE,
    SMALL,
    STEPS,
    UNDELIVERED_NUMBERS,
    ModelSizes,
    ReplySizes,
)
from inferd_runtime.session.short_replies import shortened
from inferd_runtime.session.wire import JSON, MSGPACK
from inferd_runtime.testing.direct import DirectSession
from inferd_runtime.testing.served import null_model

SIZES = ModelSizes(258, 4096)
TOKENS = [97] * 40
SMALL_REPLY = 4096
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
    p.ListModels(),
    p.ListAdapters(),
    p.GetChatFormat(),
    p.CompileGrammar(
        p.ConstraintSpec(
            "json_schema", '{"type":"array","items":{"type":"object"},"uniqueItems":true}', mode="best_effort"
        )
    ),
]
GROWING = {
    ("adapter.load", "name"): "checked where it is loaded", ("adapter.load", "model"): "the operator's",
    ("context.save", "name"): "checked where it is saved", ("context.save", "model"): "the operator's",
    ("session.receive", "message"): "of the launcher's, held and counted by the run's host",
    ("speculation.verify", "accepted"): "a draft's", ("speculation.verify", "path"): "a draft's",
}  # fmt: skip
"""Fields of replies that count as small which may hold more than a number, and what bounds them."""


def most(call: Any, form: bytes = MSGPACK, model: ModelSizes = SIZES, sizes: ReplySizes | None = None) -> int:
    encode = msgspec.json.encode if form == JSON else msgspec.msgpack.encode
    return (sizes or ReplySizes(model)).most(call.op, encode(call), form)


def test_every_operation_of_the_engine_says_how_large_its_reply_may_be() -> None:
    """Replies of grammar.mask, of context.open and of five more were in no table, and counted as nothing."""
    tables = [set(FIXED), set(PER_BYTE), set(BY_MODEL), set(KINDS), {STEPS}, set(SMALL)]
    assert sorted(op for table in tables for op in table) == sorted(p.OPERATIONS)
    assert ReplySizes().most("an.operation_of_tomorrow", b"{}", JSON) == LARGEST
    assert all(ReplySizes().most(op, b"{}", JSON) == 0 for op in p.GATEWAY_OPERATIONS)


def test_no_reply_that_counts_as_small_has_a_field_that_grows() -> None:
    """But for those that are bounded otherwise."""
    growing = {
        (op, name)
        for op in SMALL
        for name, kind in get_type_hints(p.OPERATIONS[op].reply).items()
        if kind not in (int, float, bool)
    }
    assert growing == set(GROWING)


@pytest.mark.parametrize("call", CALLS)
def test_no_reply_is_larger_than_was_counted(call: Any) -> None:
    session = DirectSession(null_model())
    if hasattr(call, "context"):
        call = type(call)(**{**vars(call), "context": session.context()})
    if isinstance(call, p.ContextTokens):
        session.call(p.AppendContext(call.context, [p.Part("tokens", tokens=TOKENS)]))
    reply = session.call(call)
    for form, encode in ((JSON, msgspec.json.encode), (MSGPACK, msgspec.msgpack.encode)):
        assert len(encode(reply)) <= most(call, form) <= LARGEST


def test_a_list_of_all_saved_contexts_is_no_larger_than_was_counted() -> None:
    """It counted as nothing: a thousand of them that a script asked for, and did not read, took gigabytes."""
    saved = [p.SavedContext("n" * 128, "m" * 64, (1 << 24) - 1, (1 << 40) - 1, 1795776301.123456)] * p.MAX_SNAPSHOTS
    for form, encode in ((JSON, msgspec.json.encode), (MSGPACK, msgspec.msgpack.encode)):
        assert len(encode(p.SavedContexts(saved))) <= most(p.ListSaved(), form)


def test_a_mask_and_what_must_come_are_no_larger_than_was_counted() -> None:
    session = DirectSession(null_model())
    for text in ("[a-z]{1,9}", "[^a]*", "(ab){5000}"):
        grammar = session.call(p.CompileGrammar(p.ConstraintSpec("regex", text))).grammar
        matcher = session.call(p.OpenMatcher(grammar)).matcher
        for call in (p.GetMask(matcher), p.GetForced(matcher)):
            reply = session.call(call)
            for form, encode in ((JSON, msgspec.json.encode), (MSGPACK, msgspec.msgpack.encode)):
                assert 0 < len(encode(reply)) <= most(call, form)


def test_of_a_long_text_that_must_come_its_beginning_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """A constraint of a hundred bytes forces half a megabyte, whose tokens take four times as much."""
    monkeypatch.setattr(held_grammars, "ACCEPT_SECONDS", 60.0)  # whatever the machine
    session = DirectSession(null_model())
    grammar = session.call(p.CompileGrammar(p.ConstraintSpec("regex", "(ab){5000}"))).grammar
    matcher = session.call(p.OpenMatcher(grammar)).matcher
    told = session.call(p.GetForced(matcher))
    assert base64.b64decode(told.data) == b"ab" * (p.MAX_FORCED // 2)
    assert bytes(told.tokens) == base64.b64decode(told.data)
    session.call(p.AcceptTokens(matcher, told.tokens[: p.MAX_ACCEPT]))
    assert base64.b64decode(session.call(p.GetForced(matcher)).data) == b"ab" * (p.MAX_FORCED // 2)


STARTS: list[dict[str, Any]] = [
    {},
    {"logprobs": 20},
    {"logprobs": 20, "system_speculation": True, "predicted": TOKENS},
    {"probes": PROBES},
    {"probes": [p.Probe("entropy")] * 32, "system_speculation": True, "predicted": TOKENS},
    {"candidates": 0},
    {"program_speculation": True, "logprobs": 0},
]


@pytest.mark.parametrize("fields", STARTS)
def test_no_steps_are_larger_than_what_their_generation_counts_for(fields: dict[str, Any]) -> None:
    """Steps counted as nothing, whatever was to be told of each of their tokens."""
    for form, encode in ((JSON, msgspec.json.encode), (MSGPACK, msgspec.msgpack.encode)):
        session, sizes = DirectSession(null_model()), ReplySizes(SIZES)
        context = session.context()
        session.call(p.AppendContext(context, [p.Part("tokens", tokens=TOKENS)]))
        start = p.StartGenerate(context, p.Sampling(), max_tokens=40, **fields)
        counted = most(start, form, sizes=sizes)
        started = session.call(start)
        assert len(encode(started)) <= max(counted, SMALL_REPLY)
        steps = p.NextSteps(started.generation, least=1 if "candidates" in fields else 32)
        counted = most(steps, form, sizes=sizes)
        assert 0 < counted <= LARGEST
        assert len(encode(shortened(session.call(steps)))) <= counted


def test_steps_count_as_the_largest_that_a_session_has_asked_for() -> None:
    sizes, steps = ReplySizes(SIZES), p.NextSteps(1)
    assert most(steps, sizes=sizes) == 0
    most(p.StartGenerate(0, probes=[p.Probe("logits")]), sizes=sizes)
    large = most(steps, sizes=sizes)
    most(p.StartGenerate(1), sizes=sizes)
    assert 0 < large == most(steps, sizes=sizes) < LARGEST
    assert sizes.most("generate.start", bytes(LONG_START + 1), MSGPACK) == LARGEST == most(steps, sizes=sizes)
    assert most(p.StartGenerate(0, predicted_text="a" * LONG_CALL), sizes=sizes) == 0


def test_what_is_not_looked_into_counts_as_the_largest_and_what_is_none_as_nothing() -> None:
    sizes = ReplySizes(SIZES)
    assert (MOST_NUMBERS, UNDELIVERED_NUMBERS) == (MAX_NUMBERS, step_probes.UNDELIVERED_NUMBERS)
    assert sizes.most("forward", bytes(LONG_CALL + 1), MSGPACK) == LARGEST
    assert sizes.most("forward", b"\xc1", MSGPACK) == sizes.most("forward", b"[" * 9000, JSON) == 0
    assert sizes.most("context.create", b"\x80", MSGPACK) == 0
    assert p.MAX_EXPORT_BYTES * 4 / 3 <= sizes.most("context.export", b"\x80", MSGPACK) < 2 * p.MAX_EXPORT_BYTES
