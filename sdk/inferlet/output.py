"""What a pass found: ``Output``, and the handles by which it is read."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from inferd.protocol import ProbeResult


@dataclass(frozen=True)
class SampleHandle:
    """A sampler of a pass: its first slot, and how many rows it draws from."""

    slot: int
    arity: int = 1


@dataclass(frozen=True)
class ProbeHandle:
    """A probe of a pass. ``kind``: logits, distribution, logprobs or entropy."""

    slot: int
    kind: str


@dataclass(frozen=True)
class TokenSlot:
    """A drawn token."""

    value: int


@dataclass(frozen=True)
class ProbeSlot:
    """What a probe found."""

    kind: str
    found: ProbeResult


Slot: TypeAlias = TokenSlot | ProbeSlot


@dataclass
class RawOutput:
    """All slots of a pass, in the order in which they were asked for; and drafts of the runtime, of which it shows none."""

    slots: Sequence[Slot] = ()
    spec_tokens: list[int] = field(default_factory=list)
    spec_positions: list[int] = field(default_factory=list)


class Output:
    """The result of a pass.

    ``tokens``: those that a generator accepted in this step; none of a plain pass. A handle of another kind reads None.
    """

    def __init__(
        self, raw: RawOutput, tokens: list[int] | None = None, auto_sampler: SampleHandle | None = None
    ) -> None:
        self._raw = raw
        self.tokens: list[int] = [] if tokens is None else tokens
        self.auto_sampler = auto_sampler

    @property
    def raw(self) -> RawOutput:
        """The slots themselves."""
        return self._raw

    def token(self, h: SampleHandle) -> int | None:
        """Return the first token that a sampler drew."""
        slot = self._slot(h.slot)
        return slot.value if isinstance(slot, TokenSlot) else None

    def tokens_at(self, h: SampleHandle) -> list[int]:
        """Return the tokens that a sampler drew, in the order of its rows."""
        drawn: list[int] = []
        for number in range(h.slot, h.slot + getattr(h, "arity", 0)):
            slot = self._slot(number)
            if not isinstance(slot, TokenSlot):
                break
            drawn.append(slot.value)
        return drawn

    def distribution(self, h: ProbeHandle) -> tuple[list[int], list[float]] | None:
        """Return token ids and their probabilities."""
        found = self._found(h, "distribution")
        return None if found is None else (list(found.tokens), list(found.values))

    def logits(self, h: ProbeHandle) -> bytes | None:
        """Return the logits of the vocabulary: 4 bytes each, float32."""
        found = self._found(h, "logits")
        return None if found is None else base64.b64decode(found.packed)

    def logprobs(self, h: ProbeHandle) -> list[float] | None:
        """Return log-probabilities, one for each token that was asked for."""
        found = self._found(h, "logprobs")
        return None if found is None else list(found.values)

    def entropy(self, h: ProbeHandle) -> float | None:
        """Return the entropy in nats."""
        found = self._found(h, "entropy")
        return None if found is None else found.value

    def _found(self, h: ProbeHandle, kind: str) -> ProbeResult | None:
        slot = self._slot(h.slot)
        return slot.found if isinstance(slot, ProbeSlot) and slot.kind == kind else None

    def _slot(self, number: int) -> Slot | None:
        return self._raw.slots[number] if 0 <= number < len(self._raw.slots) else None
