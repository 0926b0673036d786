"""``launch.*``: programs that a program or script starts. The gateway answers them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from inferd.protocol.operations import Done, operation


@dataclass(frozen=True)
class ChildStarted:
    """``child``: the id of its run."""

    child: str


@operation("launch.start", ChildStarted, by_gateway=True)
@dataclass(frozen=True)
class StartChild:
    """Launch a program of the tenant: its name, ``name@version``, or id.

    ``limits`` are lower ones for the child, as in a launch. What it uses counts to the limits of the run that the caller descends
    from. It ends with its caller.
    """

    program: str
    arguments: dict[str, Any] = field(default_factory=dict)
    limits: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ChildResult:
    """What a child's ``main`` returned."""

    result: Any


@operation("launch.result", ChildResult, by_gateway=True)
@dataclass(frozen=True)
class AwaitChild:
    """Wait for a child's end. Answered with its error where it failed."""

    child: str


@operation("launch.send", Done, by_gateway=True)
@dataclass(frozen=True)
class SendToChild:
    """Hand a JSON value to a child's ``session.receive``."""

    child: str
    message: Any


@dataclass(frozen=True)
class ChildMessages:
    """Messages of a child; ``next`` is what to ask for next. ``over``: there will be no more."""

    messages: list[Any]
    next: int
    over: bool = False


@operation("launch.receive", ChildMessages, by_gateway=True)
@dataclass(frozen=True)
class ReceiveFromChild:
    """Wait for messages that a child sends with ``session.send``, behind those of an earlier reply (its ``next``; 0 at first)."""

    child: str
    after: int = 0


@operation("launch.cancel", Done, by_gateway=True)
@dataclass(frozen=True)
class CancelChild:
    """Ask a child to end. Nothing happens to one that is over."""

    child: str
