"""``context.*``: making, filling, forking, cutting and releasing contexts."""

from __future__ import annotations

from dataclasses import dataclass, field

from inferd.protocol.models import Tokens
from inferd.protocol.operations import Done, operation


@dataclass(frozen=True)
class Part:
    """Something added to a context. ``kind``: message (role, text) | text | tokens | cue."""

    kind: str
    role: str = ""
    text: str = ""
    tokens: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class ContextState:
    """``length`` tokens in all, ``pending`` of them not yet computed."""

    context: int
    length: int
    pending: int


@operation("context.create", ContextState)
@dataclass(frozen=True)
class CreateContext:
    """An empty context on a model ("" is the default model)."""

    model: str = ""


@operation("context.append", ContextState)
@dataclass(frozen=True)
class AppendContext:
    """Add parts to a context without computing them. Chat messages go through the model's template."""

    context: int
    parts: list[Part]


@operation("context.flush", ContextState)
@dataclass(frozen=True)
class FlushContext:
    """Compute what is pending, but for the last token, whose logits the next generation needs. ``adapter``: as there."""

    context: int
    adapter: str = ""


@operation("context.fork", ContextState)
@dataclass(frozen=True)
class ForkContext:
    """A copy of the first ``length`` tokens (-1: all) that shares what is computed of them.

    While a generation runs on the context, "all" is what it has delivered, and it goes on undisturbed. A length at which a
    healed prompt's end is not written again whole gives the whole prompt.
    """

    context: int
    length: int = -1


@operation("context.truncate", ContextState)
@dataclass(frozen=True)
class TruncateContext:
    """Keep the first ``length`` tokens."""

    context: int
    length: int


@operation("context.tokens", Tokens)
@dataclass(frozen=True)
class ContextTokens:
    """The token ids that a context holds, from ``start``."""

    context: int
    start: int = 0


@operation("context.release", Done)
@dataclass(frozen=True)
class ReleaseContext:
    """Give the context's pages back."""

    context: int
