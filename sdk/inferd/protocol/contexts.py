"""``context.*``: making, filling, forking, cutting and releasing contexts."""

from __future__ import annotations

from dataclasses import dataclass, field

from inferd.protocol.carrying import shown
from inferd.protocol.errors import InvalidRequest, LimitExceeded
from inferd.protocol.models import Tokens
from inferd.protocol.operations import Done, operation
from inferd.protocol.ranges import check_whole
from inferd.protocol.tokens import check_ids

PART_KINDS = ("message", "text", "tokens", "cue")
ROLES = ("system", "user", "assistant")
MAX_SALT = 256
"""Characters."""


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
    """An empty context on a model ("" is the default model).

    ``cache_salt``: it shares computed pages only with contexts of the same salt, as do its forks and saved copies.
    """

    model: str = ""
    cache_salt: str = ""


def check_create(request: CreateContext) -> None:
    """Raises LimitExceeded for a salt that is too long."""
    if len(request.cache_salt) > MAX_SALT:
        raise LimitExceeded(
            f"cache_salt has {len(request.cache_salt)} characters; {MAX_SALT} are allowed",
            limit="cache_salt", value=MAX_SALT, raise_with="a hash of it",
        )  # fmt: skip


@operation("context.append", ContextState)
@dataclass(frozen=True)
class AppendContext:
    """Add parts to a context without computing them. Chat messages go through the model's template."""

    context: int
    parts: list[Part]


def check_append(request: AppendContext) -> None:
    """Raises InvalidRequest for a part of unknown kind or role, or a negative token id."""
    for part in request.parts:
        if part.kind not in PART_KINDS:
            raise InvalidRequest(f"part kind {shown(part.kind)} is not one of {', '.join(PART_KINDS)}")
        if part.kind == "message" and part.role not in ROLES:
            raise InvalidRequest(f"role {shown(part.role)} is not one of {', '.join(ROLES)}")
        check_ids("content", part.tokens)


@operation("context.flush", ContextState)
@dataclass(frozen=True)
class FlushContext:
    """Compute what is pending, except the last token, whose logits the next generation needs. ``adapter``: as there."""

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


def check_truncate(request: TruncateContext) -> None:
    """Raises InvalidRequest for a negative length."""
    check_whole("length", request.length, 0)


@operation("context.tokens", Tokens)
@dataclass(frozen=True)
class ContextTokens:
    """The token ids that a context holds, from ``start``."""

    context: int
    start: int = 0


def check_context_tokens(request: ContextTokens) -> None:
    """Raises InvalidRequest for a negative start."""
    check_whole("start", request.start, 0)


@operation("context.release", Done)
@dataclass(frozen=True)
class ReleaseContext:
    """Give the context's pages back, and end the pass that runs on it. InvalidRequest while a generation does."""

    context: int
