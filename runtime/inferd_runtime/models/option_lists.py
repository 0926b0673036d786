"""Settings that list things with options of their own: models, adapters, draft models."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from inferd.protocol import InvalidRequest

T = TypeVar("T")


def read_entries(value: Any, what: str, read: Callable[[Any], T]) -> tuple[T, ...]:
    """Entries from a setting: one text with ``;`` between them, or a list of whatever ``read`` takes.

    ``what`` is one of them with its article. Raises InvalidRequest for a value that is neither.
    """
    entries = [entry for entry in value.split(";") if entry.strip()] if isinstance(value, str) else value
    if not isinstance(entries, Sequence):
        noun = what.split(maxsplit=1)[1]
        raise InvalidRequest(f"expected {what} or a list of {noun}s, got {value!r}")
    return tuple(read(entry) for entry in entries)


def read_entry(
    entry: Any, kind: type[T], parse: Callable[[str], T], of: Callable[[Mapping[str, Any]], T], expected: str
) -> T:
    """One entry: an object of its ``kind``, its text, or its table. Raises InvalidRequest that says what was ``expected``."""
    if isinstance(entry, kind):
        return entry
    if isinstance(entry, str):
        return parse(entry.strip())
    if isinstance(entry, Mapping):
        return of(entry)
    raise InvalidRequest(f"expected {expected}, got {entry!r}")


def check_once(what: str, keys: Sequence[tuple[str, ...]]) -> None:
    """Raise InvalidRequest that names what is there twice: two with the same key, whose first part is the name."""
    for key, count in Counter(keys).items():
        if count > 1:
            raise InvalidRequest(f"{what} {key[0]!r} is given twice")
