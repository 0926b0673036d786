"""Automata of patterns: Thompson's construction, lazy subset construction, products, and back to a regular expression.

Characters are cut into classes that no label tells apart. Look-arounds and edges of words are guards on silent moves. A
look-behind is a second run over everything before it; a look-ahead becomes an obligation, a run over everything behind it
that its way through the pattern carries along: so a state is a set of alternatives, each a conjunction (Chandra, Kozen and
Stockmeyer 1981). The way back is the elimination of states of Brzozowski and McCluskey (1963).

Everything is bounded: what grows too large is refused by NotUnderstood.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from inferd_grammar.rewrites.regex_syntax import (
    ANYTHING,
    WORD,
    Chars,
    NotUnderstood,
    RegexNode,
    a_char,
    intersection,
    subtraction,
    union,
    write,
)

_START, _END, _FOUND = 0, 1, 2
_MAX_NFA = 4_000
_MAX_STATES = 1_500
_MAX_ALTERNATIVES = 400
_MAX_WORK = 120_000
_MAX_ELIMINATED = 300
_MAX_TEXT = 16_000


class _Guard(NamedTuple):
    """A condition of a silent move: an `edge` by its name, or the look-around `number`."""

    kind: str
    number: int = 0
    negated: bool = False


class _Obligation(NamedTuple):
    """A look-ahead on the way: where its pattern stands, and whether that must not be found."""

    number: int
    states: frozenset[int]
    negated: bool


_Alternative = tuple[int, frozenset[_Obligation]]
_Targets = dict[int, list[list[int]]]


class _Place(NamedTuple):
    """Where a text stands, before silent moves: all that the next character's effect depends on."""

    at_start: bool
    behind_word: bool
    behinds: tuple[frozenset[int], ...]
    alternatives: frozenset[_Alternative]


class _Around(NamedTuple):
    """What stands beside a place: nothing, a character of a word, or another one."""

    place: _Place
    at_end: bool
    before_word: bool


@dataclass
class Nfa:
    """One pattern: silent moves, perhaps guarded, and moves on characters. It ends in `_END`, or anywhere behind `_FOUND`."""

    silent: dict[int, list[tuple[_Guard | None, int]]] = field(default_factory=dict)
    moves: dict[int, list[tuple[Chars, int]]] = field(default_factory=dict)
    behinds: list[tuple[int, int]] = field(default_factory=list)
    aheads: list[tuple[int, int]] = field(default_factory=list)
    edges: set[str] = field(default_factory=set)
    size: int = 3
    _indices: dict[tuple[str, int], int] = field(default_factory=dict)
    _kept: tuple[list[Chars], _Targets] | None = None

    @classmethod
    def of(cls, node: RegexNode) -> Nfa:
        nfa = cls()
        for part in node[1] if node[0] == "either" else [node]:
            searches = part[0] == "then" and bool(part[1]) and part[1][-1] is ANYTHING
            nfa._add(("then", part[1][:-1]) if searches else part, _START, _FOUND if searches else _END)
        return nfa

    def labels(self) -> set[Chars]:
        """Return the sets of characters that must be told apart."""
        words = {WORD} if "word" in self.edges else set()
        return {label for moves in self.moves.values() for label, _ in moves} | words

    def targets(self, classes: list[Chars]) -> _Targets:
        """Return where each state's moves lead, by class; kept for whoever asks again with the same classes."""
        if self._kept is None or self._kept[0] != classes:
            found = {
                state: [[end for label, end in moves if intersection(chars, label)] for chars in classes]
                for state, moves in self.moves.items()
            }
            self._kept = (classes, found)
        return self._kept[1]

    def _add(self, node: RegexNode, start: int, end: int) -> None:
        kind, parts = node
        if kind == "chars":
            self.moves.setdefault(start, []).append((parts, end))
        elif kind == "either":
            for part in parts:
                self._add(part, start, end)
        elif kind == "then":
            for part in parts:
                middle = self._new()
                self._add(part, start, middle)
                start = middle
            self._link(start, end)
        elif kind == "upto":
            for _ in range(parts[1]):
                self._link(start, end)
                middle = self._new()
                self._add(parts[0], start, middle)
                start = middle
            self._link(start, end)
        elif kind == "loop":
            inner, behind = self._new(), self._new()
            self._link(start, inner)
            self._add(parts, inner, behind)
            self._link(behind, inner)
            self._link(inner, end)
        else:
            self._link(start, end, self._guard(kind, parts))

    def _guard(self, kind: str, parts: Any) -> _Guard:
        if kind == "edge":
            self.edges.add(parts)
            return _Guard(parts)
        node, negated = parts
        fragments = self.behinds if kind == "behind" else self.aheads
        if (kind, id(node)) not in self._indices:  # copies of a group that is counted share it
            first, last = self._new(), self._new()
            self._indices[kind, id(node)] = len(fragments)
            fragments.append((first, last))
            self._add(node, first, last)
        return _Guard(kind, self._indices[kind, id(node)], negated)

    def _link(self, start: int, end: int, guard: _Guard | None = None) -> None:
        self.silent.setdefault(start, []).append((guard, end))

    def _new(self) -> int:
        self.size += 1
        if self.size > _MAX_NFA:
            raise NotUnderstood("it is too large")
        return self.size - 1


