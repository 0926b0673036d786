"""Ways to the end of a text that is made of parts, one behind the other: calls of tools, above all. Pure.

Which part the text has come to is told by the text itself, so that nothing has to be searched but the ends of JSON values.
What is yielded may be no end after all, where two parts look alike: a matcher has to be asked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from inferd_grammar.completion.json_place import START, JsonPlace
from inferd_grammar.constraints import (
    AnyJsonGrammar,
    AnyOfGrammar,
    ChoiceGrammar,
    Constraint,
    ExactGrammar,
    JsonSchemaGrammar,
    PrefixedGrammar,
    RepeatedGrammar,
    SequenceGrammar,
    TaggedGrammar,
    TextGrammar,
    UntilGrammar,
)

COMPOSED = (SequenceGrammar, AnyOfGrammar, RepeatedGrammar, TaggedGrammar)
VALUES = (JsonSchemaGrammar, AnyJsonGrammar)
KNOWN = (*COMPOSED, *VALUES, TextGrammar, UntilGrammar, ChoiceGrammar, ExactGrammar, PrefixedGrammar)


@dataclass(frozen=True)
class Value:
    """A JSON value that stands at a place and has to end."""

    grammar: Constraint
    place: JsonPlace = START


@dataclass(frozen=True)
class Ended:
    """The rest of a text that has to go on until ``end`` may come, and that."""

    end: bytes


Part = bytes | Value | Ended
Way = list[Part]
Spell = Callable[[str], bytes]


def ways_on(constraint: Constraint, text: bytes, spell: Spell) -> Iterator[Way]:
    """Yield ways from behind ``text`` to an end, those that leave out what may be left out first.

    ``spell`` writes a fixed text that may name special tokens.
    """
    return _after((constraint,), text, spell)


def opening_ways(constraint: Constraint, spell: Spell) -> list[Iterator[Way]]:
    """Return the ways through each thing that a text may open: of tagged text each tag, of any other text it alone."""
    if not isinstance(constraint, TaggedGrammar):
        return [ways_on(constraint, b"", spell)]
    tags = [(TextGrammar(tag.begin), tag.content, TextGrammar(tag.end)) for tag in constraint.tags]
    return [_after(members, b"", spell) for members in tags]


def parts_of(constraint: Constraint) -> list[Constraint]:
    """Return all that a text is made of, the constraint itself first."""
    inner: tuple[Constraint, ...] = ()
    match constraint:
        case SequenceGrammar(members) | AnyOfGrammar(members):
            inner = members
        case RepeatedGrammar(one) | ExactGrammar(one):
            inner = (one,)
        case PrefixedGrammar(_, one) | UntilGrammar(_, one) if one is not None:
            inner = (one,)
        case TaggedGrammar(tags):
            inner = tuple(tag.content for tag in tags)
    return [constraint, *(part for member in inner for part in parts_of(member))]


def is_composed(constraint: Constraint) -> bool:
    """Return True for a text of several parts, or one up to a mark, each of a kind that is known here."""
    return isinstance(constraint, (*COMPOSED, UntilGrammar)) and all(
        isinstance(part, KNOWN) for part in parts_of(constraint)
    )


def _after(members: tuple[Constraint, ...], text: bytes, spell: Spell) -> Iterator[Way]:
    """Yield ways through ``members``, of which ``text`` is the beginning."""
    if not members:
        yield from [] if text else [[]]
        return
    first, rest = members[0], members[1:]
    match first:
        case TextGrammar(fixed):
            yield from _through(spell(fixed), rest, text, spell)
        case ChoiceGrammar(options):
            for option in sorted(options, key=len):
                yield from _through(option.encode(), rest, text, spell)
        case UntilGrammar(end, inner):
            yield from _up_to(spell(end), rest, text, spell, free=inner is None)
        case JsonSchemaGrammar() | AnyJsonGrammar():
            yield from _json(first, rest, text, spell)
        case ExactGrammar(inner):
            yield from _after((inner, *rest), text, spell)
        case PrefixedGrammar(prefix, inner) if inner is not None:
            yield from _through(prefix.encode(), (inner, *rest), text, spell)
        case SequenceGrammar(inner):
            yield from _after((*inner, *rest), text, spell)
        case AnyOfGrammar(inner):
            for member in inner:
                yield from _after((member, *rest), text, spell)
        case RepeatedGrammar():
            yield from _repeated(first, rest, text, spell)
        case TaggedGrammar():
            yield from _tagged(first, rest, text, spell)


def _through(fixed: bytes, rest: tuple[Constraint, ...], text: bytes, spell: Spell) -> Iterator[Way]:
    if text.startswith(fixed):
        yield from _after(rest, text[len(fixed) :], spell)
    elif fixed.startswith(text):
        yield from ([fixed[len(text) :], *more] for more in _after(rest, b"", spell))


def _up_to(end: bytes, rest: tuple[Constraint, ...], text: bytes, spell: Spell, *, free: bool) -> Iterator[Way]:
    at = text.find(end)
    if at >= 0:
        yield from _after(rest, text[at + len(end) :], spell)
        return
    begun = next(size for size in range(len(end) - 1, -1, -1) if text.endswith(end[:size]))
    yield from ([end[begun:], *more] for more in _after(rest, b"", spell))
    if not free:
        yield from ([Ended(end), *more] for more in _after(rest, b"", spell))


def _json(first: Constraint, rest: tuple[Constraint, ...], text: bytes, spell: Spell) -> Iterator[Way]:
    place = START
    for at in range(len(text)):
        byte = text[at : at + 1]
        is_word = place.mode in ("number", "word") and not (byte.isalnum() or byte in b"+-.")
        if at and place.depth == 0 and (place.mode == "done" or is_word):
            yield from _after(rest, text[at:], spell)
            return
        place = place.behind(byte)
    yield from ([Value(first, place), *more] for more in _after(rest, b"", spell))


def _repeated(first: RepeatedGrammar, rest: tuple[Constraint, ...], text: bytes, spell: Spell) -> Iterator[Way]:
    if first.least <= 0:
        yield from _after(rest, text, spell)
    if (text or first.least > 0) and first.most != 0:
        more = RepeatedGrammar(first.inner, max(0, first.least - 1), None if first.most is None else first.most - 1)
        yield from _after((first.inner, more, *rest), text, spell)


def _tagged(first: TaggedGrammar, rest: tuple[Constraint, ...], text: bytes, spell: Spell) -> Iterator[Way]:
    """Free text ends anywhere; behind the first tag that is open, its content and its end have to come."""
    found = [(text.find(begin), begin, tag) for tag in first.tags if (begin := spell(tag.begin)) in text]
    if not found:
        yield from _after(rest, b"", spell)
        return
    at, begin, tag = min(found, key=lambda one: one[0])
    yield from _after((tag.content, TextGrammar(tag.end), first, *rest), text[at + len(begin) :], spell)
