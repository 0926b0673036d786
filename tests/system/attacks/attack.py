"""What an attack is: a small value that says what is sent, and how that may end. The tables are in the test files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import httpx
import pytest
from websockets.exceptions import ConnectionClosed

from .arena import Arena, Hostile, Wire

OK = "ok"
SECONDS = 60.0
QUICK = {"wall_s": 10.0, "cpu_s": 1.0}
"""Limits of programs that would go on for ever."""


class Attack(Protocol):
    """Something that a hostile tenant does. It ends in one of ``ends``: ``ok``, an error's code, or ``limit:NAME``.

    ``limit`` alone is any limit.
    """

    @property
    def name(self) -> str:
        """What to call it."""

    @property
    def ends(self) -> str:
        """Every end that is right, separated by spaces."""

    @property
    def seconds(self) -> float:
        """How long it may take."""

    def carry_out(self, arena: Arena) -> str:
        """Do it; return how it ended."""


@dataclass(frozen=True)
class Program:
    """A program is uploaded and run."""

    name: str
    source: str | Mapping[str, str]
    ends: str
    limits: Mapping[str, Any] = field(default_factory=lambda: QUICK)
    arguments: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = SECONDS

    def carry_out(self, arena: Arena) -> str:
        """Upload, launch, and wait."""
        uploaded = arena.mallory.upload(self.source if isinstance(self.source, str) else dict(self.source))
        if uploaded.status_code >= 300:
            return ending(uploaded)
        launched = arena.mallory.launch(uploaded.json()["id"], limits=dict(self.limits), arguments=dict(self.arguments))
        if launched.status_code >= 300:
            return ending(launched)
        return ended(arena.mallory.over(launched.json()["id"])["error"])


@dataclass(frozen=True)
class Request:
    """One HTTP request is sent. ``{run}`` in its path is a run that waits for messages."""

    name: str
    method: str
    path: str
    ends: str
    body: bytes | str = b""
    headers: Mapping[str, str | bytes] = field(default_factory=dict)
    seconds: float = SECONDS

    def carry_out(self, arena: Arena) -> str:
        """Send it; a run that it was about must still answer."""
        run = waiting_run(arena.mallory) if "{run}" in self.path else ""
        content = self.body.encode("utf-8", "surrogatepass") if isinstance(self.body, str) else self.body
        response = arena.mallory.http.request(
            self.method, self.path.replace("{run}", run), content=content, headers=encoded(self.headers)
        )
        if run:
            arena.mallory.cancel(run)
        return ending(response)


@dataclass(frozen=True)
class Frames:
    """Raw messages over one WebSocket. The end is that of the last reply, or ``closed``."""

    name: str
    frames: Sequence[bytes | str]
    ends: str
    seconds: float = SECONDS

    def carry_out(self, arena: Arena) -> str:
        """Send all, then read until something answers the last."""
        with arena.mallory.session() as session:
            try:
                for frame in self.frames:
                    session.socket.send(frame)
                return answered(session.receive())
            except ConnectionClosed:
                return "closed"


@dataclass(frozen=True)
class Calls:
    """Calls of a script's session. ``calls`` gets the wire and returns the last answer."""

    name: str
    calls: Callable[[Wire], Mapping[str, Any]]
    ends: str
    seconds: float = SECONDS

    def carry_out(self, arena: Arena) -> str:
        """Make them."""
        with arena.mallory.session() as session:
            try:
                return answered(self.calls(session))
            except ConnectionClosed:
                return "closed"


@dataclass(frozen=True)
class Conduct:
    """Anything else. ``act`` returns how it ended."""

    name: str
    act: Callable[[Arena], str]
    ends: str
    seconds: float = SECONDS

    def carry_out(self, arena: Arena) -> str:
        """Do it."""
        return self.act(arena)


def encoded(headers: Mapping[str, str | bytes]) -> dict[bytes, bytes]:
    """Headers as bytes, which need not be text."""
    return {name.encode(): value if isinstance(value, bytes) else value.encode() for name, value in headers.items()}


def waiting_run(hostile: Hostile) -> str:
    """Return a run that has started and waits for messages."""
    run = hostile.start("import inferd\nasync def main():\n    print('up')\n    await inferd.session.receive()")
    hostile.until(run, "up")
    return run


def ending(response: httpx.Response) -> str:
    """Return how a request ended. One without a typed error is ``untyped``, with its status."""
    if response.status_code < 300:
        return OK
    try:
        return ended(response.json()["error"])
    except (ValueError, KeyError, TypeError):
        return f"untyped {response.status_code}"


def answered(reply: Mapping[str, Any]) -> str:
    """Return how a call of a session ended."""
    return ended(reply.get("err"))


def ended(error: Mapping[str, Any] | None) -> str:
    """Return an error's code, and which limit it was."""
    if error is None:
        return OK
    limit = error["detail"].get("limit")
    return f"{error['code']}:{limit}" if error["code"] == "limit" and limit else str(error["code"])


def attacks(*table: Attack) -> pytest.MarkDecorator:
    """Return what makes a test of each attack."""
    names = [attack.name for attack in table]
    assert len(set(names)) == len(names), "a name stands twice"
    return pytest.mark.parametrize("attack", table, ids=names)


def withstood(arena: Arena, attack: Attack, own_worker: bool = False) -> None:
    """Fail unless the attack ends as it should, in time, and neither the server nor the neighbour is the worse for it.

    ``own_worker``: the tenant's own worker may end with it.
    """
    arena.withstands(attack.name, attack.carry_out, frozenset(attack.ends.split()), attack.seconds, own_worker)
