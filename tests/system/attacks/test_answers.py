"""Requests of LLM clients whose reading, answering or ends would hold up the gateway or the engine; replies that nobody reads."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import httpx

from .arena import Arena, Wire, bounded_gateway, checked
from .attack import OK, Attack, Calls, Conduct, Program, Request, attacks, withstood
from .clients import others_are_served
from .test_services import rude_session

CHAT = "/v1/chat/completions"
TEXTS = "/v1/completions"
MESSAGES = [{"role": "user", "content": "x"}]
PROMPT = "a b c d " * 400
LONG = [{"role": "user", "content": PROMPT}]
SCORED = {"logprobs": True, "top_logprobs": 20, "ignore_eos": True}
BAD = "client.invalid"
TYPED = f"ok {BAD} limit"
BUSY = "busy"
"""A machine that runs much else may not compile a grammar in time."""
MILLIONS = 7_000_000
A_MILLION = 1_100_000
"""As many values as a message may have, and more than any list."""
MOST_GROWN_MB = 200.0
"""Replies that nobody reads may take 128 MiB of a connection; all that are asked for would take more than 500."""
SLOW_FLOATS = """
    from inferd.protocol import RenderChat
    from inferd.transport import current_transport
    async def main():
        await current_transport().call(RenderChat([], template_arguments={"x": [1e308] * 900_000}))
"""
SLOW_MESSAGE = (
    "import inferd\nasync def main():\n    await inferd.session.send([1e308] * 120_000)\n    return [1e308] * 120_000"
)


def body(**fields: Any) -> bytes:
    return json.dumps({"model": "tiny", "messages": MESSAGES, **fields}).encode()


def chat(**fields: Any) -> Callable[[Arena], str]:
    """One chat request; how it ended, whatever its dialect calls that."""
    return lambda arena: refusal(arena, body(**fields))


def refusal(arena: Arena, content: bytes) -> str:
    response = arena.mallory.http.post(CHAT, content=content)
    return OK if response.status_code < 300 else refused(response)


def refused(response: httpx.Response) -> str:
    """How a refused request of an LLM client ended."""
    error = response.json()["error"]
    if response.status_code == 503 and "too little of the processors" in error["message"]:
        return BUSY
    return BAD if response.status_code == 400 and error["message"] else f"untyped {response.status_code} {error}"


def called(*arguments: str) -> list[dict[str, Any]]:
    calls = [
        {"id": f"c{at}", "type": "function", "function": {"name": "f", "arguments": each}}
        for at, each in enumerate(arguments)
    ]
    return [{"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": calls}]


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(depth):
        schema = {"items": schema}
    return {"type": "object", "properties": {"a": schema}}


def listed(op: str, **arguments: Any) -> Callable[[Wire], Mapping[str, Any]]:
    """A call with a list of millions of zeros, which are packed as they are."""

    def calls(wire: Wire) -> Mapping[str, Any]:
        return wire.call(op, **arguments)

    return calls


def rows(wire: Wire) -> Mapping[str, Any]:
    """Ask for the same row of a pass again and again."""
    return wire.call("forward", context=wire.context("a"), tokens=[1], at=[0] * A_MILLION)


def opened_by_a_tag(wire: Wire) -> Mapping[str, Any]:
    """Generate a text in which a long one may be opened again and again."""
    tag = {"begin": "e", "content": {"kind": "text", "value": "z" * 60_000}, "end": "q"}
    constraint = {"kind": "tagged", "tags": [tag]}
    context, sampling = wire.context("hello e e e e e"), {"temperature": 1.0}
    started = wire.call(
        "generate.start", context=context, max_tokens=30, constraint=constraint, sampling=sampling, on_length="complete"
    )
    return wire.call("generate.next", generation=started["generation"], least=30)


def unread_passes(arena: Arena) -> str:
    """Ask for all logits of many passes, over three sessions, and read none of them."""
    with ExitStack() as held:
        wires = [held.enter_context(rude_session(arena.mallory)) for _ in range(3)]
        held.enter_context(bounded_gateway(arena, MOST_GROWN_MB))
        for wire in wires:
            contexts = [wire.context("a") for _ in range(40)]
            probes = [{"kind": "logits"}] * 32
            for context in contexts:
                wire.send("forward", context=context, tokens=[1] * 24, at=list(range(24)), probes=probes)
        return others_are_served(arena, OK)


def at_once(path: str, count: int, **fields: Any) -> Callable[[Arena], str]:
    """So many of the same request at once; how the last of them ended."""

    def send(arena: Arena) -> str:
        with ThreadPoolExecutor(count) as threads:
            content = json.dumps({"model": "tiny", **fields}).encode()
            ends = [threads.submit(arena.mallory.http.post, path, content=content) for _ in range(count)]
            responses = [each.result() for each in ends]
        (status,) = {response.status_code for response in responses}
        return refused(responses[0]) if status >= 300 else others_are_served(arena, OK)

    return send


def chat_program(body: str) -> Callable[[Arena], str]:
    """Have a program with this body answer clients of every dialect: each is told an error, and it is no bug."""

    def act(arena: Arena) -> str:
        tracebacks = len(arena.tracebacks())
        checked(arena.mallory.upload(CHAT_PROGRAM + textwrap.indent(body, "    "), "odd"))
        for path, fields in ASKED.items():
            response = arena.mallory.http.post(path, json={"model": "odd", **fields})
            message = response.json()["error"]["message"]
            assert response.status_code >= 400, path
            assert "bug" not in message, path
        assert arena.tracebacks()[tracebacks:] == []
        return BAD

    return act


CHAT_PROGRAM = """
# /// script
# [tool.inferd]
# serves = "chat"
# ///
import inferd
from inferd.chat.reply import MESSAGE_KEY
def say(kind, **fields):
    return inferd.session.send({MESSAGE_KEY: [{"event": kind, **fields}]})
