"""A tenant that takes every place there is, and fills what is kept."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

from .arena import Arena, bounded_gateway, checked
from .attack import OK, Attack, Conduct, answered, attacks, ended, ending, withstood
from .clients import REFUSED, SIMPLE, SLEEP, connected, others_are_served, request_head

MEGABYTE = 1 << 20
MOST_GROWN_MB = 400
MOST_HELD_MB = 120
"""Of the gateway, for children that are over: 32 MiB of a tenant, or the newest, beside what is being stored."""


def hoard(count: int, source: str = SLEEP, **body: object) -> Callable[[Arena], str]:
    """Launch so many programs that do nothing; then somebody else comes."""

    def act(arena: Arena) -> str:
        hostile = arena.mallory
        program = checked(hostile.upload(source))["id"]
        runs, end = [], OK
        for _ in range(count):
            response = hostile.launch(program, **body)
            end = ending(response)
            if end != OK:
                break
            runs.append(response.json()["id"])
        end = others_are_served(arena, end)
        hostile.cancel(*runs)
        return end

    return act


def messages_nobody_reads(size: int, count: int) -> Callable[[Arena], str]:
    """Send messages to a run that reads none."""

    def act(arena: Arena) -> str:
        hostile = arena.mallory
        run = hostile.start(SLEEP)
        hostile.until(run, "up")
        end = OK
        for _ in range(count):
            end = ending(hostile.http.post(f"/v1/runs/{run}/messages", json={"message": "x" * size}))
            if end != OK:
                break
        hostile.cancel(run)
        return end

    return act


def messages_to_the_waiting(arena: Arena) -> str:
    """Fill the places, then send large messages to runs that wait for one."""
    hostile = arena.mallory
    program = checked(hostile.upload(SLEEP))["id"]
    runs, end = [], OK
    for _ in range(300):
        response = hostile.launch(program)
        if response.status_code >= 300:
            break
        runs.append(response.json()["id"])
    for _ in range(12):
        end = ending(hostile.http.post(f"/v1/runs/{runs[-1]}/messages", json={"message": "x" * (2 * MEGABYTE)}))
    hostile.cancel(*runs)
    return end


def kept(source: str, count: int, limits: dict[str, float], **arguments: object) -> Callable[[Arena], str]:
    """Run programs whose ends are large, beside another tenant's result, which must be there afterwards."""

    def act(arena: Arena) -> str:
        victim = arena.hostile["trudy"]
        mine = victim.start(SIMPLE)
        victim.over(mine)
        program = checked(arena.mallory.upload(source))["id"]
        end = OK
        for _ in range(count):
            response = arena.mallory.launch(program, limits=limits, arguments=arguments)
            end = ending(response)
            if end != OK:
                break
            arena.mallory.http.get(f"/v1/runs/{response.json()['id']}/events?from=1")
        assert checked(victim.http.get(f"/v1/runs/{mine}"))["result"] == "well"
        return end

    return act


def followers(arena: Arena) -> str:
    """Fifty streams of one run's events that nobody reads, while it prints."""
    hostile = arena.mallory
    run = hostile.start("async def main():\n    print('up')\n    for n in range(300): print('x' * 9000)")
    with ExitStack() as open_streams:
        for _ in range(50):
            raw = open_streams.enter_context(connected(arena))
            raw.sendall(request_head(hostile, "GET", f"/v1/runs/{run}/events"))
        return others_are_served(arena, ended(hostile.over(run)["error"]))


def launches(arena: Arena) -> str:
    """Launch and cancel, 60 times."""
    program = checked(arena.mallory.upload(SLEEP))["id"]
    end = OK
    for _ in range(60):
        response = arena.mallory.launch(program)
        end = ending(response)
        if end != OK:
            break
        arena.mallory.http.post(f"/v1/runs/{response.json()['id']}/cancel")
    return others_are_served(arena, end)


