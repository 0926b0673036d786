"""Dataclasses to plain values and back, for places that have no msgspec (the sandbox)."""

from __future__ import annotations

import base64
import dataclasses
from functools import cache
from typing import Any, get_args, get_origin, get_type_hints


def to_plain(value: Any) -> Any:
    """Return a dataclass as dicts and lists; everything else unchanged."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, (list, tuple)):
        return [to_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: to_plain(item) for key, item in value.items()}
    return value


def set_fields(value: Any) -> Any:
    """Return a request as :func:`to_plain` does, without the fields that have their defaults.

    An older runtime refuses what it does not know: it shall do so only where that is used.
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = [(field, getattr(value, field.name)) for field in dataclasses.fields(value)]
        return {field.name: set_fields(held) for field, held in fields if not _is_default(field, held)}
    if isinstance(value, list) and value and dataclasses.is_dataclass(value[0]):
        return [set_fields(item) for item in value]
    return to_plain(value)


def _is_default(field: dataclasses.Field[Any], value: Any) -> bool:
    default = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
    return type(value) is type(default) and not dataclasses.is_dataclass(value) and bool(value == default)


def _item_types(cls: type[Any]) -> dict[str, Any]:
    """Return, by field name, what the lists of a reply hold where these are dataclasses, and ``bytes`` for a field of bytes."""
    found: dict[str, Any] = {}
    for name, hint in get_type_hints(cls).items():
        item = get_args(hint)[0] if get_origin(hint) is list else hint
        if item is bytes or (item is not hint and dataclasses.is_dataclass(item)):
            found[name] = item
    return found


class _Shape:
    """What is the same for all instances of a reply's dataclass."""

    def __init__(self, cls: type[Any]) -> None:
        fields = dataclasses.fields(cls)
        self.known = frozenset(field.name for field in fields)
        self.items = _item_types(cls)
        self.values = {field.name: field.default for field in fields if field.default is not dataclasses.MISSING}
        self.fresh = {
            field.name: field.default_factory for field in fields if field.default_factory is not dataclasses.MISSING
        }
        self.required = self.known - self.values.keys() - self.fresh.keys()
        for item in self.items.values():
            if item is not bytes:
                reply_shape(item)


@cache
def reply_shape(cls: type[Any]) -> _Shape:
    """Look up, once, what :func:`reply_from_plain` needs of a reply's dataclass and of those inside it."""
    return _Shape(cls)


def reply_from_plain(cls: type[Any], data: dict[str, Any]) -> Any:
    """Return the reply dataclass that plain values stand for. Unknown keys of a newer runtime are left out."""
    shape = reply_shape(cls)  # type: ignore[arg-type]  # a class is hashable
    values = {key: value for key, value in data.items() if key in shape.known}
    for key, item in shape.items.items():
        if item is bytes and isinstance(values.get(key), str):
            values[key] = base64.b64decode(values[key])  # as JSON carries bytes
        elif item is not bytes and values.get(key):
            values[key] = [reply_from_plain(item, entry) for entry in values[key]]
    return _made(cls, shape, values)


def _made(cls: type[Any], shape: _Shape, values: dict[str, Any]) -> Any:
    """Return ``cls(**values)``. A frozen dataclass sets each field by a call; for thousands of steps that is most of the time."""
    if not shape.required <= values.keys():
        return cls(**values)  # raises, and names what is missing
    made = object.__new__(cls)
    state = vars(made)
    state.update(shape.values)
    for name, new in shape.fresh.items():
        if name not in values:
            state[name] = new()
    state.update(values)
    return made
