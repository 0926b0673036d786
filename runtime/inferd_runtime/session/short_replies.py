"""Replies without the fields that stand at their defaults: of most steps' ten fields that is all but two."""

from __future__ import annotations

from typing import Any

import msgspec

from inferd.protocol import (
    CandidateRow,
    CheckedKeyword,
    ContextState,
    SourceCount,
    Step,
    Steps,
    TokenLogprob,
    TokenProbes,
    Usage,
)


class ShortStep(msgspec.Struct, omit_defaults=True):
    """A :class:`~inferd.protocol.Step`."""

    tokens: list[int]
    text: str = ""
    drafted: int = 0
    accepted: int = 0
    filtered: int = 0
    truncated: int = 0
    saved_us: int = 0
    sources: list[SourceCount] = []
    logprobs: list[TokenLogprob] = []
    probes: list[TokenProbes] = []
    joined: int = 1

    @classmethod
    def of(cls, step: Step) -> ShortStep:
        """Return a step that is encoded in fewer bytes."""
        return cls(
            step.tokens, step.text, step.drafted, step.accepted, step.filtered, step.truncated, step.saved_us,
            step.sources, step.logprobs, step.probes, step.joined,
        )  # fmt: skip


class ShortSteps(msgspec.Struct, omit_defaults=True):
    """A :class:`~inferd.protocol.Steps`."""

    steps: list[ShortStep]
    finish: str = ""
    checked: list[CheckedKeyword] = []
    stopped_by: str = ""
    stop_token: int | None = None
    candidates: list[CandidateRow] = []
    usage: list[Usage] = []
    context: list[ContextState] = []
    cached: int = 0


def shortened(reply: Any) -> Any:
    """Return what is encoded for a reply: readers take the defaults of the protocol's classes for what is not there."""
    if type(reply) is not Steps:
        return reply
    steps = list(map(ShortStep.of, reply.steps))
    return ShortSteps(
        steps, reply.finish, reply.checked, reply.stopped_by, reply.stop_token, reply.candidates, reply.usage,
        reply.context, reply.cached,
    )  # fmt: skip