class Dfa:
    """The deterministic automaton of a pattern over classes of characters, made as far as it is walked."""

    def __init__(self, nfa: Nfa, classes: list[Chars], limit: int = _MAX_STATES, work: float = _MAX_WORK) -> None:
        self._nfa, self._limit, self._left = nfa, limit, work
        self._is_word = [bool(intersection(chars, WORD)) for chars in classes]
        self._targets = nfa.targets(classes)
        self._none: list[list[int]] = [[] for _ in classes]
        self._closures: dict[tuple[int, bool], set[_Alternative]] = {}
        behinds = tuple(frozenset([first]) for first, _ in nfa.behinds)
        start = frozenset([(_START, frozenset[_Obligation]())])
        first = _Place("start" in nfa.edges, False, behinds, start)
        self._places, self._numbers = [first], {first: 0}
        self._rows: dict[tuple[int, int], int] = {}
        self._accepting: dict[int, bool] = {}

    def step(self, state: int, letter: int) -> int:
        """Return the state behind one character of a class. Raises NotUnderstood."""
        if (state, letter) not in self._rows:
            self._rows[state, letter] = self._number(self._behind(state, letter))
        return self._rows[state, letter]

    def accepts(self, state: int) -> bool:
        """Return True if the text may end here. Raises NotUnderstood."""
        if state not in self._accepting:
            around = _Around(self._places[state], True, False)
            ends = self._closed(around)
            self._accepting[state] = any(
                at in (_END, _FOUND) and all(self._is_met(one, around) for one in owed) for at, owed in ends
            )
        return self._accepting[state]

    def is_dead(self, state: int) -> bool:
        """Return True if nothing that follows is accepted; not every such state is known."""
        return not self._places[state].alternatives

    def _number(self, place: _Place) -> int:
        if place not in self._numbers:
            if len(self._places) >= self._limit:
                raise NotUnderstood("its automaton is too large")
            self._numbers[place] = len(self._places)
            self._places.append(place)
        return self._numbers[place]

    def _behind(self, state: int, letter: int) -> _Place:
        place = self._places[state]
        around = _Around(place, False, self._is_word[letter])
        closed = self._closures.get((state, around.before_word))
        if closed is None:
            closed = self._closures[state, around.before_word] = self._closed(around)
        found: set[_Alternative] = set()
        for at, owed in closed:
            left = self._owed_behind(owed, around, letter) if owed else owed
            if left is None:
                continue
            if at == _FOUND:
                if not left:
                    return _Place(False, False, (), frozenset([(_FOUND, left)]))
                found.add((_FOUND, left))
            for target in self._targets.get(at, self._none)[letter]:
                found.add((target, left))
        if len(found) > _MAX_ALTERNATIVES:
            raise NotUnderstood("its automaton is too large")
        kept = frozenset(_smallest(found) if self._nfa.aheads else found)
        if not kept:
            return _Place(False, False, (), kept)
        behinds = tuple(
            frozenset(self._moved(self._reached(place.behinds[n], around), letter)) | {first}
            for n, (first, _) in enumerate(self._nfa.behinds)
        )
        return _Place(False, "word" in self._nfa.edges and self._is_word[letter], behinds, kept)

    def _owed_behind(self, owed: frozenset[_Obligation], around: _Around, letter: int) -> frozenset[_Obligation] | None:
        """Return what is still owed behind a character; None if an obligation has failed."""
        left: set[_Obligation] = set()
        for one in owed:
            reached = self._reached(one.states, around)
            found = self._nfa.aheads[one.number][1] in reached
            after = frozenset() if found else frozenset(self._moved(reached, letter))
            if after:
                left.add(one._replace(states=after))
            elif found == one.negated:
                return None
        return frozenset(left)

    def _is_met(self, one: _Obligation, around: _Around) -> bool:
        return (self._nfa.aheads[one.number][1] in self._reached(one.states, around)) != one.negated

    def _moved(self, states: Iterable[int], letter: int) -> set[int]:
        return {end for state in states for end in self._targets.get(state, self._none)[letter]}

    def _closed(self, around: _Around) -> set[_Alternative]:
        """Return the alternatives that silent moves reach."""
        seen = set(around.place.alternatives)
        stack = list(seen)
        while stack:
            state, owed = stack.pop()
            for guard, end in self._nfa.silent.get(state, ()):
                more = owed
                if guard is not None and guard.kind == "ahead":
                    first = frozenset([self._nfa.aheads[guard.number][0]])
                    more = owed | {_Obligation(guard.number, first, guard.negated)}
                elif guard is not None and not self._holds(guard, around):
                    continue
                if (end, more) not in seen:
                    seen.add((end, more))
                    stack.append((end, more))
            if len(seen) > _MAX_ALTERNATIVES * 8:
                raise NotUnderstood("its automaton is too large")
        self._work(len(seen))
        return seen

    def _reached(self, states: Iterable[int], around: _Around) -> frozenset[int]:
        """Return the states of a look-around that silent moves reach."""
        seen = set(states)
        stack = list(seen)
        while stack:
            for guard, end in self._nfa.silent.get(stack.pop(), ()):
                if end not in seen and (guard is None or self._holds(guard, around)):
                    seen.add(end)
                    stack.append(end)
        self._work(len(seen))
        return frozenset(seen)

    def _work(self, looks: int) -> None:
        self._left -= looks
        if self._left < 0:
            raise NotUnderstood("its automaton is too large")

    def _holds(self, guard: _Guard, around: _Around) -> bool:
        if guard.kind == "start":
            return around.place.at_start
        if guard.kind == "end":
            return around.at_end
        if guard.kind == "word":
            return around.place.behind_word != around.before_word
        last = self._nfa.behinds[guard.number][1]
        return (last in self._reached(around.place.behinds[guard.number], around)) != guard.negated


