"""Checks of token ids: those that a program hands in, and those of a request."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from typing import Any

from inferd.protocol.errors import InvalidRequest, LimitExceeded
from inferd.protocol.texts import kind_of

MAX_IDS = 1 << 20
"""Numbers in one list of a request: more than a context holds."""


def plain_whole(value: Any) -> Any:
    """Return a whole number of numpy, torch and the like as an int, and everything else as it is."""
    if isinstance(value, int):
        return value
    try:
        return operator.index(value)
    except TypeError:
        return value


def checked_tokens(name: str, values: Iterable[int]) -> list[int]:
    """Return ``values`` as a list of whole numbers of at least 0. Raises InvalidRequest, which names the argument and the
    entry.
    """
    if isinstance(values, (str, bytes, bytearray, memoryview)) or not isinstance(values, Iterable):
        instead = ": model.tokenizer.encode makes them of a text" if isinstance(values, str) else ""
        raise InvalidRequest(f"{name} must be a list of whole numbers, not {kind_of(values)}{instead}")
    numbers = [value if type(value) is int else plain_whole(value) for value in values]
    for index, value in enumerate(numbers):
        if isinstance(value, bool) or not isinstance(value, int):
            raise _no_id(name, index, value)
    check_ids(name, numbers)
    return numbers


def check_ids(name: str, values: Sequence[int]) -> None:
    """Raises InvalidRequest, which names the argument and the entry, for a negative number; LimitExceeded for too many."""
    if len(values) > MAX_IDS:
        text = f"{name}: {len(values)} numbers; {MAX_IDS} are allowed"
        raise LimitExceeded(text, limit="token_ids", value=MAX_IDS, raise_with="several calls")
    if min(values, default=0) < 0:
        index = next(index for index, value in enumerate(values) if value < 0)
        raise _no_id(name, index, values[index])


def _no_id(name: str, index: int, value: object) -> InvalidRequest:
    return InvalidRequest(f"{name}[{index}] must be a whole number of at least 0, not {value!r}")
