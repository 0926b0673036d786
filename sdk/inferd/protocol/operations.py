"""The tables of operations: wire name to request dataclass; and the reply of those that have nothing to say."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

OPERATIONS: dict[str, type[Any]] = {}
"""What the engine answers, and the program's own host."""
GATEWAY_OPERATIONS: dict[str, type[Any]] = {}
"""What the gateway answers: messages between programs, launches, the world outside."""
R = TypeVar("R")


@dataclass(frozen=True)
class Done:
    """Nothing to say but that it is done."""


def operation(op: str, reply: type[Any], *, by_gateway: bool = False) -> Callable[[type[R]], type[R]]:
    """Register a request dataclass under its wire name; ``reply`` is the type of the answer."""
    table = GATEWAY_OPERATIONS if by_gateway else OPERATIONS

    def register(cls: type[R]) -> type[R]:
        cls.op = op  # type: ignore[attr-defined]
        cls.reply = reply  # type: ignore[attr-defined]
        table[op] = cls
        return cls

    return register
