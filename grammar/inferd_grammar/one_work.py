"""Results that one piece of work asks for again and again: no other work finds them, and could tell by its time that it does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache, wraps
from typing import Any, TypeVar, TypeVarTuple

Arguments = TypeVarTuple("Arguments")
R = TypeVar("R")


class Work:
    """What was worked out for one piece of work, by function; it goes with it."""

    def __init__(self) -> None:
        self.kept: dict[Callable[..., Any], Callable[..., Any]] = {}


_WORK: ContextVar[Work | None] = ContextVar("work", default=None)


@contextmanager
def one_work(work: Work) -> Iterator[None]:
    """Have what is worked out in the block, and in other blocks with the same ``work``, found again there."""
    token = _WORK.set(work)
    try:
        yield
    finally:
        _WORK.reset(token)


def kept_for_work(most: int) -> Callable[[Callable[[*Arguments], R]], Callable[[*Arguments], R]]:
    """Keep so many results of a function for each work, by arguments; none outside of any work."""

    def decorate(function: Callable[[*Arguments], R]) -> Callable[[*Arguments], R]:
        @wraps(function)
        def found(*arguments: *Arguments) -> R:
            work = _WORK.get()
            if work is None:
                return function(*arguments)
            if function not in work.kept:
                work.kept[function] = lru_cache(maxsize=most)(function)
            result: R = work.kept[function](*arguments)
            return result

        return found

    return decorate
