"""What stands in JSON for types that have no JSON of their own: the second half of a refusal. Types are told by their names, so
that nothing is imported for it."""

from __future__ import annotations

import typing
from typing import Any

LISTS = "use list[T]"
TEXT = "use str, and convert it in the function"
RECORD = "use a dataclass, a TypedDict or a pydantic model with the same fields"
INSTEAD = {
    **dict.fromkeys(("deque", "Deque"), LISTS),
    **dict.fromkeys(("Sequence", "MutableSequence", "Iterable", "Iterator", "Collection", "Generator", "array"), LISTS),
    **dict.fromkeys(("Set", "MutableSet", "AbstractSet"), "use set[T]"),
    "tuple": "use tuple[T, ...], or one type for each place",
    **dict.fromkeys(("Mapping", "MutableMapping", "OrderedDict", "defaultdict", "DefaultDict", "Counter"), "use dict[str, T]"),
    **dict.fromkeys(("bytes", "bytearray", "memoryview"), "use str, in Base64"),
    **dict.fromkeys(("timedelta", "Path", "PurePath", "PosixPath", "Pattern"), TEXT),
    **dict.fromkeys(("IPv4Address", "IPv6Address", "ZoneInfo", "LiteralString"), TEXT),
    **dict.fromkeys(("Fraction", "complex", "Number", "Real"), "use float, or Decimal where every digit counts"),
    **dict.fromkeys(("Callable", "Coroutine", "Awaitable"), "a model cannot write functions: use Literal with their names"),
    **dict.fromkeys(("TypeVar", "Generic", "ParamSpec", "Self", "ForwardRef"), "use the type that it stands for"),
    **dict.fromkeys(("Final", "ClassVar", "Required", "NotRequired", "ReadOnly", "InitVar"), "use the type inside of it alone"),
    **dict.fromkeys(("type", "Type", "module"), "a model cannot write classes: use Literal with their names"),
    **dict.fromkeys(("Never", "NoReturn"), "leave it out"),
}  # fmt: skip
OTHERWISE = "use bool, int, float, str, date, list, dict[str, T], Literal, an Enum, a dataclass, a TypedDict or a pydantic model"


def instead_of(kind: Any) -> str:
    """Return what to use instead of a type that is not supported."""
    origin = typing.get_origin(kind)
    named = origin if origin is not None else kind
    if not isinstance(named, type) and type(named).__name__ in INSTEAD:
        return INSTEAD[type(named).__name__]
    name = getattr(named, "__name__", None) or getattr(named, "_name", None) or ""
    if name in INSTEAD:
        return INSTEAD[name]
    if origin is not None and isinstance(origin, type):
        return f"use {origin.__name__} without type arguments, with the types written in it"
    if isinstance(kind, type) and kind.__module__ != "builtins":
        return RECORD
    return OTHERWISE
