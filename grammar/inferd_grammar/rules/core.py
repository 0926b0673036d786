"""`RuledCore`: a library's core, with masks narrowed by rules about the JSON that is written."""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from inferd_grammar.completion.json_place import JsonPlace, Mode
from inferd_grammar.errors import GrammarError, GrammarFailure, RuleBroken
from inferd_grammar.matchers.matcher import AnySplit, Core
from inferd_grammar.rules.items import ItemsPlace, UniqueItems, Written
from inferd_grammar.rules.names import NamesPlace, NameTokens, OpeningTokens, spelt
from inferd_grammar.rules.numbers import DigitMasks, NumberPlace, behind, is_too_large
from inferd_grammar.rules.ways import PartsPlace, PartsRule
from inferd_grammar.tokens import TokenTable, bit_mask
from inferd_grammar.validation import Checked, SchemaValidator

_LOOKS = 2_000
"""What a check of a short text may cost, 8 ms: what schemas in use need is half of it."""
_LOOKS_PER_MASK = 4
_CLOSERS = re.compile(rb"[\]}]")
# Two quotes, what follows an item, or the beginning of a word.
_ENDS_ITEM = re.compile(rb'".*"|[,\]}]|[tfn]', re.DOTALL)
_ENDS_ANOTHER = re.compile(rb',(?:"[^"]*"|[-0-9][^,\]}]*[,\]}]|[tfn\[{])')
"""A comma, and what may be a whole item behind it."""


@dataclass(frozen=True)
class JsonRules:
    """The rules of one constraint.

    Fields:
        digits: the most digits of a number; None where numbers are not looked at.
        skip: bytes of text before the JSON.
        unique: holds arrays whose items have to differ; None where there are none.
        whole: what a whole text has to pass before it may be closed; None where masks hold everything.
        refusal: why the grammar alone does not do; for a constraint of which no end is found.
        names: objects may have names that are not listed, which have to differ; `few` if some may run out of them.
        parts: holds these rules in a text that is made of parts, instead of all others here; None for one that is JSON.
        source: JSON from which `inferd_grammar.rules.make` makes the same rules.
    """

    digits: int | None
    skip: int
    unique: UniqueItems | None
    source: Any
    whole: SchemaValidator | None = None
    refusal: GrammarError | None = None
    names: bool = False
    few: bool = False
    parts: PartsRule | None = None


class TextPlace(NamedTuple):
    """Where a text stands, for each rule. `size`: bytes so far, the prefix included."""

    number: NumberPlace = NumberPlace()
    items: ItemsPlace = ItemsPlace()
    json: JsonPlace = JsonPlace()
    names: NamesPlace = NamesPlace()
    size: int = 0
    parts: PartsPlace = PartsPlace()


class RuleMasks:
    """Masks that the rules need, for one vocabulary. Immutable, shared."""

    def __init__(self, table: TokenTable) -> None:
        self.digits = DigitMasks(table)
        self.names = NameTokens(table)
        in_quotes = [i for i, token in enumerate(table.tokens) if b'"' in token]
        ends_item = [i for i, token in enumerate(table.tokens) if _ENDS_ITEM.search(token)]
        quoted, plain = bit_mask(in_quotes, table.vocab_size), bit_mask(ends_item, table.vocab_size)
        self._ending: dict[Mode, NDArray[np.int32]] = {"name": quoted, "string": quoted}
        self._plain = plain
        closers = [len(_CLOSERS.findall(token)) for token in table.tokens]
        self.most_closed = max(closers, default=1)
        """How many brackets one token may close."""
        self._closing = [
            bit_mask([i for i, count in enumerate(closers) if count >= depth], table.vocab_size)
            for depth in range(self.most_closed + 1)
        ]
        another = [i for i, token in enumerate(table.tokens) if _ENDS_ANOTHER.search(token)]
        self._another = bit_mask(another, table.vocab_size)
        self.opening = OpeningTokens(table, (i for i in another if b"[" in table.tokens[i]))
        """Those that may complete equal items of an array which they open themselves."""

    def ending(self, mode: Mode) -> NDArray[np.int32]:
        """Return the tokens that may complete an item where JSON is in that mode."""
        return self._ending.get(mode, self._plain)

    def ending_two(self, mode: Mode) -> NDArray[np.int32]:
        """Return those that may complete another one behind it."""
        return np.bitwise_and(self.ending(mode), self._another)

    def closing(self, mode: Mode, depth: int) -> NDArray[np.int32]:
        """Return the tokens that may complete a text with so many open brackets, at most `most_closed`."""
        return np.bitwise_and(self.ending(mode), self._closing[depth])


