"""Lists on the command lines of the benchmarks: what is not known is refused by name before anything is measured."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from typing import TypeVar

T = TypeVar("T")


def one_of(known: Iterable[T]) -> Callable[[str], T]:
    """Return a type of argparse: the known value that a text is the name of."""
    names = {str(each): each for each in known}

    def named(text: str) -> T:
        if text not in names:
            raise argparse.ArgumentTypeError(f"there is no {text!r}, there are {', '.join(names)}")
        return names[text]

    return named


def listed(each: Callable[[str], T]) -> Callable[[str], list[T]]:
    """Return a type of argparse: values with commas between them, such as ``listed(one_of(PARTS))`` and ``listed(float)``."""

    def values(text: str) -> list[T]:
        try:
            return [each(part.strip()) for part in text.split(",")]
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return values
