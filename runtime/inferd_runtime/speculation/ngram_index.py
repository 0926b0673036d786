"""An incremental index of n-grams, which finds where the end of a text occurred before without delaying a step.

Prompt lookup (Saxena 2023) made incremental. Most of a text is in sorted arrays, built by NumPy in a background thread; the
newest few thousand tokens are in a dictionary. A lookup takes a few microseconds at any length.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from concurrent.futures import Executor, Future
from operator import mul
from typing import NamedTuple

from inferd_runtime.speculation.grams import MAX_TOKENS, POWERS, WIDTH, FrozenGrams, RecentGrams

ORDERS = (2, 4, 8)
REACH = 32
"""Tokens before a place that are compared with the end of the text."""
CANDIDATES = 8
"""Occurrences, newest first, that are compared."""
BATCH = 4096
"""Tokens that the dictionaries hold before they are frozen."""
COPIED_SHARE = 64
"""A fork copies the n-grams of at most one in so many tokens of a batch; if there are more, it shares the dictionary."""
SHARED = 4
"""Dictionaries that are shared before all is frozen, so that a lookup stays short."""
CAPACITY = 1 << 18
"""Tokens that one context's index remembers, about 34 bytes each; older ones are forgotten."""
END = -(1 << 31)
"""Separates texts that are indexed as one."""

_REACH_BITS = 8 * WIDTH * REACH


class IndexedText:
    """The newest tokens of a growing text, by absolute position: an immutable past, which forks share, and the rest."""

    def __init__(self) -> None:
        self.start = 0
        self._past = array("i")
        self._rest = array("i")
        self._rest_is_shared = False

    @property
    def end(self) -> int:
        """The number of tokens ever appended."""
        return self.start + len(self._past) + len(self._rest)

    def append(self, tokens: array[int]) -> None:
        """Append tokens."""
        if self._rest_is_shared:
            self._rest, self._rest_is_shared = self._rest + tokens, False
        else:
            self._rest += tokens

    def fold(self, capacity: int) -> None:
        """Make the rest part of the past, and forget all but the newest ``capacity`` tokens."""
        whole = self._past + self._rest
        self._past, self._rest, self._rest_is_shared = whole[-capacity:], array("i"), False
        self.start += len(whole) - len(self._past)

    def read(self, first: int, last: int) -> array[int]:
        """Return the tokens from ``first`` to before ``last``, which must be remembered."""
        first, last, past = first - self.start, last - self.start, len(self._past)
        if last <= past:
            return self._past[first:last]
        if first >= past:
            return self._rest[first - past : last - past]
        return self._past[first:] + self._rest[: last - past]

    def last(self, count: int) -> array[int]:
        """Return the newest tokens, at most ``count``."""
        missing = count - len(self._rest)
        return self._rest[-count:] if missing <= 0 else self._past[-missing:] + self._rest

    def at(self, places: Sequence[int], back: int = 0) -> list[int]:
        """Return the token ``back`` before each of these places."""
        past, rest, shift, count = self._past, self._rest, self.start + back, len(self._past)
        return [past[at] if (at := place - shift) < count else rest[at - count] for place in places]

    def fork(self) -> IndexedText:
        """Return a copy that shares the past, and the rest until either of them appends. O(1)."""
        twin = IndexedText()
        twin.start, twin._past, twin._rest = self.start, self._past, self._rest
        twin._rest_is_shared = self._rest_is_shared = True
        return twin


class Found(NamedTuple):
    """The places at which the text may go on as before: the ``newest`` one, and the newest with the most ``frequent`` token.

    ``agreement``: how many tokens, at most REACH, agree before them.
    """

    newest: int
    frequent: int
    agreement: int


