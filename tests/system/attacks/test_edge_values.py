"""What cannot be carried is refused where it comes in, and nothing about one message ends a process."""

from __future__ import annotations

import msgspec

from .arena import Arena
from .attack import Attack, Frames, Program, Request, attacks, withstood

MESSAGES = "/v1/runs/{run}/messages"
BAD = "client.invalid"
SEND = """
    import inferd
    async def main():
        await inferd.session.send({value})
        return 'sent'
"""
RAISE = """
    import inferd
    async def main():
        raise inferd.InvalidRequest('mine', value={value})
"""
RETURN = "async def main():\n    return {value}"
DEEP = "eval('[' * 90 + ']' * 90)"
NEST = "__import__('functools').reduce(lambda inner, _: [inner], range({depth}), 0)"
VALUES = {
    "2**63": "2**63",
    "2**64": "2**64",
    "2**70": "2**70",
    "-2**64": "-2**64",
    "4,000 digits": "10**4000",
    "NaN": "float('nan')",
    "infinity": "float('inf')",
    "a lone surrogate": "'\\ud800'",
    "a surrogate as key": "{'\\ud800': 1}",
    "bytes": "b'x'",
    "900 levels": NEST.format(depth=900),
    "100,000 levels": NEST.format(depth=100_000),
    "an object": "object()",
    "itself": "(lambda x: x.append(x) or x)([])",
}
TYPED = "ok client.invalid program limit"


def in_guest(kind: str, source: str) -> list[Attack]:
    """Each value, sent out of a program in one way."""
    return [Program(f"{kind} {name}", source.replace("{value}", value), TYPED) for name, value in VALUES.items()]


def call(op: object, arguments: object, ticket: object = 1) -> bytes:
    """A script's message, also one that is none."""
    return msgspec.msgpack.encode({"t": ticket, "op": op, "a": arguments})


def msgpack_nest(depth: int) -> bytes:
    """Lists within lists as an argument of a call."""
    return b"\x83\xa1t\x01\xa2op\xaemodel.tokenize\xa1a\x81\xa4text" + b"\x91" * depth + b"\xc0"


REQUESTS: list[Attack] = [
    *(
        Request(f"message of {name}", "POST", MESSAGES, "ok client.invalid limit", body)
        for name, body in {
            "2**64": b'{"message": 18446744073709551616}',
            "2**63": b'{"message": 9223372036854775808}',
            "-2**63-1": b'{"message": -9223372036854775809}',
            "2**70 in a list": b'{"message": [{"a": [1180591620717411303424]}]}',
            "2**70 as key": b'{"message": {"1180591620717411303424": 1}}',
            "4,300 digits": b'{"message": ' + b"9" * 4300 + b"}",
            "1e400": b'{"message": 1e400}',
            "-0.0": b'{"message": -0.0}',
            "500 levels": b'{"message": ' + b"[" * 500 + b"]" * 500 + b"}",
        }.items()
    ),
    *(
        Request(f"message of {name}", "POST", MESSAGES, "client.invalid limit", body)
        for name, body in {
            "a lone surrogate": b'{"message": "\\ud800"}',
            "bad UTF-8": b'{"message": "\xff\xfe"}',
            "raw surrogate bytes": b'{"message": "\xed\xa0\x80"}',
            "NaN": b'{"message": NaN}',
            "200,000 levels": b'{"message": ' + b"[" * 200_000 + b"]" * 200_000 + b"}",
            "nothing": b"",
            "two values": b'{"message": 1} 2',
            "no message": b'{"massage": 1}',
        }.items()
    ),
    *(
        Request(f"launch with {name}", "POST", "/v1/runs", "client.invalid client.not_found limit", body)
        for name, body in {
            "2**70 as argument": b'{"program": "p", "arguments": {"x": 1180591620717411303424}}',
            "2**70 seconds": b'{"program": "p", "limits": {"wall_s": 1180591620717411303424}}',
            "-1 seconds": b'{"program": "p", "limits": {"wall_s": -1}}',
            "1e400 seconds": b'{"program": "p", "limits": {"cpu_s": 1e400}}',
            "deep arguments": b'{"program": "p", "arguments": {"x": ' + b"[" * 50_000 + b"]" * 50_000 + b"}}",
            "a list as limits": b'{"program": "p", "limits": []}',
            "a program called ../..": b'{"program": "../../etc/passwd"}',
            "a null in the name": b'{"program": "a\\u0000b"}',
            "a lone surrogate": b'{"program": "\\ud800"}',
            "a hash of nothing": b'{"program": "sha256:"}',
            "a hash with a star": b'{"program": "sha256:********"}',
        }.items()
    ),
    Request("events from -1", "GET", "/v1/runs/{run}/events?from=-1", BAD),
    Request("events from 10**30", "GET", f"/v1/runs/{{run}}/events?from={10**30}", BAD),
    Request("Last-Event-ID of bytes", "GET", "/v1/runs/{run}/events", BAD, headers={"Last-Event-ID": b"\xb2"}),
    Request("a run of 20 KB", "GET", "/v1/runs/" + "x" * 20_000, "client.not_found client.invalid"),
    Request("a path of dots", "GET", "/v1/programs/..%2f..%2fetc%2fpasswd", "client.not_found client.invalid"),
    Request(
        "a token of 8 KB", "GET", "/v1/runs", "client.unauthorized", headers={"Authorization": "Bearer " + "x" * 8000}
    ),
    Request("a token of bytes", "GET", "/v1/runs", "client.unauthorized", headers={"Authorization": b"Bearer \xff"}),
]

