"""Frames in, frames out: sessions, both encodings, errors, cancels, and what a program may not ask."""

from __future__ import annotations

import time
from typing import Any

import msgspec
import pytest
from sessions import new_grants, opening

from inferd import protocol as p
from inferd_runtime.session import wire as link
from inferd_runtime.session.hub import SessionHub
from inferd_runtime.session.served_model import ServedModel
from inferd_runtime.testing.null_driver import NullDriver
from inferd_runtime.testing.served import null_model


class Wire:
    """A hub with a recorder behind it."""

    def __init__(self, model: ServedModel | None = None) -> None:
        self.model = model or null_model()
        self.replies: list[tuple[bytes, link.LinkReply]] = []
        self.hub = SessionHub(
            {"null": self.model}, lambda who, frames: self.replies.append((who, link.parse_reply(frames))), new_grants()
        )

    def send(self, who: bytes, frames: list[bytes]) -> None:
        self.hub.receive(who, frames)

    def ask(self, who: bytes, ticket: int, request: Any, form: bytes = link.JSON) -> link.LinkReply:
        encode = msgspec.json.encode if form == link.JSON else msgspec.msgpack.encode
        self.send(who, link.request_frames(ticket, request.op, form, encode(request)))
        while not self.replies or self.replies[-1][1].ticket != ticket:
            assert self.model.engine.step()
        return self.replies[-1][1]


@pytest.fixture
def wire() -> Wire:
    wire = Wire()
    wire.send(b"a", opening("tenant", "label"))
    assert wire.replies.pop()[1].ok
    return wire


def error(reply: link.LinkReply) -> p.ErrorInfo:
    assert not reply.ok
    return msgspec.json.decode(reply.payload, type=p.ErrorInfo)


@pytest.mark.parametrize("form", [link.JSON, link.MSGPACK])
def test_both_encodings_carry_requests_and_replies(wire: Wire, form: bytes) -> None:
    reply = wire.ask(b"a", 3, p.Tokenize("hi"), form)
    decode = msgspec.json.decode if form == link.JSON else msgspec.msgpack.decode
    assert decode(reply.payload) == {"tokens": [104, 105]}


def test_a_request_without_a_session_is_answered(wire: Wire) -> None:
    assert error(wire.ask(b"stranger", 1, p.ListModels())).code == "unavailable"


@pytest.mark.parametrize("payload", [b"{", b'{"text": 5}', b"[]", b'{"text": "x", "model": null}'])
def test_a_malformed_payload_is_answered_with_what_is_wrong(wire: Wire, payload: bytes) -> None:
    wire.send(b"a", link.request_frames(7, "model.tokenize", link.JSON, payload))
    assert error(wire.replies[-1][1]).code == "client.invalid"


@pytest.mark.parametrize("form", [link.JSON, link.MSGPACK])
def test_a_field_of_a_newer_sdk_is_refused_by_its_name_and_not_ignored(wire: Wire, form: bytes) -> None:
    codec = msgspec.json if form == link.JSON else msgspec.msgpack
    for ticket, more in ((7, {"temperatures": 1.0}), (8, {"sampling": {"newer": 1}})):
        wire.send(b"a", link.request_frames(ticket, "generate.start", form, codec.encode({"context": 1, **more})))  # type: ignore[attr-defined]
    told = [codec.decode(reply.payload, type=p.ErrorInfo) for _, reply in wire.replies]  # type: ignore[attr-defined]
    assert [error.code for error in told] == ["client.invalid"] * 2
    assert ["temperatures" in told[0].message, "newer" in told[1].message] == [True, True]


def test_an_error_does_not_repeat_a_long_name(wire: Wire) -> None:
    for request in (p.Tokenize("x", model="m" * 100_000), p.CompileGrammar(p.ConstraintSpec("k" * 100_000))):
        assert len(wire.ask(b"a", 5, request).payload) < 5_000
        wire.replies.clear()


