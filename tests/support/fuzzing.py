"""Frames that are almost right: requests of the protocol with odd values in odd places, and bytes mutated from those."""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any

import msgspec
from hypothesis import strategies as st

from inferd.protocol import GATEWAY_OPERATIONS, OPERATIONS
from inferd_runtime.sandbox import messages

ODD_NUMBERS = (0, 1, -1, 2, 255, 256, 4096, 2**31, 2**32, 2**53, 2**63 - 1, 2**63, 2**64 - 1, -(2**31), -(2**63))
ODD_FLOATS = (0.0, -0.0, 1.0, 0.5, -1.0, 1e-300, 1e300, float("inf"), float("-inf"), float("nan"))
ODD_TEXTS = (
    "", "a", "tiny", "text", "message", "user", "json_schema", "regex", "\0", "é" * 50, "\u202e", "\U0010ffff", "../..", "{}",
    '{"type":"integer"}', "[a-z]+", "x" * 3000, "agreement", "mean", "entropy", "%s" * 20, "{{7*7}}",
)  # fmt: skip
EXTREMES = (
    b"\xc0", b"\xc1", b"\xcf" + b"\xff" * 8, b"\xd3\x80" + bytes(7), b"\xcb\x7f\xf8" + bytes(6), b"\xdd\xff\xff\xff\xff",
    b"\xdf\xff\xff\xff\xff", b"\xdb\x7f\xff\xff\xff", b"\xc7\x05\x01hello", b"\x91" * 300, b"\xa3\xed\xa0\x80", b"\xa1\xff",
)  # fmt: skip
SMALL = 4

Frame = bytes


def odd_value(random: Random, depth: int = 0) -> Any:
    """Any value that msgpack can carry."""
    kind = random.randrange(8 if depth < 3 else 6)
    if kind == 6:
        return [odd_value(random, depth + 1) for _ in range(random.randrange(SMALL))]
    if kind == 7:
        return {random.choice(ODD_TEXTS): odd_value(random, depth + 1) for _ in range(random.randrange(SMALL))}
    return (
        random.choice(ODD_NUMBERS), random.choice(ODD_FLOATS), random.choice(ODD_TEXTS), None, random.random() < 0.5,
        random.randbytes(random.randrange(9)),
    )[kind]  # fmt: skip


def value_of(kind: Any, random: Random, depth: int = 0) -> Any:
    """Mostly a value of a type, sometimes another."""
    if random.random() < 0.06:
        return odd_value(random)
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        return value_of(random.choice(arguments), random, depth)
    if origin in (list, tuple, Sequence):
        size = 0 if depth > 3 else random.choice((0, 1, 1, 2, 3, 40))
        return [value_of(arguments[0], random, depth + 1) for _ in range(size)]
    if origin in (dict, Mapping):
        return {random.choice(ODD_TEXTS): odd_value(random) for _ in range(random.randrange(SMALL))}
    if dataclasses.is_dataclass(kind) or (isinstance(kind, type) and issubclass(kind, msgspec.Struct)):
        return fields_of(kind, random, depth + 1)
    return leaf(kind, random)


def leaf(kind: Any, random: Random) -> Any:
    """A value of a plain type: often a small number, as handles are."""
    if kind is int:
        return random.randrange(6) if random.random() < 0.7 else random.choice(ODD_NUMBERS)
    if kind is float:
        return random.choice(ODD_FLOATS)
    if kind is bool:
        return random.random() < 0.5
    if kind is str:
        return random.choice(ODD_TEXTS)
    if kind is bytes:
        return random.randbytes(random.choice((0, 1, 30, 500)))
    return None if kind is type(None) else odd_value(random)


@functools.cache
def shape(kind: Any) -> tuple[tuple[str, Any, float], ...]:
    """Name and type of each field of a dataclass or struct, and how often it is given."""
    required = (
        {
            field.name
            for field in dataclasses.fields(kind)
            if field.default is field.default_factory is dataclasses.MISSING
        }
        if dataclasses.is_dataclass(kind)
        else {field.name for field in msgspec.structs.fields(kind) if field.required}
    )
    hints = typing.get_type_hints(kind)
    fields = [name for name in hints if typing.get_origin(hints[name]) is not typing.ClassVar]
    return tuple((name, hints[name], 0.97 if name in required else 0.3) for name in fields)


def fields_of(kind: Any, random: Random, depth: int = 0) -> dict[str, Any]:
    """The fields of a dataclass or struct as a map: some left out, seldom one more."""
    value = {name: value_of(hint, random, depth) for name, hint, often in shape(kind) if random.random() < often}
    if random.random() < 0.03:
        value[random.choice(ODD_TEXTS)] = odd_value(random)
    return value


def request(random: Random, operations: Mapping[str, type[Any]] = OPERATIONS) -> tuple[str, dict[str, Any]]:
    """An operation's name, and its arguments as a map."""
    op = random.choice(sorted(operations))
    return op, fields_of(operations[op], random)


def mutated(frame: bytes, random: Random) -> bytes:
    """A frame with a few changes of bytes."""
    data = bytearray(frame)
    for _ in range(random.randrange(1, 4)):
        at = random.randrange(len(data) + 1)
        match random.randrange(5):
            case 0 if data:
                data[at % len(data)] ^= 1 << random.randrange(8)
            case 1:
                del data[at:]
            case 2:
                data[at:at] = random.choice(EXTREMES)
            case 3:
                data[at:at] = data[: random.randrange(40)]
            case _:
                del data[at : at + random.randrange(9)]
    return bytes(data)


