"""Which guesses are verified: those that make the whole batch faster, by a model of what they bring and what they cost."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import numpy as np

from inferd_runtime.speculation.breaker import EngineBreaker
from inferd_runtime.speculation.drafts import NO_DRAFT, Draft
from inferd_runtime.speculation.survival import Survival
from inferd_runtime.speculation.times import StepShape, StepTimes

OWN = "program"


class Controller:
    """Gives out the rows of a step. All drafts' nodes stand in one line, likeliest first; of its beginnings the one with the
    most expected tokens per second is verified, and none at all is one of them.
    """

    def __init__(self, times: StepTimes, survival: Survival | None = None) -> None:
        self.times = times
        self.survival = survival or Survival()
        self._breaker = EngineBreaker()

    @property
    def state(self) -> str:
        """The engine's breaker: closed (drafting), open, or half-open (trying)."""
        return self._breaker.state

    def allocate(self, drafts: Sequence[Draft], shape: StepShape, budget: int) -> list[Draft]:
        """What is verified of each draft in a step that has this shape without any; ``budget`` rows may be added in all.

        A program's own drafts always pass, as far as the budget goes: the program knows what it does.
        """
        granted = [NO_DRAFT] * len(drafts)
        for at, draft in enumerate(drafts):
            if draft.tokens and draft.sources[0] == OWN:
                granted[at] = _cut(draft, budget)
                rows = len(granted[at].tokens)
                budget -= rows
                shape = shape._replace(rows=shape.rows + rows)
        open_to = [at for at, draft in enumerate(drafts) if draft.tokens and draft.sources[0] != OWN]
        if not open_to or budget <= 0 or not self._breaker.allows() or self._breaker.wants_control():
            return granted
        chosen = self._choose([drafts[at] for at in open_to], len(drafts), shape, budget)
        for at, draft in zip(open_to, chosen, strict=True):
            granted[at] = draft
        return granted

    def _choose(self, drafts: list[Draft], sequences: int, shape: StepShape, budget: int) -> list[Draft]:
        chosen, _ = self._best(drafts, sequences, shape, budget)
        trees = sum(not draft.is_chain for draft in chosen) if self.times.tree else 0
        if not trees:
            return chosen
        tokens = sequences + sum(sum(draft.survival) for draft in chosen)
        rows = sum(len(draft.tokens) for draft in chosen)
        seconds = self.times.time(shape._replace(rows=shape.rows + rows, trees=shape.trees + trees))
        chains, chain_rate = self._best([draft.chain() for draft in drafts], sequences, shape, budget)
        return chosen if tokens / seconds > chain_rate else chains

    def _best(self, drafts: list[Draft], sequences: int, shape: StepShape, budget: int) -> tuple[list[Draft], float]:
        """The best beginning of the line, and its tokens per second."""
        lengths = [len(draft.tokens) for draft in drafts]
        survival = np.fromiter(chain.from_iterable(draft.survival for draft in drafts), np.float64, sum(lengths))
        order = np.argsort(-survival, kind="stable")[:budget]
        tokens = np.empty(len(order) + 1)
        tokens[0] = sequences
        np.cumsum(survival[order], out=tokens[1:])
        tokens[1:] += sequences
        rates = tokens / self.times.times(shape, len(order))
        count = int(np.argmax(rates))
        if count == 0:
            return [NO_DRAFT] * len(drafts), float(rates[0])
        owners = np.repeat(np.arange(len(drafts)), lengths)
        counts = np.bincount(owners[order[:count]], minlength=len(drafts)).tolist()
        return [_cut(draft, rows) for draft, rows in zip(drafts, counts, strict=True)], float(rates[count])

    def settle(self, shape: StepShape, plain: StepShape, emitted: int, seconds: float | None) -> None:
        """After a step: its ``shape``, what that would have been without drafts, the tokens ``emitted`` and how long it took
        (None: nobody measured). Steps that also read prompts teach what steps cost, but do not judge drafting.
        """
        if seconds is None or not self.times.learns:
            return
        if plain.rows == plain.sequences:
            slowness = seconds / self.times.time(plain)
            if shape.rows > plain.rows:
                self._breaker.drafted(emitted / plain.sequences, slowness)
            else:
                self._breaker.plain(slowness)
        self.times.learn(shape, seconds)

    def saved(self, shape: StepShape, plain: StepShape, accepted: int) -> float:
        """Seconds that one sequence's draft saved: its share of ``accepted`` more steps of shape ``plain``, less what its rows
        cost, where ``shape`` is the plain step with that draft in it. Negative where it did not pay.
        """
        step = self.times.time(plain)
        return accepted * step / plain.sequences - (self.times.time(shape) - step)


def _cut(draft: Draft, count: int) -> Draft:
    """The likeliest ``count`` nodes. A chain's are its first ones."""
    if count >= len(draft.tokens):
        return draft
    if count <= 0:
        return NO_DRAFT
    if not draft.is_chain or draft.probabilities is not None:
        return draft.likeliest(count)
    return Draft(draft.tokens[:count], draft.parents[:count], draft.sources[:count], draft.survival[:count])