@pytest.mark.parametrize("depth", [100, 400, 450, 480, 500, 900, 5_000])
def test_a_constraint_of_any_depth_is_answered_with_what_is_wrong(wire: Wire, depth: int) -> None:
    nested = '{"kind":"all_of","members":[' * depth + '{"kind":"any_json"}' + "]}" * depth
    payload = f'{{"constraint":{nested}}}'.encode()
    wire.send(b"a", link.request_frames(7, "grammar.compile", link.JSON, payload))
    told = error(wire.replies[-1][1])
    assert (told.code, "nested" in told.message) == ("client.invalid", True)


def test_unknown_operations_and_encodings_are_answered(wire: Wire) -> None:
    for op, form in (("nope", link.JSON), ("model.list", b"x")):
        wire.send(b"a", link.request_frames(7, op, form, b"{}"))
        reply = wire.replies[-1][1]
        assert not reply.ok
        assert b"unknown operation" in reply.payload


def test_frames_of_another_shape_are_dropped(wire: Wire) -> None:
    wire.send(b"a", [b"x"])
    wire.send(b"a", [b"\0", b"model.list", link.JSON, b"{}"])
    assert not wire.replies


def test_sessions_do_not_see_each_others_handles(wire: Wire) -> None:
    wire.send(b"b", opening("tenant", "other"))
    wire.ask(b"a", 1, p.CreateContext())
    assert error(wire.ask(b"b", 2, p.AppendContext(1, []))).code == "client.not_found"


def test_a_closed_session_reports_usage_and_holds_nothing(wire: Wire) -> None:
    context = msgspec.json.decode(wire.ask(b"a", 1, p.CreateContext()).payload)["context"]
    wire.ask(b"a", 2, p.AppendContext(context, [p.Part("text", text="hello")]))
    generation = msgspec.json.decode(wire.ask(b"a", 3, p.StartGenerate(context)).payload)["generation"]
    wire.ask(b"a", 4, p.NextSteps(generation))
    wire.send(b"a", link.close_frames())
    usage = msgspec.msgpack.decode(wire.replies[-1][1].payload, type=p.Usage)
    assert usage.tokens >= 1
    assert usage.prompt_tokens == 5
    wire.model.engine.step()
    wire.model.engine.pool.check_integrity([])
    assert wire.hub.stats().sessions == 0


def test_a_waiting_request_can_be_cancelled(wire: Wire) -> None:
    context = msgspec.json.decode(wire.ask(b"a", 1, p.CreateContext()).payload)["context"]
    wire.ask(b"a", 2, p.AppendContext(context, [p.Part("text", text="hello")]))
    generation = msgspec.json.decode(wire.ask(b"a", 3, p.StartGenerate(context)).payload)["generation"]
    wire.send(b"a", link.request_frames(9, p.NextSteps.op, link.JSON, msgspec.json.encode(p.NextSteps(generation))))
    wire.send(b"a", link.request_frames(9, link.CANCEL, link.MSGPACK, b"\x80"))
    assert error(wire.replies[-1][1]).code == "cancelled"
    wire.send(b"a", link.request_frames(9, link.CANCEL, link.MSGPACK, b"\x80"))
    assert len([reply for _, reply in wire.replies if reply.ticket == 9]) == 1


def test_two_sessions_share_one_batch(wire: Wire) -> None:
    """Two programs at once take fewer engine steps than one after the other."""

    def generate(names: list[bytes]) -> int:
        before = wire.hub.stats().steps
        handles = {}
        for who in names:
            wire.send(who, opening("tenant", ""))
            context = msgspec.json.decode(wire.ask(who, 1, p.CreateContext()).payload)["context"]
            wire.ask(who, 2, p.AppendContext(context, [p.Part("text", text="same work")]))
            start = p.StartGenerate(context, max_tokens=12)
            handles[who] = msgspec.json.decode(wire.ask(who, 3, start).payload)["generation"]
        while wire.model.engine.step():
            pass
        for who in names:
            wire.send(who, link.close_frames())
        return wire.hub.stats().steps - before

    alone = generate([b"x"]) + generate([b"y"])
    assert generate([b"x", b"y"]) < alone


