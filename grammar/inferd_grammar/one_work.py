"""Results that one piece of work asks for again and again: no other work finds them, and could tell by its time that it does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache, wraps
from typing import TypeVar, TypeVarTuple

Arguments = TypeVarTuple("Arguments")
R = TypeVar("R")
_WORK: ContextVar[object] = ContextVar("work", default=None)


@contextmanager
def one_work(work: object) -> Iterator[None]:
    """Have what is worked out in the block, and in other blocks with the same ``work``, found again there."""
    token = _WORK.set(work)
    try:
        yield
    finally:
        _WORK.reset(token)


def kept_for_work(most: int) -> Callable[[Callable[[*Arguments], R]], Callable[[*Arguments], R]]:
    """Keep so many results of a function, by work and arguments; none outside of any work."""

    def decorate(function: Callable[[*Arguments], R]) -> Callable[[*Arguments], R]:
        kept = lru_cache(maxsize=most)(lambda work, arguments: function(*arguments))

        @wraps(function)
        def found(*arguments: *Arguments) -> R:
            work = _WORK.get()
            return function(*arguments) if work is None else kept(work, arguments)

        return found

    return decorate
