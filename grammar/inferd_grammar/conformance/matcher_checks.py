"""Checks that a matcher keeps the contract: each backend's test file calls `check_matcher`, and tests of other backends may."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from inferd_grammar.constraints import (
    AllOfGrammar,
    AnyJsonGrammar,
    AnyOfGrammar,
    ChoiceGrammar,
    Constraint,
    ExactGrammar,
    GbnfGrammar,
    JsonSchemaGrammar,
    JsonTextGrammar,
    LarkGrammar,
    PrefixedGrammar,
    RegexGrammar,
    RepeatedGrammar,
    SequenceGrammar,
    TaggedGrammar,
    TagGrammar,
    TextGrammar,
    UntilGrammar,
)
from inferd_grammar.matchers.matcher import GrammarMatcher, walk
from inferd_grammar.tokens import TokenTable

Make = Callable[[Constraint], GrammarMatcher]

# Bounded lengths on purpose: states of an unbounded grammar share masks, and a wrong rollback would not show.
TEXT_CONSTRAINTS: tuple[Constraint, ...] = (
    RegexGrammar("[a-z]{1,6}"),
    RegexGrammar("(ab|cd){2,4}[0-9]{3}"),
    RegexGrammar("[0-9]{4}-[0-9]{2}-[0-9]{2}"),
    RegexGrammar("(é|🐢|x){1,5}"),
    ChoiceGrammar(("yes", "no", "not sure", "")),
    ChoiceGrammar(("red", "redder", "reddest", "blue")),
)
JSON_CONSTRAINTS: tuple[Constraint, ...] = (
    JsonSchemaGrammar(
        {
            "type": "object",
            "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer", "maximum": 199}},
            "required": ["name", "age"],
            "additionalProperties": False,
        }
    ),
    JsonSchemaGrammar({"type": "array", "items": {"enum": ["a", "ab", 1, 12, None, True]}, "maxItems": 4}),
    JsonSchemaGrammar({"anyOf": [{"type": "integer"}, {"type": "string", "pattern": "^[a-f]{2,5}$"}]}),
    AnyJsonGrammar(),
)
_CALL = JsonSchemaGrammar(
    {"type": "object", "properties": {"n": {"enum": [1, 12, "x"]}}, "required": ["n"], "additionalProperties": False}
)
GRAMMAR_CONSTRAINTS: tuple[Constraint, ...] = (
    LarkGrammar('start: "<" WORD ">" start? | "."\nWORD: /[a-z]{1,4}/'),
    GbnfGrammar('root ::= word ("," word){0,2} "é"?\nword ::= [a-z]{1,3} | [0-9] [0-9]?'),
    GbnfGrammar('root ::= "(" root ")" | [ab] | "ab" root'),
)
TAGGED_CONSTRAINTS: tuple[Constraint, ...] = (
    TaggedGrammar((TagGrammar("<call>", _CALL, "</call>"), TagGrammar("(", ChoiceGrammar(("x", "xy")), ")"))),
    TaggedGrammar(
        (TagGrammar("<|im_start|>call:", _CALL, ""), TagGrammar("<q>", RegexGrammar("[a-z]{1,3}"), "\n<|im_start|>"))
    ),
)
COMPOSED_CONSTRAINTS: tuple[Constraint, ...] = (
    AllOfGrammar((RegexGrammar("[a-z]{2,6}"), RegexGrammar("(ab|cd)*"), RegexGrammar(".*d"))),
    AllOfGrammar((_CALL, RegexGrammar(".{5}1.*"))),
    AllOfGrammar((AnyJsonGrammar(), LarkGrammar("start: /[^5]*/"), RegexGrammar("[0-9a-z,\\[\\]]*"))),
    ExactGrammar(_CALL),
    ExactGrammar(TaggedGrammar((TagGrammar("<call>", _CALL, "</call>"),))),
    PrefixedGrammar("na", _CALL),
    PrefixedGrammar(" qu"),
    PrefixedGrammar("x", AllOfGrammar((_CALL, RegexGrammar("x?.{5}1.*")))),
    RepeatedGrammar(SequenceGrammar((TextGrammar("<a>"), _CALL, TextGrammar("</a>"))), 1, 3),
    SequenceGrammar(
        (UntilGrammar("end"), AnyOfGrammar((ChoiceGrammar(("x", "xy")), RepeatedGrammar(RegexGrammar("[0-9]")))))
    ),
    SequenceGrammar((RepeatedGrammar(TextGrammar("a"), 0, 1), TextGrammar("b"))),
    SequenceGrammar((TextGrammar("{"), JsonTextGrammar(RegexGrammar('[a-c"\n]{1,3}')), TextGrammar("}"))),
    JsonTextGrammar(LarkGrammar("start: (WORD | /\\n/){1}\nWORD: /[a-z]{1,3}/".replace("{1}", "~1..3"))),
    SequenceGrammar((UntilGrammar("\n<", RegexGrammar("[a-c<\n]{1,4}")), TextGrammar("/>"))),
    UntilGrammar("\n<", LarkGrammar('start: "a"~1..3 "\\n"~0..2')),
)


class MatcherReadings(NamedTuple):
    """Everything that can be read from a matcher without moving it."""

    mask: bytes
    depth: int
    may_end: bool
    ended: bool
    forced: bytes
    forced_tokens: list[int]


def check_matcher(
    make: Make, table: TokenTable, constraints: Sequence[Constraint], *, seed: int = 0, rounds: int = 12
) -> None:
    """Check every promise of `GrammarMatcher` on matchers that `make` gives at the start of a text.

    Random drafts of legal and illegal tokens, EOS included, with random partial rejection: `rounds` of them for each
    constraint. Deterministic for a `seed`. Raises AssertionError that names the promise and the constraint.
    """
    for constraint in constraints:
        rng = random.Random(f"{seed} {constraint}")
        _check_replay(make, table, constraint, rng, rounds)
        _check_walk(make, table, constraint, rng, rounds)
        _check_every_token(make, table, constraint, rng)
        _check_bounds(make, table, constraint, rng)
        _check_fork(make, table, constraint, rng)
        _check_forced(make(constraint), table, constraint, rng)
        _check_end(make, table, constraint, rng)
        if isinstance(constraint, ChoiceGrammar):
            _check_language(make(constraint), table, constraint)


def look(matcher: GrammarMatcher, table: TokenTable) -> MatcherReadings:
    """Return the state of a matcher; its mask is written over a dirty row, so every word must be overwritten."""
    row = dirty_row(table)
    matcher.fill(row)
    return MatcherReadings(
        row.tobytes(), matcher.depth, matcher.may_end(), matcher.ended(), matcher.forced(), matcher.forced_tokens()
    )


def dirty_row(table: TokenTable) -> NDArray[np.int32]:
    """Return int32[words] with every bit set."""
    return np.full(table.words, -1, dtype=np.int32)


def legal_ids(matcher: GrammarMatcher, table: TokenTable) -> list[int]:
    """Return the ids whose mask bit is set now, ascending; also finds bits behind the vocabulary."""
    row = dirty_row(table)
    matcher.fill(row)
    bits = np.unpackbits(row.view(np.uint8), bitorder="little")
    return [int(i) for i in np.flatnonzero(bits)]


def named_tokens(constraint: Constraint, table: TokenTable) -> set[int]:
    """Return the special tokens that the tags of a constraint name."""
    match constraint:
        case TaggedGrammar(tags):
            parts = (part for tag in tags for text in (tag.begin, tag.end) for part in table.split_special(text))
            return {part for part in parts if isinstance(part, int)}
        case ExactGrammar(inner) | PrefixedGrammar(_, inner) if inner is not None:
            return named_tokens(inner, table)
    return set()


def replay(make: Make, constraint: Constraint, tokens: Sequence[int]) -> GrammarMatcher:
    """Return a fresh matcher that took `tokens`, one by one."""
    matcher = make(constraint)
    for token in tokens:
        _expect(matcher.accept([token]) == 1, f"a fresh matcher takes {token} of {list(tokens)}", constraint)
    return matcher


def language(matcher: GrammarMatcher, table: TokenTable, longest: int) -> set[bytes]:
    """Return every complete text of at most `longest` bytes that masks lead to, whatever its tokens."""
    return set(_texts(matcher, table, longest, b"", set()))


def _texts(
    matcher: GrammarMatcher, table: TokenTable, longest: int, text: bytes, passed: set[bytes]
) -> Iterator[bytes]:
    passed.add(text)
    if matcher.may_end():
        yield text
    for token in set(legal_ids(matcher, table)) - set(table.eos_ids):
        piece = text + table.tokens[token]
        if len(piece) <= longest and piece not in passed:
            matcher.accept([token])
            yield from _texts(matcher, table, longest, piece, passed)
            matcher.rollback(1)


def random_draft(matcher: GrammarMatcher, table: TokenTable, rng: random.Random, length: int) -> list[int]:
    """Return tokens that a drafter might send: mostly legal in turn, at times anything at all. Leaves `matcher` alone."""
    scout, draft = matcher.fork(), []
    for _ in range(length):
        legal = legal_ids(scout, table)
        token = rng.choice(legal) if rng.random() < 0.85 else rng.randrange(-1, table.vocab_size + 2)
        draft.append(token)
        scout.accept([token])
    return draft


def _check_replay(make: Make, table: TokenTable, constraint: Constraint, rng: random.Random, rounds: int) -> None:
    matcher, history = make(constraint), list[int]()
    for _ in range(rounds):
        draft = random_draft(matcher, table, rng, rng.randint(1, 6))
        taken = matcher.accept(draft)
        history += draft[:taken]
        if taken < len(draft) and not matcher.ended():
            _expect(draft[taken] not in legal_ids(matcher, table), "only illegal tokens are refused", constraint)
        _expect_same(matcher, replay(make, constraint, history), table, constraint, "after accept")
        back = rng.randint(0, min(taken, matcher.depth)) if rng.random() < 0.8 else rng.randint(0, matcher.depth)
        matcher.rollback(back)
        history = history[: len(history) - back]
        _expect_same(matcher, replay(make, constraint, history), table, constraint, f"after rollback({back})")


def _check_walk(make: Make, table: TokenTable, constraint: Constraint, rng: random.Random, rounds: int) -> None:
    matcher, history = make(constraint), list[int]()
    for _ in range(rounds):
        draft = random_draft(matcher, table, rng, rng.randint(0, 5))
        rows = np.full((len(draft) + 1, table.words), -1, dtype=np.int32)
        legal = walk(matcher, draft, rows)
        for count in range(legal + 1):
            expected = look(replay(make, constraint, history + draft[:count]), table).mask
            _expect(rows[count].tobytes() == expected, f"row {count} of a walk is the mask there", constraint)
        kept = rng.randint(0, legal)
        matcher.rollback(legal - kept)
        history += draft[:kept]
        if not matcher.ended():
            bonus = rng.choice(legal_ids(matcher, table))
            _expect(matcher.accept([bonus]) == 1, "the bonus token is taken", constraint)
            history.append(bonus)
        _expect_same(matcher, replay(make, constraint, history), table, constraint, "after a verified walk")


def _check_every_token(make: Make, table: TokenTable, constraint: Constraint, rng: random.Random) -> None:
    """Check that mask bit == accept, for every id, in a few states; special, unused and padded ids are never text."""
    matcher = make(constraint)
    for _ in range(3):
        legal = set(legal_ids(matcher, table))
        _expect(bool(legal), "some token is legal", constraint)
        _expect((legal & set(table.eos_ids) == set(table.eos_ids)) == matcher.may_end(), "EOS iff may_end", constraint)
        text = legal - set(table.eos_ids) - named_tokens(constraint, table)
        _expect(all(table.tokens[i] for i in text), "legal tokens are text, or named", constraint)
        before = look(matcher, table)
        for token in range(-2, table.vocab_size + 40):
            taken = matcher.accept([token])
            _expect(taken == (token in legal), f"mask and accept agree on {token}", constraint)
            matcher.rollback(taken)
        _expect(look(matcher, table) == before, "trying every token changes nothing", constraint)
        matcher.accept([rng.choice(sorted(text))] if text else [])


def _check_language(matcher: GrammarMatcher, table: TokenTable, choice: ChoiceGrammar, text: bytes = b"") -> None:
    """Check that a mask holds the tokens that continue some option, all of them unless the bytes are forced (then canonical)."""
    options = [option.encode() for option in choice.options]
    _expect(matcher.may_end() == (text in options), f"may_end after {text!r}", choice)
    legal = set(legal_ids(matcher, table)) - set(table.eos_ids)
    right = {i for i, token in enumerate(table.tokens) if token and any(o.startswith(text + token) for o in options)}
    _expect(legal <= right, f"legal tokens continue an option after {text!r}", choice)
    _expect(legal == right or bool(matcher.forced()), f"no token is left out after {text!r}", choice)
    for token in legal:
        matcher.accept([token])
        _check_language(matcher, table, choice, text + table.tokens[token])
        matcher.rollback(1)


def _check_bounds(make: Make, table: TokenTable, constraint: Constraint, rng: random.Random) -> None:
    matcher = make(constraint)
    matcher.accept(random_draft(matcher, table, rng, 4))
    before = look(matcher, table)
    for count in (-1, matcher.depth + 1, matcher.depth + 1000):
        try:
            matcher.rollback(count)
        except ValueError:
            continue
        _expect(False, f"rollback({count}) raises at depth {before.depth}", constraint)
    matcher.rollback(0)
    _expect(matcher.accept([]) == 0, "nothing is taken from nothing", constraint)
    _expect(look(matcher, table) == before, "a refused rollback changes nothing", constraint)
    matcher.rollback(matcher.depth)
    _expect_same(matcher, make(constraint), table, constraint, "after rolling back everything")


def _check_fork(make: Make, table: TokenTable, constraint: Constraint, rng: random.Random) -> None:
    matcher = make(constraint)
    matcher.accept(random_draft(matcher, table, rng, 3))
    before, fork = look(matcher, table), matcher.fork()
    _expect(look(fork, table) == before, "a fork is in the same state", constraint)
    fork.accept(random_draft(fork, table, rng, 3))
    moved = look(fork, table)
    _expect(look(matcher, table) == before, "moving a fork leaves the original", constraint)
    matcher.rollback(matcher.depth)
    _expect(look(fork, table) == moved, "moving the original leaves the fork", constraint)
    fork.rollback(fork.depth)
    _expect_same(fork, make(constraint), table, constraint, "a fork rolls back past its birth")


def _check_forced(matcher: GrammarMatcher, table: TokenTable, constraint: Constraint, rng: random.Random) -> None:
    """Check that forced tokens spell a prefix of the forced bytes and are legal; forced bytes start every continuation."""
    for _ in range(6):
        forced, tokens = matcher.forced(), matcher.forced_tokens()
        spelt = b"".join(table.tokens[i] for i in tokens)
        _expect(forced.startswith(spelt), f"{tokens} spell a prefix of {forced!r}", constraint)
        _expect(matcher.accept(tokens) == len(tokens), f"forced tokens {tokens} are legal", constraint)
        matcher.rollback(len(tokens))
        token = rng.choice(legal_ids(matcher, table))
        text = table.tokens[token]
        _expect(forced.startswith(text) or text.startswith(forced), f"{text!r} goes with {forced!r}", constraint)
        matcher.accept([token])


def _check_end(make: Make, table: TokenTable, constraint: Constraint, rng: random.Random) -> None:
    """Walk to an end if one is near, and check that each EOS id ends the text and is undone without losing a text token."""
    matcher = make(constraint)
    for _ in range(40):
        if matcher.may_end():
            break
        matcher.accept([rng.choice(legal_ids(matcher, table))])
    if not matcher.may_end():
        return
    before = look(matcher, table)
    for eos in table.eos_ids:
        _expect(matcher.accept([eos, eos, 0]) == 1, "nothing follows EOS", constraint)
        _expect(matcher.ended() and not matcher.may_end(), "EOS ends the text", constraint)
        _expect(legal_ids(matcher, table) == sorted(table.eos_ids), "an ended mask is EOS only", constraint)
        _expect(matcher.fork().ended(), "a fork of an ended matcher is ended", constraint)
        matcher.rollback(1)
        _expect(look(matcher, table) == before, "rollback(1) takes back EOS alone", constraint)


def _expect_same(
    matcher: GrammarMatcher, fresh: GrammarMatcher, table: TokenTable, constraint: Constraint, when: str
) -> None:
    seen, expected = look(matcher, table), look(fresh, table)
    for name, left, right in zip(MatcherReadings._fields, seen, expected, strict=True):
        shown = "" if name == "mask" else f": {left!r}, fresh {right!r}"
        _expect(left == right, f"{name} equals a fresh replay {when}{shown}", constraint)


def _expect(holds: bool, promise: str, constraint: Constraint) -> None:
    if not holds:
        raise AssertionError(f"broken promise: {promise}; {constraint}")
