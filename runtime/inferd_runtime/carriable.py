"""The one check of what a client or a guest sends as "any JSON value": can every wire behind this one carry it?

Between the processes go msgpack and JSON. JSON alone has integers beyond 64 bits; both have a depth at which their codecs give
up, which depends on Python's version and on how deep the caller stands. What fails here is refused where it comes in; what
passes can be packed and sent anywhere without an error.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import msgpack  # type: ignore[import-untyped]
import msgspec

from inferd.protocol import InvalidRequest, cut
from inferd_runtime.interpreter import no_collections
from inferd_runtime.json_cost import MAX_DEPTH, containers, refuse_slow_text, without_strings
from inferd_runtime.known_fields import known_fields
from inferd_runtime.msgpack_cost import count_containers, possible_containers

SPARE_DEPTH = 200
"""Levels that a value may lie deeper when it is packed or read later: in messages, and below other frames of the stack."""
OUTSIDE = b"\x91" * (1024 - SPARE_DEPTH - MAX_DEPTH)
"""So many lists of one that msgpack's reader, whose bound is the same everywhere, takes MAX_DEPTH levels of a value inside."""
MAX_REASON = 200
MAX_CONTAINERS = 100_000
"""Lists and objects in one message: each is an allocation that the garbage collector walks, while everybody waits."""
FEW_CONTAINERS = 2000
"""While so few are made the garbage collector need not rest."""
LONG_BYTES = 600_000
"""Of a message of fewer bytes in msgpack whatever could be a list or map is counted before, and what is one behind reading."""
PLAIN_BYTES, PLAIN_CONTAINERS = 4096, 100
LONG_NUMBER = re.compile(rb"\d{19}")
HALF_PAIR = re.compile(rb"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u)")


def is_plain(text: bytes) -> bool:
    """Return True if msgspec can pack whatever it reads from this JSON text: a quick look, before the check that takes longer.

    The text is short, has no number of more than 18 digits, and opens few lists and objects.
    """
    return len(text) <= PLAIN_BYTES and containers(text) <= PLAIN_CONTAINERS and LONG_NUMBER.search(text) is None


def check_carriable(value: Any, what: str) -> None:
    """Raises InvalidRequest that begins with ``what`` unless JSON and msgpack can carry ``value``, also inside of messages."""
    try:
        reader = msgpack.Unpacker(max_buffer_size=0)
        reader.feed(OUTSIDE + msgspec.msgpack.encode(_deeper(value)))
        reader.skip()
    except (RecursionError, msgpack.StackError):
        raise InvalidRequest(f"{what}: nested too deeply") from None
    except OverflowError:
        raise InvalidRequest(f"{what}: an integer does not fit into 64 bits") from None
    except (TypeError, ValueError) as error:  # a lone surrogate is a ValueError, too
        raise InvalidRequest(f"{what}: {cut(str(error), MAX_REASON)}") from None


def members(value: Any) -> Iterable[Any]:
    """Return what a list or an object holds; nothing for any other JSON value."""
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()


def is_deeper(value: Any, most: int) -> bool:
    """Return True if a JSON value has more than ``most`` levels; it is the first itself, also where it holds nothing."""
    level = [value]
    for _ in range(most):
        level = [member for each in level for member in members(each)]
    return bool(level)


def read_json(
    data: bytes | str,
    what: str,
    kind: Any = Any,
    most: int = MAX_CONTAINERS,
    carried: Callable[[Any], Any] | None = None,
) -> Any:
    """Return the value that a stranger's JSON holds, as ``kind``. Raises InvalidRequest that begins with ``what``.

    A text with more than ``most`` lists and objects, or that would take long to read for another reason, is refused before it
    is read. ``carried`` returns what goes on of a value which cannot be carried whole.
    """
    text = data.encode("utf-8", "surrogatepass") if isinstance(data, str) else data
    refuse_slow_text(text, what)
    if containers(text) > most and containers(without_strings(text)) > most:
        raise too_many_containers(what, most)
    return _read(msgspec.json.decode, data, what, kind, carried)


def read_msgpack(data: bytes, what: str, kind: Any = Any) -> Any:
    """Return the value that a stranger's msgpack holds, as ``kind``. Raises InvalidRequest that begins with ``what``."""

    def decode(data: bytes, type: Any) -> Any:
        return decode_bounded(partial(msgspec.msgpack.decode, type=type), data, what, json=False)

    return _read(decode, data, what, kind)


def decode_bounded(decode: Callable[[bytes], Any], data: bytes, what: str, *, json: bool) -> Any:
    """Return ``decode(data)``. Raises InvalidRequest, before that took long, for more than ``MAX_CONTAINERS`` lists and objects,
    and for what else takes long to read.

    Where there may be many, it is decoded while the garbage collector rests. Whether there are too many is known for certain
    of msgpack that is long, and of what is short once it is decoded.
    """
    if json:
        refuse_slow_text(data, what)
        possible = containers(data)
    elif len(data) > LONG_BYTES:
        possible = count_containers(data, what)
    else:
        possible = possible_containers(data)
    if possible <= FEW_CONTAINERS:
        return decode(data)
    if possible > MAX_CONTAINERS and len(data) > LONG_BYTES:
        raise too_many_containers(what)
    with no_collections():
        value = decode(data)
        if possible <= MAX_CONTAINERS or _containers_of(value) <= MAX_CONTAINERS:
            return value
        del value
    raise too_many_containers(what)


def too_many_containers(what: str, most: int = MAX_CONTAINERS) -> InvalidRequest:
    """Return the error of a message that has more than ``most`` lists and objects in it."""
    return InvalidRequest(f"{what}: more than {most} lists and objects, or bytes that could begin one, at a time")


def _read(decode: Any, data: bytes | str, what: str, kind: Any, carried: Callable[[Any], Any] | None = None) -> Any:
    try:
        value = decode(data, type=kind)
        if dataclasses.is_dataclass(kind):
            decode(data, type=known_fields(kind))
    except RecursionError:
        raise InvalidRequest(f"{what}: nested too deeply") from None
    except ValueError as error:  # msgspec's errors are, and those about UTF-8
        raise InvalidRequest(f"{what}: {_reason(error, data)}") from None
    try:
        check_carriable(value, what)
    except InvalidRequest:
        if carried is None:
            raise
        check_carriable(carried(value), what)
    return value


def _reason(error: ValueError, data: bytes | str) -> str:
    """Return what is wrong. Where half a surrogate pair ends a text, as of an emoji that was cut, msgspec says that JSON ends."""
    if "truncated" in str(error) and isinstance(data, bytes) and HALF_PAIR.search(data):
        return "a text has half a surrogate pair"
    return cut(str(error), MAX_REASON)


def _containers_of(value: Any) -> int:
    """Return how many lists and objects a value holds; one too many for a value that no JSON can hold."""
    try:
        text = msgspec.json.encode(value)
    except (ValueError, TypeError, RecursionError, OverflowError):
        return MAX_CONTAINERS + 1
    return containers(text) if b'"' not in text else containers(without_strings(text))


def _deeper(value: Any) -> Any:
    for _ in range(SPARE_DEPTH):
        value = [value]
    return value