class NgramIndex:
    """The n-grams of one growing text.

    A few thousand new tokens are frozen (sorted into arrays) at once; more are frozen by ``builder``, while the newest of them
    can be found already. Without a builder all is frozen at once: for tests, and for short texts. Besides the arrays, the
    dictionaries take up to 2 MB, most of which forks share.
    """

    def __init__(
        self,
        orders: Sequence[int] = ORDERS,
        capacity: int = CAPACITY,
        builder: Executor | None = None,
        batch: int = BATCH,
    ) -> None:
        """``orders``: lengths of the n-grams, ascending, 8 at most. Raises ValueError for a ``capacity`` above MAX_TOKENS."""
        if capacity > MAX_TOKENS:
            raise ValueError(f"capacity {capacity} is more than the {MAX_TOKENS} tokens that are indexed in one piece")
        self._orders = tuple(orders)
        self._capacity = capacity
        self._builder = builder
        self._batch = batch
        self._text = IndexedText()
        self._frozen: list[FrozenGrams] = []
        # Tokens from here on are not frozen: they are in _shared, newest first and immutable, and then in _recent.
        self._loose = 0
        self._shared: tuple[RecentGrams, ...] = ()
        self._recent = RecentGrams(0, b"", self._orders)
        self._pending: Future[FrozenGrams] | None = None

    @property
    def size(self) -> int:
        """The number of tokens ever appended, forgotten ones included."""
        return self._text.end

    @property
    def remembered(self) -> int:
        """The number of tokens that are still held."""
        return self._text.end - self._text.start

    def extend(self, tokens: Sequence[int]) -> None:
        """Append tokens. Raises OverflowError for one that is no 32-bit integer."""
        self._collect()
        new = array("i", tokens)
        self._text.append(new)
        # Freezing is cheaper per token, but repeats some work once a part is frozen already.
        many = self._batch // (8 if self._frozen else 64)
        if len(new) > many or self._text.end - self._loose > self._batch:
            self._freeze()
        else:
            self._recent.extend(new.tobytes())

    def wait_until_indexed(self) -> None:
        """Wait until everything that was appended is frozen or in a dictionary."""
        while self._pending is not None:
            self._take(self._pending)

    def fork(self) -> NgramIndex:
        """Return a copy that shares all but the newest few tokens. O(1).

        If there are more, their dictionary is shared from here on; after SHARED times all is frozen.
        """
        if len(self._recent) > self._batch // COPIED_SHARE:
            self._share()
        twin = NgramIndex(self._orders, self._capacity, self._builder, self._batch)
        twin._text, twin._recent = self._text.fork(), self._recent.fork()
        twin._loose, twin._shared = self._loose, self._shared
        twin._frozen, twin._pending = self._frozen, self._pending
        return twin

    def _share(self) -> None:
        """Make the dictionary immutable, and begin another one."""
        if len(self._shared) < SHARED:
            self._shared = (self._recent, *self._shared)
            self._recent = self._empty()
        else:
            self._freeze()

    def _empty(self) -> RecentGrams:
        """Return a new dictionary for the tokens that will be appended."""
        return RecentGrams(self._text.end, self._text.last(self._orders[-1]).tobytes(), self._orders)

    def tail(self, ahead: Sequence[int] = ()) -> array[int]:
        """Return the last tokens (at most REACH) of the text followed by ``ahead``."""
        tail = self._text.last(REACH)
        return (tail + array("i", ahead))[-REACH:] if ahead else tail

    def newest(self, count: int) -> tuple[int, array[int]]:
        """Return the position of the first of the last ``count`` tokens that are remembered, and these."""
        first = max(self._text.start, self._text.end - count)
        return first, self._text.read(first, self._text.end)

    def find(self, tail: array[int]) -> Found | None:
        """Return where ``tail`` occurred before; None if it did not.

        Of the newest occurrences of its longest known n-gram, those that agree longest are chosen from.
        """
        if self._pending is not None:
            self._collect()
        order, places, last = self._search(tail)
        if not places:
            return None
        if last or places[-1] - REACH < self._text.start:
            agreement, places = self._longest(tail, places)
        else:
            agreement, places = self._longer(tail, places, order)
        return Found(places[0], self._most_frequent(places) if len(places) > 2 else places[0], agreement)

    def _search(self, tail: array[int]) -> tuple[int, list[int], bool]:
        """Return the longest known order, its newest places, and True if these may agree on more than the next order.

        An n-gram that is not known has no longer known one; and where few places are known, longer orders have no others.
        """
        grams, newest_first = tail.tobytes(), tail[::-1]
        known = 0
        places: list[int] = []
        for order in self._orders:
            more = self._places(order, grams, newest_first) if order <= len(tail) else []
            if not more:
                return known, places, False
            known, places = order, more
            if len(places) < CANDIDATES:
                break
        return known, places, True

    def continuation(self, at: int, limit: int, ahead: Sequence[int] = ()) -> list[int]:
        """Return ``limit`` tokens from a place on, in the text followed by ``ahead``.

        A continuation that reaches the end of the text repeats from its own start; one that reaches END stops before it.
        """
        text, end = self._text, self._text.end
        tokens = text.read(at, min(end, at + limit)).tolist()
        tokens += ahead[: limit - len(tokens)]
        period = end + len(ahead) - at
        while len(tokens) < limit:
            tokens.append(tokens[-period])
        return tokens[: tokens.index(END)] if END in tokens else tokens

    def _places(self, order: int, grams: bytes, newest_first: array[int]) -> list[int]:
        gram, before = grams[-WIDTH * order :], self._loose
        places = self._recent.places(gram, CANDIDATES)
        for older in self._shared:
            places += older.places(gram, CANDIDATES - len(places))
        if len(places) < CANDIDATES:
            hashed = sum(map(mul, newest_first[:order], POWERS))
            for part in self._frozen:
                places += part.places(order, hashed, before, CANDIDATES - len(places))
                before = part.start
        oldest = self._text.start + order
        return places if not places or places[-1] >= oldest else [place for place in places if place >= oldest]

    def _longer(self, tail: array[int], places: list[int], order: int) -> tuple[int, list[int]]:
        """Return the longest agreement and its places, comparing token by token: it ends before the next order's length."""
        while order < len(tail):
            wanted = tail[-1 - order]
            before = self._text.at(places, 1 + order)
            if wanted not in before:
                break
            places = [place for place, token in zip(places, before, strict=True) if token == wanted]
            order += 1
        return order, places

    def _longest(self, tail: array[int], places: list[int]) -> tuple[int, list[int]]:
        """Return the longest agreement and its places, comparing whole texts as numbers with the newest token on top."""
        start, read = self._text.start, self._text.read
        # A short tail is filled up with ones, which are no token.
        wanted = (int.from_bytes(tail.tobytes(), "little") + 1 << (_REACH_BITS - 8 * WIDTH * len(tail))) - 1
        best, longest = 0, places
        for place in places:
            before = read(max(start, place - REACH), place)
            number = int.from_bytes(before.tobytes(), "little") << (_REACH_BITS - 8 * WIDTH * len(before))
            same = (_REACH_BITS - (wanted ^ number).bit_length()) // (8 * WIDTH)
            if same > len(before):
                same = len(before)
            if same > best:
                best, longest = same, [place]
            elif same == best:
                longest.append(place)
        return best, longest

    def _most_frequent(self, places: list[int]) -> int:
        """Return the newest place with the most frequent next token. ``places`` are newest first; of equals the newest wins."""
        following = self._text.at(places)
        best, most = following[0], following.count(following[0])
        for token in following:
            if token != best and following.count(token) > most:
                best, most = token, following.count(token)
        return places[following.index(best)]

    def _freeze(self) -> None:
        """Freeze all tokens: the newest at once, the others in the background."""
        self._text.fold(self._capacity)
        start, end = self._unmerged(), self._text.end
        newest = start if self._builder is None else max(start, end - 2 * self._batch)
        self._adopt(FrozenGrams(*self._stretch(newest, end)))
        self._loose, self._shared, self._recent = end, (), self._empty()
        self._complete()

    def _unmerged(self) -> int:
        """Return where the next build starts: after the oldest part, until the tokens after it are an eighth of it."""
        start, end = self._text.start, self._text.end
        if self._frozen and self._frozen[-1].start <= start:
            oldest = self._frozen[-1]
            if 8 * (end - oldest.end) <= oldest.end - oldest.start:
                return oldest.end
        return start

    def _complete(self) -> None:
        """Start building in the background what is not in one part yet."""
        start, end = self._unmerged(), self._loose
        done = start == end or any(part.start <= start and end <= part.end for part in self._frozen)
        if self._pending is None and self._builder is not None and not done:
            self._pending = self._builder.submit(FrozenGrams, *self._stretch(start, end))

    def _stretch(self, start: int, end: int) -> tuple[array[int], int, int, tuple[int, ...]]:
        first = max(self._text.start, start - self._orders[-1])
        return self._text.read(first, end), first, start, self._orders

    def _collect(self) -> None:
        if self._pending is not None and self._pending.done():
            self._take(self._pending)

    def _take(self, pending: Future[FrozenGrams]) -> None:
        self._pending = None
        self._adopt(pending.result())
        self._complete()

    def _adopt(self, part: FrozenGrams) -> None:
        """Add a part in place of those that it covers. Three are kept at most, newest first, so that a lookup stays short."""
        oldest = self._text.start
        kept = [old for old in self._frozen if not (part.start <= max(old.start, oldest) and old.end <= part.end)]
        parts = sorted([*kept, part], key=lambda one: -one.start)
        self._frozen = parts[:1] + parts[1:][-2:]
