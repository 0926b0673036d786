"""The one check of what a client or a guest sends as "any JSON value": can every wire behind this one carry it?

Between the processes go msgpack and JSON. JSON alone has integers beyond 64 bits; both have a depth at which their codecs give
up, which depends on how deep the caller stands. What fails here is refused where it comes in; what passes can be packed and
sent anywhere without an error.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from inferd.protocol import InvalidRequest, cut

SPARE_DEPTH = 200
"""Levels that a value may lie deeper when it is packed or read later: in messages, and below other frames of the stack."""
MAX_REASON = 200
MAX_CONTAINERS = 100_000
"""Lists and objects in one JSON text: each is an allocation that the garbage collector walks, while everybody waits."""
PLAIN_BYTES, PLAIN_CONTAINERS = 4096, 100
LONG_NUMBER = re.compile(rb"\d{19}")
JSON_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)  # one without an end, too: each byte is seen once


def is_plain(text: bytes) -> bool:
    """Return True if msgspec can pack whatever it reads from this JSON text: a quick look, before the check that takes longer.

    The text is short, has no number of more than 18 digits, and opens few lists and objects.
    """
    return len(text) <= PLAIN_BYTES and _containers(text) <= PLAIN_CONTAINERS and LONG_NUMBER.search(text) is None


def check_carriable(value: Any, what: str) -> None:
    """Raises InvalidRequest that begins with ``what`` unless JSON and msgpack can carry ``value``, also inside of messages."""
    try:
        msgspec.msgpack.encode(_deeper(value))
    except RecursionError:
        raise InvalidRequest(f"{what}: nested too deeply") from None
    except OverflowError:
        raise InvalidRequest(f"{what}: an integer does not fit into 64 bits") from None
    except (TypeError, ValueError) as error:  # a lone surrogate is a ValueError, too
        raise InvalidRequest(f"{what}: {cut(str(error), MAX_REASON)}") from None


def read_json(data: bytes | str, what: str, kind: Any = Any, most: int = MAX_CONTAINERS) -> Any:
    """Return the value that a stranger's JSON holds, as ``kind``. Raises InvalidRequest that begins with ``what``.

    A text with more than ``most`` lists and objects is refused before it is read.
    """
    text = data.encode("utf-8", "surrogatepass") if isinstance(data, str) else data
    if _containers(text) > most and _containers(JSON_STRING.sub(b"", text)) > most:
        raise InvalidRequest(f"{what}: more than {most} lists and objects")
    return _read(msgspec.json.decode, data, what, kind)


def read_msgpack(data: bytes, what: str, kind: Any = Any) -> Any:
    """Return the value that a stranger's msgpack holds, as ``kind``. Raises InvalidRequest that begins with ``what``."""
    return _read(msgspec.msgpack.decode, data, what, kind)


def _read(decode: Any, data: bytes | str, what: str, kind: Any) -> Any:
    try:
        value = decode(data, type=kind)
    except RecursionError:
        raise InvalidRequest(f"{what}: nested too deeply") from None
    except ValueError as error:  # msgspec's errors are, and those about UTF-8
        raise InvalidRequest(f"{what}: {cut(str(error), MAX_REASON)}") from None
    check_carriable(value, what)
    return value


def _containers(text: bytes) -> int:
    """Return how many lists and objects a JSON text opens at most: brackets in its strings are counted, too."""
    return text.count(b"[") + text.count(b"{")


def _deeper(value: Any) -> Any:
    for _ in range(SPARE_DEPTH):
        value = [value]
    return value
