"""Converts Python values (dataclasses, enums, pydantic models) to JSON values."""

from __future__ import annotations

import dataclasses
import enum
import json
import math
from collections import deque
from collections.abc import AsyncIterable, Awaitable, Iterator, Mapping, Set
from datetime import date, time
from decimal import Decimal
from numbers import Number
from pathlib import PurePath
from typing import Any, TypeVar
from uuid import UUID

from inferd.calls.streamed import Streamed
from inferd.program.pydantic_models import is_pydantic, plain
from inferd.protocol import ProgramError

N = TypeVar("N", float, Decimal)
MAX_DEPTH = 200
EXACT = frozenset({type(None), bool, int, str})
"""Types of values that are JSON values as they are; their subclasses are not."""


def to_json_value(value: Any, path: str) -> Any:
    """Return ``value`` as None, bool, int, float, str, list and dict, which the caller owns.

    Dataclasses and pydantic models become objects, enums their values, tuples and sets (sorted) lists, dates, times, UUIDs and
    decimals text. Raises ProgramError, which names the place by ``path``, for what JSON cannot hold: other types, keys that
    are not strings, NaN, infinity, cycles.
    """
    return _convert(value, path, 0)


def is_carried(value: Any) -> bool:
    """Return True if every message format of the runtime carries a JSON value as it is.

    False with a number beyond 64 bits, infinity or NaN, and a text with half a surrogate pair in it.
    """
    if isinstance(value, list):
        return all(map(is_carried, value))
    if isinstance(value, dict):
        return all(is_carried(key) and is_carried(part) for key, part in value.items())
    if isinstance(value, int):
        return -(1 << 63) <= value < 1 << 64
    if isinstance(value, float):
        return math.isfinite(value)
    return not isinstance(value, str) or value.isascii() or _is_unicode(value)


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _convert(value: Any, path: str, depth: int) -> Any:
    if depth > MAX_DEPTH:
        raise ProgramError(f"{path[:80]}... is nested more than {MAX_DEPTH} deep, or contains itself")
    if isinstance(value, enum.Enum):
        return _convert(value.value, path, depth)
    if value is None or isinstance(value, (bool, int, str)):
        return _exact(value)
    if isinstance(value, float):
        return float(_finite(value, path))
    if isinstance(value, (list, tuple)):
        return [
            item if type(item) in EXACT else _convert(item, f"{path}[{index}]", depth + 1)
            for index, item in enumerate(value)
        ]
    if isinstance(value, dict):
        return {_key(key, path): _convert(item, f"{path}[{key!r}]", depth + 1) for key, item in value.items()}
    return _convert_object(value, path, depth)


def _convert_object(value: Any, path: str, depth: int) -> Any:
    if isinstance(value, type):
        raise ProgramError(f"{path} is the class {value.__name__}: JSON holds values, not classes")
    if dataclasses.is_dataclass(value):
        names = [field.name for field in dataclasses.fields(value)]
        return {name: _convert(getattr(value, name), f"{path}.{name}", depth + 1) for name in names}
    if isinstance(value, (set, frozenset)):
        return _sorted([_convert(item, f"{path}[...]", depth + 1) for item in value])
    if isinstance(value, (date, time, UUID)):
        return str(value) if isinstance(value, UUID) else value.isoformat()
    if isinstance(value, Decimal):
        return str(_finite(value, path))
    if is_pydantic(type(value)):
        return _convert(plain(value), path, depth + 1)
    raise ProgramError(f"{path} is of type {type(value).__name__}, which JSON cannot hold{_instead(value)}")


def _instead(value: object) -> str:
    """Return what a program does with a value that JSON cannot hold; "" where that is not known."""
    if isinstance(value, Streamed):
        return f": {value.instead}"
    if isinstance(value, Awaitable):
        return ": await it first"
    if isinstance(value, AsyncIterable):
        return ": send what it yields one after the other with session.send, or return a list of it"
    if isinstance(value, (bytes, bytearray, memoryview)):
        return ": decode it, or send it with session.send_file"
    if isinstance(value, Mapping):
        return ": make a dict of it"
    if isinstance(value, (Set, Iterator, deque, range)):
        return ": make a list of it"
    if isinstance(value, (Number, PurePath)):
        return ": use str() of it"
    return ""


def _exact(value: bool | int | str | None) -> bool | int | str | None:
    """Return the value as a plain int or str: an encoder might write a subclass in its own way."""
    if isinstance(value, str):
        return str(value) if type(value) is str else str.__str__(value)
    return int(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _sorted(items: list[Any]) -> list[Any]:
    """Return a set's items in an order that is the same in every run: by their JSON where they have none of their own."""
    try:
        return sorted(items)
    except TypeError:
        return sorted(items, key=lambda item: json.dumps(item, sort_keys=True))


def _finite(value: N, path: str) -> N:
    if not math.isfinite(value):
        raise ProgramError(f"{path} is {value}, which JSON cannot hold")
    return value


def _key(key: Any, path: str) -> str:
    if not isinstance(key, str):
        raise ProgramError(f"{path} has the key {key!r}: JSON keys are strings: use str() of it")
    return key
