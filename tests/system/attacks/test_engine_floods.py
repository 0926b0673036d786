"""Calls that cost the engine much, floods of calls that cost it little: their tenant pays for them, and nobody else waits."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from hostile_constraints import HELD, REFUSED

from inferd.protocol import ConstraintSpec

from .arena import Arena, Wire
from .attack import Attack, Calls, Conduct, answered, attacks, withstood

TYPED = "ok client.invalid client.constraint limit"
BUSY = f"{TYPED} closed unavailable"
MEGABYTE = 1 << 20
FLOOD_SECONDS = 3.0
AMBIGUOUS = 'start: s\ns: s s | "a" | "b" | "(" s ")" | s "+" s'
Body = Callable[[Wire], Mapping[str, Any]]


def text_part(text: str) -> list[dict[str, str]]:
    """A text as a context takes it."""
    return [{"kind": "text", "text": text}]


def tokenize(size: int) -> Body:
    """One text of so many bytes."""
    return lambda wire: wire.call("model.tokenize", text="ab c" * (size // 4))


def appended(parts: Callable[[], list[dict[str, Any]]]) -> Body:
    """Parts for a new context."""
    return lambda wire: wire.call("context.append", context=wire.context(), parts=parts())


def burst(op: str, count: int, arguments: Callable[[Wire], dict[str, Any]]) -> Body:
    """So many calls at once; the last answer that comes."""

    def calls(wire: Wire) -> Mapping[str, Any]:
        given = arguments(wire)
        waiting = {wire.send(op, **given) for _ in range(count)}
        last: Mapping[str, Any] = {}
        while waiting:
            last = wire.receive()
            waiting.discard(last["t"])
        return last.get("ok", last)

    return calls


def left_behind(op: str, count: int, arguments: Callable[[Wire], dict[str, Any]]) -> Body:
    """So many calls by a script that leaves at once."""

    def calls(wire: Wire) -> Mapping[str, Any]:
        given = arguments(wire)
        for _ in range(count):
            wire.send(op, **given)
        return {}

    return calls


def streams(count: int, **options: Any) -> Body:
    """So many generations at once, whose steps are asked for until ``FLOOD_SECONDS`` are over."""

    def calls(wire: Wire) -> Mapping[str, Any]:
        opened = []
        for number in range(count):
            context = wire.context(f"Story number {number}: " + options.get("prompt", ""))
            started = wire.call("generate.start", context=context, max_tokens=1500, **options.get("start", {}))
            if "err" in started:
                return started
            opened.append(started["generation"])
        asked = {wire.send("generate.next", generation=one): one for one in opened}
        end = time.monotonic() + FLOOD_SECONDS
        while asked and time.monotonic() < end:
            reply = wire.receive()
            generation = asked.pop(reply["t"], None)
            if generation is not None and "ok" in reply and not reply["ok"].get("finish"):
                asked[wire.send("generate.next", generation=generation)] = generation
        return {}

    return calls


def repeated(round_: Callable[[Wire, int], Mapping[str, Any]]) -> Body:
    """The same again and again, until ``FLOOD_SECONDS`` are over."""

    def calls(wire: Wire) -> Mapping[str, Any]:
        end = time.monotonic() + FLOOD_SECONDS
        last: Mapping[str, Any] = {}
        for number in itertools.count():
            if time.monotonic() > end:
                return last
            last = round_(wire, number)
        raise AssertionError

    return calls


def churn(wire: Wire, number: int) -> Mapping[str, Any]:
    """Start a generation and close it."""
    context = wire.context(f"{number} ")
    started = wire.call("generate.start", context=context, max_tokens=100)
    wire.call("generate.close", generation=started["generation"], keep=0)
    return wire.call("context.release", context=context)


def send_and_cancel(wire: Wire, number: int) -> Mapping[str, Any]:
    """Ask for something that waits and cancel it, 50 times."""
    context = wire.context("x" * 50)
    for _ in range(50):
        wire.send("context.flush", context=context)
        wire.socket.send(b"\x83\xa1t" + wire_ticket(wire) + b"\xa2op\xa6cancel\xa1a\x80")
    return wire.call("context.release", context=context)


def wire_ticket(wire: Wire) -> bytes:
    """The last ticket, in msgpack."""
    return b"\xce" + wire.ticket.to_bytes(4, "big")


def long_prompts(wire: Wire, number: int) -> Mapping[str, Any]:
    """Compute six long prompts that nobody has computed before."""
    contexts = [wire.context(f"{number}.{n} " + f"word{n} " * 400) for n in range(6)]
    tickets = {wire.send("context.flush", context=context) for context in contexts}
    while tickets:
        tickets.discard(wire.receive()["t"])
    for context in contexts:
        wire.call("context.release", context=context)
    return {}


def compiles(wire: Wire, number: int) -> Mapping[str, Any]:
    """Compile a constraint that is slow to compile and new."""
    value = f'{{"type":"integer","multipleOf":{9000 + number}}}'
    return wire.call("grammar.compile", constraint={"kind": "json_schema", "value": value})


def forks(wire: Wire) -> Mapping[str, Any]:
    """Fork until that is refused, at most 4,500 times."""
    context = wire.context("A text that is forked. " * 20)
    last: Mapping[str, Any] = {}
    for _ in range(5):
        last = burst("context.fork", 900, lambda wire: {"context": context})(wire)
    return last


def saves(wire: Wire, number: int) -> Mapping[str, Any]:
    """Save a context under a new name, and delete it again."""
    context = wire.context("A text that is saved. " * 20)
    wire.call("context.flush", context=context)
    wire.call("context.save", context=context, name=f"save-{number}")
    wire.call("context.delete", name=f"save-{number}")
    return wire.call("context.release", context=context)


def unread(wire: Wire) -> Mapping[str, Any]:
    """Start generations and never ask for their steps."""
    for number in range(40):
        wire.call("generate.start", context=wire.context(f"{number}"), max_tokens=1500)
    return {}


def constraint(spec: ConstraintSpec) -> Body:
    """Compile a constraint that has hung or crashed some library."""
    return lambda wire: wire.call("grammar.compile", constraint=asdict(spec))


def generate(**arguments: Any) -> Body:
    """Start a generation with odd arguments."""
    return lambda wire: wire.call("generate.start", context=wire.context("a"), **arguments)


def forward(**arguments: Any) -> Body:
    """One forward pass with odd arguments."""
    return lambda wire: wire.call("forward", context=wire.context("a"), **{"tokens": [1], **arguments})


TEXTS: list[Attack] = [
    Calls("tokenize 3 MB", tokenize(3 * MEGABYTE), TYPED),
    Calls("tokenize 60 MB", tokenize(60 * MEGABYTE), f"{TYPED} closed"),
    Calls("tokenize 8 times 0.5 MB", burst("model.tokenize", 8, lambda wire: {"text": "ab c" * (MEGABYTE // 8)}), BUSY),
    Calls(
        "tokenize one letter 0.5 M times", lambda wire: wire.call("model.tokenize", text="a" * (MEGABYTE // 2)), TYPED
    ),
    Calls(
        "tokenize control characters",
        lambda wire: wire.call("model.tokenize", text="\0\x01\u202e\U0010ffff" * 50_000),
        TYPED,
    ),
    Calls(
        "tokenize 200 texts and leave", left_behind("model.tokenize", 200, lambda wire: {"text": "ab c" * 25_000}), BUSY
    ),
    Calls("tokenize 900 texts at once", burst("model.tokenize", 900, lambda wire: {"text": "ab c" * 500}), BUSY),
    Calls("append 3 MB", appended(lambda: text_part("word " * (3 * MEGABYTE // 5))), TYPED),
    Calls(
        "append 3 MB as a message",
        appended(lambda: [{"kind": "message", "role": "user", "text": "x" * 3 * MEGABYTE}]),
        TYPED,
    ),
    Calls("append 20,000 parts", appended(lambda: text_part("a") * 20_000), TYPED),
    Calls("append a million tokens", appended(lambda: [{"kind": "tokens", "tokens": [5] * 1_000_000}]), TYPED),
    Calls(
        "append 30 times 0.5 MB and leave",
        left_behind(
            "context.append", 30, lambda wire: {"context": wire.context(), "parts": text_part("ab c" * (MEGABYTE // 8))}
        ),
        BUSY,
    ),
    Calls("a part of no kind", appended(lambda: [{"kind": "\0", "text": "x"}]), "client.invalid"),
    Calls("a role of a megabyte", appended(lambda: [{"kind": "message", "role": "{{" * 500_000, "text": "x"}]), TYPED),
    Calls("detokenize a million tokens", lambda wire: wire.call("model.detokenize", tokens=[5] * 1_000_000), TYPED),
    Calls("embed 100 texts", lambda wire: wire.call("model.embed", texts=["some words " * 20] * 100), BUSY),
    Calls("embed 2 MB", lambda wire: wire.call("model.embed", texts=["ab c" * (MEGABYTE // 2)]), BUSY),
    Calls(
        "score 100,000 tokens",
        lambda wire: wire.call("prompt_logprobs", context=wire.context(), tokens=[5] * 100_000),
        TYPED,
    ),
    Calls(
        "a predicted text of 2 MB", generate(system_speculation=True, predicted_text="ab c" * (MEGABYTE // 2)), TYPED
    ),
]

ODD: list[Attack] = [
    Calls(
        "a bias for a million tokens",
        generate(sampling={"bias_tokens": [1] * 1_000_000, "bias_values": [1.0] * 1_000_000}),
        f"{TYPED} closed",
    ),
    Calls("a bias of NaN", generate(sampling={"bias_tokens": [1], "bias_values": [float("nan")]}), "client.invalid"),
    Calls("a temperature of NaN", generate(sampling={"temperature": float("nan")}), "client.invalid"),
    Calls("a temperature of 1e-300", generate(sampling={"temperature": 1e-300, "seed": 1}), TYPED),
    Calls("a temperature of 1e300", generate(sampling={"temperature": 1e300, "seed": 1}), TYPED),
    Calls("a seed of 2**64-1", generate(sampling={"temperature": 1.0, "seed": 2**64 - 1}), TYPED),
    Calls("a seed of -1", generate(sampling={"temperature": 1.0, "seed": -1}), TYPED),
    Calls("top_k of 2**62", generate(sampling={"temperature": 1.0, "top_k": 2**62}), TYPED),
    Calls("max_tokens of 2**62", generate(max_tokens=2**62), TYPED),
    Calls("max_tokens of -1", generate(max_tokens=-1), "client.invalid"),
    Calls("100,000 stop texts", generate(stop=["x" * 10] * 100_000), TYPED),
    Calls("a stop text of 2 MB", generate(stop=["x" * 2 * MEGABYTE]), TYPED),
    Calls("a priority of 9", generate(priority=9), "client.invalid"),
    Calls("50 log-probabilities", generate(logprobs=10**9), TYPED),
    Calls("a mask of a million tokens", forward(mask=[1] * 1_000_000), TYPED),
    Calls("a mask of bits that are none", forward(mask_bits="!" * 1_000_000), TYPED),
    Calls("positions of 2**62", forward(positions=[2**62]), TYPED),
    Calls("positions below 0", forward(positions=[-5]), TYPED),
    Calls("an attention mask of 100,000 runs", forward(attention_mask=[[0, 1] * 100_000]), TYPED),
    Calls("10,000 probes", forward(probes=[{"kind": "entropy"}] * 10_000), TYPED),
    Calls("100,000 tokens forward", forward(tokens=[5] * 100_000), TYPED),
    Calls(
        "a tree that bites its tail",
        lambda wire: wire.call("speculation.verify", context=wire.context("ab"), tokens=[1, 2], parents=[1, 0]),
        TYPED,
    ),
    Calls(
        "a draft of 100,000",
        lambda wire: wire.call("speculation.verify", context=wire.context("ab"), tokens=[1] * 100_000),
        TYPED,
    ),
    Calls(
        "a draft without a speculator",
        lambda wire: wire.call(
            "generate.next",
            generation=wire.call("generate.start", context=wire.context("a"), max_tokens=5)["generation"],
            draft=[1] * 50_000,
        ),
        TYPED,
    ),
    Calls(
        "a saved name of ../..",
        lambda wire: wire.call("context.save", context=wire.context("a"), name="../../../tmp/x"),
        TYPED,
    ),
    Calls(
        "a saved name of a megabyte",
        lambda wire: wire.call("context.save", context=wire.context("a"), name="x" * MEGABYTE),
        TYPED,
    ),
    Calls(
        "an import of nothing",
        lambda wire: wire.call("context.import", data=b"\0" * 3 * MEGABYTE),
        f"{TYPED} client.snapshot_damaged client.snapshot_foreign",
    ),
    Calls(
        "an adapter of zeros",
        lambda wire: wire.call(
            "adapter.load",
            name="a",
            config="{" * 10_000,
            upload=wire.call("adapter.upload", data=bytes(MEGABYTE))["upload"],
        ),
        TYPED,
    ),
    Calls(
        "a model called ../..",
        lambda wire: wire.call("context.create", model="../../etc"),
        "client.not_found client.invalid",
    ),
]

GRAMMARS: list[Attack] = [
    Calls(name, constraint(spec), f"{TYPED} closed")
    for name, spec in {**REFUSED, **HELD}.items()
    if name
    in (
        "oneOf nested 14",
        "JSON 20,000 levels deep",
        "enum of 20,000",
        "allOf of 50 patterns",
        "reference to itself",
        "remote reference",
        "10 MB",
        "pattern that is no pattern",
        "counted thrice",
        "a pattern counted thrice",
        "maxLength 1e6",
        "2,000 optional keys",
    )
]


def ambiguous(wire: Wire) -> Mapping[str, Any]:
    """Have a matcher of an ambiguous grammar take tokens until it takes no more: each takes longer than the one before."""
    grammar = wire.call("grammar.compile", constraint={"kind": "lark", "value": AMBIGUOUS})["grammar"]
    matcher = wire.call("grammar.matcher", grammar=grammar)["matcher"]
    token = wire.call("model.tokenize", text="a")["tokens"]
    last: Mapping[str, Any] = {}
    for _ in range(40):
        last = wire.call("grammar.accept", matcher=matcher, tokens=token * 32)
        if "err" in last:
            break
    return last


FLOODS: list[Attack] = [
    Calls("a text of an ambiguous grammar", ambiguous, "limit:mask_seconds client.constraint", seconds=20),
    Calls("50 streams", streams(50), BUSY),
    Calls("50 streams of the highest priority", streams(50, start={"priority": 3}), BUSY),
    Calls(
        "30 streams under a grammar",
        streams(30, start={"constraint": {"kind": "regex", "value": "[a-z ]{0,1400}"}}),
        BUSY,
    ),
    Calls("30 streams that speculate", streams(30, prompt="abcabcabc" * 9, start={"system_speculation": True}), BUSY),
    Calls("20 streams with 32 distributions", streams(20, start={"probes": [{"kind": "distribution"}] * 32}), BUSY),
    Calls("6 long prompts, over and over", repeated(long_prompts), BUSY),
    Calls("constraints, over and over", repeated(compiles), BUSY, seconds=60),
    Calls("starting and closing", repeated(churn), BUSY),
    Calls("asking and cancelling", repeated(send_and_cancel), BUSY),
    Calls("1,000 questions at once", burst("model.list", 999, lambda wire: {}), BUSY),
    Calls("2,000 questions and gone", left_behind("model.list", 2000, lambda wire: {}), BUSY),
    Calls("forks without end", forks, "limit client.invalid ok"),
    Calls("saving and deleting", repeated(saves), BUSY),
    Calls("generations that nobody reads", unread, BUSY),
]


def from_two_tenants(arena: Arena) -> str:
    """One tenant computes long prompts, another generates."""
    with arena.hostile["trudy"].session() as prompting, arena.mallory.session() as generating:
        for number in range(12):
            prompting.send("context.flush", context=prompting.context(f"{number} " + "word " * 400))
        return answered(streams(20)(generating))


@attacks(*TEXTS)
def test_a_text_is_bounded_before_it_costs_anything(arena: Arena, attack: Attack) -> None:
    withstood(arena, attack)


@attacks(*ODD)
def test_an_odd_argument_is_refused_or_harmless(arena: Arena, attack: Attack) -> None:
    withstood(arena, attack)


@attacks(*GRAMMARS)
def test_a_hostile_constraint_ends_in_time(arena: Arena, attack: Attack) -> None:
    withstood(arena, attack)


@attacks(*FLOODS, Conduct("two tenants at once", from_two_tenants, BUSY))
def test_a_flood_costs_its_own_tenant(arena: Arena, attack: Attack) -> None:
    withstood(arena, attack)
