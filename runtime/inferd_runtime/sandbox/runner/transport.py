"""The SDK's transport inside the sandbox."""

from __future__ import annotations

import base64
import dataclasses
import json
import random
import re
from typing import Any

from inferd.protocol import ErrorInfo, InvalidRequest, reply_from_plain
from inferd.transport.room import CallRoom
from inferd_runtime.sandbox.runner.completions import Answer, Completions
from inferd_runtime.sandbox.runner.eventloop import running_loop

SEED_BITS = 63
HALF_PAIR = re.compile(r"(?<!\\)(?:\\\\)*(?:\\ud[89ab]..(?!\\ud[c-f])|(?<!\\ud[89ab]..)\\ud[c-f])")
"""Half a surrogate pair among the escapes of a JSON text."""


class GuestTransport:
    """Carries requests of ``inferd.protocol`` to the host as JSON.

    With ``seed``, samplers that have none get seeds of a sequence that it determines.
    """

    def __init__(self, completions: Completions, seed: int | None = None) -> None:
        self._completions = completions
        self._seeds = None if seed is None else random.Random(seed)
        self._room = CallRoom()

    async def call(self, request: Any) -> Any:
        """Send a request and wait for its reply; see :class:`inferd.transport.Transport`."""
        async with self._room.of(request):
            quiet = running_loop().quiet_seconds()
            ticket = self._completions.submit(type(request).op, _encode(self._seeded(request)), quiet)
            return _reply(request, await self._completions.answer(ticket))

    def call_blocking(self, request: Any) -> Any:
        """Send a request, and block until its reply is there: the program's other tasks stand still."""
        ticket = self._completions.submit(type(request).op, _encode(self._seeded(request)))
        return _reply(request, self._completions.block(ticket))

    def _seeded(self, request: Any) -> Any:
        sampling = getattr(request, "sampling", None)
        if self._seeds is None or sampling is None or sampling.seed is not None:
            return request
        seeded = dataclasses.replace(sampling, seed=self._seeds.getrandbits(SEED_BITS))
        return dataclasses.replace(request, sampling=seeded)


def _reply(request: Any, answered: Answer) -> Any:
    ok, answer = answered
    if not ok:
        raise ErrorInfo(**answer).to_exception()
    return reply_from_plain(type(request).reply, answer)


def _plain(value: object) -> Any:
    """Return a dataclass as a dict, bytes as base64: with this the C encoder does what ``to_plain`` does."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if not dataclasses.is_dataclass(value):
        raise TypeError(f"{type(value).__name__} is not a JSON value")
    return vars(value)


_ENCODE = json.JSONEncoder(allow_nan=False, separators=(",", ":"), default=_plain).encode


def checked_text(text: str) -> str:
    """Return a JSON text in ASCII. Raises ValueError for one that no other process can read: half a surrogate pair is in it."""
    if "\\ud" in text and HALF_PAIR.search(text):
        raise ValueError("a text has half a surrogate pair in it, which is no Unicode")
    return text


def _encode(request: Any) -> str:
    try:
        return checked_text(_ENCODE(request))
    except (TypeError, ValueError) as error:
        raise InvalidRequest(f"{type(request).op}: {error}") from None
