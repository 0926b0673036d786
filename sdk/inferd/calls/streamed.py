"""What is iterated with ``async for``, and says so where it is awaited, or iterated with ``for``."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, NoReturn


class Streamed:
    """Base of what ``generate`` and ``run_tools`` return. ``instead`` says what to do with one."""

    instead: ClassVar[str]

    if not TYPE_CHECKING:  # for a checker of types there is no such method, which is an error before the program runs

        def __await__(self) -> NoReturn:
            raise TypeError(f"a {type(self).__name__} cannot be awaited: {self.instead}")

        def __iter__(self) -> NoReturn:
            raise TypeError(f"a {type(self).__name__} cannot be iterated with `for`: {self.instead}")
