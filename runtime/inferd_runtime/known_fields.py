"""Refuses fields that a request does not have: msgspec refuses them for structs, and leaves them out of dataclasses."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import cache
from typing import Any, get_args, get_origin, get_type_hints

import msgspec


def known_fields(kind: Any) -> Any:
    """Return a type whose decoders refuse, by its name, a field that the dataclass ``kind`` or one in it does not have.

    They read no values: a small message takes half as long as its values do, a large one a tenth to a quarter.
    """
    return _names(kind)


def strict(decode: Callable[[bytes], Any], check: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    """Return ``decode`` with the ``check`` of a decoder of :func:`known_fields` behind it."""

    def decode_strictly(data: bytes) -> Any:
        value = decode(data)
        check(data)
        return value

    return decode_strictly


@cache
def _names(kind: Any) -> Any:
    return _struct(kind, {})


def _struct(kind: Any, made: dict[Any, Any]) -> Any:
    """Return a struct of a dataclass's fields. Those that hold themselves are why types are noted before they are complete."""
    if kind not in made:
        fields: list[tuple[str, Any, Any]] = [(field.name, msgspec.Raw, None) for field in dataclasses.fields(kind)]
        made[kind] = msgspec.defstruct(kind.__name__, fields, forbid_unknown_fields=True, gc=False)
        hints = get_type_hints(kind)
        made[kind].__annotations__.update({name: _type(hints[name], made) for name, _, _ in fields})
    return made[kind]


def _type(hint: Any, made: dict[Any, Any]) -> Any:
    if dataclasses.is_dataclass(hint):
        return _struct(hint, made)
    inner = next(filter(dataclasses.is_dataclass, get_args(hint)), None)
    if inner is None:
        return msgspec.Raw
    names = _struct(inner, made)
    return list[names] if get_origin(hint) is list else names | None  # type: ignore[valid-type]