def script_frame(random: Random) -> Frame:
    """A message of a script."""
    op, arguments = request(random, GATEWAY_OPERATIONS if random.random() < 0.3 else OPERATIONS)
    if random.random() < 0.05:
        op = random.choice(
            ("cancel", "received", "session.open", "session.close", "engine.stats", "engine.cycles", *ODD_TEXTS)
        )
    ticket: Any = random.randrange(1, 900) if random.random() < 0.97 else odd_value(random)
    frame = msgspec.msgpack.encode({"t": ticket, "op": op, "a": arguments})
    return mutated(frame, random) if random.random() < 0.1 else frame


def engine_frames(random: Random) -> list[bytes]:
    """The frames of one message to the engine's socket."""
    op, arguments = request(random)
    form = random.choice((b"j", b"m"))
    payload = msgspec.msgpack.encode(arguments) if form == b"m" else _json(arguments)
    frames = [random.randrange(1, 900).to_bytes(4, "little"), op.encode(), form, payload]
    if random.random() < 0.04:
        frames[1] = random.choice((b"cancel", b"engine.stats", b"engine.cycles", b"\xff", b"", b"context"))
    if random.random() < 0.1:
        at = random.randrange(4)
        frames[at] = mutated(frames[at], random)
    if random.random() < 0.02:
        frames = frames[: random.randrange(5)] + [b"more"] * random.randrange(2)
    return frames


def _json(value: Any) -> bytes:
    """JSON, with ``null`` where it has no word for a value."""
    return msgspec.json.encode(value, enc_hook=lambda _: None)


FROM_WORKER: Sequence[type[msgspec.Struct]] = typing.get_args(messages.FromWorker)


def worker_frame(random: Random, runs: Sequence[str]) -> Frame:
    """A message of a worker that has been taken over: about runs that it holds, and others."""
    kind = random.choice(FROM_WORKER)
    value = {"type": kind.__name__, **fields_of(kind, random)}
    if "run" in value and random.random() < 0.9:
        value["run"] = random.choice(runs)
    if kind is messages.Asked and random.random() < 0.7:
        value["op"], arguments = request(random, GATEWAY_OPERATIONS)
        value["json"] = _json(arguments).decode()
    frame = msgspec.msgpack.encode(value)
    return mutated(frame, random) if random.random() < 0.2 else frame


METHODS = ("GET", "POST", "PUT", "DELETE", "HEAD", "PATCH", "OPTIONS", "get", "\x00")
PATHS = (
    "/v1/programs", "/v1/runs", "/v1/models", "/v1/runs/run-0", "/v1/runs/run-0/events?follow=false", "/v1/runs/run-0/cancel",
    "/v1/runs/run-0/messages", "/v1/programs/p", "/v1/programs/sha256:00000000", "/metrics", "/readyz", "/version", "/v1/session",
    "/", "//", "/..", "*", "/v1/runs/%00", "/v1/runs/%ff%fe", "/v1/runs?x=%", "/v1/speculation/cycles/",
)  # fmt: skip
BODIES: Sequence[Mapping[str, Any]] = (
    {"files": {"main.py": "async def main(x: int = 0): return x"}, "name": "p"},
    {"program": "p", "arguments": {"x": 1}, "limits": {"wall_s": 5}},
    {"message": {"a": [1, None, "x"]}},
)


def http_request(random: Random, token: str) -> bytes:
    """A request that is almost right, as bytes."""
    body = _json(_altered(random.choice(BODIES), random))
    headers = [f"Authorization: Bearer {token}", f"Content-Length: {len(body)}", "Connection: close"]
    if random.random() < 0.1:
        headers.insert(random.randrange(3), random.choice(ODD_HEADERS))
    head = (
        f"{random.choice(METHODS)} {random.choice(PATHS)} HTTP/1.1\r\nHost: x\r\n" + "\r\n".join(headers) + "\r\n\r\n"
    )
    data = head.encode("latin-1", "replace") + body
    return mutated(data, random) if random.random() < 0.2 else data


ODD_HEADERS = (
    "Content-Length: -1", "Content-Length: 99999999999", "Transfer-Encoding: chunked", "Expect: 100-continue",
    "Upgrade: websocket",
    "Content-Type: \x00", "Cookie: " + "x" * 5000, "Last-Event-ID: -1", "traceparent: 00-" + "z" * 40,
    "Idempotency-Key: " + "k" * 900,
    "Accept: text/event-stream", "Authorization: Basic x", ": x", "X",
)  # fmt: skip


def _altered(body: Mapping[str, Any], random: Random) -> dict[str, Any]:
    value = dict(body)
    for name in list(value):
        if random.random() < 0.2:
            value[name] = odd_value(random)
    if random.random() < 0.05:
        value[random.choice(ODD_TEXTS)] = odd_value(random)
    return value


def many(make: Callable[[Random], Any], count: int) -> st.SearchStrategy[list[Any]]:
    """So many frames, from a seed that hypothesis chooses."""
    return st.integers(0, 2**63).map(lambda seed: [make(random) for random in [Random(seed)] for _ in range(count)])
