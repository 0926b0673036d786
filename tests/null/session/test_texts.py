"""Long texts: refused before they are read where they cannot fit, read beside the step loop, in the order of their session."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from inferd import protocol as p
from inferd_runtime.lanes import Lanes, Piece
from inferd_runtime.session import texts
from inferd_runtime.session.session import Session
from inferd_runtime.session.state import SessionState
from inferd_runtime.testing.byte_tokenizer import ByteTokenizer
from inferd_runtime.testing.served import null_model

SECONDS = 20.0
LONG = "a" * (texts.SHORT_TEXT + 1)


class Caller:
    """A session over lanes of its own, whose tokenizer waits for ``gate``."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.gate = threading.Event()
        self.read: list[str] = []
        self.charged: list[tuple[str, float]] = []
        self.lanes = Lanes(1, "text", lambda tenant, seconds: self.charged.append((tenant, seconds)))
        encode = ByteTokenizer.encode

        def waiting(tokenizer: ByteTokenizer, text: str, **how: Any) -> list[int]:
            self.read.append(threading.current_thread().name)
            assert self.gate.wait(SECONDS)
            return encode(tokenizer, text[:50], **how)

        monkeypatch.setattr(ByteTokenizer, "encode", waiting)
        self.model = null_model()
        self.session = Session(SessionState({"null": self.model}, "t", texts=self.lanes))
        self.got: dict[int, list[Any]] = {}

    def ask(self, request: Any) -> list[Any]:
        ticket = len(self.got) + 1
        self.got[ticket] = []
        self.session.handle(ticket, request, self.got[ticket].append)
        return self.got[ticket]

    def settle(self) -> None:
        self.gate.set()
        while self.lanes.wait(0.05) or self.lanes._running:
            self.lanes.poll()


@pytest.fixture
def caller(monkeypatch: pytest.MonkeyPatch) -> Any:
    made = Caller(monkeypatch)
    yield made
    made.gate.set()
    made.session.close()
    made.lanes.close()


def test_a_long_text_is_tokenized_beside_the_loop_and_paid_by_its_tenant(caller: Caller) -> None:
    reply = caller.ask(p.Tokenize(LONG))
    assert not reply
    assert caller.session.held, "what comes after it waits"
    caller.settle()
    assert reply == [p.Tokens([97] * 50)]
    assert not caller.session.held
    assert caller.read[0].startswith("text")
    assert [tenant for tenant, _ in caller.charged] == ["t"]


def test_a_short_text_is_tokenized_at_once(caller: Caller) -> None:
    caller.gate.set()
    assert caller.ask(p.Tokenize("abc")) == [p.Tokens([97, 98, 99])]
    assert not caller.session.held


def test_an_append_beside_the_loop_leaves_the_context_as_one_at_once_does(caller: Caller) -> None:
    (made,) = caller.ask(p.CreateContext())
    reply = caller.ask(p.AppendContext(made.context, [p.Part("text", text=LONG)]))
    assert not reply
    caller.settle()
    assert reply[0].length == 50
    (state,) = caller.ask(p.ContextTokens(made.context))
    assert state.tokens == [97] * 50


def test_a_cancelled_text_is_answered_at_once_and_its_tokens_go_nowhere(caller: Caller) -> None:
    (made,) = caller.ask(p.CreateContext())
    reply = caller.ask(p.AppendContext(made.context, [p.Part("text", text=LONG)]))
    caller.session.cancel(2)
    assert isinstance(reply[0], p.Cancelled)
    assert not caller.session.held
    caller.settle()
    assert len(reply) == 1
    assert caller.ask(p.ContextTokens(made.context)) == [p.Tokens([])]


def test_texts_of_a_session_that_closes_are_not_read(caller: Caller) -> None:
    caller.ask(p.Tokenize(LONG))
    other = Session(SessionState({"null": caller.model}, "t", texts=caller.lanes))
    replies: list[Any] = []
    other.handle(1, p.Tokenize(LONG), replies.append)
    other.close()
    caller.settle()
    assert isinstance(replies[0], p.Cancelled)
    assert len(caller.read) == 1


@pytest.mark.parametrize("text", ["x" * 1_000_000, "語" * 100_000])
def test_a_text_that_cannot_fit_is_refused_unread(caller: Caller, text: str) -> None:
    (made,) = caller.ask(p.CreateContext())
    (refused,) = caller.ask(p.AppendContext(made.context, [p.Part("text", text=text)]))
    (also,) = caller.ask(p.Tokenize(text * 10))
    (embed,) = caller.ask(p.Embed(texts=[text]))
    assert {refused.detail["limit"], also.detail["limit"], embed.detail["limit"]} == {"context_tokens"}
    assert not caller.read


def test_an_append_of_very_many_parts_is_refused(caller: Caller) -> None:
    (made,) = caller.ask(p.CreateContext())
    (refused,) = caller.ask(p.AppendContext(made.context, [p.Part("cue")] * (texts.MAX_PARTS + 1)))
    assert refused.detail["limit"] == "parts"


def test_tenants_take_turns_in_a_lane(caller: Caller) -> None:
    order: list[str] = []
    for tenant in ("a", "a", "a", "b"):
        caller.lanes.submit(
            Piece(tenant, lambda tenant=tenant: caller.gate.wait(SECONDS), lambda _, t=tenant: order.append(t))
        )
    caller.settle()
    assert order == ["a", "a", "b", "a"], "the turn of one that comes is after the turn that has come"
