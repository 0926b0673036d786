"""Searches the shortest end of a text: bytes that a matcher takes, behind which the text may end.

The matcher is a black box here, so this is a search and not a calculation: what it finds is legal, always, and the
shortest in common cases (objects with their required keys, the shortest value of a union, the shortest string of a
pattern), not in all. It knows JSON well enough to close what is open first. Other texts are searched breadth first.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice, zip_longest

import numpy as np

from inferd_grammar.completion.composed import Ended, Way
from inferd_grammar.completion.json_place import JsonPlace
from inferd_grammar.completion.outline import Outline
from inferd_grammar.completion.split import Splitter
from inferd_grammar.errors import DeadEnd, GrammarFailure, GrammarLimit
from inferd_grammar.matchers.matcher import GuardedMatcher

_LIMITS = (32, 256, 4_000, 30_000)  # bytes of an end: each pass looks farther
_WAYS = 32  # that are tried through a text made of parts
_BEAM = 24  # texts of one length that are followed at once
_MAX_LAYERS = 2_000
_PATIENCE = 24  # longer than numbers are
_MAX_DEPTH = 64
_BYTES_A_LOOK = 64  # that cost about as much to take
_TOLD_APART = 8  # forced bytes by which states are told apart
_FEW = 16  # so many next bytes are all tried; of more, some of each kind
_NAMES = 64
_KINDS = (b"0123456789", b"abcdefghijklmnopqrstuvwxyz", b"ABCDEFGHIJKLMNOPQRSTUVWXYZ")
_MARKS = b"-.@:/_ +,#=$%&()*!?<>;'"
_FILLERS = (b" ", b"-", b"0")  # of which most vocabularies have long tokens
_FILLER = -1
_SHORT = 8  # bytes of an end that is taken without a look at others
_BETWEEN = (b"0", b"a", b"A", b" ", b"-")  # between literal texts, where characters of a class are due
_ENDS = frozenset(b",]}")
_QUOTE = ord('"')
_PROMISING = b'"tfn-[{'  # first bytes of values, by how short such values tend to be

_Seen = tuple[int, ...]  # the bytes that may follow, and what must


class Exhausted(Exception):
    """Raised where the search has taken all the looks that it may, or nests too deep."""


class SearchClock:
    """Ends searches that take more than so many seconds together, of the processor time of the thread that made it."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.thread_time) -> None:
        self._seconds = seconds
        self._clock = clock
        self._until = clock() + seconds

    def check(self) -> None:
        """Raises GrammarLimit once they are over: what looks cost grows with the text of an ambiguous grammar."""
        if self._clock() > self._until:
            raise GrammarLimit("finding an end of this grammar takes too long", "cpu_seconds", self._seconds)


def unbounded() -> None:
    """Stand in for the check of a clock where there is none."""