FRAMES: list[Attack] = [
    Frames("a text frame", ["hello"], BAD),
    Frames("no msgpack", [b"\xc1"], BAD),
    Frames("an empty frame", [b""], BAD),
    Frames("ticket 0", [call("model.list", {}, 0)], BAD),
    Frames("ticket -1", [call("model.list", {}, -1)], BAD),
    Frames("ticket 2**32", [call("model.list", {}, 1 << 32)], BAD),
    Frames("ticket of text", [call("model.list", {}, "1")], BAD),
    Frames("an operation of 4 MB", [call("x" * (4 << 20), {})], f"{BAD} closed"),
    Frames("an operation with a surrogate", [b"\x83\xa1t\x01\xa2op\xa3\xed\xa0\x80\xa1a\x80"], BAD),
    Frames("an unknown operation", [call("nonsense", {})], BAD),
    Frames("arguments that are a list", [call("context.create", [])], BAD),
    Frames("nested 10,000 times", [msgpack_nest(10_000)], BAD),
    Frames("nested 1,000,000 times", [msgpack_nest(1_000_000)], BAD),
    Frames("a map that declares 4 billion", [b"\xdf\xff\xff\xff\xff"], BAD),
    Frames("bytes that declare 4 billion", [b"\x83\xa1t\x01\xa2op\xc6\xff\xff\xff\xff"], BAD),
    Frames("an extension type", [b"\x83\xa1t\x01\xa2op\xaemodel.tokenize\xa1a\x81\xa4text\xd4\x01\x00"], BAD),
    Frames("the engine's own operation", [call("engine.stats", {})], BAD),
    Frames("another session's end", [call("session.close", {})], BAD),
    Frames("another tenant's opening", [call("session.open", {"tenant": "neighbour"})], BAD),
    Frames("the neighbour's cycles", [call("engine.cycles", {"tenant": "neighbour", "after": 0})], BAD),
    Frames("a message of a program", [call("session.send", {"message": 1})], BAD),
    Frames("a context of 2**64-1", [call("context.flush", {"context": 2**64 - 1})], f"{BAD} client.not_found"),
    Frames("a context of -1", [call("context.flush", {"context": -1})], f"{BAD} client.not_found"),
    Frames("tokens beyond the vocabulary", [call("model.detokenize", {"tokens": [2**62]})], BAD),
]


@attacks(*REQUESTS)
def test_a_request_that_cannot_be_carried_is_refused(arena: Arena, attack: Attack) -> None:
    withstood(arena, attack)


@attacks(*FRAMES)
def test_a_frame_that_cannot_be_carried_is_refused(arena: Arena, attack: Attack) -> None:
    withstood(arena, attack)


@attacks(
    *in_guest("sending", SEND),
    *in_guest("an error with", RAISE),
    *in_guest("returning", RETURN),
    Program("printing a surrogate", "async def main(): print('\\ud800' * 1000)", "ok program"),
    Program("an error named by a surrogate", "async def main(): raise type('\\ud800', (Exception,), {})()", "program"),
    Program("a docstring with a surrogate", "async def main():\n    '\\ud800'\n", "ok client.invalid program.syntax"),
)
def test_a_value_of_a_program_that_cannot_be_carried_ends_that_program_alone(arena: Arena, attack: Attack) -> None:
    withstood(arena, attack)
