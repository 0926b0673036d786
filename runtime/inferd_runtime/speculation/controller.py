"""The controller: it chooses which draft tokens a step verifies, so that the batch emits most tokens per second."""

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
    """The verified part of each draft, and the expected tokens per second."""

    drafts: list[Draft]
    rate: float


class Controller:
    """Divides the rows of a step among drafts.

    The nodes of all drafts are sorted, likeliest first, and the prefix with the most expected tokens per second is verified; the
    empty one is a candidate (the goodput of TurboSpec, arXiv 2406.14066, with rows given out one by one over the batch).
    """

    def __init__(self, times: StepTimes) -> None:
        self.times = times
        self.survival = Survival()
        self.breaker = EngineBreaker()
        self.compares = False
        """True if the current step goes without drafts for comparison. Its time must be learnt from."""
        self._own = False

    @property
    def state(self) -> str:
        """The engine's breaker: closed (drafting), open, or half-open (trying)."""
        return self.breaker.state

    def allocate(self, drafts: Sequence[Draft], shape: StepShape, budget: int) -> list[Draft]:
        """Return what is verified of each draft in a step of this shape, to which ``budget`` rows may be added in all.

        A program's own drafts always pass, as far as the budget goes. Others do not while the engine's breaker is open
        or in steps for comparison.
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
        if rest and budget > 0 and self._try_draft(plain):
            for at, draft in zip(
                rest, self.choose([drafts[at] for at in rest], len(drafts), shape, budget), strict=True
            ):
                granted[at] = draft
        return granted

    def _try_draft(self, plain: StepShape) -> bool:
        self.compares = self.breaker.wants_control and _decodes_only(plain) and not self._own
        return self.breaker.try_draft() and not self.compares

    def choose(self, drafts: Sequence[Draft], sequences: int, shape: StepShape, budget: int) -> list[Draft]:
        """Return the best part of these non-empty drafts in a step that emits ``sequences`` tokens without any.

        If a tree costs more than a chain, trees are chosen only where they beat the chains alone.
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
        """Return the best prefix of all nodes, likeliest first."""
        if len(drafts) == 1 and len(drafts[0].tokens) <= budget and drafts[0].is_chain:
            return self._best_alone(drafts[0], sequences, shape)
        lengths = [len(draft.tokens) for draft in drafts]
        survival = np.fromiter(chain.from_iterable([draft.survival for draft in drafts]), np.float64, sum(lengths))
        # Stable, so that a node never comes before its parent, which is as likely or more.
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
        """Return the same for one chain, which is sorted already; lists are quicker than arrays here."""
        seconds, elsewhere = self.times.times(shape, len(draft.tokens)), self._elsewhere(sequences, shape)
        tokens, best, length = float(sequences), sequences / (seconds[0] - elsewhere), 0
        for count, survival in enumerate(draft.survival, 1):
            tokens += survival
            rate = tokens / (seconds[count] - elsewhere)
            if rate > best:
                best, length = rate, count
        return DraftSelection([_cut(draft, length)], best)

    def _elsewhere(self, sequences: int, shape: StepShape) -> float:
        """Return the seconds of the step's other rows: prompts, a program's own drafts.

        They are spent anyway; counted in, they would make a row look cheap.
        """
        if shape.rows == sequences:
            return 0.0
        return self.times.time(shape) - self.times.time(StepShape(sequences, sequences, shape.context))

    def learn(self, shape: StepShape, plain: StepShape, emitted: int, seconds: float | None) -> None:
        """Learn from a step: its ``shape``, its shape without drafts, the ``emitted`` tokens and its time (None: not measured).

        Steps that also read prompts, or that verify a program's own draft, count for the times but not for the breaker.
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
    """Return the likeliest ``count`` nodes of a draft."""
    if count >= len(draft.tokens):
        return draft
    if count <= 0:
        return NO_DRAFT
    if draft.probabilities is not None or not draft.is_chain:
        return draft.likeliest(count)
    return Draft(draft.tokens[:count], draft.parents[:count], draft.sources[:count], draft.survival[:count])
