"""Where guesses come from. A drafter sees committed tokens only; what it proposes can cost time but never change output."""

from __future__ import annotations

from collections.abc import Sequence

from inferd_runtime.speculation.drafts import NOTHING, Proposal


class Drafter:
    """One source of guesses for one generation. Synchronous; whatever it raises turns it off for that generation.

    Memory is bounded by each source itself. Proposing leaves no trace: what is learnt is learnt from :meth:`observe`.
    """

    source = "custom"
    """The source's name in counters, one of a closed set."""
    insists = False
    """Whether what it proposes is verified whatever experience says."""

    needed = True
    """Whether its next guess is: whoever asks sets it to False while other sources guess well enough."""

    def begin(self, prompt: Sequence[int]) -> None:
        """The generation starts behind these tokens, the whole context. One that observed the first of them before learns the
        rest.
        """
        self.observe(prompt)

    def observe(self, tokens: Sequence[int]) -> None:
        """Learn tokens that now stand in the context, in order. The first call brings the prompt."""

    def propose(self, limit: int, ahead: Sequence[int] = ()) -> Proposal:
        """Guess at most ``limit`` tokens that follow what was observed and then ``ahead``, which is certain but not committed
        yet; empty when it has no idea.
        """
        return NOTHING

    def feedback(self, proposed: int, accepted: int) -> None:
        """Of the last proposal, ``proposed`` tokens were verified in a step, and ``accepted`` of those stand."""

    def ready(self) -> bool:
        """False while a guess is being made elsewhere that is worth waiting for. The generation rests meanwhile."""
        return True

    def fork(self) -> Drafter | None:
        """A drafter for a copy of the context as it was observed, or None where it has to start anew. Only those that can do
        this stay with their context when a generation is over, for the next one.
        """
        return None

    def drop(self) -> None:
        """The generation is over: give back what is held elsewhere. Nothing is called afterwards."""


class OfferedDraft(Drafter):
    """The draft that a program's own speculator sends with every step."""

    source = "program"
    insists = True

    def __init__(self) -> None:
        self._offer = NOTHING

    def offer(self, tokens: Sequence[int], parents: Sequence[int] = ()) -> None:
        """Set the next proposal; without ``parents`` it is a chain."""
        self._offer = Proposal(tokens, parents)

    def propose(self, limit: int, ahead: Sequence[int] = ()) -> Proposal:
        """What was offered, cut to the limit. It does not know what the grammar forces."""
        offer = self._offer
        return Proposal(offer.tokens[:limit], offer.parents[:limit], confidence=[1.0] * min(limit, len(offer.tokens)))

    def observe(self, tokens: Sequence[int]) -> None:
        """A step has taken the offer; the program learns on its own side."""
        self._offer = NOTHING