def forks_in_ten_sessions(arena: Arena) -> str:
    """Fork a matcher of many tokens in each of ten sessions until that is refused."""
    before, end = arena.memory()["engine"], OK
    with ExitStack() as open_sessions:
        for _ in range(10):
            session = open_sessions.enter_context(arena.mallory.session())
            grammar = session.call("grammar.compile", constraint={"kind": "regex", "value": "(a|b)*"})["grammar"]
            matcher = session.call("grammar.matcher", grammar=grammar)["matcher"]
            token = session.call("model.tokenize", text="a")["tokens"]
            for _ in range(60):
                session.call("grammar.accept", matcher=matcher, tokens=token * 32)
            while (fork := answered(session.call("grammar.fork", matcher=matcher))) == OK:
                pass
            end = fork
        grown = arena.memory()["engine"] - before
    assert grown < MOST_GROWN_MB, f"the engine grew by {grown:.0f} MiB"
    return end


def children_of_one_session(arena: Arena) -> str:
    """Launch children whose results are large, one after the other, and never say that their names were received."""
    program = checked(arena.mallory.upload("async def main(): return 'x' * (20 << 20)"))["id"]
    limits, end = {"output_bytes": 64 << 20, "memory_mb": 1024}, OK
    with arena.mallory.session() as session, bounded_gateway(arena, MOST_HELD_MB):
        for _ in range(12):
            child = session.call("launch.start", program=program, limits=limits)["child"]
            end = answered(session.call("launch.result", child=child))
    return others_are_served(arena, end)


HOARDS: list[Attack] = [
    Conduct("12 children with results of 20 MB", children_of_one_session, REFUSED, seconds=120),
    Conduct("10 sessions of forks of a long matcher", forks_in_ten_sessions, REFUSED, seconds=120),
    Conduct("400 sleeping programs", hoard(400), REFUSED, seconds=120),
    Conduct(
        "300 programs that wait for a message",
        hoard(300, "import inferd\nasync def main(): await inferd.session.receive()"),
        REFUSED,
        seconds=120,
    ),
    Conduct(
        "60 programs that spin",
        hoard(60, "async def main():\n    while True: pass", limits={"wall_s": 20.0, "cpu_s": 3.0}),
        REFUSED,
        seconds=120,
    ),
    Conduct(
        "30 programs of 200 MB",
        hoard(30, "import asyncio\nasync def main():\n    kept = bytearray(150 << 20)\n    await asyncio.sleep(600)"),
        REFUSED,
        seconds=120,
    ),
    Conduct("12 programs with 3 MB of arguments", hoard(12, arguments={"x": "x" * (3 << 20)}), REFUSED, seconds=120),
    Conduct("300 messages to one that does not read", messages_nobody_reads(100, 300), REFUSED, seconds=120),
    Conduct("12 messages of 3 MB to one that does not read", messages_nobody_reads(3 << 20, 12), REFUSED, seconds=120),
    Conduct("12 messages of 2 MB to one that waits", messages_to_the_waiting, REFUSED, seconds=120),
    Conduct(
        "12 ends with 3 MB of arguments",
        kept("async def main(x: str): pass", 12, {}, x="x" * (3 << 20)),
        REFUSED,
        seconds=120,
    ),
    Conduct(
        "6 errors of 20 MB",
        kept("async def main(): raise ValueError('x' * (20 << 20))", 6, {"output_bytes": 64 << 20}),
        REFUSED,
        seconds=120,
    ),
    Conduct(
        "3 results of 20 MB",
        kept("async def main(): return 'x' * (20 << 20)", 3, {"output_bytes": 64 << 20, "memory_mb": 1024}),
        REFUSED,
        seconds=120,
    ),
    Conduct(
        "4 outputs of 20 MB",
        kept("async def main():\n    for _ in range(20): print('x' * (1 << 20))", 4, {"output_bytes": 64 << 20}),
        REFUSED,
        seconds=120,
    ),
    Conduct("50 streams that nobody reads", followers, REFUSED, seconds=120),
    Conduct("60 launches", launches, REFUSED, seconds=120),
]


@attacks(*HOARDS)
def test_what_a_tenant_hoards_leaves_a_share_to_others(arena: Arena, attack: Attack) -> None:
    withstood(arena, attack, own_worker=True)
