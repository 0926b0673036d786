"""The table of operations: wire name to request dataclass; and the reply of those that have nothing to say."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

OPERATIONS: dict[str, type[Any]] = {}
R = TypeVar("R")


@dataclass(frozen=True)
class Done:
    """Nothing to say but that it is done."""


def operation(op: str, reply: type[Any]) -> Callable[[type[R]], type[R]]:
    """Register a request dataclass under its wire name; ``reply`` is the type of the answer."""

    def register(cls: type[R]) -> type[R]:
        cls.op = op  # type: ignore[attr-defined]
        cls.reply = reply  # type: ignore[attr-defined]
        OPERATIONS[op] = cls
        return cls

    return register
