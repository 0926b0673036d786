"""Checks JSON of a guest without decoding it: decoded values take many times their text."""

from __future__ import annotations

import re

import msgspec

from inferd.protocol import InvalidRequest, cut
from inferd_runtime.json_cost import is_deep

MAX_REASON = 200
MAX_NUMBER = 1000
"""Characters of a number."""
_TOKENS = re.compile(rb'"(?:[^"\\]++|\\.)*+"?|-?[0-9][0-9.eE+-]{4,}')
"""Strings, which are skipped, and numbers of a length that may not fit. Each byte is looked at once or twice."""


def check_json(data: bytes, what: str) -> None:
    """Raise InvalidRequest that begins with ``what`` unless this is JSON that every wire can carry: not too deep, all of it
    Unicode, no number beyond 64 bits.
    """
    try:
        data.decode()
        msgspec.json.decode(data, type=msgspec.Raw)
    except RecursionError:
        raise InvalidRequest(f"{what}: nested too deeply") from None
    except ValueError as error:  # msgspec's errors are, and those about UTF-8
        raise InvalidRequest(f"{what}: {cut(str(error), MAX_REASON)}") from None
    if is_deep(data):
        raise InvalidRequest(f"{what}: nested too deeply")
    for match in _TOKENS.finditer(data):
        if not _fits(match[0]):
            raise InvalidRequest(f"{what}: an integer does not fit into 64 bits, or a float into a double")


def _fits(token: bytes) -> bool:
    if token.startswith(b'"'):
        return True
    if len(token) > MAX_NUMBER:
        return False
    if any(mark in token for mark in b".eE"):
        return float(token) not in (float("inf"), float("-inf"))
    return -(1 << 63) <= int(token) < 1 << 64
