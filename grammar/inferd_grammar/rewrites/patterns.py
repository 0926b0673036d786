"""Patterns by automata: complements, differences, regions, and look-arounds as plain patterns.

Understood are literals, classes, groups, flags for case and line ends, alternation, counts, anchors, edges of words,
look-behinds, and look-aheads outside of other look-arounds. Anything else is refused, and so is what grows too large.

Narrower: where dialects of regular expressions differ on characters (what `.`, `$`, `\\w`, `\\d`, `\\s`, `\\b` mean for line
ends and beyond ASCII), texts with such characters are left out of the result.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from math import inf

from inferd_grammar.memo import memoised
from inferd_grammar.rewrites.automata import Dfa, Nfa, classes_of, product
from inferd_grammar.rewrites.base import CannotRewrite, Schema, View
from inferd_grammar.rewrites.ends import consuming
from inferd_grammar.rewrites.regex_syntax import (
    EVERYTHING,
    Chars,
    NotUnderstood,
    RegexNode,
    has_flags,
    intersection,
    lengths,
    parse,
    shortest_text,
    subtraction,
    union,
    with_loop,
    without_counts,
    write,
    write_node,
)
from inferd_grammar.rewrites.strings import length_between, one_of
from inferd_grammar.rewrites.word_edges import is_outer, without_edges

NOTHING = r"^[^\s\S]$"
"""A pattern that no text matches."""
_LOOK_AHEADS = ("^(?!", "^(?=")
_MAX_PATTERNS = 4
_MAX_PROOF, _MAX_PROOF_WORK = 200, 12_000
_MAX_LENGTH = 1_000
_MAX_WRITTEN = 16_000
_MAX_LOOPS = 4
_ANY: RegexNode = ("chars", EVERYTHING)
_NOT_SPARED = subtraction(EVERYTHING, ((1, 1),))
"""All characters but that which classes of the library spare: see `regex_dialect`."""
_Searcher = tuple[Nfa, list[Chars], Chars]
_TOKEN = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\\\]])*+\]?|\(\?<?[=!]|.", re.DOTALL)
_LOOKS = ("(?=", "(?!", "(?<=", "(?<!", r"\b")


def looks_around(pattern: str) -> bool:
    """Return True if a pattern has look-arounds, edges of words or anchors inside, which the library does not read."""
    tokens = [token[0] for token in _TOKEN.finditer(pattern)]
    if any(token in _LOOKS for token in tokens):
        return True
    return ("^" in tokens[1:] or "$" in tokens[:-1]) and _is_anchored_inside(pattern)


@memoised(4_096)
def _is_anchored_inside(pattern: str) -> bool:
    try:
        return not is_outer(parse(pattern)[0])
    except NotUnderstood:
        return False  # the library's to read


def positive(view: View) -> tuple[View, list[Schema]]:
    """Return the view without the look-arounds of its pattern, and patterns that hold as they do.

    Raises CannotRewrite for one that is not understood, or too large.
    """
    if not looks_around(view.words.get("pattern", "")):
        return view, []
    try:
        pattern, *others = without_looks(view.words["pattern"])
    except NotUnderstood as error:
        raise CannotRewrite(f"this look-around is not supported: {error}", view.at("pattern")) from error
    return replace(view, words={**view.words, "pattern": pattern}), [{"pattern": each} for each in others]


def without_looks(pattern: str) -> list[str]:
    """Return patterns without look-arounds that hold together where this one does. Raises NotUnderstood."""
    return [
        text
        for negated, part in _parts(pattern)
        for text in ([_complement(part)] if negated else _plain(consuming(part)) if looks_around(part) else [part])
    ]


def _parts(pattern: str) -> list[tuple[bool, str]]:
    """Return patterns that hold together where this one does, those that must not be found marked by True."""
    rest, ahead = split_look_aheads(pattern)
    rest, behind = _split_look_behind(rest)
    return [(False, rest), *ahead, *behind]


def split_look_aheads(pattern: str) -> tuple[str, list[tuple[bool, str]]]:
    """Return a pattern without the look-aheads behind the anchor that it begins with, and these: if negated, and what for."""
    at, found = 1, list[tuple[bool, str]]()
    while pattern.startswith(_LOOK_AHEADS) and pattern.startswith(("(?!", "(?="), at):
        end = next((n for n, char, depth in _structure(pattern[at:]) if char == ")" and depth == 0), None)
        if end is None:
            return pattern, []
        inside = pattern[at + 3 : at + end].removeprefix("^")
        found.append((pattern[at + 2] == "!", f"^(?:{inside})" if _is_union(inside) else f"^{inside}"))
        at += end + 1
    return (pattern, []) if _is_union(pattern[at:]) else (f"{pattern[:1]}{pattern[at:]}", found)


def _split_look_behind(pattern: str) -> tuple[str, list[tuple[bool, str]]]:
    """Return a pattern without the look-behind in front of the anchor at its end, and this: if negated, and what for."""
    opened = [at for at, char, depth in _structure(pattern) if (char, depth) == ("(", 1)]
    start = opened[-1] if opened else 0
    inside = pattern[start + 4 : -2]
    if not pattern[start:].startswith(("(?<!", "(?<=")) or not pattern.endswith(")$") or _is_union(pattern):
        return pattern, []
    closed = [at for at, char, depth in _structure(pattern) if (char, depth) == (")", 0) and at > start]
    if closed != [len(pattern) - 2] or looks_around(inside) or has_flags(pattern):
        return pattern, []
    return f"{pattern[:start]}$", [(pattern[start + 3] == "!", f"(?:{inside})$")]


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
    return _union([difference([part], []) if negated else _complement(part) for negated, part in _parts(pattern)])


def _union(patterns: list[str]) -> str:
    """Return one pattern for several of whole texts."""
    return patterns[0] if len(patterns) == 1 else f"^(?:{'|'.join(pattern[1:-1] for pattern in patterns)})$"


def plain(pattern: str) -> str:
    """Return the pattern as it is, or one for whole texts that says the same without look-arounds. Raises NotUnderstood."""
    if not looks_around(pattern):
        return pattern
    try:
        (node,), alphabet = _parsed([pattern], edges=False)
        return f"^(?:{_written(without_edges(node), alphabet)})$"
    except NotUnderstood:
        return difference([pattern], [])


@memoised(512)
def shortest_match(pattern: str) -> str:
    """Return a shortest text in which the pattern is found. Raises NotUnderstood."""
    (node,), alphabet = _parsed([pattern])
    try:
        return shortest_text(without_edges(node))
    except NotUnderstood:
        text = product([node], alphabet, 1).shortest(all)
    if text is None:
        raise NotUnderstood("no text matches it")
    return text


def _written(node: RegexNode, alphabet: Chars) -> str:
    text = write_node(node, alphabet)
    if len(text) > _MAX_WRITTEN:
        raise NotUnderstood("it is too large")
    return text


def _plain(pattern: str) -> list[str]:
    try:
        return [plain(pattern)]
    except NotUnderstood as error:
        node, alphabet, least, most = _without_counts(pattern, error)
        return [_text([node], alphabet, 1), length_between(least, most)]


def _complement(pattern: str) -> str:
    try:
        return difference([], [pattern])
    except NotUnderstood as error:
        node, alphabet, least, most = _without_counts(pattern, error)
        shorter = [length_between(0, least - 1)] if least else []
        return _union([_text([node], alphabet, 0), *shorter, length_between(most + 1, None)])


def _without_counts(pattern: str, error: NotUnderstood) -> tuple[RegexNode, Chars, int, int]:
    """Return a pattern that says the same together with a length: counts make an automaton large, and often say no more.

    Raises the error where they do.
    """
    (node,), alphabet = _parsed([pattern])
    least, most = lengths(node)
    if most is None or most > _MAX_LENGTH:
        raise error
    other = without_counts(node)
    if product([node, other, _within(least, most)], alphabet).is_reached(_differs):
        raise error
    return other, alphabet, least, most


def with_length(pattern: str, least: int, most: int) -> str:
    """Return a pattern of the texts of so many characters in which one is found: one of its loops ends earlier.

    An automaton of both would have a state for each length. Raises NotUnderstood where no one loop does it.
    """
    (node,), alphabet = _parsed([plain(pattern)])
    for index in range(_MAX_LOOPS):
        without = with_loop(node, index, 0, 0)
        shortest, longest = lengths(without)
        if without == node or longest is None or not longest < most <= _MAX_LENGTH:
            continue
        ended = with_loop(node, index, max(least - shortest, 0), most - longest)
        if not product([ended, node, _within(least, most)], alphabet).is_reached(_differs):
            return f"^(?:{write_node(ended, alphabet)})$"
    raise NotUnderstood("its automaton is too large")


def _within(least: int, most: int) -> RegexNode:
    return "then", [*([_ANY] * least), ("upto", (_ANY, most - least))]


def _differs(found: tuple[bool, ...]) -> bool:
    return found[0] != (found[1] and found[2])


def difference(patterns: list[str], without: list[str]) -> str:
    """Return a pattern, anchored, of the texts in which all of `patterns` and none of `without` are found.

    Raises NotUnderstood.
    """
    found = _difference(tuple(patterns), tuple(without))
    if isinstance(found, NotUnderstood):
        raise NotUnderstood(str(found))
    return found


@memoised(512)
def _difference(patterns: tuple[str, ...], without: tuple[str, ...]) -> str | NotUnderstood:
    """Return `difference`, or why there is none: a schema is rewritten several times where no grammar holds all of it."""
    try:
        nodes, alphabet = _parsed([*patterns, *without])
        return _text(nodes, alphabet, len(patterns))
    except NotUnderstood as error:
        return error


def where(patterns: list[str], wanted: Callable[[tuple[bool, ...]], bool]) -> str:
    """Return a pattern, anchored, of the texts for which is `wanted` which of the patterns are found in them.

    Raises NotUnderstood.
    """
    nodes, alphabet = _parsed(patterns)
    text = product(nodes, alphabet).pattern(wanted)
    return NOTHING if text is None else f"^(?:{text})$"


def _text(nodes: list[RegexNode], alphabet: Chars, needed: int) -> str:
    """Return a pattern of the texts in which the first `needed` nodes are found, and no others."""
    wanted = tuple(n < needed for n in range(len(nodes)))
    text = product(nodes, alphabet, needed).pattern(wanted.__eq__)
    return NOTHING if text is None else f"^(?:{text})$"


@memoised(4_096)
def are_apart(patterns: tuple[str, ...]) -> bool:
    """Return True if it is proved that no text has all of the patterns in it; texts on which dialects differ count, too."""
    try:
        nodes = [parse(pattern, wide=True)[0] for pattern in patterns]
        return not product(nodes, EVERYTHING, len(nodes), _MAX_PROOF, _MAX_PROOF_WORK).is_reached(all)
    except NotUnderstood:
        return False


def regions(patterns: list[str]) -> list[tuple[str, list[int]]]:
    """Return all strings that some pattern is found in, cut into disjoint patterns, each with the indices of those found there.

    Those with characters on which dialects differ (see `in_doubt`), or with U+0001, are left out. Raises NotUnderstood.
    """
    if len(patterns) > _MAX_PATTERNS:
        raise NotUnderstood("too many patterns")
    nodes, alphabet = _parsed(patterns)
    machine = product(nodes, intersection(alphabet, _NOT_SPARED))
    return [
        (f"^(?:{machine.pattern(members.__eq__)})$", [n for n, found in enumerate(members) if found])
        for members in dict.fromkeys(machine.found)
        if any(members)
    ]


def in_doubt(patterns: list[str], listed: Iterable[str] = ()) -> str | None:
    """Return a pattern of the strings that hold a character on which dialects differ about the patterns, and in which one may
    find one of these (counts are passed over), without those of `listed`. None without such characters. Raises NotUnderstood.
    """
    _, alphabet = _parsed(patterns)
    doubtful = subtraction(EVERYTHING, alphabet)
    if not doubtful:
        return None
    nodes = [parse(one_of(listed))[0], parse(write(doubtful))[0]]
    try:
        wide = [without_counts(parse(pattern, wide=True)[0]) for pattern in patterns]
        text = product([*nodes, *wide], _NOT_SPARED).pattern(
            lambda found: found[:2] == (False, True) and any(found[2:])
        )
    except NotUnderstood:
        text = product(nodes, _NOT_SPARED).pattern((False, True).__eq__)
    return NOTHING if text is None else f"^(?:{text})$"


def narrowed(patterns: list[str]) -> list[str]:
    """Return patterns without look-arounds, in none of which is a string that holds a character on which dialects differ about
    one of them, or U+0001. Raises NotUnderstood.
    """
    nodes, alphabet = _parsed(patterns)
    alphabet = intersection(alphabet, _NOT_SPARED)
    return [f"^(?:{_written(without_edges(node), alphabet)})$" for node in nodes]


def _parsed(patterns: list[str], *, edges: bool = True) -> tuple[list[RegexNode], Chars]:
    """Return patterns as nodes, and the characters on which no dialects differ about them; `edges` as in :func:`parse`.

    Raises NotUnderstood.
    """
    parsed = [parse(pattern, edges=edges) for pattern in patterns]
    return [node for node, _ in parsed], subtraction(EVERYTHING, union([chars for _, chars in parsed]))


def finds(pattern: str, text: str) -> bool:
    """Return True if a pattern is found in a text, in time linear in both. Raises NotUnderstood."""
    searcher = _searcher(pattern, False)
    if isinstance(searcher, NotUnderstood):
        raise NotUnderstood(str(searcher))
    if _has_one_of(searcher[2], text):
        raise NotUnderstood("dialects differ on this text")
    return _is_found(searcher, text)


@memoised(10_000)
def found_in(text: str, pattern: str) -> bool | None:
    """Return `finds`; None where that is not known."""
    try:
        return finds(pattern, text)
    except NotUnderstood:
        return None


def may_find(pattern: str, text: str) -> bool:
    """Return True if a pattern may be found in a text in some dialect; False for one that is not understood."""
    searcher, wide = _searcher(pattern, False), _searcher(pattern, True)
    if not isinstance(wide, NotUnderstood):
        return _is_found(wide, text)
    return not isinstance(searcher, NotUnderstood) and (_has_one_of(searcher[2], text) or _is_found(searcher, text))


def is_plain(text: str) -> bool:
    """Return True for a text without characters on which dialects differ about any pattern."""
    return text.isascii() and text.isprintable()


def _has_one_of(chars: Chars, text: str) -> bool:
    return any(low <= ord(char) <= high for char in text for low, high in chars)


def _is_found(searcher: _Searcher, text: str) -> bool:
    nfa, classes, _ = searcher
    dfa = Dfa(nfa, classes, len(text) + 2, inf)
    state = 0
    for code in map(ord, text):
        letter = next(n for n, chars in enumerate(classes) if any(low <= code <= high for low, high in chars))
        state = dfa.step(state, letter)
    return dfa.accepts(state)


def search_steps(pattern: str, text: str) -> int:
    """Return about how many steps :func:`finds` takes, of some tens of nanoseconds each; 0 where it raises."""
    searcher = _searcher(pattern, False)
    return 0 if isinstance(searcher, NotUnderstood) else len(text) * searcher[0].size


@memoised(256)
def _searcher(pattern: str, wide: bool) -> _Searcher | NotUnderstood:
    """Return what searches for a pattern, or why nothing does: building a large one up to its limit takes long."""
    try:
        node, doubtful = parse(pattern, wide=wide)
        nfa = Nfa.of(node)
    except NotUnderstood as error:
        return error
    return nfa, classes_of([nfa], EVERYTHING), doubtful
