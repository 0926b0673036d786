"""What a run or a request begins with, as far as it tells where it should start. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from inferd.protocol import InvalidRequest
from inferd_runtime.carriable import read_json
from inferd_runtime.cluster.prefixes import MOST_BYTES

LONGEST_SESSION = LONGEST_FIELD = 256
"""Characters of a session's name, and of what divides the cache, that count."""
MOST_CONTAINERS = 16_384
"""Lists and objects of a body that is looked into: replicas refuse others."""
TEXT_FIELDS = ("tools", "system", "instructions", "prompt", "messages", "input")
"""What a prompt is made of, by its place in one, over all dialects."""
CACHE_FIELDS = ("model", "cache_salt", "adapter")
"""What divides the cache beside the tenant."""


class Beginning(msgspec.Struct, frozen=True):
    """``owner``: what divides the cache; ``texts``: the beginning, in order; ``session``: what ties requests together."""

    owner: tuple[str, ...]
    texts: tuple[str, ...]
    session: str | None = None


def beginning_of(body: bytes, session: str | None) -> Beginning:
    """Return the beginning of an LLM client's request, in any dialect; that of a body that is none is empty."""
    try:
        fields = read_json(body, "the body", most=MOST_CONTAINERS)
    except InvalidRequest:  # which the replica says
        fields = None
    if not isinstance(fields, dict):
        return Beginning((), (), _cut(session))
    owner = tuple(str(fields.get(name, ""))[:LONGEST_FIELD] for name in CACHE_FIELDS)
    return Beginning(owner, tuple(_first(_texts(fields))), _cut(session))


def launch_beginning(program: str, arguments: bytes, session: str | None) -> Beginning:
    """Return the beginning of a run: its program, and its arguments."""
    return Beginning((program,), (arguments.decode(errors="replace"),), _cut(session))


def _texts(fields: dict[str, Any]) -> Iterator[str]:
    for name in TEXT_FIELDS:
        value = fields.get(name)
        parts = value if isinstance(value, list) else [] if value is None else [value]
        for part in parts:
            yield part if isinstance(part, str) else msgspec.json.encode(part, order="sorted").decode()


def _first(texts: Iterator[str]) -> Iterator[str]:
    """Yield the first texts, as far as they are looked at."""
    left = MOST_BYTES
    for text in texts:
        yield text
        left -= len(text) + 1
        if left <= 0:
            return


def _cut(session: str | None) -> str | None:
    return session[:LONGEST_SESSION] if session else None
