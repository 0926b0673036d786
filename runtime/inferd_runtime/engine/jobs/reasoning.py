"""A text that begins with reasoning: a constraint holds what comes behind it, and it may have so many tokens and no more."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np

from inferd_grammar.tokens import bit_mask
from inferd_runtime.engine.jobs.grammar_masks import OutputMasks
from inferd_runtime.engine.sampling.host_sampling import Masks
from inferd_runtime.speculation.drafts import NO_DRAFT, Draft

BLANK = b" \t\r\n"


@dataclass(frozen=True)
class ReasoningPlace:
    """Where a text stands. ``matched``: bytes of the mark that is being written (tokens of the opening one under a constraint).

    ``count``: tokens of the reasoning so far, the beginning of its end among them.
    """

    phase: Literal["opening", "thinking", "over"]
    matched: int = 0
    count: int = 0


class ReasoningMarkTokens:
    """The marks of a model's reasoning as its tokens write them. ``pieces``: the bytes of each text token, b"" of special ones.

    ``bytes_of`` returns the bytes of any token. ``words``: of a mask.
    """

    def __init__(
        self,
        begin: tuple[str, Sequence[int]],
        end: tuple[str, Sequence[int]],
        pieces: Sequence[bytes],
        bytes_of: Callable[[int], bytes],
        eos_tokens: Sequence[int],
    ) -> None:
        self.begin, self.end = begin[0].encode(), end[0].encode()
        self.begin_tokens, self.end_tokens = tuple(begin[1]), tuple(end[1])
        self.bytes_of = bytes_of
        self.vocab_size = len(pieces)
        self._pieces = pieces
        self._open: Masks = ~bit_mask(eos_tokens, self.vocab_size)
        self._closing: dict[int, Masks] = {}

    @property
    def most_tokens(self) -> int:
        """How many tokens the two marks have."""
        return len(self.begin_tokens) + len(self.end_tokens)

    def only(self, token: int) -> Masks:
        """Return the mask of one token."""
        return bit_mask([token], self.vocab_size)

    def thinking(self, matched: int) -> Masks:
        """Return the mask of what reasoning may go on with before constrained text: not with the end of all text, and not with a
        token that writes the end mark and something behind it, which no constraint has seen.
        """
        if matched not in self._closing:
            head = self.end[:matched]
            beyond = [token for token, piece in self._longer if self._goes_beyond(head + piece)]
            self._closing[matched] = self._open & ~bit_mask(beyond, self.vocab_size) if beyond else self._open
        return self._closing[matched]

    @cached_property
    def _longer(self) -> list[tuple[int, bytes]]:
        last = self.end[-1:]
        return [(token, piece) for token, piece in enumerate(self._pieces) if last in piece[:-1]]

    def _goes_beyond(self, text: bytes) -> bool:
        at = text.find(self.end)
        return at >= 0 and bool(text[at + len(self.end) :].strip(BLANK))

    def behind(self, place: ReasoningPlace, token: int) -> ReasoningPlace:
        """Return the place behind a token of text that is not constrained afterwards, or that is thought."""
        data = self.bytes_of(token)
        if place.phase == "over":
            return place
        if place.phase == "thinking":
            return self._thought(replace(place, count=place.count + 1), data)
        written = self.begin[: place.matched] + data
        written = written if place.matched else written.lstrip(BLANK)
        if written.startswith(self.begin):
            return self._thought(ReasoningPlace("thinking"), written[len(self.begin) :])
        return ReasoningPlace("opening", len(written)) if self.begin.startswith(written) else ReasoningPlace("over")

    def _thought(self, place: ReasoningPlace, data: bytes) -> ReasoningPlace:
        text = self.end[: place.matched] + data
        if self.end in text:
            return ReasoningPlace("over")
        longest = min(len(text), len(self.end) - 1)
        matched = next(count for count in range(longest, -1, -1) if text.endswith(self.end[:count]))
        return replace(place, matched=matched)


class ReasoningFirst(OutputMasks):
    """The masks of a text that may begin with reasoning: those of a constraint (``inner``, None: without one) behind it.

    ``opened``: the prompt has begun it. ``budget``: after so many tokens of reasoning its end mark is forced; None: never. Under
    a constraint the model may open it with its first token, unless the constrained text could begin with that token, too.

    Drafts end with the reasoning: the constraint's own follow in the next step.
    """

    def __init__(
        self, inner: OutputMasks | None, marks: ReasoningMarkTokens, *, opened: bool, budget: int | None
    ) -> None:
        self._inner = inner or OutputMasks()
        self._constrains = inner is not None
        self._marks = marks
        self._budget = budget
        self._at = ReasoningPlace("thinking" if opened else "opening")
        self._all: Masks = np.full(-(-marks.vocab_size // 32), -1, np.int32)

    @property
    def _is_over(self) -> bool:
        return self._at.phase == "over"

    def forced(self) -> list[int]:
        """Return the tokens that must come next: the end mark's where the budget is used up, behind it the constraint's."""
        if self._is_over:
            return self._inner.forced()
        forced = self._forced_index(self._at)
        return [] if forced is None else list(self._marks.end_tokens[forced:])

    def completed(self, draft: Draft, limit: int) -> Draft:
        """Return a chain followed by what the constraint forces behind it."""
        return self._inner.completed(draft, limit) if self._is_over else draft

    def masks(self, draft: Draft) -> tuple[Draft, Masks | None]:
        """Return the legal part of the draft, and its masks. See :class:`OutputMasks`."""
        if self._is_over:
            return self._inner.masks(draft)
        if self._at.phase == "opening" and self._constrains:
            draft = NO_DRAFT
        places = {-1: self._at}
        rows = [self._row(self._at)]
        kept: list[int] = []
        for node, (parent, token) in enumerate(zip(draft.parents, draft.tokens, strict=True)):
            above = places.get(parent)
            if above is None or not self._takes(above, rows[kept.index(parent) + 1 if parent >= 0 else 0], token):
                continue
            places[node] = self._marks.behind(above, token)
            kept.append(node)
            rows.append(self._row(places[node]))
        legal = draft.before(len(kept)) if draft.is_chain else draft.select(kept)
        if all(row is self._all for row in rows):
            return legal, None
        return legal, np.stack(rows)

    def _takes(self, place: ReasoningPlace, row: Masks, token: int) -> bool:
        """Return True if a draft may go on with a token: not into constrained text."""
        return (not self._constrains or place.phase != "over") and _holds(row, token)

    def _row(self, place: ReasoningPlace) -> Masks:
        if place.phase == "over":
            return self._first
        forced = self._forced_index(place)
        if forced is not None:
            return self._marks.only(self._marks.end_tokens[forced])
        if not self._constrains:
            return self._all
        if place.phase == "thinking":
            return self._marks.thinking(place.matched)
        opening = self._marks.only(self._marks.begin_tokens[place.matched])
        return opening if place.matched else self._first | opening

    @property
    def _first(self) -> Masks:
        """The constraint's first mask."""
        masks = self._inner.masks(NO_DRAFT)[1]
        return self._all if masks is None else masks[0]

    def _forced_index(self, place: ReasoningPlace) -> int | None:
        """Return which token of the end mark must come next; None while the budget lasts."""
        if self._budget is None or place.phase != "thinking" or place.count < self._budget:
            return None
        return min(place.count - self._budget, len(self._marks.end_tokens) - 1)

    def advance(self, tokens: Sequence[int]) -> None:
        """Commit tokens after verification: those of the reasoning here, the others in the constraint."""
        self._at, thought = self._behind(tokens)
        if len(thought) < len(tokens):
            self._inner.advance(tokens[len(thought) :])

    def _behind(self, tokens: Sequence[int]) -> tuple[ReasoningPlace, Sequence[int]]:
        """Return the place behind tokens, and those of them that are the reasoning's."""
        place = self._at
        for count, token in enumerate(tokens):
            if place.phase == "over":
                return place, tokens[:count]
            if place.phase == "opening" and self._constrains:
                place, taken = self._opened(place, token)
                if not taken:
                    return place, tokens[:count]
            else:
                place = self._marks.behind(place, token)
        return place, tokens

    def _opened(self, place: ReasoningPlace, token: int) -> tuple[ReasoningPlace, bool]:
        """Return the place behind a token that opens the reasoning or, which is told, belongs to the constrained text."""
        wanted = self._marks.begin_tokens
        if token != wanted[place.matched] or (place.matched == 0 and _holds(self._first, token)):
            return ReasoningPlace("over"), False
        if place.matched + 1 == len(wanted):
            return ReasoningPlace("thinking"), True
        return replace(place, matched=place.matched + 1), True

    @property
    def steers(self) -> bool:
        """True if the constraint steers the text to an end."""
        return self._inner.steers

    @property
    def keeps_budget(self) -> bool:
        """True if the constrained text is complete when the tokens are used up."""
        return self._is_over and self._inner.keeps_budget

    def admit(self, tokens: Sequence[int], room: int) -> list[int]:
        """Return the tokens to commit instead of sampled ones: reasoning is not steered."""
        thought = self._behind(tokens)[1]
        rest = tokens[len(thought) :]
        return [*thought, *self._inner.admit(rest, room - len(thought))] if rest else list(thought)

    def must_end(self) -> bool:
        """True if the constraint allows nothing but the end."""
        return self._is_over and self._inner.must_end()


def _holds(row: Masks, token: int) -> bool:
    return bool(int(row[token >> 5]) >> (token & 31) & 1)
