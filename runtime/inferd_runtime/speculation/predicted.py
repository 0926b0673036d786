"""The source that follows a text which the caller expects: a file before an edit, a record to be copied, an earlier answer."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from concurrent.futures import Executor, Future
from operator import mul
from typing import NamedTuple

from inferd.protocol.errors import LimitExceeded
from inferd_runtime.speculation.drafter import Drafter
from inferd_runtime.speculation.drafts import NOTHING, Proposal
from inferd_runtime.speculation.grams import MAX_TOKENS, POWERS, FrozenGrams

ORDERS = (2, 4, 8)
REACH = 32
"""Tokens that are compared before an anchor. The start of a prediction counts as agreement on so many."""
CONFIRMED = 4
"""So many tokens must agree before an anchor counts as the place that the output has reached."""
NEAR = 64
BESIDE = 8
"""Fewer than CONFIRMED agreeing tokens count only within NEAR tokens after the reached place; otherwise the newest token is
looked for in the BESIDE tokens after it. Over renames and changes in Python files that is 5 to 10 % more tokens per step than
without single tokens.
"""
INLINE = 8192
"""Longer predictions are indexed in the background."""


class Anchor(NamedTuple):
    """The output's place in the prediction.

    ``at``: the index of the token expected next, -1 if lost; ``agreed``: how many tokens agree before it; ``reached``: the index
    after the last confirmed agreement.
    """

    at: int
    agreed: int
    reached: int


class PredictedText(Drafter):
    """Proposes the prediction's next tokens. Where the output leaves it, the newest tokens are looked for in the prediction.

    The longest of the last 8, 4 and 2 tokens that occurs is used, and of its occurrences the first after the reached place, as
    insertions, deletions and replacements all go on there; else the last before it. A single token is enough just after the
    reached place, as most replacements are of a token or two. Memory: about 34 bytes per token of the prediction.
    """

    source = "predicted"
    looks_ahead = True

    def __init__(self, prediction: Sequence[int], builder: Executor | None = None) -> None:
        """``builder`` indexes long predictions in the background; it belongs to the caller.

        Raises LimitExceeded for more than 2**20 tokens.
        """
        if len(prediction) > MAX_TOKENS:
            raise LimitExceeded(
                f"the prediction holds {len(prediction)} tokens", limit="predicted", value=MAX_TOKENS,
                raise_with="a shorter prediction",
            )  # fmt: skip
        self._prediction = array("i", prediction)
        self._tail = array("i")
        self._anchor = Anchor(0, REACH, 0)
        self._begun = False
        self._grams: Future[FrozenGrams] = Future()
        if builder is None or len(prediction) <= INLINE:
            self._grams.set_result(FrozenGrams(self._prediction, 0, 0, ORDERS))
        else:
            self._grams = builder.submit(FrozenGrams, self._prediction, 0, 0, ORDERS)

    def observe(self, tokens: Sequence[int]) -> None:
        """Follow the output through the prediction. The first call brings the prompt, which is ignored."""
        if self._begun:
            self._anchor, self._tail = self._follow(tokens)
        self._begun = True

    def propose(self, limit: int, ahead: Sequence[int] = ()) -> Proposal:
        """Return the prediction from the output's place on."""
        anchor, _ = self._follow(ahead) if ahead else (self._anchor, self._tail)
        if anchor.at < 0 or limit <= 0:
            return NOTHING
        tokens = self._prediction[anchor.at : anchor.at + limit].tolist()
        return Proposal(tokens, match=anchor.agreed) if tokens else NOTHING

    def wait_until_indexed(self) -> None:
        """Wait until the prediction is indexed."""
        self._grams.result()

    def _follow(self, tokens: Sequence[int]) -> tuple[Anchor, array[int]]:
        """Return the output's place after these tokens, and its last tokens."""
        anchor, tail = self._anchor, self._tail
        for token in tokens:
            tail = (tail + array("i", (token,)))[-REACH:]
            at, agreed, reached = anchor
            if 0 <= at < len(self._prediction) and self._prediction[at] == token:
                anchor = Anchor(at + 1, agreed + 1, at + 1 if agreed + 1 >= CONFIRMED else reached)
            else:
                anchor = self._search(tail, reached)
        return anchor, tail

    def _search(self, tail: array[int], reached: int) -> Anchor:
        anchor = self._longest(tail, reached)
        if anchor.agreed < CONFIRMED and not reached <= anchor.at <= reached + NEAR:
            beside = self._prediction[reached : reached + BESIDE]
            if tail[-1] in beside:
                at = reached + beside.index(tail[-1]) + 1
                return Anchor(at, self._agreement(tail, at), reached)
        return anchor

    def _longest(self, tail: array[int], reached: int) -> Anchor:
        grams = self._grams.result() if self._grams.done() else None
        for order in reversed(ORDERS):
            if grams is not None and order <= len(tail):
                at = grams.nearest(order, sum(map(mul, tail[: -order - 1 : -1], POWERS)), reached)
                agreed = self._agreement(tail, at)
                if agreed >= order:
                    return Anchor(at, agreed, at if agreed >= CONFIRMED else reached)
        return Anchor(-1, 0, reached)

    def _agreement(self, tail: array[int], at: int) -> int:
        most = min(at, len(tail))
        agreed = 0
        while agreed < most and self._prediction[at - 1 - agreed] == tail[-1 - agreed]:
            agreed += 1
        return agreed
