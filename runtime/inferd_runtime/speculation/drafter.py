"""The interface of a drafter, which guesses next tokens. A guess can cost time but never change the output."""

from __future__ import annotations

from collections.abc import Sequence

from inferd_runtime.speculation.drafts import NOTHING, Proposal


class Drafter:
    """One source of guesses for one generation. Synchronous; an exception turns it off for that generation.

    It sees committed tokens only, bounds its own memory, and learns in :meth:`observe`, not in :meth:`propose`.
    """

    source = "custom"
    """The source's name in counters, one of a closed set."""
    insists = False
    """True if its proposals are verified whatever experience says."""

    looks_ahead = False
    """True if it guesses at once behind tokens that are themselves guesses, and no more is known of its guesses than themselves:
    not the distributions that they were drawn from, which rejection sampling would need whole."""
    needed = True
    """Set to False by the caller while other sources guess well enough."""

    @property
    def resting(self) -> bool:
        """True if it will neither propose nor let a step wait before it has observed more tokens."""
        return False

    def begin(self, prompt: Sequence[int]) -> None:
        """Start a generation after these tokens, the whole context. A drafter that observed the first of them learns the rest."""
        self.observe(prompt)

    def observe(self, tokens: Sequence[int]) -> None:
        """Learn newly committed tokens. The first call brings the prompt."""

    def propose(self, limit: int, ahead: Sequence[int] = ()) -> Proposal:
        """Return a guess of at most ``limit`` tokens that follow the observed ones and then ``ahead``, which are certain but not
        committed yet. Empty if it has none.
        """
        return NOTHING

    def feedback(self, proposed: int, accepted: int) -> None:
        """Learn that ``proposed`` tokens of the last proposal were verified, and ``accepted`` of them accepted."""

    def ready(self) -> bool:
        """False while a guess is being made elsewhere that the generation should wait for."""
        return True

    def fork(self) -> Drafter | None:
        """Return a drafter for a copy of the context as observed; None if it cannot be forked.

        A drafter that can be forked stays with its context at the end of the generation, for the next one.
        """
        return None

    def drop(self) -> None:
        """Release what is held elsewhere at the end of the generation. No method is called afterwards."""


SILENT_OFFERS = 2
"""A program that has offered nothing so many times running is not waited for, until it offers something."""
LONGER_SILENCE = 4
"""Where that was too late by a step, it has to be silent so many times as long before the next time."""


class OfferedDraft(Drafter):
    """The draft that a program's own speculator sends with every step that it is told of."""

    source = "program"
    insists = True

    def __init__(self) -> None:
        self._offer = NOTHING
        self._silent, self._most_silent = 0, SILENT_OFFERS

    @property
    def awaited(self) -> bool:
        """True if steps are to wait for the program."""
        return self._silent < self._most_silent

    def offer(self, tokens: Sequence[int], parents: Sequence[int] = (), *, late: bool = False) -> None:
        """Set the next proposal; without ``parents`` it is a chain. ``late``: a step has left without it, so it is dropped."""
        self._silent = 0 if tokens else self._silent + 1
        if late and tokens:
            self._most_silent *= LONGER_SILENCE
        self._offer = NOTHING if late else Proposal(tokens, parents)

    def propose(self, limit: int, ahead: Sequence[int] = ()) -> Proposal:
        """Return the offered draft, cut to the limit. It does not know what the grammar forces."""
        offer = self._offer
        return Proposal(offer.tokens[:limit], offer.parents[:limit], confidence=[1.0] * min(limit, len(offer.tokens)))

    def observe(self, tokens: Sequence[int]) -> None:
        """Clear the offer, which a step has taken. The program learns on its own side."""
        self._offer = NOTHING
