"""Lists of token ids, checked where a program hands them in."""

from __future__ import annotations

from collections.abc import Iterable

from inferd.protocol.errors import InvalidRequest


def checked_tokens(name: str, values: Iterable[int]) -> list[int]:
    """Return ``values`` as a list of whole numbers of at least 0. Raises InvalidRequest, which names the argument and the
    entry.
    """
    if isinstance(values, (str, bytes, bytearray, memoryview)) or not isinstance(values, Iterable):
        raise InvalidRequest(f"{name} must be a list of whole numbers, not {type(values).__name__}")
    numbers = list(values)
    for index, value in enumerate(numbers):
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise InvalidRequest(f"{name}[{index}] must be a whole number of at least 0, not {value!r}")
    return numbers
