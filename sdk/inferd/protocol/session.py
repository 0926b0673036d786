"""``session.*``: messages to and from the program's launcher, and the session's usage."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from inferd.protocol.operations import Done, operation


@dataclass(frozen=True)
class Received:
    """A message from the other side of the session."""

    message: Any


@dataclass(frozen=True)
class Usage:
    """A session's usage so far: ``tokens`` of the model's output, and the engine ``steps`` that made them.

    One token each: what ``generate`` and ``verify`` wrote, a row that ``forward`` looked at, a token that
    ``prompt_logprobs`` scored, a vector of ``embed``. What failed counts as far as it came.
    ``prompt_tokens`` are those that the session gave to its contexts, each counted once, when work on it begins.
    ``cached_tokens`` are those of them whose keys and values were not computed for the session: they were found by prefix, or
    came with a snapshot.
    """

    prompt_tokens: int = 0
    tokens: int = 0
    steps: int = 0
    drafted: int = 0
    accepted: int = 0
    cached_tokens: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.prompt_tokens + other.prompt_tokens,
            self.tokens + other.tokens,
            self.steps + other.steps,
            self.drafted + other.drafted,
            self.accepted + other.accepted,
            self.cached_tokens + other.cached_tokens,
        )


@operation("session.send", Done)
@dataclass(frozen=True)
class SendMessage:
    """Send a JSON value to the program's launcher."""

    message: Any


@operation("session.receive", Received)
@dataclass(frozen=True)
class ReceiveMessage:
    """Wait for a JSON value from the program's launcher."""


@operation("session.usage", Usage)
@dataclass(frozen=True)
class GetUsage:
    """Ask for the session's usage so far."""
