"""Values that grow along a text and are kept behind each of its tokens: what two of them have in common is held once."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import TypeVar

T = TypeVar("T")
Stack = tuple[T, "Stack[T]"] | None
"""What is on top, and the stack below it; None is empty."""


def top(stack: Stack[T]) -> T | None:
    """Return what is on top, None for an empty stack."""
    return None if stack is None else stack[0]


def below(stack: Stack[T]) -> Stack[T]:
    """Return a stack without what is on top."""
    return None if stack is None else stack[1]


def with_top(stack: Stack[T], value: T) -> Stack[T]:
    """Return a stack with another value in the place of what is on top."""
    return value, below(stack)


def each(stack: Stack[T]) -> Iterator[T]:
    """Yield what is in a stack, from the top."""
    while stack is not None:
        yield stack[0]
        stack = stack[1]


def with_bytes(pieces: tuple[bytes, ...], more: bytes) -> tuple[bytes, ...]:
    """Return pieces of a text with more behind them: few pieces, as each is longer than the next."""
    while pieces and len(pieces[-1]) <= len(more):
        pieces, more = pieces[:-1], pieces[-1] + more
    return (*pieces, more)


def with_item(sets: tuple[frozenset[Hashable], ...], item: Hashable) -> tuple[frozenset[Hashable], ...]:
    """Return sets of items with one more: few sets, as each is larger than the next."""
    more = frozenset({item})
    while sets and len(sets[-1]) <= len(more):
        sets, more = sets[:-1], sets[-1] | more
    return (*sets, more)


def has_item(sets: tuple[frozenset[Hashable], ...], item: Hashable) -> bool:
    """Return True if some set has an item."""
    return any(item in one for one in sets)
