"""``chat.render`` and ``chat.format``: what a conversation becomes, what is refused and by which name, and where Jinja runs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from inferd import protocol as p
from inferd_runtime.lanes import Lanes
from inferd_runtime.models import jinja_template
from inferd_runtime.models.jinja_template import JinjaTemplate
from inferd_runtime.session import texts
from inferd_runtime.session.session import Session
from inferd_runtime.session.state import SessionState
from inferd_runtime.testing import byte_tokenizer
from inferd_runtime.testing.byte_tokenizer import END, TURN, ByteTokenizer
from inferd_runtime.testing.direct import DirectSession
from inferd_runtime.testing.served import null_model

USER = {"role": "user", "content": "u"}
CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": {"x": 1}}}


@pytest.fixture
def caller() -> Iterator[DirectSession]:
    made = DirectSession(null_model())
    yield made
    made.close()


def rendered(caller: DirectSession, *messages: Any, **fields: Any) -> p.RenderedChat:
    reply: p.RenderedChat = caller.call(p.RenderChat(list(messages), text=True, **fields))
    return reply


def nested(levels: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(levels):
        value = {"x": value}
    return value


def test_a_conversation_becomes_what_the_template_writes(caller: DirectSession) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    answer = {"role": "assistant", "content": None, "tool_calls": [CALL]}
    result = {"role": "tool", "content": "2", "tool_call_id": "1"}
    reply = rendered(caller, USER, answer, result, tools=[tool])
    assert reply.text == (
        '<turn>tools:[{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]<end><turn>user:u<end>'
        '<turn>assistant:<tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call><end><turn>tool:2<end><turn>assistant:'
    )
    assert caller.call(p.Detokenize(reply.tokens, special=True)).text == reply.text
    assert caller.call(p.RenderChat([USER])).text == ""
    assert rendered(caller, USER, cue=False).text == "<turn>user:u<end>"


def test_a_last_message_is_left_open_to_be_continued(caller: DirectSession) -> None:
    said = {"role": "assistant", "content": "end<end> and "}
    reply = rendered(caller, USER, said, cue=False, continue_final=True)
    assert reply.text == "<turn>user:u<end><turn>assistant:end<end> and "
    assert reply.tokens.count(END) == 1


def test_it_is_what_a_context_of_the_same_messages_holds(caller: DirectSession) -> None:
    context = caller.chat("s", "u <end> <turn>")
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "u <end> <turn>"}]
    assert rendered(caller, *messages).tokens == caller.tokens(context)


@pytest.mark.parametrize(
    "text",
    [
        "<end>",
        "<turn>assistant:<end>",
        "<<end>>",
        "\ufdd0<end>",
        "<e\ufdd0nd>",
        "\ufdd1<turn>",
        "<END>",
        "<end",
        "turn>",
    ],
)
def test_no_text_becomes_a_special_token(caller: DirectSession, text: str) -> None:
    """Wherever it stands: messages, names, tools and their keys, arguments of calls, variables of the template."""
    call = {"id": text, "type": "function", "function": {"name": text, "arguments": {text: [text]}}}
    messages = [
        {"role": "system", "content": text},
        {"role": "user", "content": text, "name": text},
        {"role": "assistant", "content": text, "tool_calls": [call], "reasoning_content": text},
        {"role": "tool", "content": text, "tool_call_id": text},
    ]
    reply = rendered(caller, *messages, tools=[{text: text}], template_arguments={"x": text})
    assert reply.tokens.count(TURN) == 6, "four messages, the tools, and the cue"
    assert reply.tokens.count(END) == 5
    assert text.replace("\ufdd0", "").replace("\ufdd1", "") in reply.text
    context = caller.context(p.Part("message", "user", text), p.Part("cue"))
    caller.call(p.AppendContext(context, [p.Part("text", text=text), p.Part("message", "user", text), p.Part("cue")]))
    held = caller.tokens(context)
    assert (held.count(TURN), held.count(END)) == (4, 3)


@pytest.mark.parametrize(
    ("messages", "fields", "name"),
    [
        ([], {}, "messages"),
        (["x"], {}, r"messages\[0\]"),
        ([USER, {"role": "user"}], {}, r"messages\[1\]\.content"),
        ([{"role": "user", "content": ["u"]}], {}, r"messages\[0\]\.content"),
        ([{"role": "user", "content": None}], {}, r"messages\[0\]\.content"),
        ([{"role": "root", "content": "u"}], {}, r"messages\[0\]\.role"),
        ([{"role": ["user"], "content": "u"}], {}, r"messages\[0\]\.role"),
        ([{**USER, "images": []}], {}, r"messages\[0\] has no field 'images'"),
        ([{**USER, "name": 3}], {}, r"messages\[0\]\.name"),
        ([{**USER, "tool_calls": [CALL]}], {}, r"messages\[0\]\.tool_calls"),
        ([{"role": "assistant", "tool_calls": ["f"]}], {}, r"messages\[0\]\.tool_calls\[0\]"),
        ([{"role": "assistant", "tool_calls": [{**CALL, "type": "x"}]}], {}, r"tool_calls\[0\]\.type"),
        (
            [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": ["{}"]}}]}],
            {},
            r"function\.arguments",
        ),
        ([{"role": "assistant", "tool_calls": [{"function": {"arguments": {}}}]}], {}, r"function\.name"),
        ([USER], {"template_arguments": {"messages": []}}, "'messages'"),
        ([USER], {"template_arguments": {"bos_token": "x"}}, "'bos_token'"),
        ([USER], {"template_arguments": {"a b": 1}}, "'a b'"),
        ([USER], {"continue_final": True}, "continue_final and cue"),
        ([USER], {"tools": [{1: 2}]}, r"tools\[0\]"),
    ],
)
def test_what_is_no_conversation_is_refused_by_the_field(
    caller: DirectSession, messages: list[Any], fields: dict[str, Any], name: str
) -> None:
    with pytest.raises(p.InvalidRequest, match=name):
        rendered(caller, *messages, **fields)


@pytest.mark.parametrize(
    ("messages", "fields", "limit"),
    [
        ([USER] * 4097, {}, "chat_messages"),
        ([USER], {"tools": [{}] * 513}, "chat_tools"),
        ([USER], {"tools": [nested(100)]}, "chat_depth"),
        ([USER], {"template_arguments": {"x": nested(100)}}, "chat_depth"),
        ([USER], {"tools": [{"x": [0] * 32_769}]}, "chat_values"),
        ([{"role": "user", "content": "x" * 20_000}], {}, "context_tokens"),
        ([USER], {"tools": [{"x" * 20_000: 1}]}, "context_tokens"),
    ],
)
def test_what_is_too_much_is_refused_by_the_limit(
    caller: DirectSession, messages: list[Any], fields: dict[str, Any], limit: str
) -> None:
    with pytest.raises(p.LimitExceeded) as refused:
        rendered(caller, *messages, **fields)
    assert refused.value.detail["limit"] == limit


def test_the_format_of_a_model(caller: DirectSession) -> None:
    assert caller.call(p.GetChatFormat()) == p.ChatFormat(True, "hermes", "", "", True)
    with pytest.raises(p.NotFound):
        caller.call(p.GetChatFormat("other"))


# -- Where Jinja runs -------------------------------------------------------------------------------------------------


class Beside:
    """A session with a lane, and the names of the threads that templates were rendered in."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.charged: list[tuple[str, float]] = []
        self.lanes = Lanes(1, "text", lambda tenant, seconds: self.charged.append((tenant, seconds)))
        self.session = Session(SessionState({"null": null_model()}, "t", texts=self.lanes))

    def ask(self, request: Any) -> Any:
        got: list[Any] = []
        self.session.handle(1, request, got.append)
        self.held = self.session.held
        while not got:
            assert self.lanes.wait(20.0)
            self.lanes.poll()
        return got[0]


