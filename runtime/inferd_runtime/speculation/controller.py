"""Which guesses are verified: those that make the whole batch faster, by a model of what they bring and what they cost."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np

from inferd_runtime.speculation.breaker import EngineBreaker
from inferd_runtime.speculation.drafts import NO_DRAFT, Draft
from inferd_runtime.speculation.survival import Survival
from inferd_runtime.speculation.times import StepShape, StepTimes

OWN = "program"


class Choice(NamedTuple):
    """What is verified of each draft, and the tokens per second that are expected of it."""

    drafts: list[Draft]
    rate: float


class Controller:
    """Gives out the rows of a step. All drafts' nodes stand in one line, likeliest first; of its beginnings the one with the
    most expected tokens per second is verified, and none at all is one of them (the goodput of TurboSpec, 2406.14066, with
    rows given out one by one over the batch).
    """

    def __init__(self, times: StepTimes, survival: Survival | None = None) -> None:
        self.times = times
        self.survival = survival or Survival()
        self.breaker = EngineBreaker()

    @property
    def state(self) -> str:
        """The engine's breaker: closed (drafting), open, or half-open (trying)."""
        return self.breaker.state

    def allocate(self, drafts: Sequence[Draft], shape: StepShape, budget: int) -> list[Draft]:
        """What is verified of each draft in a step that has this shape without any; ``budget`` rows may be added in all.

        A program's own drafts always pass, as far as the budget goes: the program knows what it does. Everything else waits
        while the engine's breaker is open, and in the steps that it wants for comparison.
        """
        granted = [NO_DRAFT] * len(drafts)
        rest = []
        for at, draft in enumerate(drafts):
            if draft.tokens and draft.sources[0] == OWN:
                granted[at] = _cut(draft, budget)
                rows = len(granted[at].tokens)
                budget, shape = budget - rows, shape._replace(rows=shape.rows + rows)
            elif draft.tokens:
                rest.append(at)
        if rest and budget > 0 and self.breaker.allows():
            for at, draft in zip(
                rest, self.choose([drafts[at] for at in rest], len(drafts), shape, budget), strict=True
            ):
                granted[at] = draft
        return granted

    def choose(self, drafts: Sequence[Draft], sequences: int, shape: StepShape, budget: int) -> list[Draft]:
        """The best part of these drafts, none of them empty, in a step that brings ``sequences`` tokens without any.

        Where a tree costs more than a chain, it has to beat the chains alone.
        """
        best = self._best(drafts, sequences, shape, budget)
        trees = sum(not draft.is_chain for draft in best.drafts) if self.times.tree else 0
        if not trees:
            return best.drafts
        rows = sum(len(draft.tokens) for draft in best.drafts)
        without = self.times.time(shape._replace(rows=shape.rows + rows))
        seconds = self.times.time(shape._replace(rows=shape.rows + rows, trees=shape.trees + trees))
        chains = self._best([draft.chain() for draft in drafts], sequences, shape, budget)
        return best.drafts if best.rate * without / seconds > chains.rate else chains.drafts

    def _best(self, drafts: Sequence[Draft], sequences: int, shape: StepShape, budget: int) -> Choice:
        """The best beginning of the line of all nodes."""
        lengths = [len(draft.tokens) for draft in drafts]
        survival = np.fromiter(chain.from_iterable([draft.survival for draft in drafts]), np.float64, sum(lengths))
        # Stable, so that a node never stands before its parent, which is as likely or more.
        order = np.argsort(-survival, kind="stable")[: max(0, budget)]
        tokens = np.concatenate(((sequences,), survival[order])).cumsum()
        rates = tokens / self.times.times(shape, len(order))
        count = int(rates.argmax())
        if count == 0:
            return Choice([NO_DRAFT] * len(drafts), float(rates[0]))
        owners = np.repeat(np.arange(len(drafts)), lengths)
        counts = np.bincount(owners[order[:count]], minlength=len(drafts)).tolist()
        return Choice([_cut(draft, rows) for draft, rows in zip(drafts, counts, strict=True)], float(rates[count]))

    def settle(self, shape: StepShape, plain: StepShape, emitted: int, seconds: float | None) -> None:
        """After a step: its ``shape``, what that would have been without drafts, the tokens ``emitted`` and how long it took
        (None: nobody measured). Steps that also read prompts teach what steps cost, but do not judge drafting.
        """
        if seconds is None:
            return
        if plain.rows == plain.sequences:
            slowness = seconds / self.times.time(plain)
            if shape.rows > plain.rows:
                self.breaker.drafted(emitted / plain.sequences, slowness)
            else:
                self.breaker.plain(slowness)
        self.times.learn(shape, seconds)

    def extra(self, shape: StepShape, plain: StepShape, drafted: int) -> float:
        """Seconds by which ``drafted`` rows made the step longer: their part of what all drafts did, by the cost model.

        ``shape`` is the step's, ``plain`` what it would have been without any draft.
        """
        if not drafted:
            return 0.0
        more = self.times.time(shape) - self.times.time(plain)
        return max(0.0, more) * drafted / max(drafted, shape.rows - plain.rows)

    def cost(self, shape: StepShape, plain: StepShape, drafted: int) -> float:
        """How long the step takes one sequence, that has ``drafted`` rows in it, relative to a step without drafts: its share
        of the plain step and all of its own rows.
        """
        return 1 + self.extra(shape, plain, drafted) * plain.sequences / self.times.time(plain)

    def saved(self, shape: StepShape, plain: StepShape, accepted: int, drafted: int) -> float:
        """Seconds that one sequence's draft of ``drafted`` rows saved: its share of ``accepted`` more plain steps, less what the
        rows cost. Negative where it did not pay.
        """
        return accepted * self.times.time(plain) / plain.sequences - self.extra(shape, plain, drafted)


def _cut(draft: Draft, count: int) -> Draft:
    """The likeliest ``count`` nodes. A chain's are its first ones."""
    if count >= len(draft.tokens):
        return draft
    if count <= 0:
        return NO_DRAFT
    if draft.probabilities is not None or not draft.is_chain:
        return draft.likeliest(count)
    return Draft(draft.tokens[:count], draft.parents[:count], draft.sources[:count], draft.survival[:count])