class EndSearch:
    """One search from the state of a matcher, which is back in that state afterwards.

    `looks` is how many states may be looked at (a mask each). Of the names that an object may go on with, the last one in
    the schema comes first, because it skips no required one; `detours` is how many others may be tried on one way.
    """

    def __init__(
        self,
        matcher: GuardedMatcher,
        splitter: Splitter,
        outline: Outline,
        looks: int,
        *,
        detours: int = 0,
        clock: SearchClock | None = None,
    ) -> None:
        self.looks = looks
        self._check = unbounded if clock is None else clock.check
        self._matcher = matcher
        self._splitter = splitter
        self._outline = outline
        self._inside = outline.inside
        self._detours = detours
        self._paid = matcher.cost
        self._row = np.empty(matcher.words, np.int32)
        self._ends = _ENDS
        """Bytes that may follow a number or word."""
        self._words, self._shifts = splitter.byte_ids >> 5, (splitter.byte_ids & 31).astype(np.int32)

    def run(self, place: JsonPlace) -> bytes | None:
        """Return the end of the text; None if none was found. `place` is where a JSON text stands, and unused for others."""
        with self._back():
            try:
                if not self._outline.json:
                    return self._any_text()
                return next((end for limit in _LIMITS if (end := self._value(place, -1, limit)) is not None), None)
            except (Exhausted, GrammarFailure):
                return None

    def follow(self, ways: Iterable[Way]) -> bytes | None:
        """Return the first of some ways that leads the matcher to an end, with what ends the values in it; None if none does."""
        with self._back():
            try:
                return next((text for way in islice(ways, _WAYS) if (text := self._followed(way)) is not None), None)
            except (Exhausted, GrammarFailure, RecursionError):
                return None

    def _followed(self, way: Way) -> bytes | None:
        text = b""
        with self._back():
            for part, behind in zip_longest(way, way[1:], fillvalue=b""):
                piece: bytes | None
                if isinstance(part, bytes):
                    piece = part if self._push(part) else None
                elif isinstance(part, Ended):
                    piece = self._ended(part.end)
                else:
                    self._ends = _ENDS | frozenset(behind[:1] if isinstance(behind, bytes) else b"")
                    self._outline = self._inside[id(part.grammar)]
                    ends = (self._value(part.place, 0, limit) for limit in _LIMITS)
                    piece = next((end for end in ends if end is not None), None)
                if piece is None:
                    return None
                text += piece
            return text if self._matcher.may_end() else None

    # -- JSON -------------------------------------------------------------------------------------------------------

    def _value(self, place: JsonPlace, outer: int, limit: int) -> bytes | None:
        """Return what leads to the end of the text, or, for `outer` of 0 or more, of a value at that depth: at most `limit`
        bytes. Leaves the matcher behind it, or where it was.
        """
        text = b""
        while not self._is_done(place, outer):
            if place.depth > _MAX_DEPTH:
                raise Exhausted
            piece = self._piece(place, outer, limit - len(text))
            if piece is None or len(text) + len(piece) + place.depth - max(outer, 0) > limit + 1:
                self._matcher.rollback(len(text) + (0 if piece is None else len(piece)))
                return None
            text += piece
            place = place.behind(piece)
        return text

    def _is_done(self, place: JsonPlace, outer: int) -> bool:
        if outer < 0:
            return self._matcher.may_end()
        if place.depth != outer:
            return place.depth < outer
        return place.mode == "done" or (place.mode in ("number", "word") and self._is_closable())

    def _is_closable(self) -> bool:
        """Return True if what follows a number or word may come next."""
        return self._matcher.may_end() or not self._ends.isdisjoint(self._following())

    def _piece(self, place: JsonPlace, outer: int, limit: int) -> bytes | None:
        """Write the next bytes. Returns them; None, with the matcher as it was, if there are none."""
        if place.mode == "value" and (known := self._known(place, limit)) is not None:
            return known or None
        forced = self._matcher.forced()
        if forced:
            forced = _up_to_end(place, forced[: limit + 2], outer, self._ends)  # no more is taken than is worth it
            return forced if len(forced) <= limit + 1 and self._push(forced) else None
        following = self._following()
        quoted = place.mode in ("name", "string")
        closer = next((closer for closer in b"}]" if closer in following and not quoted), None)
        if closer is None and len(following) == 1:
            closer = following[0]
        if closer is not None:
            return bytes([closer]) if self._push(bytes([closer])) else None
        return self._choice(place, following, limit)

    def _choice(self, place: JsonPlace, following: Sequence[int], limit: int) -> bytes | None:
        if place.mode == "string":
            return self._string()
        if place.mode == "name":
            return self._name(place, limit)
        if place.mode == "value" or (self._outline.heads and place.mode == "word" and not place.depth):
            return self._shortest_of(place, self._values(following), place.depth, limit)
        if ord(",") in following:
            return b"," if self._push(b",") else None
        return self._until(lambda allowed: not self._ends.isdisjoint(allowed) or self._matcher.may_end(), b"")

    def _known(self, place: JsonPlace, limit: int) -> bytes | None:
        """Write the shortest value that schemas are known to have and the matcher takes; nothing where it is too long a string:
        a format's, of which no search finds a shorter one.
        """
        for text in self._outline.values:
            if len(text) > limit and text[0] != _QUOTE:
                continue
            if self._push(text):
                if self._is_done(place.behind(text), place.depth) and len(text) <= limit:
                    return text
                self._matcher.rollback(len(text))
                if len(text) > limit:
                    return b""
        return None

    def _values(self, following: Sequence[int]) -> list[bytes]:
        """Return the ways to begin a value: one whole number, and the first bytes of others."""
        digits = [bytes([byte]) for byte in following if byte in b"0123456789"]
        number = self._breadth_first(lambda allowed: self._is_closable(), digits) if digits else None
        others = [byte for byte in following if bytes([byte]) not in digits]
        begun = [bytes([byte]) for byte in sorted(others, key=_PROMISING.find)]
        return begun if number is None else [number, *begun]

    def _string(self) -> bytes | None:
        """Write the rest of a string value."""
        if _QUOTE in self._following():
            return b'"' if self._push(b'"') else None
        filled = (filler * size for size in range(1, _PATIENCE) for filler in _FILLERS)
        for sample in (*self._outline.samples, *filled):
            if self._push(sample + b'"'):
                return sample + b'"'
        text = self._breadth_first(lambda allowed: _QUOTE in allowed)
        if text is None:
            return None
        ways = [text, *(filler * len(text) for filler in _FILLERS if len(text) > 1)]
        ways.sort(key=lambda way: self._splitter.split(way).count(0))
        return next((way + b'"' for way in ways if self._push(way + b'"')), None)

    def _ended(self, end: bytes) -> bytes | None:
        """Write the rest of a text that stands without quotes, and its end."""
        return self._until(lambda _: self._takes(end), end)

    def _until(self, reached: Callable[[Sequence[int]], bool], last: bytes) -> bytes | None:
        text = self._breadth_first(reached)
        return None if text is None or not self._push(text + last) else text + last

    def _name(self, place: JsonPlace, limit: int) -> bytes | None:
        """Write the rest of a name, and the rest of its object."""
        names: list[bytes] = []
        self._add_names(b"", 0, names)
        if not names:
            return self._until(lambda allowed: _QUOTE in allowed, b'"')
        ranks = self._outline.ranks
        written = {name: (place.name + name[:-1]).decode("utf-8", "replace") for name in names}
        names.sort(key=lambda name: (-ranks.get(written[name], len(ranks)), len(name)))
        return self._shortest_of(place, names[: 1 + 3 * (self._detours > 0)], place.depth - 1, limit)

    def _add_names(self, begun: bytes, steps: int, found: list[bytes]) -> bool:
        """Add the rests of names, their quote included; nothing where any name may stand, or names are long.

        Returns False where no more are to be added: a pattern of names has no end of them.
        """
        forced = self._matcher.forced().partition(b'"')
        ways = [forced[0] + forced[1]] if forced[0] else [bytes([byte]) for byte in self._following()]
        for way in ways if len(ways) <= 3 * _FEW else ():
            if len(found) == _NAMES or steps == _MAX_DEPTH:
                return False
            if way.endswith(b'"'):
                found.append(begun + way)
            elif self._push(way):
                more = self._add_names(begun + way, steps + 1, found)
                self._matcher.rollback(len(way))
                if not more:
                    return False
        return True

    def _shortest_of(self, place: JsonPlace, options: Sequence[bytes], outer: int, limit: int) -> bytes | None:
        """Write the option with which the value at depth `outer` ends soonest, to that end."""
        best: tuple[int, int, bytes] | None = None
        for option in options:
            if best is not None and (best[0] <= 1 or (outer < place.depth and self._detours <= 0)):
                break
            self._detours -= best is not None and outer < place.depth
            with self._back():
                found = self._option(place, option, outer, limit if best is None else min(limit, 8 * best[0]))
            self._detours += best is not None and outer < place.depth
            if found is not None:
                cost = self._splitter.split(found, check=self._check).count(0)
                best = min(best or (cost, len(found), found), (cost, len(found), found))
        return None if best is None or not self._push(best[2]) else best[2]

    def _option(self, place: JsonPlace, option: bytes, outer: int, limit: int) -> bytes | None:
        if len(option) > limit or not self._push(option):
            return None
        try:
            rest = self._value(place.behind(option), outer, limit - len(option))
        except GrammarFailure:
            return None
        return None if rest is None else option + rest

    def _any_text(self) -> bytes | None:
        """Return a shortest end where few ways lead on; else one of literal texts of the constraint.

        Of many bytes that may follow only some are tried, so what ends a text of any characters may be missed.
        """
        known = min(filter(self._is_end, self._outline.pieces), key=len, default=None)
        kept = self.looks // 2 if self._outline.pieces else 0
        self.looks -= kept
        most = _MAX_LAYERS if known is None else len(known)
        found = self._if_not_exhausted(
            lambda: self._breadth_first(lambda following: self._matcher.may_end(), most=most)
        )
        self.looks = max(self.looks, 0) + kept
        found = known if found is None else found
        if not kept or (found is not None and len(found) <= _SHORT):
            return found
        made = self._if_not_exhausted(self._of_pieces)
        return min((end for end in (found, made) if end is not None), key=len, default=None)

    def _if_not_exhausted(self, search: Callable[[], bytes | None]) -> bytes | None:
        try:
            return search()
        except Exhausted:
            return None

    def _is_end(self, text: bytes) -> bool:
        """Return True if the text may end behind these bytes."""
        with self._back():
            return self._push(text) and self._matcher.may_end()

    def _of_pieces(self) -> bytes | None:
        """Return literal texts of the constraint, and fillers between them, that lead to an end.

        Those come first that stand in the order of the constraint, with the fewest fillers.
        """
        ways = [*enumerate(self._outline.pieces), *((_FILLER, filler) for filler in _BETWEEN)]
        layer: list[tuple[int, int, bytes]] = [(0, -1, b"")]
        while layer:
            longer: dict[bytes, tuple[int, int, bytes]] = {}
            for cost, last, text in layer:
                self.looks -= 1
                if self.looks < 0:
                    raise Exhausted
                with self._back():
                    self._push(text)
                    for place, piece in ways:
                        if self._push(piece):
                            if self._matcher.may_end():
                                return text + piece
                            self._matcher.rollback(len(piece))
                            more = place == _FILLER or place <= last
                            after = (cost + more, last if place == _FILLER else place, text + piece)
                            longer[after[2]] = min(after, longer.get(after[2], after))
            layer = sorted(longer.values(), key=lambda way: (way[0], len(way[2])))[:_BEAM]
        return None

    # -- Any text ---------------------------------------------------------------------------------------------------

    def _breadth_first(
        self, reached: Callable[[Sequence[int]], bool], first: Sequence[bytes] = (b"",), most: int = _MAX_LAYERS
    ) -> bytes | None:
        """Return the shortest text behind which `reached` holds of the bytes that may follow, of fewer steps than `most`. The
        matcher stays where it is.

        Of texts of one length with the same bytes to follow, the first and the last are followed: the smallest number and
        the largest. Behind what is longer than numbers are, one of them; and where that byte changes nothing about what may
        follow, such as a letter in a string that is too short, it is repeated without a look at others.
        """
        base, layer, before = b"", list(first), None
        with self._back():
            for size in range(most):
                states: dict[_Seen, list[bytes]] = {}
                for text in layer:
                    with self._back():
                        if self._push(text) and self._is_over(text, reached, states):
                            return base + text
                kept = [text for like in states.values() for text in (like if size <= _PATIENCE else like[:1])][:_BEAM]
                if len(kept) != 1:
                    layer = [text + way for text in kept for way in self._ways_on(text)]
                    continue
                base += kept[0]
                self._push(kept[0])
                (seen,) = states
                layer = [kept[0][-1:]] if size > _PATIENCE and seen == before else self._ways_on(b"")
                before = seen
        return None

    def _is_over(self, text: bytes, reached: Callable[[Sequence[int]], bool], states: dict[_Seen, list[bytes]]) -> bool:
        """Return True if the search is over; else note the state behind `text`, in place of others that are like it."""
        following = self._following()
        if reached(following):
            return True
        like = states.setdefault((*following, *self._matcher.forced(_TOLD_APART)), [])
        like[1:] = [text]
        return False

    def _ways_on(self, text: bytes) -> list[bytes]:
        with self._back():
            return [bytes([byte]) for byte in _sample(self._following())] if self._push(text) else []

    # -- The matcher ------------------------------------------------------------------------------------------------

    @contextmanager
    def _back(self) -> Iterator[None]:
        """Put the matcher back behind the block."""
        depth = self._matcher.depth
        try:
            yield
        finally:
            self._matcher.rollback(self._matcher.depth - depth)

    def _push(self, text: bytes) -> bool:
        """Take bytes one token each, or nothing."""
        self._check()
        single = self._splitter.single
        if any(byte not in single for byte in text):
            return False
        self.looks -= len(text) // _BYTES_A_LOOK
        taken = self._matcher.take([single[byte] for byte in text])
        if taken < len(text):
            self._matcher.rollback(taken)
        return taken == len(text)

    def _takes(self, text: bytes) -> bool:
        with self._back():
            return self._push(text)

    def _following(self) -> list[int]:
        """Return the bytes that may come next, in order; none at a dead end. Raises Exhausted."""
        cost = self._matcher.cost
        self.looks -= 1 + cost - self._paid
        self._paid = cost
        if self.looks < 0:
            raise Exhausted
        self._check()
        forced = self._matcher.forced(1)
        if forced:
            return list(forced)  # masks may hold one longer token alone
        try:
            self._matcher.fill(self._row)
        except DeadEnd:
            return []
        legal = (self._row[self._words] >> self._shifts) & 1
        found: list[int] = self._splitter.bytes[legal.astype(bool)].tolist()
        return found


def _up_to_end(place: JsonPlace, text: bytes, outer: int, ends: frozenset[int]) -> bytes:
    """Return the text up to where a value at depth `outer` is complete, or another one begins."""
    for size, byte in enumerate(text):
        whole = place.mode == "done" or (place.mode in ("number", "word") and byte in ends)
        if size and (place.mode == "value" or (whole and place.depth <= outer)):
            return text[:size]
        place = place.behind(text[size : size + 1])
    return text


def _sample(following: Sequence[int]) -> Sequence[int]:
    """Return some of many bytes: of letters and digits the first two of each kind, and marks: all where they are few."""
    if len(following) <= _FEW:
        return following
    plain = [byte for kind in _KINDS for byte in [b for b in following if b in kind][:2]]
    others = [byte for byte in following if not any(byte in kind for kind in _KINDS)]
    if len(others) <= _FEW:
        return plain + others
    marks = [byte for byte in _MARKS if byte in following]
    return (plain + marks)[:_FEW] or following[:_FEW]
