"""The complement of `pattern`, as another pattern: parse, determinise, swap the ends, and back by state elimination.

Thompson's construction, the subset construction and the elimination of Brzozowski and McCluskey (1963), over classes of
characters. Understood are literals, classes, groups, alternation, counts, and anchors at the ends of the whole pattern.
Anything else is refused, and so is what grows too large.

Narrower: where dialects of regular expressions differ on characters (what `.`, `$`, `\\w`, `\\d`, `\\s` mean for line
ends and beyond ASCII), texts with such characters are left out of the complement.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from inferd_grammar.rewrites.base import CannotRewrite, Schema, View
from inferd_grammar.rewrites.regex_syntax import (
    EVERYTHING,
    Chars,
    NotUnderstood,
    RegexNode,
    intersection,
    parse,
    subtraction,
    union,
    write,
)

LOOK_AHEADS = ("^(?!", "^(?=")
"""What a pattern begins with that has look-aheads of its whole text."""
_MAX_STATES = 96
_MAX_TEXT = 12_000
_MAX_PATTERNS = 4


def positive(view: View) -> tuple[View, list[Schema]]:
    """Return the view without the look-aheads that its pattern begins with, and patterns that hold as they do.

    Raises CannotRewrite for one that has no complement.
    """
    pattern, ahead = split_look_aheads(view.words.get("pattern", ""))
    if not ahead:
        return view, []
    try:
        found = [complement(wanted) if negated else wanted for negated, wanted in ahead]
    except NotUnderstood as error:
        raise CannotRewrite(f"this look-ahead is not supported: {error}", view.at("pattern")) from error
    return replace(view, words={**view.words, "pattern": pattern}), [{"pattern": each} for each in found]


def split_look_aheads(pattern: str) -> tuple[str, list[tuple[bool, str]]]:
    """Return a pattern without the look-aheads behind the anchor that it begins with, and these: if negated, and what for."""
    at, found = 1, list[tuple[bool, str]]()
    while pattern.startswith(LOOK_AHEADS) and pattern.startswith(("(?!", "(?="), at):
        end = next((n for n, char, depth in _structure(pattern[at:]) if char == ")" and depth == 0), None)
        if end is None:
            return pattern, []
        inside = pattern[at + 3 : at + end].removeprefix("^")
        found.append((pattern[at + 2] == "!", f"^(?:{inside})" if _is_union(inside) else f"^{inside}"))
        at += end + 1
    return (pattern, []) if _is_union(pattern[at:]) else (f"{pattern[:1]}{pattern[at:]}", found)


def _is_union(pattern: str) -> bool:
    return any(char == "|" and depth == 0 for _, char, depth in _structure(pattern))


def _structure(pattern: str) -> Iterator[tuple[int, str, int]]:
    """Yield the characters outside of classes and escapes with their places, and how deep in groups they leave it."""
    depth, in_class, escaped = 0, False, False
    for at, char in enumerate(pattern):
        if escaped or char == "\\":
            escaped = not escaped
        elif in_class:
            in_class = char != "]"
        elif char == "[":
            in_class = True
        else:
            depth += (char == "(") - (char == ")")
            yield at, char, depth


def negative(view: View) -> list[Schema]:
    """Return schemas of strings that do not match. Raises CannotRewrite."""
    try:
        return [{"type": "string", "pattern": complement(view.words["pattern"])}]
    except NotUnderstood as error:
        raise CannotRewrite(f"the complement of this pattern is not supported: {error}", view.at("pattern")) from error


def complement(pattern: str) -> str:
    """Return a pattern, anchored, that matches what `pattern` finds nothing in. Raises NotUnderstood."""
    node, doubtful = parse(pattern)
    machine = _determinise(_Nfa.of(node), subtraction(EVERYTHING, doubtful))
    text = _eliminate(machine)
    return f"^(?:{text})$" if text is not None else "^[^\\s\\S]$"


def regions(patterns: list[str]) -> list[tuple[str, list[int]]]:
    """Return all strings that some pattern is found in, cut into disjoint patterns, each with the indices of those found there.

    Strings with characters on which dialects differ make a region of their own, without indices. Raises NotUnderstood.
    """
    if len(patterns) > _MAX_PATTERNS:
        raise NotUnderstood("too many patterns")
    parsed = [parse(pattern) for pattern in patterns]
    doubtful = union([chars for _, chars in parsed])
    nfa = _Nfa.of_several([node for node, _ in parsed])
    moves, order = _subsets(nfa, subtraction(EVERYTHING, doubtful))
    found: dict[tuple[int, ...], set[int]] = {}
    for number, states in enumerate(order):
        members = tuple(n for n in range(len(patterns)) if -1 - n in states)
        found.setdefault(members, set()).add(number)
    areas = [(f"^(?:{_eliminate(_Machine(moves, final))})$", list(m)) for m, final in found.items() if m]
    return areas + ([(write(doubtful), [])] if doubtful else [])


def finds(pattern: str, text: str) -> bool:
    """Return True if a pattern is found in a text, in time linear in both. Raises NotUnderstood."""
    node, doubtful = parse(pattern)
    if any(low <= ord(char) <= high for char in text for low, high in doubtful):
        raise NotUnderstood("dialects differ on this text")
    nfa = _Nfa.of(node)
    states = nfa.closure([0])
    for char in text:
        code = ord(char)
        states = nfa.closure(
            {end for s in states for label, end in nfa.moves.get(s, ()) if any(a <= code <= b for a, b in label)}
        )
    return 1 in states


@dataclass
class _Nfa:
    """States 0 (start) and 1 (end), silent moves and moves on characters."""

    silent: dict[int, list[int]] = field(default_factory=dict)
    moves: dict[int, list[tuple[Chars, int]]] = field(default_factory=dict)
    size: int = 2

    @classmethod
    def of(cls, node: RegexNode) -> _Nfa:
        nfa = cls()
        nfa._add(node, 0, 1)
        return nfa

    @classmethod
    def of_several(cls, nodes: list[RegexNode]) -> _Nfa:
        """Return one machine with one start for all; pattern n ends in state -1 - n."""
        nfa = cls()
        for n, node in enumerate(nodes):
            nfa._add(node, 0, -1 - n)
        return nfa

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
            self.silent.setdefault(start, []).append(end)
        else:
            self._loop(parts, start, end)

    def _loop(self, part: RegexNode, start: int, end: int) -> None:
        inner, behind = self._new(), self._new()
        self.silent.setdefault(start, []).append(inner)
        self._add(part, inner, behind)
        self.silent.setdefault(behind, []).append(inner)
        self.silent.setdefault(inner, []).append(end)

    def _new(self) -> int:
        self.size += 1
        if self.size > 4_000:
            raise NotUnderstood("it is too large")
        return self.size - 1

    def closure(self, states: Iterable[int]) -> frozenset[int]:
        """Return the states that silent moves reach."""
        seen, stack = set(states), list(states)
        while stack:
            for state in self.silent.get(stack.pop(), ()):
                if state not in seen:
                    seen.add(state)
                    stack.append(state)
        return frozenset(seen)


@dataclass
class _Machine:
    """Deterministic and complete over its alphabet; `final` are the ends of the complement."""

    moves: list[dict[int, Chars]]
    final: set[int]


def _determinise(nfa: _Nfa, alphabet: Chars) -> _Machine:
    moves, order = _subsets(nfa, alphabet)
    return _Machine(moves, {number for number, states in enumerate(order) if 1 not in states})


def _subsets(nfa: _Nfa, alphabet: Chars) -> tuple[list[dict[int, Chars]], list[frozenset[int]]]:
    """Return the moves of a deterministic machine, and the states of `nfa` that each of its states stands for."""
    classes = _classes(nfa, alphabet)
    first = nfa.closure([0])
    numbers, order, moves = {first: 0}, [first], list[dict[int, Chars]]()
    while len(moves) < len(order):
        states = order[len(moves)]
        row: dict[int, Chars] = {}
        for chars in classes:
            after = nfa.closure(
                {end for s in states for label, end in nfa.moves.get(s, ()) if intersection(label, chars)}
            )
            if after not in numbers:
                numbers[after] = len(order)
                order.append(after)
                if len(order) > _MAX_STATES:
                    raise NotUnderstood("its automaton is too large")
            target = numbers[after]
            row[target] = union([row.get(target, ()), chars])
        moves.append(row)
    return moves, order


def _classes(nfa: _Nfa, alphabet: Chars) -> list[Chars]:
    """Return the alphabet cut so that no label tells two characters of one class apart."""
    classes = [alphabet]
    for label in {label for moves in nfa.moves.values() for label, _ in moves}:
        cut = [part for chars in classes for part in (intersection(chars, label), subtraction(chars, label))]
        classes = [chars for chars in cut if chars]
    return classes


def _minimise(machine: _Machine) -> _Machine:
    """Return the machine with states merged that no text tells apart (Moore's refinement); state 0 stays the start."""
    size = len(machine.moves)
    block = [int(state in machine.final) for state in range(size)]
    while True:
        rows = [(block[state], _row(machine.moves[state], block)) for state in range(size)]
        numbers = {row: n for n, row in enumerate(dict.fromkeys(rows))}
        before, block = len(set(block)), [numbers[row] for row in rows]
        if len(numbers) == before:
            break
    moves = [dict(_row(machine.moves[block.index(n)], block)) for n in range(len(numbers))]
    return _Machine(moves, {block[state] for state in machine.final})


def _row(moves: dict[int, Chars], block: list[int]) -> tuple[tuple[int, Chars], ...]:
    merged: dict[int, list[Chars]] = {}
    for target, chars in moves.items():
        merged.setdefault(block[target], []).append(chars)
    return tuple(sorted((target, union(sets)) for target, sets in merged.items()))


def _eliminate(machine: _Machine) -> str | None:
    """Return the language of a machine as a regular expression; None if it is empty."""
    start, end = -1, -2
    machine = _minimise(machine)
    edges: dict[tuple[int, int], str] = {
        (state, target): write(chars) for state, row in enumerate(machine.moves) for target, chars in row.items()
    }
    edges[start, 0] = ""
    edges |= {(state, end): "" for state in machine.final}
    left = set(range(len(machine.moves)))
    while left:
        state = min(left, key=lambda s: _weight(edges, s))
        left.remove(state)
        _remove(edges, state)
        if sum(map(len, edges.values())) > _MAX_TEXT * 4:
            raise NotUnderstood("its complement is too large")
    text = edges.get((start, end))
    if text is not None and len(text) > _MAX_TEXT:
        raise NotUnderstood("its complement is too large")
    return text


def _weight(edges: dict[tuple[int, int], str], state: int) -> int:
    """Return how many characters taking a state out adds."""
    incoming = [len(text) for (a, b), text in edges.items() if b == state != a]
    outgoing = [len(text) for (a, b), text in edges.items() if a == state != b]
    loop = len(edges.get((state, state), ""))
    return sum(incoming) * len(outgoing) + sum(outgoing) * len(incoming) + loop * len(incoming) * len(outgoing)


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
