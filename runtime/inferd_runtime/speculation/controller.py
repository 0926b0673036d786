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


class DraftSelection(NamedTuple):
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
        self.compares = False
        """Whether the step under way goes without drafts for the sake of comparison; whoever measures should not leave it out."""
        self._own = False

    @property
    def state(self) -> str:
        """The engine's breaker: closed (drafting), open, or half-open (trying)."""
        return self.breaker.state

    def allocate(self, drafts: Sequence[Draft], shape: StepShape, budget: int) -> list[Draft]:
        """What is verified of each draft in a step that has this shape without any; ``budget`` rows may be added in all.

        A program's own drafts always pass, as far as the budget goes: the program knows what it does. Everything else waits
        while the engine's breaker is open, and in the steps that it wants for comparison.
        """
        plain, granted, rest = shape, [NO_DRAFT] * len(drafts), []
        for at, draft in enumerate(drafts):
            if draft.tokens and draft.sources[0] == OWN:
                granted[at] = _cut(draft, budget)
                rows = len(granted[at].tokens)
                budget, shape = budget - rows, shape._replace(rows=shape.rows + rows)
            elif draft.tokens:
                rest.append(at)
        self._own = shape is not plain
        if rest and budget > 0 and self._may_draft(plain):
            for at, draft in zip(
                rest, self.choose([drafts[at] for at in rest], len(drafts), shape, budget), strict=True
            ):
                granted[at] = draft
        return granted

    def _may_draft(self, plain: StepShape) -> bool:
        self.compares = self.breaker.wants_control and _decodes_only(plain) and not self._own
        return self.breaker.allows() and not self.compares

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

    def _best(self, drafts: Sequence[Draft], sequences: int, shape: StepShape, budget: int) -> DraftSelection:
        """The best beginning of the line of all nodes."""
        if len(drafts) == 1 and len(drafts[0].tokens) <= budget and drafts[0].is_chain:
            return self._best_alone(drafts[0], sequences, shape)
        lengths = [len(draft.tokens) for draft in drafts]
        survival = np.fromiter(chain.from_iterable([draft.survival for draft in drafts]), np.float64, sum(lengths))
        # Stable, so that a node never stands before its parent, which is as likely or more.
        order = np.argsort(-survival, kind="stable")[: max(0, budget)]
        tokens = np.concatenate(((sequences,), survival[order])).cumsum()
        rates = tokens / (self.times.array(shape, len(order)) - self._elsewhere(sequences, shape))
        count = int(rates.argmax())
        if count == 0:
            return DraftSelection([NO_DRAFT] * len(drafts), float(rates[0]))
        owners = np.repeat(np.arange(len(drafts)), lengths)
        counts = np.bincount(owners[order[:count]], minlength=len(drafts)).tolist()
        return DraftSelection(
            [_cut(draft, rows) for draft, rows in zip(drafts, counts, strict=True)], float(rates[count])
        )

    def _best_alone(self, draft: Draft, sequences: int, shape: StepShape) -> DraftSelection:
        """The same for one chain, which stands in line already; lists are quicker than arrays here."""
        seconds, elsewhere = self.times.times(shape, len(draft.tokens)), self._elsewhere(sequences, shape)
        tokens, best, length = float(sequences), sequences / (seconds[0] - elsewhere), 0
        for count, survival in enumerate(draft.survival, 1):
            tokens += survival
            rate = tokens / (seconds[count] - elsewhere)
            if rate > best:
                best, length = rate, count
        return DraftSelection([_cut(draft, length)], best)

    def _elsewhere(self, sequences: int, shape: StepShape) -> float:
        """Seconds that go into what else stands in the step: prompts, a program's own drafts.

        It takes place anyway; counted in, it would make time look cheap and every guess worth a try.
        """
        if shape.rows == sequences:
            return 0.0
        return self.times.time(shape) - self.times.time(StepShape(sequences, sequences, shape.context))

    def learn(self, shape: StepShape, plain: StepShape, emitted: int, seconds: float | None) -> None:
        """After a step: its ``shape``, what that would have been without drafts, the tokens ``emitted`` and how long it took
        (None: nobody measured). Steps that also read prompts, or that verify a program's own draft, teach what steps cost but
        do not judge drafting.
        """
        own, self._own, self.compares = self._own, False, False
        if seconds is None:
            return
        if _decodes_only(plain) and not own:
            slowness = seconds / self.times.time(plain)
            if shape.rows > plain.rows:
                self.breaker.drafted(emitted / plain.sequences, slowness)
            else:
                self.breaker.plain(slowness)
        self.times.learn(shape, seconds)


def _decodes_only(plain: StepShape) -> bool:
    return plain.rows == plain.sequences


def _cut(draft: Draft, count: int) -> Draft:
    """The likeliest ``count`` nodes. A chain's are its first ones."""
    if count >= len(draft.tokens):
        return draft
    if count <= 0:
        return NO_DRAFT
    if draft.probabilities is not None or not draft.is_chain:
        return draft.likeliest(count)
    return Draft(draft.tokens[:count], draft.parents[:count], draft.sources[:count], draft.survival[:count])
