"""The constraint of a generation's output: masks for a draft's rows, and the rollback to what was accepted."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np

from inferd.protocol import ConstraintError, LimitExceeded, check_step_mask
from inferd_grammar import EndPlanner, GuardedMatcher, walk
from inferd_grammar.completion.search import SearchClock
from inferd_grammar.errors import DeadEnd, GrammarLimit
from inferd_grammar.tokens import bit_mask
from inferd_runtime.engine.sampling.host_sampling import Masks
from inferd_runtime.interpreter import no_collections
from inferd_runtime.models.batch import Seen
from inferd_runtime.speculation.drafts import NO_DRAFT, ROOT, Draft

UNBOUNDED = 1 << 30
DRAFT_SECONDS = 0.05
"""Processor time that the masks of a draft may take."""
MASK_SECONDS = 0.15
"""Limit on the processor time of one mask and the token before it, as all streams wait for it. Compiling tries the first masks,
and allows them a third of this.
"""
FORCED = "grammar"
"""The source of tokens that the grammar forces."""


def _too_slow(what: str) -> LimitExceeded:
    text = f"{what} takes more than {MASK_SECONDS:g} s"
    return LimitExceeded(text, limit="mask_seconds", value=MASK_SECONDS, raise_with="a smaller constraint")


class OutputMasks:
    """A generation's constraint, at the end of its committed tokens. This one allows every text."""

    def forced(self) -> list[int]:
        """Return the tokens that must come next."""
        return []

    def completed(self, draft: Draft, limit: int) -> Draft:
        """Return a chain followed by what must come after it, up to ``limit`` tokens in all."""
        return draft

    def masks(self, draft: Draft) -> tuple[Draft, Masks | None]:
        """Return the legal part of the draft, and its masks int32[len(legal) + 1, words]; None allows every token.

        Row 0 is the mask before the draft, row i + 1 the one after node i of the legal part.
        """
        return draft, None

    def advance(self, tokens: Sequence[int]) -> None:
        """Commit tokens after verification. All but the last are the draft's."""

    @property
    def steers(self) -> bool:
        """True if :meth:`admit` has to be asked."""
        return False

    @property
    def keeps_budget(self) -> bool:
        """True if the text is complete when its tokens are used up."""
        return False

    def admit(self, tokens: Sequence[int], room: int) -> list[int]:
        """Return the tokens to commit instead of sampled ones, so that the text ends within ``room`` tokens: the same up to some
        place, where another one steers to the end.
        """
        return list(tokens)

    def must_end(self) -> bool:
        """True if end-of-text is known to be the only token that may come next."""
        return False