def _smallest(found: set[_Alternative]) -> Iterator[_Alternative]:
    """Yield the alternatives except those that owe more than another one in the same state."""
    by_state: dict[int, list[frozenset[_Obligation]]] = {}
    for state, owed in found:
        by_state.setdefault(state, []).append(owed)
    for state, options in by_state.items():
        yield from ((state, owed) for owed in options if not any(other < owed for other in options))


def classes_of(nfas: Iterable[Nfa], alphabet: Chars) -> list[Chars]:
    """Return the alphabet cut so that no label tells two characters of one class apart."""
    classes = [alphabet] if alphabet else []
    for label in {label for nfa in nfas for label in nfa.labels()}:
        cut = [part for chars in classes for part in (intersection(chars, label), subtraction(chars, label))]
        classes = [chars for chars in cut if chars]
    return classes


@dataclass
class Product:
    """All patterns at once: the moves of each state by class (None: no way on matters), and which patterns are found there."""

    classes: list[Chars]
    moves: list[list[int | None]]
    found: list[tuple[bool, ...]]

    def pattern(self, wanted: Callable[[tuple[bool, ...]], bool]) -> str | None:
        """Return, as a whole pattern without anchors, the texts whose end is wanted; None if there are none.

        Raises NotUnderstood if it grows too large.
        """
        final = [wanted(found) for found in self.found]
        return _eliminate(*_minimise(self, final))

    def shortest(self, wanted: Callable[[tuple[bool, ...]], bool]) -> str | None:
        """Return a shortest text whose end is wanted; None if there is none."""
        texts = {0: ""}
        for state in range(len(self.moves)):  # in the order of their distance
            if wanted(self.found[state]):
                return texts[state]
            for chars, to in zip(self.classes, self.moves[state], strict=True):
                if to is not None and to not in texts:
                    texts[to] = texts[state] + a_char(chars)
        return None

    def is_reached(self, wanted: Callable[[tuple[bool, ...]], bool]) -> bool:
        """Return True if some text's end is wanted."""
        return any(map(wanted, self.found))


def product(
    nodes: list[RegexNode], alphabet: Chars, needed: int = 0, limit: int = _MAX_STATES, work: int = _MAX_WORK
) -> Product:
    """Return the product of patterns. States are left out in which one of the first `needed` cannot be found any more.

    Raises NotUnderstood for what is too large.
    """
    nfas = [Nfa.of(node) for node in nodes]
    classes = classes_of(nfas, alphabet)
    dfas = [Dfa(nfa, classes, limit, work) for nfa in nfas]
    order = [(0,) * len(dfas)]
    result = Product(classes, [], [])
    numbers: dict[tuple[int, ...], int] = {order[0]: 0}
    for states in order:
        row: list[int | None] = []
        for letter in range(len(classes)):
            after = tuple(dfa.step(state, letter) for dfa, state in zip(dfas, states, strict=True))
            if any(dfa.is_dead(state) for dfa, state in zip(dfas[:needed], after, strict=False)):
                row.append(None)
                continue
            if after not in numbers:
                numbers[after] = len(order)
                order.append(after)
                if len(order) > limit:
                    raise NotUnderstood("its automaton is too large")
            row.append(numbers[after])
        result.moves.append(row)
        result.found.append(tuple(dfa.accepts(state) for dfa, state in zip(dfas, states, strict=True)))
    return result


