"""Results that are memoised for one piece of work, such as the check of one schema.

Other work does not find them, and so cannot tell by its own time what was computed before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache, wraps
from typing import Any, TypeVar, TypeVarTuple

Arguments = TypeVarTuple("Arguments")
R = TypeVar("R")


class Work:
    """The memoised results of one piece of work, by function."""

    def __init__(self) -> None:
        self.kept: dict[Callable[..., Any], Callable[..., Any]] = {}


_WORK: ContextVar[Work | None] = ContextVar("work", default=None)


@contextmanager
def one_work(work: Work) -> Iterator[None]:
    """Memoise in ``work`` what functions of :func:`kept_for_work` return inside the block."""
    token = _WORK.set(work)
    try:
        yield
    finally:
        _WORK.reset(token)


def kept_for_work(most: int) -> Callable[[Callable[[*Arguments], R]], Callable[[*Arguments], R]]:
    """Make a decorator that memoises so many results of a function per work, none outside of :func:`one_work`."""

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
