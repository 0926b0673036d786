"""What errors may carry: text of bounded length, and details that every wire takes. Nothing here raises."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

MAX_NAME = 80
"""Characters of an unknown name that an error repeats."""
MAX_ERROR_TEXT = 72 << 10
"""Characters of an error's message, and of all text in its detail together: a traceback is cut to less where it is made."""
MAX_ERROR_VALUES = 256
"""Values in an error's detail, keys of objects included."""
MAX_ERROR_DEPTH = 8
LEAST_INTEGER = -(1 << 63)
LARGEST_INTEGER = (1 << 64) - 1
"""The integers that msgpack has."""
LEFT_OUT = "[...]"


def shown(value: object, most: int = MAX_NAME) -> str:
    """Return what an error repeats of a value that a client sent: its ``repr``, cut to ``most`` characters."""
    if isinstance(value, (str, bytes)):
        value = value[:most]  # before its repr is made, which may be long as well
    return cut(repr(value), most)


def cut(text: str, most: int = MAX_ERROR_TEXT) -> str:
    """Return a text with its middle left out where it is longer than ``most`` characters; lone surrogates become escapes."""
    if len(text) > most:
        half = max(0, most - len(LEFT_OUT)) // 2
        text = text[:half] + LEFT_OUT + text[len(text) - half :]
    return text.encode("utf-8", "backslashreplace").decode()


def carriable_detail(detail: Mapping[Any, Any]) -> dict[str, Any]:
    """Return an error's detail as values that JSON and msgpack take, and no more than an error may carry.

    What no wire takes becomes text: integers beyond 64 bits, infinities, other types, and what is nested too deeply.
    """
    found: dict[str, Any] = _Detail().value(dict(detail), 0)
    return found


class _Detail:
    """Copies one detail, and counts what it copies."""

    def __init__(self) -> None:
        self._text = MAX_ERROR_TEXT
        self._values = MAX_ERROR_VALUES

    def value(self, value: Any, depth: int) -> Any:
        self._values -= 1
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, int) and LEAST_INTEGER <= value <= LARGEST_INTEGER:
            return int(value)
        if isinstance(value, float) and math.isfinite(value):
            return float(value)
        if depth < MAX_ERROR_DEPTH and isinstance(value, dict):
            return self._object(value, depth + 1)
        if depth < MAX_ERROR_DEPTH and isinstance(value, (list, tuple)):
            return self._array(value, depth + 1)
        return self._string(value if isinstance(value, str) else _described(value))

    def _object(self, value: dict[Any, Any], depth: int) -> dict[str, Any]:
        copied = {}
        for key, item in value.items():
            if self._values <= 0:
                break
            self._values -= 1
            copied[self._string(key if isinstance(key, str) else _described(key))] = self.value(item, depth)
        return copied

    def _array(self, value: list[Any] | tuple[Any, ...], depth: int) -> list[Any]:
        copied = []
        for item in value:
            if self._values <= 0:
                break
            copied.append(self.value(item, depth))
        return copied

    def _string(self, text: str) -> str:
        text = cut(text, self._text)
        self._text -= len(text)
        return text


def _described(value: object) -> str:
    """Return a short text for a value that cannot be carried itself."""
    if isinstance(value, int):
        return f"an integer of {value.bit_length()} bits"  # its digits may be more than Python prints
    if isinstance(value, float):
        return str(value)
    return f"a value of type {type(value).__name__}"
