"""A text's way to its end, kept while the text goes on, so that a budget of tokens is never overdrawn.

:class:`EndPlanner` holds an end that the matcher is known to take. A token is admitted if the text has an end behind it
that fits into what is left; else the first token of the held end comes in its place. So a text that had a fitting end at
its start ends in time, whatever a model writes, and however poor the search is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

from inferd_grammar.completion.characters import begun_character, rest_of_character
from inferd_grammar.completion.composed import Way, opening_ways, ways_on
from inferd_grammar.completion.json_place import START, JsonPlace
from inferd_grammar.completion.outline import Outline
from inferd_grammar.completion.search import EndSearch, SearchClock
from inferd_grammar.completion.split import Split, Splitter
from inferd_grammar.constraints import Constraint, TaggedGrammar
from inferd_grammar.errors import GrammarFailure
from inferd_grammar.matchers.matcher import GuardedMatcher
from inferd_grammar.tokens import TokenTable

FIRST_LOOKS = 4_000
"""States that the search from the start of a text may look at."""
GUESSING_COST = 20_000
"""What guesses at a whole text may cost, in masks."""
GUARDED_LOOKS = 2_000
"""The same where a validator is asked at every place that might be an end."""
LOOKS = 400
"""States that a search in the middle of a text may look at."""
WAYS = 8
"""That are tried through a text made of parts, where its shortest end is wanted."""
_LONGEST_BEGUN = 1_000
"""Bytes of a beginning that is looked for: behind more, the rest is held already, or searched."""
_CREDIT = 20_000
_CREDIT_PER_TOKEN = 20


class EndPlanner:
    """The end of one text. Made at its start; `admit` takes its tokens one after the other, and there is no way back.

    Deterministic: what it does depends on the tokens so far and their budgets alone.
    """

    def __init__(
        self,
        matcher: GuardedMatcher,
        table: TokenTable,
        splitter: Splitter,
        outline: Outline,
        end: Split,
        opened: Sequence[Split] = (),
    ) -> None:
        """`matcher` belongs to the planner from now on; `end` is a whole text that it takes; `opened`: see `opened_ends`."""
        self._opened = opened
        self._matcher = matcher
        self._table = table
        self._splitter = splitter
        self._outline = outline
        self._end = end
        self._at = 0
        self._skip = len(outline.prefix)
        self._place = START
        self._credit = _CREDIT
        self._clock: SearchClock | None = None
        self._begun = b""
        """The first bytes of a character that is not written to its end."""
        self._closing = 0
        """How many bytes at the beginning of the held end end such a character, and are no part of it else."""
        self._text = b""
        """What was written, of a text that is made of parts."""

    @property
    def needed(self) -> int:
        """How many tokens the held end has."""
        return self._end.count(self._at)

    def admit(self, token: int, room: int, clock: SearchClock | None = None) -> int:
        """Return the token to write, of which `room` may still be written: `token`, or the first one of the held end (EOS behind
        the last).

        `token` is legal. Raises GrammarFailure if the matcher breaks, GrammarLimit where `clock` is over.
        """
        if token in self._table.eos_ids:
            return token
        self._credit += _CREDIT_PER_TOKEN
        self._clock = clock
        if not self._follow(token, room - 1):
            if self._at == len(self._end.text):
                return self._table.eos_ids[0]
            token = self._end.first(self._at)
            self._take(token)
            self._at += len(self._splitter.written(token))
        return token

    def _follow(self, token: int, left: int) -> bool:
        """Take the token, and find an end of at most `left` tokens behind it; take it back if there is none."""
        if self._matcher.take([token]) != 1:
            return False
        written = self._splitter.written(token)
        place = self._place_behind(written)
        if self._closes(written, left) or self._keeps_end(written, left) or self._finds_end(place, written, left):
            self._behind(place, written)
            return True
        self._matcher.rollback(1)
        return False

    def _check(self) -> None:
        if self._clock is not None:
            self._clock.check()

    def _closes(self, written: bytes, left: int) -> bool:
        """Inside a character, keep the held end behind the rest of its bytes; once it is whole, keep that end alone."""
        rest = rest_of_character(begun_character(self._begun + written))
        if not rest and not self._closing:
            return False
        end = self._end.text[max(self._at, self._closing) :]
        return self._keeps_text(rest + end, left, closing=len(rest))

    def _keeps_end(self, written: bytes, left: int) -> bool:
        """Keep what the held end leaves behind `written`, or all of it where the token only adds to what is being written."""
        text = self._end.text
        if written and text.startswith(written, self._at):
            fits = self._fits(self._at + len(written), left)
            self._at += len(written) * fits
            return fits
        for overlap in range(min(len(written), len(text) - self._at), -1, -1):
            start = self._at + overlap
            if written.endswith(text[self._at : start]) and self._fits(start, left) and self._holds(start):
                self._at = start
                return True
        return False

    def _fits(self, start: int, left: int) -> bool:
        return self._end.count(start) <= left

    def _holds(self, start: int) -> bool:
        """Return True if the matcher takes the held end from `start` on."""
        return self._matcher.ends_with(self._end.tokens(start), self._check)

    def _finds_end(self, place: JsonPlace, written: bytes, left: int) -> bool:
        if any(self._keeps(end, left, at) for end, at in self._ends_opened(self._text + written)):
            return True
        looks = min(LOOKS, self._credit)
        search = EndSearch(self._matcher, self._splitter, self._outline, looks, clock=self._clock)
        known, behind = self._outline, self._text + written
        ways = None if known.parts is None else ways_on(known.parts, behind, known.spell)
        text = search.run(place) if ways is None else search.follow(ways)
        self._credit -= looks - search.looks
        return text is not None and self._keeps_text(text, left)

    def _ends_opened(self, text: bytes) -> Iterator[tuple[Split, int]]:
        """Yield known texts whose beginning has just been written, with its size."""
        for known in self._opened:
            most = min(len(known.text) - 1, _LONGEST_BEGUN)
            begun = next((size for size in range(most, 0, -1) if text.endswith(known.text[:size])), 0)
            if begun:
                yield known, begun

    def _keeps_text(self, text: bytes, left: int, closing: int = 0) -> bool:
        """Keep a text as the end, if it is one that fits. ``closing``: see ``_closing``."""
        if len(text) > left * self._splitter.longest:
            return False
        end = self._splitter.split(text, self._end, self._check)
        return self._keeps(end, left, 0, closing)

    def _keeps(self, end: Split, left: int, at: int, closing: int = 0) -> bool:
        if end.count(at) > left or not self._matcher.ends_with(end.tokens(at), self._check):
            return False
        self._end, self._at, self._closing = end, at, closing
        return True

    def _take(self, token: int) -> None:
        if self._matcher.take([token]) != 1:
            raise GrammarFailure("the matcher refuses an end that it had taken")
        written = self._splitter.written(token)
        self._behind(self._place_behind(written), written)

    def _behind(self, place: JsonPlace, written: bytes) -> None:
        self._place = place
        self._skip = max(0, self._skip - len(written))
        self._begun = begun_character(self._begun + written)
        if self._outline.parts is not None:
            self._text += written

    def _place_behind(self, written: bytes) -> JsonPlace:
        return self._place.behind(written[self._skip :]) if self._outline.json else self._place


def first_end(
    matcher: GuardedMatcher,
    splitter: Splitter,
    outline: Outline,
    looks: int,
    clock: SearchClock,
) -> Split | None:
    """Return the shortest whole text of a matcher at its start; None if the search finds none."""
    search = EndSearch(matcher, splitter, outline, looks, detours=1, clock=clock)
    prefix = outline.prefix
    begun = splitter.split(prefix, check=clock.check).tokens(0)
    taken = matcher.take(begun)
    text = search.run(START) if taken == len(begun) else None
    matcher.rollback(taken)
    if text is None:
        return None
    end = splitter.split(prefix + text, check=clock.check)
    return end if matcher.ends_with(end.tokens(0)) else None


def first_of_parts(parts: Constraint, opened: Sequence[Split]) -> Split | None:
    """Return the same of a text of parts, given `opened_ends`: nothing at all is the shortest tagged text, but a tag without an
    end could not be opened.
    """
    return Split(b"") if opened and isinstance(parts, TaggedGrammar) else next(iter(opened), None)


def opened_ends(
    matcher: GuardedMatcher,
    splitter: Splitter,
    outline: Outline,
    looks: int,
    clock: SearchClock,
) -> list[Split]:
    """Return the shortest text, of the first few ways, through each thing that a text of parts may open: a call's tag, above all.

    Returns nothing for other texts, where one of them has none that is found, and where parts repeat each other so often that
    their ways are nested too deeply to be looked at.
    """

    def ended(way: Way) -> bytes | None:
        return EndSearch(matcher, splitter, outline, looks, detours=1, clock=clock).follow([way])

    shortest: list[Split] = []
    try:
        for ways in () if outline.parts is None else opening_ways(outline.parts, outline.spell):
            searches = (ended(way) for way in islice(ways, WAYS))
            found = [splitter.split(text, check=clock.check) for text in searches if text is not None]
            found.sort(key=lambda end: end.count(0))
            end = next((end for end in found if matcher.ends_with(end.tokens(0))), None)
            if end is None:
                return []
            shortest.append(end)
    except RecursionError:
        return []
    return shortest