class OfferedMask(OutputMasks):
    """The mask that a program's own constraint sends with every step. Drafts are not legal: their masks are not known.

    Nothing is forced or steered: the program says what may come, and advances its constraint itself when it gets the step.
    """

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size
        self._row: Masks = np.full((1, -(-vocab_size // 32)), -1, np.int32)

    def offer(self, allowed: Seen | None) -> None:
        """Set the next mask, bool[V]; None allows every token. Raises ConstraintError if it allows none."""
        if allowed is None:
            self._row.fill(-1)
            return
        check_step_mask(bool(allowed.any()))
        packed = self._row.view(np.uint8).reshape(-1)
        packed.fill(0)
        bits = np.packbits(allowed, bitorder="little")
        packed[: len(bits)] = bits

    def masks(self, draft: Draft) -> tuple[Draft, Masks]:
        """Return no draft, and the program's mask, int32[1, words]."""
        return NO_DRAFT, self._row


class GrammarCursor(OutputMasks):
    """A grammar matcher at the end of the committed tokens, or further on while a draft is being verified.

    A ``planner`` keeps the text away from places behind which it could not end, and, if it is ``bounded``, within its budget.
    The methods raise what the matcher raises: DeadEnd where the grammar leaves no token, GrammarFailure for a broken matcher.
    """

    def __init__(
        self,
        matcher: GuardedMatcher,
        words: int,
        eos_tokens: Sequence[int],
        planner: EndPlanner | None = None,
        *,
        bounded: bool = True,
        clock: Callable[[], float] = time.thread_time,
    ) -> None:
        """``clock``: seconds of processor time of the calling thread."""
        self._clock = clock
        self._matcher = matcher
        self._planner = planner
        self._bounded = bounded
        self._walked: list[int] = []
        self._row_seconds = 0.0
        """Seconds per mask in the last step, with the token before it."""
        self._way_seconds = 0.0
        """Seconds per token when tokens were last accepted."""
        self._rest: Masks = ~bit_mask(eos_tokens, words * 32)

    def forced(self) -> list[int]:
        """Return the tokens that the grammar forces, in its canonical split."""
        self._roll_back()
        return self._matcher.forced_tokens()

    def completed(self, draft: Draft, limit: int) -> Draft:
        """Return a chain followed by what the grammar forces after it. One that takes too long is cut."""
        affordable = self._affordable(draft)
        if len(affordable) < len(draft) or len(draft) >= limit:
            return affordable
        self._roll_back()
        forced = self._forced_after(draft.tokens)
        return draft.followed_by(forced[: limit - len(draft)], FORCED)

    def _forced_after(self, tokens: Sequence[int]) -> list[int]:
        taken, in_time = 0, self._in_time(self._clock())
        try:
            while taken < len(tokens) and in_time() and self._matcher.accept([tokens[taken]]):
                taken += 1
            return self._matcher.forced_tokens() if taken == len(tokens) else []
        except DeadEnd:
            return []  # the text may never come there
        finally:
            self._matcher.rollback(taken)

    def masks(self, draft: Draft) -> tuple[Draft, Masks]:
        """Walk the matcher along the draft, and return its legal part with the masks. See :class:`OutputMasks`.

        Raises LimitExceeded if one takes longer than MASK_SECONDS, with the token before it. Garbage is not collected meanwhile:
        how long that takes depends on all that the process holds.
        """
        with no_collections():
            started = self._clock()
            found = self._masks(self._affordable(draft), started)
            self._row_seconds = (self._clock() - started) / len(found[1]) + self._way_seconds
        if self._row_seconds > MASK_SECONDS:
            raise _too_slow("a mask of the constraint")
        return found

    def _affordable(self, draft: Draft) -> Draft:
        """Return the part of a draft whose masks fit into DRAFT_SECONDS, if each takes as long as in the last step."""
        if self._row_seconds * len(draft) <= DRAFT_SECONDS:
            return draft
        return draft.likeliest(int(DRAFT_SECONDS / self._row_seconds))

    def _masks(self, draft: Draft, started: float) -> tuple[Draft, Masks]:
        masks = np.empty((len(draft) + 1, self._rest.shape[0]), np.int32)
        self._roll_back()
        if draft.probabilities is not None:  # what was drawn must not decide where it is cut
            legal = walk(self._matcher, draft.tokens, masks)
        elif draft.is_chain:
            legal = walk(self._matcher, draft.tokens, masks, self._in_time(started))
        else:
            kept = self._walk_tree(draft, masks, self._in_time(started))
            return draft.select(kept), masks[: len(kept) + 1]
        self._walked = list(draft.tokens[:legal])
        return draft.before(legal), masks[: legal + 1]

    def _in_time(self, started: float) -> Callable[[], bool]:
        """Return a function that is True until DRAFT_SECONDS have passed since ``started``.

        :meth:`_affordable` knows nothing of a first draft, and little of one with which the text comes to slow masks.
        """
        return lambda: self._clock() <= started + DRAFT_SECONDS

    def _walk_tree(self, draft: Draft, masks: Masks, in_time: Callable[[], bool]) -> list[int]:
        """Return the legal nodes. Between two nodes the matcher rolls back to their common ancestor."""
        self._matcher.fill(masks[0])
        kept: list[int] = []
        path: list[int] = []
        for node, parent in enumerate(draft.parents):
            if not in_time():
                break
            back = len(path) - (path.index(parent) + 1 if parent in path else 0)
            if parent != ROOT and back == len(path):
                continue  # its parent is illegal
            self._matcher.rollback(back)
            del path[len(path) - back :], self._walked[len(self._walked) - back :]
            if self._enter(draft.tokens[node], masks[len(kept) + 1]):
                kept.append(node)
                path.append(node)
        return kept

    def _enter(self, token: int, mask: Masks) -> bool:
        """Advance by one token, and fill its mask. Returns False if it is illegal or a dead end."""
        if not self._matcher.accept([token]):
            return False
        try:
            self._matcher.fill(mask)
        except DeadEnd:
            self._matcher.rollback(1)
            return False
        self._walked.append(token)
        return True

    @property
    def steers(self) -> bool:
        """True with a planner."""
        return self._planner is not None

    @property
    def keeps_budget(self) -> bool:
        """True with a planner that counts tokens."""
        return self._planner is not None and self._bounded

    def admit(self, tokens: Sequence[int], room: int) -> list[int]:
        """Return the tokens up to the first one behind which no end would fit, and there the first one of an end that does.

        Raises LimitExceeded where looking for ends takes longer than MASK_SECONDS.
        """
        if self._planner is None:
            return list(tokens)
        try:
            with no_collections():
                return self._admitted(self._planner, tokens, room)
        except GrammarLimit:
            raise _too_slow("looking for an end of the constraint") from None

    def _admitted(self, planner: EndPlanner, tokens: Sequence[int], room: int) -> list[int]:
        admitted: list[int] = []
        clock = SearchClock(MASK_SECONDS, self._clock)
        for token in tokens:
            left = room - len(admitted) if self._bounded else UNBOUNDED
            admitted.append(planner.admit(token, left, clock))
            clock.check()
            if admitted[-1] != token:
                break
        return admitted

    def advance(self, tokens: Sequence[int]) -> None:
        """Roll back to where the tokens leave the walked draft, and accept the rest of them."""
        with no_collections():
            started = self._clock()
            self._advance(tokens)
            self._way_seconds = (self._clock() - started) / max(1, len(tokens))

    def _advance(self, tokens: Sequence[int]) -> None:
        common = 0
        while common < min(len(self._walked), len(tokens) - 1) and self._walked[common] == tokens[common]:
            common += 1
        self._matcher.rollback(len(self._walked) - common)
        self._walked.clear()
        rest = list(tokens[common:])
        taken = self._matcher.accept(rest)
        # A planned end is split into the fewest tokens, which masks may leave out.
        if taken + self._matcher.take(rest[taken:] if self._planner is not None else ()) != len(rest):
            raise ConstraintError("the constraint leaves no token to go on with")

    def must_end(self) -> bool:
        """True if end-of-text is the only legal token."""
        # Cheap, and inside a text the answer: the mask is computed only where the text may end.
        if not self._matcher.may_end():
            return False
        row = np.empty_like(self._rest)
        self._matcher.fill(row)
        return not np.bitwise_and(row, self._rest).any()

    def _roll_back(self) -> None:
        """Undo a walk that was never verified (the step had no room for it)."""
        self._matcher.rollback(len(self._walked))
        self._walked.clear()
