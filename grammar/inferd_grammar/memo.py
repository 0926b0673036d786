"""Memoised results of one piece of work, such as compiling one constraint or checking texts under one schema.

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


class Memo:
    """The memoised results of one piece of work, by function."""

    def __init__(self) -> None:
        self.kept: dict[Callable[..., Any], Callable[..., Any]] = {}


_MEMO: ContextVar[Memo | None] = ContextVar("memo", default=None)


@contextmanager
def memoising(memo: Memo) -> Iterator[None]:
    """Have functions that are :func:`memoised` look up and keep their results in ``memo`` inside the block."""
    token = _MEMO.set(memo)
    try:
        yield
    finally:
        _MEMO.reset(token)


def memoised(most: int) -> Callable[[Callable[[*Arguments], R]], Callable[[*Arguments], R]]:
    """Return a decorator that keeps so many results of a function in each memo, and none outside of :func:`memoising`."""

    def decorate(function: Callable[[*Arguments], R]) -> Callable[[*Arguments], R]:
        @wraps(function)
        def found(*arguments: *Arguments) -> R:
            memo = _MEMO.get()
            if memo is None:
                return function(*arguments)
            if function not in memo.kept:
                memo.kept[function] = lru_cache(maxsize=most)(function)
            result: R = memo.kept[function](*arguments)
            return result

        return found

    return decorate