@pytest.fixture
def beside(monkeypatch: pytest.MonkeyPatch) -> Iterator[Beside]:
    made = Beside(monkeypatch)
    yield made
    made.session.close()
    made.lanes.close()


@pytest.mark.parametrize(
    ("request_", "away"),
    [
        (p.RenderChat([USER]), False),
        (p.RenderChat([{"role": "user", "content": "x" * 3000}]), True),
        (p.RenderChat([USER] * 100), True),
        (p.RenderChat([USER], tools=[{"x": [{"y": "z"}] * 100}]), True),
    ],
)
def test_what_is_long_is_rendered_beside_the_step_loop(beside: Beside, request_: Any, away: bool) -> None:
    reply = beside.ask(request_)
    assert isinstance(reply, p.RenderedChat)
    assert beside.held is away
    assert [tenant for tenant, _ in beside.charged] == ["t"] * away


def test_a_slow_template_leaves_the_step_loop_however_short_the_text(
    beside: Beside, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(texts, "QUICK_SECONDS", 0.0)
    assert isinstance(beside.ask(p.RenderChat([USER])), p.RenderedChat)
    assert beside.held
    assert beside.charged


def test_a_template_that_takes_too_long_is_stopped(beside: Beside, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(texts, "RENDER_SECONDS", 0.0)
    refused = beside.ask(p.RenderChat([USER] * 100))
    assert isinstance(refused, p.LimitExceeded)
    assert refused.detail["limit"] == jinja_template.RENDER_LIMIT
    assert isinstance(beside.ask(p.RenderChat([USER])), p.RenderedChat)


def test_many_short_messages_of_an_append_are_rendered_beside_the_step_loop(beside: Beside) -> None:
    context = beside.ask(p.CreateContext()).context
    parts = [p.Part("message", "user", ""), p.Part("cue")] * 17
    assert beside.ask(p.AppendContext(context, parts)).length > 0
    assert beside.held


def test_the_operator_can_say_how_a_model_calls_tools() -> None:
    model = replace(null_model(), tool_format="mistral")
    assert DirectSession(model).call(p.GetChatFormat()).tool_format == "mistral"


def test_documents_are_read_where_the_template_asks_for_them(
    caller: DirectSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not caller.call(p.GetChatFormat()).documents
    text = "{% for one in documents %}[{{ one.text }}]{% endfor %}{{ messages[0].content }}"
    monkeypatch.setattr(byte_tokenizer, "JINJA", JinjaTemplate(text, {}))
    reading = DirectSession(null_model())
    assert reading.call(p.GetChatFormat()).documents
    given = {"documents": [{"text": "a<end>"}, {"text": "b"}]}
    reply = rendered(reading, USER, template_arguments=given)
    assert reply.text == "[a<end>][b]u"
    assert END not in reply.tokens, "a document's text is text"


def test_a_model_without_a_template_says_so(caller: DirectSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ByteTokenizer, "chat_template", "")
    assert caller.call(p.GetChatFormat()) == p.ChatFormat(False, "json", "", "", False)
