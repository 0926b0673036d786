"""Settings whose entries have options of their own: models, adapters, draft models."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from inferd.protocol import InvalidRequest

T = TypeVar("T")


def split_options(what: str, text: str) -> dict[str, str]:
    """Return ``NAME[,key=value]...`` as a table with ``name``.

    Raises InvalidRequest that names ``what``, for a part without a value and for a key that is there twice.
    """
    name, *parts = text.split(",")
    pairs = [part.partition("=") for part in parts]
    for key, equals, _ in pairs:
        if not equals:
            raise InvalidRequest(f"{what} {text!r}: expected key=value behind the comma, got {key!r}")
    for key, count in Counter(["name", *(key for key, _, _ in pairs)]).items():
        if count > 1:
            raise InvalidRequest(f"{what} {text!r}: {key} is given twice")
    return {"name": name, **{key: value for key, _, value in pairs}}


def read_entries(value: Any, what: str, read: Callable[[Any], T]) -> tuple[T, ...]:
    """Return a setting's entries from one text with ``;`` between them, or from a list of what ``read`` takes.

    ``what`` is an entry's name with its article. Raises InvalidRequest for a value that is neither.
    """
    entries = [entry for entry in value.split(";") if entry.strip()] if isinstance(value, str) else value
    if not isinstance(entries, Sequence):
        noun = what.split(maxsplit=1)[1]
        raise InvalidRequest(f"expected {what} or a list of {noun}s, got {value!r}")
    return tuple(read(entry) for entry in entries)


def read_entry(
    entry: Any, kind: type[T], parse: Callable[[str], T], of: Callable[[Mapping[str, Any]], T], expected: str
) -> T:
    """Return one entry from its text, its table, or itself. Raises InvalidRequest that says what was ``expected``."""
    if isinstance(entry, kind):
        return entry
    if isinstance(entry, str):
        return parse(entry.strip())
    if isinstance(entry, Mapping):
        return of(entry)
    raise InvalidRequest(f"expected {expected}, got {entry!r}")


def check_once(what: str, keys: Sequence[tuple[str, ...]]) -> None:
    """Raise InvalidRequest if two entries have the same key; the first part of a key is the entry's name."""
    for key, count in Counter(keys).items():
        if count > 1:
            raise InvalidRequest(f"{what} {key[0]!r} is given twice")