async def main(request):
"""
MANY_CALLS = """
for first in range(0, 400_000, 4000):
    calls = [{"event": "tool_call", "call": n, "id": "c", "name": "f"} for n in range(first, first + 4000)]
    await inferd.session.send({MESSAGE_KEY: calls})
"""
BYTE = {"token": 1, "text": "x", "data": [999], "logprob": 0.0}
ODD_CALL = """
await say("text", text="x")
await say("tool_call", call=1, id="c", name="f")
await say("arguments", call=1, text="{}")
"""
ASKED: Mapping[str, dict[str, Any]] = {
    CHAT: {"messages": [{"role": "user", "content": "x"}], "logprobs": True},
    "/v1/completions": {"prompt": "x", "logprobs": 1},
    "/v1/messages": {"messages": [{"role": "user", "content": "x"}], "max_tokens": 5},
    "/v1/responses": {"input": "x"},
}
LARGEST_FLOATS, SMALLEST_FLOATS = b"1e308," * 600_000, b"4.9e-324," * 400_000
DEEP_TOOL = {"type": "function", "function": {"name": "f", "parameters": nested(300)}}
CHOICE = {"kind": "choice", "options": [""] * MILLIONS}
LONG_NAME = "n" * 40_000
NAMED = {"kind": "json_schema", "value": json.dumps({"properties": {LONG_NAME: {}}, "required": [LONG_NAME]})}
RULES = [f'r{n}: r{(n + 1) % 400} | "a"' for n in range(400)]
AMBIGUOUS = {"kind": "lark", "value": "\n".join(["start: " + " ".join(f"r{n}" for n in range(400)), *RULES])}
BRACKETS = f'start: "a" | "{"[" * 20_000}"'
SEQUENCE = {"kind": "sequence", "members": [{"kind": "text", "value": "a"}] * 60_000}
ANSWERS: list[Attack] = [
    Request(
        "slow numbers for a run", "POST", "/v1/runs", BAD,
        b'{"program":"p","arguments":{"x":[' + LARGEST_FLOATS + b"1]}}",
    ),
    Request(
        "slow numbers for a message", "POST", "/v1/runs/{run}/messages", BAD,
        b'{"message":[' + SMALLEST_FLOATS + b"1]}",
    ),
    Request("a file of 5,000 digits", "GET", "/v1/runs/{run}/files/" + "9" * 5000, "client.not_found"),
    Conduct(
        "slow numbers in a chat",
        lambda arena: refusal(arena, b'{"model":"tiny","messages":[' + LARGEST_FLOATS + b"1]}"),
        BAD,
    ),
    Conduct("lists in arguments", chat(messages=called("[" + "[]," * 1_200_000 + "[]]")), BAD),
    Conduct("lists in the arguments of many calls", chat(messages=called(*["[" + "[]," * 30_000 + "[]]"] * 20)), BAD),
    Conduct("a tool nested 300 times", chat(tools=[DEEP_TOOL]), BAD),
    Conduct("250,000 empty lines as a grammar", chat(structured_outputs={"grammar": "\n" * 250_000}), f"{BAD} {BUSY}"),
    Conduct("brackets in a Lark text", chat(structured_outputs={"grammar": BRACKETS}, max_tokens=2), OK),
    Conduct("biases for 300,000 tokens", chat(logit_bias={str(at): 0 for at in range(300_000)}), BAD),
    Conduct("24 answers with 20 alternatives", at_once(CHAT, 1, messages=MESSAGES, n=24, max_tokens=60, **SCORED), OK),
    Conduct("64 requests with 20 alternatives", at_once(CHAT, 64, messages=MESSAGES, max_tokens=60, **SCORED), OK),
    Conduct("8 prompts with 20 alternatives", at_once(CHAT, 8, messages=LONG, max_tokens=1, prompt_logprobs=20), OK),
    Conduct("a prompt with 20 alternatives 32 times", at_once(TEXTS, 1, prompt=PROMPT, n=32, prompt_logprobs=20), BAD),
    Conduct("a prompt with 5 alternatives 16 times", at_once(TEXTS, 1, prompt=PROMPT, n=16, logprobs=5, echo=True), OK),
    Program("slow numbers of a program for the engine", SLOW_FLOATS, BAD, {"wall_s": 30.0, "cpu_s": 20.0}),
    Program("slow numbers of a program for its launcher", SLOW_MESSAGE, OK, {"wall_s": 30.0, "cpu_s": 20.0}),
    Calls("the text of millions of tokens", listed("model.detokenize", tokens=[0] * MILLIONS), "client.invalid"),
    Calls("the bytes of a million tokens", listed("model.token_bytes", tokens=[0] * A_MILLION), "limit:token_ids"),
    Calls("a million rows", rows, "limit:token_ids"),
    Calls("a choice of millions", listed("grammar.compile", constraint=CHOICE), BAD),
    Calls("a schema with a long name", listed("grammar.compile", constraint=NAMED), OK),
    Calls("an ambiguous grammar", listed("grammar.compile", constraint=AMBIGUOUS), "limit:cpu_seconds"),
    Calls("a tag's text of 60,000 characters", opened_by_a_tag, OK),
    Calls("a sequence of 60,000", listed("grammar.compile", constraint=SEQUENCE), "client.constraint"),
    Conduct("passes that nobody reads", unread_passes, "ok limit"),
    Conduct("a program's limit that is a list", chat_program("raise inferd.LimitExceeded('x', limit=[1])"), BAD),
    Conduct("a program's bytes that are none", chat_program(f"await say('text', text='x', scores=[{BYTE}])"), BAD),
    Conduct("a program's call of the wrong number", chat_program(ODD_CALL), BAD),
    Conduct("a program's 400,000 calls", chat_program(MANY_CALLS), BAD),
    Conduct("a program's use beyond 64 bits", chat_program("await say('usage', prompt=2**64 - 1, completion=9)"), BAD),
]  # fmt: skip


@attacks(*ANSWERS)
def test_what_is_asked_as_llm_clients_do_holds_up_nobody(arena: Arena, attack: Attack) -> None:
    withstood(arena, attack)