class RuledCore:
    """`Core` around another one, which knows nothing of the rules. `AnySplit` if that one is."""

    def __init__(
        self, inner: Core, table: TokenTable, rules: JsonRules, masks: RuleMasks, places: Sequence[TextPlace] = ()
    ) -> None:
        self._inner = inner
        self._table = table
        self._rules = rules
        self._masks = masks
        self._places = list(places) or [TextPlace(parts=PartsPlace() if rules.parts is None else rules.parts.start)]
        self._written = table.splitter_for(inner.named).written
        self._text = bytearray()
        self._keeps_text = (rules.unique or rules.whole or rules.parts) is not None
        self.checked: tuple[Checked, ...] = inner.checked
        self.named = inner.named

    @cached_property
    def recipe(self) -> str | None:
        """The inner core's, and the rules'."""
        inner = self._inner.recipe
        return None if inner is None else json.dumps({"inner": inner, "rules": self._rules.source})

    @property
    def may_meet_dead_ends(self) -> bool:
        """True if masks may lead to where nothing can follow: all items of an array may be used up."""
        return self._rules.unique is not None or self._rules.whole is not None or self._rules.few

    @property
    def guarded(self) -> tuple[Any, Callable[[Any], bool]] | None:
        """The schema, and what says that a value is valid under it; None where masks hold everything."""
        whole, schema = self._rules.whole, self._rules.source["schema"]
        return None if whole is None else (schema, lambda value: whole.holds(schema, value, _LOOKS))

    @property
    def cost(self) -> int:
        """Masks' worth of work that rules have done so far, in this matcher and others of its constraint."""
        return 0 if self._rules.whole is None else self._rules.whole.spent // _LOOKS_PER_MASK

    @property
    def refusal(self) -> GrammarError | None:
        """Why the constraint is refused unless an end of it is found."""
        return self._rules.refusal

    def fill(self, row: NDArray[np.int32], address: int) -> None:
        self._inner.fill(row, address)
        place = self._places[-1]
        for number, digits in self._numbers(place):
            self._end_number(row, number, digits)
        if self._rules.names:
            self._forbid_each(row, self._closing_names(place))
        for mode in self._watched(place):
            self._forbid_items(row, place, mode)
        if (self._rules.unique or self._rules.parts) is not None:
            self._forbid_each(row, self._opening(place, self._masks.opening))
        if self._rules.whole is not None and place.json.depth <= self._masks.most_closed:
            self._forbid(row, self._masks.closing(place.json.mode, place.json.depth))

    def push(self, token: int) -> None:
        place = self._behind(token)
        if place is None:
            raise GrammarFailure(f"token {token} breaks a rule that its mask holds")
        self._inner.push(token)
        self._enter(place, token)

    def consume(self, tokens: Sequence[int]) -> int:
        """Take tokens in any split, up to the first one that the grammar or a rule refuses."""
        taken = cast(AnySplit, self._inner).consume(tokens)  # asking for the protocol would take as long as that
        for count, token in enumerate(tokens[:taken]):
            place = self._behind(token)
            if place is None:
                self._inner.pop(taken - count)
                return count
            self._enter(place, token)
        return taken

    def pop(self, count: int) -> None:
        self._inner.pop(count)
        del self._places[-count:]
        del self._text[max(0, self._places[-1].size - self._rules.skip) :]

    def may_end(self) -> bool:
        return self._inner.may_end() and self._may_close(b"")

    def forced(self, most: int) -> bytes:
        """Return what the grammar forces, up to where a rule forbids it."""
        forced = self._inner.forced(most)
        if self._unbroken(forced):
            return forced
        return forced[: bisect_left(range(len(forced)), True, key=lambda size: not self._unbroken(forced[: size + 1]))]

    def forced_tokens(self) -> list[int]:
        """Return the grammar's; none inside arrays that rules watch."""
        tokens = [] if self._watched(self._places[-1]) else self._inner.forced_tokens()
        return tokens if self._unbroken(b"".join(map(self._written, tokens))) else []

    def _unbroken(self, text: bytes) -> bool:
        """Return True if forced text goes on without a rule broken, one about the end of the text aside."""
        place, rules = self._places[-1], self._rules
        try:
            if rules.parts is not None:
                rules.parts.behind(place.parts, Written(self._text, text))
                return True
            if rules.unique is not None and place.items.watched:
                rules.unique.behind(place.items, Written(self._text, text))
            if rules.names:
                place.names.behind(text)
        except RuleBroken:
            return False
        return True

    def copy(self) -> RuledCore:
        copy = RuledCore(self._inner.copy(), self._table, self._rules, self._masks, self._places)
        copy._text = bytearray(self._text)
        return copy

    def _enter(self, place: TextPlace, token: int) -> None:
        self._places.append(place)
        if self._keeps_text:
            self._text += self._json_of(self._places[-2], token)

    def _behind(self, token: int) -> TextPlace | None:
        """Return the place behind a token; None if a rule forbids it."""
        place, written = self._places[-1], self._written(token)
        text = written[max(0, self._rules.skip - place.size) :]
        try:
            return self._behind_text(place, text, place.size + len(written))
        except RuleBroken:
            return None

    def _behind_text(self, place: TextPlace, text: bytes, size: int) -> TextPlace | None:
        rules = self._rules
        if rules.parts is not None:
            return TextPlace(size=size, parts=rules.parts.behind(place.parts, Written(self._text, text)))
        if is_too_large(place.number, text):
            return None
        items = place.items if rules.unique is None else rules.unique.behind(place.items, Written(self._text, text))
        names = place.names.behind(text) if rules.names else place.names
        json = place.json if rules.whole is None else place.json.behind(text)
        if json.depth == 0 and json.mode == "done" and not self._may_close(text):
            return None
        number = place.number if rules.digits is None else behind(place.number, text)
        return TextPlace(number, items, json, names, size)

    def _may_close(self, text: bytes) -> bool:
        """Return True if the whole text behind `text` is valid."""
        whole, written = self._rules.whole, self._text + text
        return whole is None or whole.problem(written.decode("utf-8", "replace"), _LOOKS) is None

    def _json_of(self, place: TextPlace, token: int) -> bytes:
        """Return what a token adds to the JSON, which begins behind a prefix."""
        return self._written(token)[max(0, self._rules.skip - place.size) :]

    def _numbers(self, place: TextPlace) -> Iterable[tuple[NumberPlace, int | None]]:
        """Return the numbers that the text may stand in, and how many digits each may have."""
        if self._rules.parts is not None:
            return place.parts.numbers
        return ((place.number, self._rules.digits),) if place.number.in_number else ()

    def _watched(self, place: TextPlace) -> Iterable[Mode]:
        return (place.items if self._rules.parts is None else place.parts).watched

    def _end_number(self, row: NDArray[np.int32], number: NumberPlace, digits: int | None) -> None:
        """Keep a number within its digits, where it may end."""
        masks = self._masks.digits
        if number.exponent >= 0 and not number.shrinking:
            np.bitwise_and(row, ~masks.too_large(number), out=row)
        within = None if digits is None else masks.within(number, digits)
        if within is not None and (self._inner.may_end() or np.bitwise_and(row, masks.ends(number)).any()):
            np.bitwise_and(row, within, out=row)

    def _closing_names(self, place: TextPlace) -> Iterator[int]:
        """Yield the tokens that may close a name which its object has already, and perhaps others."""
        closing = self._masks.names.closing
        if self._rules.parts is None:
            return closing(place.names)
        return chain(self._opening(place, self._masks.names.opening), *map(closing, place.parts.names))

    def _opening(self, place: TextPlace, tokens: OpeningTokens) -> Iterable[int]:
        """Return the tokens that may break a rule in what they open themselves: outside of values, those that begin one."""
        ends = None if self._rules.parts is None else place.parts.ends
        return tokens.ids if ends is None else tokens.behind(ends)

    def _forbid_items(self, row: NDArray[np.int32], place: TextPlace, mode: Mode) -> None:
        """Mask the tokens that complete an item which is there already."""
        strings = place.items.strings if self._rules.parts is None else None
        if strings is None:
            self._forbid(row, self._masks.ending(mode))
            return
        self._forbid(row, self._masks.ending_two(mode))
        if strings:
            begun = bytes(self._text[place.items.start + 1 :])
            self._forbid_each(row, self._masks.names.ending(begun, map(spelt, strings)))

    def _forbid(self, row: NDArray[np.int32], among: NDArray[np.int32]) -> None:
        """Mask those of the tokens ``among`` that break a rule."""
        closing = np.bitwise_and(row, among)
        words = np.flatnonzero(closing)
        bits = np.unpackbits(closing[words].view(np.uint8), bitorder="little").reshape(len(words), 32)
        self._forbid_each(row, (int(words[word]) * 32 + int(bit) for word, bit in zip(*np.nonzero(bits), strict=True)))

    def _forbid_each(self, row: NDArray[np.int32], tokens: Iterable[int]) -> None:
        """Mask those of the ``tokens`` that break a rule."""
        for token in tokens:
            if row[token >> 5] >> (token & 31) & 1 and self._behind(token) is None:
                row.view(np.uint32)[token >> 5] &= ~np.uint32(1 << (token & 31))