def test_stats_count_what_is_held(wire: Wire) -> None:
    stats = wire.hub.stats()
    assert stats.sessions == 1
    assert stats.pages_free == stats.pages


def test_the_gateway_closes_sessions_by_name_and_names_that_are_gone_do_no_harm(wire: Wire) -> None:
    grants = new_grants()
    wire.send(b"g", link.open_frames(grants.issue("gateway/1", "inferd", gateway=True), ""))
    wire.send(b"r", link.open_frames(grants.issue("run/1", "tenant"), ""))
    assert wire.hub.stats().sessions == 3
    closing = link.CloseNamedSessions(["run/gone", "run/1"])
    assert wire.ask(b"g", 1, closing, link.MSGPACK).ok
    assert wire.hub.stats().sessions == 2
    assert error(wire.ask(b"r", 1, p.ListModels())).code == "unavailable"
    refused = wire.ask(b"a", 1, closing, link.MSGPACK)
    assert msgspec.msgpack.decode(refused.payload, type=p.ErrorInfo).code == "client.unauthorized"


def test_tokens_are_told_by_tenant_while_they_are_generated_and_once(wire: Wire) -> None:
    wire.send(b"b", opening("other"))
    told = []
    for who in (b"a", b"b"):
        wire.ask(who, 1, p.CreateContext())
        wire.ask(who, 2, p.AppendContext(1, [p.Part("text", text="abc")]))
        wire.ask(who, 3, p.StartGenerate(1, max_tokens=8))
        wire.ask(who, 4, p.NextSteps(2))
    told.append(wire.hub.take_produced())
    assert set(told[0]) == {"tenant", "other"}
    assert 0 < told[0]["tenant"] < 8, "it goes on"
    while wire.model.engine.step():
        pass
    told.append(wire.hub.take_produced())
    used = {who: wire.hub._sessions[who].usage().tokens for who in (b"a", b"b")}
    wire.hub.close_all()
    told.append(wire.hub.take_produced())
    assert told[2] == {}
    assert sum(one.get("tenant", 0) for one in told) == used[b"a"]
    assert sum(one.get("other", 0) for one in told) == used[b"b"]


def test_rows_of_passes_count_for_the_tenants_minute(wire: Wire) -> None:
    asked = [
        p.Forward(1, [1, 2, 3], at=[0, 2]),
        p.Forward(1, []),
        p.PromptLogprobs(1, [4, 5]),
        p.Embed(tokens=[[1], [2]]),
    ]
    wire.ask(b"a", 1, p.CreateContext())
    for ticket, request in enumerate(asked, 2):
        wire.ask(b"a", ticket, request)
    assert wire.hub.take_produced() == {"tenant": 2 + 1 + 2 + 2}
    assert wire.hub.take_produced() == {}


def test_tokens_of_a_session_that_ended_between_two_looks_are_told(wire: Wire) -> None:
    wire.ask(b"a", 1, p.CreateContext())
    wire.ask(b"a", 2, p.AppendContext(1, [p.Part("text", text="abc")]))
    wire.ask(b"a", 3, p.StartGenerate(1, max_tokens=8))
    while wire.model.engine.step():
        pass
    wire.send(b"a", link.close_frames())
    assert wire.hub.take_produced()["tenant"] > 0
    assert wire.hub.take_produced() == {}
    assert not wire.hub._counted