def _minimise(machine: Product, final: list[bool]) -> tuple[list[dict[int, Chars]], set[int]]:
    """Return the moves between states that some text tells apart (Moore's refinement) and lead to an end; 0 is the start."""
    useful = _useful(machine.moves, final)
    if 0 not in useful:
        return [], set()
    block = [int(last) if n in useful else -1 for n, last in enumerate(final)]
    while True:
        rows = [
            (block[n], tuple(-1 if to is None else block[to] for to in row)) if n in useful else None
            for n, row in enumerate(machine.moves)
        ]
        numbers = {row: n for n, row in enumerate(dict.fromkeys(row for row in rows if row is not None))}
        before, block = len(set(block)), [-1 if row is None else numbers[row] for row in rows]
        if len(set(block)) == before:
            break
    moves = [_merged(machine, block, block.index(number)) for number in range(len(numbers))]
    return moves, {block[n] for n, last in enumerate(final) if last}


def _merged(machine: Product, block: list[int], state: int) -> dict[int, Chars]:
    """Return the characters that lead from a state to each block."""
    targets: dict[int, list[Chars]] = {}
    for chars, to in zip(machine.classes, machine.moves[state], strict=True):
        if to is not None and block[to] >= 0:
            targets.setdefault(block[to], []).append(chars)
    return {to: union(sets) for to, sets in targets.items()}


def _useful(moves: list[list[int | None]], final: list[bool]) -> set[int]:
    """Return the states from which an end is reached."""
    before: dict[int, set[int]] = {}
    for state, row in enumerate(moves):
        for to in row:
            if to is not None:
                before.setdefault(to, set()).add(state)
    useful = {state for state, last in enumerate(final) if last}
    stack = list(useful)
    while stack:
        more = before.get(stack.pop(), set()) - useful
        useful |= more
        stack += more
    return useful


def _eliminate(moves: list[dict[int, Chars]], final: set[int]) -> str | None:
    """Return the language of a machine as a regular expression; None if it is empty."""
    start, end = -1, -2
    if len(moves) > _MAX_ELIMINATED:
        raise NotUnderstood("its automaton is too large")
    edges = {(state, target): write(chars) for state, row in enumerate(moves) for target, chars in row.items()}
    edges |= {(start, 0): ""} if moves else {}
    edges |= {(state, end): "" for state in final}
    left = set(range(len(moves)))
    while left:
        state = min(left, key=_weights(edges, left).__getitem__)
        left.remove(state)
        _remove(edges, state)
        if sum(map(len, edges.values())) > _MAX_TEXT * 4:
            raise NotUnderstood("its complement is too large")
    text = edges.get((start, end))
    if text is not None and len(text) > _MAX_TEXT:
        raise NotUnderstood("its complement is too large")
    return text


def _weights(edges: dict[tuple[int, int], str], left: set[int]) -> dict[int, int]:
    """Return for each state how many characters taking it out adds."""
    sums = {state: [0, 0, 0, 0, 0] for state in left}
    for (before, after), text in edges.items():
        if before == after:
            sums[before][4] = len(text)
            continue
        for state, at in ((after, 0), (before, 2)):
            if state in sums:
                sums[state][at] += len(text)
                sums[state][at + 1] += 1
    return {
        state: in_size * outs + out_size * ins + loop * ins * outs
        for state, (in_size, ins, out_size, outs, loop) in sums.items()
    }


def _remove(edges: dict[tuple[int, int], str], state: int) -> None:
    """Take a state out, leading its incoming edges straight to its outgoing ones."""
    again = edges.pop((state, state), None)
    loop = "" if again is None else f"(?:{again})*"
    incoming = [(a, edges.pop((a, b))) for a, b in list(edges) if b == state]
    outgoing = [(b, edges.pop((a, b))) for a, b in list(edges) if a == state]
    for before, first in incoming:
        for after, last in outgoing:
            text = f"{_group(first)}{loop}{_group(last)}"
            old = edges.get((before, after))
            edges[before, after] = text if old is None else f"{old}|{text}"


def _group(text: str) -> str:
    return f"(?:{text})" if "|" in text else text