@pytest.mark.parametrize("count", [200_000, 900_000])
@pytest.mark.parametrize("form", [link.JSON, link.MSGPACK])
def test_a_request_of_lists_within_lists_does_not_hold_the_step_loop_up(wire: Wire, form: bytes, count: int) -> None:
    encode = msgspec.json.encode if form == link.JSON else msgspec.msgpack.encode
    lists = msgspec.Raw((b"[" + b",".join([b"[]"] * count) + b"]") if form == link.JSON else array_of(b"\x90", count))
    request = {"messages": [{"role": "user", "content": "hi"}], "template_arguments": {"x": lists}}
    frames = link.request_frames(3, "chat.render", form, encode(request))
    started = time.thread_time()
    wire.send(b"a", frames)
    assert time.thread_time() - started < 0.3
    decode = msgspec.json.decode if form == link.JSON else msgspec.msgpack.decode
    assert decode(wire.replies[-1][1].payload, type=p.ErrorInfo).code == "client.invalid"


def test_a_conversation_of_a_million_values_is_counted_and_not_walked_through(wire: Wire) -> None:
    request = {"messages": [{"role": "user", "content": "hi"}], "template_arguments": {"x": [0] * 1_100_000}}
    frames = link.request_frames(3, "chat.render", link.MSGPACK, msgspec.msgpack.encode(request))
    started = time.thread_time()
    wire.send(b"a", frames)
    assert time.thread_time() - started < 0.3
    refused = msgspec.msgpack.decode(wire.replies[-1][1].payload, type=p.ErrorInfo)
    assert refused.detail["limit"] == "chat_values"


def array_of(element: bytes, count: int) -> bytes:
    return b"\xdd" + count.to_bytes(4, "big") + element * count


GRAMMARS = "constraints.held_grammars"
HELD = 40


def hold(wire: Wire, who: bytes, letter: str) -> str:
    """Hold tokens of a context, and of a matcher of a grammar of its own; return the limit that refuses it, or ""."""

    def ask(request: Any) -> dict[str, Any]:
        reply = wire.ask(who, len(wire.replies) + 1, request)
        if not reply.ok:
            raise p.LimitExceeded("", limit=error(reply).detail["limit"])
        found: dict[str, Any] = msgspec.json.decode(reply.payload)
        return found

    try:
        context = ask(p.CreateContext())["context"]
        ask(p.AppendContext(context, [p.Part("tokens", tokens=[ord(letter)] * HELD)]))
        grammar = ask(p.CompileGrammar(p.ConstraintSpec("regex", f"{letter}*")))["grammar"]
        matcher = ask(p.OpenMatcher(grammar))["matcher"]
        for _ in range(2):
            ask(p.AcceptTokens(matcher, [ord(letter)] * (HELD // 2)))
    except p.LimitExceeded as refused:
        return str(refused.detail["limit"])
    return ""


@pytest.mark.parametrize(
    ("bound", "value", "limit"),
    [
        ("state.MAX_TOKENS", HELD, "held_tokens"), ("state.MAX_CONTEXTS", 1, "contexts"),
        (f"{GRAMMARS}.TENANT_MATCHERS", 1, "matchers"), (f"{GRAMMARS}.MAX_TOKENS", HELD, "matcher_tokens"),
        (f"{GRAMMARS}.MAX_GRAMMAR_BYTES", 1, "grammar_bytes"),
    ],
)  # fmt: skip
def test_many_sessions_of_a_tenant_hold_no_more_than_one(
    bound: str, value: int, limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """128 sessions with what one may hold would have taken 30 GiB."""
    monkeypatch.setattr(f"inferd_runtime.session.{bound}", value)
    wire = Wire(null_model(driver=NullDriver(vocab_size=257, max_context=64)))
    for who, tenant in ((b"a", "tenant"), (b"b", "tenant"), (b"c", "other")):
        wire.send(who, opening(tenant, "label"))
    assert hold(wire, b"a", "a") == ""
    assert hold(wire, b"b", "b") == limit
    assert hold(wire, b"c", "c") == ""
    for who in (b"a", b"b"):
        wire.send(who, link.close_frames())
    wire.send(b"d", opening("tenant", "label"))
    assert hold(wire, b"d", "d") == ""
