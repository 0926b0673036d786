"""What the search for an end is told about a constraint."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from inferd_grammar.completion.composed import VALUES, is_composed, parts_of
from inferd_grammar.completion.pieces import pieces_of, texts_of
from inferd_grammar.completion.small_values import SAMPLES, small_values
from inferd_grammar.constraints import (
    AllOfGrammar,
    AnyJsonGrammar,
    AnyOfGrammar,
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
    TextGrammar,
)
from inferd_grammar.limits import CompileLimits
from inferd_grammar.references import read_by_place
from inferd_grammar.rewrites.patterns import shortest_match
from inferd_grammar.rewrites.regex_syntax import NotUnderstood
from inferd_grammar.schema import iter_schemas, schema_text

_MAX_SAMPLES = 32


@dataclass(frozen=True)
class Outline:
    """What is known about the texts of a constraint.

    Fields:
        json: they are one JSON value each, behind `prefix`, and perhaps before other fixed text.
        ranks: the names of properties by their place in the schema.
        samples: the insides of strings that patterns ask for, as JSON writes them.
        heads: before the JSON value stands one of several texts.
        parts: what the texts are made of, where they are not one JSON value; ``spell`` writes its fixed texts.
        inside: the outlines of JSON values among these, by the identity of their constraints.
        schemas: those of the JSON values.
        pieces: literal texts of an expression or a grammar.
    """

    json: bool = False
    prefix: bytes = b""
    ranks: Mapping[str, int] = field(default_factory=dict)
    samples: tuple[bytes, ...] = ()
    heads: bool = False
    parts: Constraint | None = None
    spell: Callable[[str], bytes] = str.encode
    inside: Mapping[int, Outline] = field(default_factory=dict)
    schemas: tuple[Any, ...] = ()
    pieces: tuple[bytes, ...] = ()

    @cached_property
    def values(self) -> list[bytes]:
        """Small values of the schemas and of their parts, the shortest first."""
        return sorted(
            {text for schema in self.schemas for text in small_values(schema)}, key=lambda text: (len(text), text)
        )


NOTHING_KNOWN = Outline()


def outline(constraint: Constraint, limits: CompileLimits, spell: Callable[[str], bytes] = str.encode) -> Outline:
    """Return the outline of a constraint that has compiled. ``spell`` writes a fixed text that may name special tokens."""
    known = _as_json(constraint, limits, spell)
    if known.json or not is_composed(constraint):
        return known
    inside = {id(part): _as_json(part, limits, spell) for part in parts_of(constraint) if isinstance(part, VALUES)}
    return Outline(parts=constraint, spell=spell, inside=inside)


def _as_json(constraint: Constraint, limits: CompileLimits, spell: Callable[[str], bytes]) -> Outline:
    match constraint:
        case AnyJsonGrammar():
            return Outline(json=True)
        case JsonSchemaGrammar(schema):
            root = read_by_place(schema_text(schema), limits)
            places = list(iter_schemas(root))
            return Outline(json=True, ranks=_ranks(places), samples=tuple(_samples(places)), schemas=(root,))
        case JsonTextGrammar(inner):
            return Outline(
                pieces=(b'"', *(piece for text in texts_of(inner) for piece in (_escaped(text), _escaped(text) + b'"')))
            )
        case ExactGrammar(inner):
            return outline(inner, limits, spell)
        case PrefixedGrammar(prefix, inner) if inner is not None:
            return _behind(prefix.encode(), outline(inner, limits, spell))
        case SequenceGrammar((TextGrammar(text), inner, *rest)) if all(map(_may_be_fixed, rest)):
            return _behind(spell(text), outline(inner, limits, spell))
        case AnyOfGrammar(members):
            return _any_of([outline(member, limits, spell) for member in members])
        case SequenceGrammar((first, *rest)) if all(map(_may_be_fixed, rest)):
            return outline(first, limits, spell)
        case AllOfGrammar(members):
            known = next((known for known in (outline(m, limits) for m in members) if known.json), NOTHING_KNOWN)
            return known if known.json else Outline(pieces=pieces_of(constraint))
        case RegexGrammar() | LarkGrammar() | GbnfGrammar():
            return Outline(pieces=pieces_of(constraint))
    return NOTHING_KNOWN


def _any_of(members: list[Outline]) -> Outline:
    if len(members) == 1 or not all(member.json for member in members):
        return members[0] if len(members) == 1 else NOTHING_KNOWN
    names = dict.fromkeys(name for member in members for name in member.ranks)
    samples = dict.fromkeys(sample for member in members for sample in member.samples)
    ranks = {name: rank for rank, name in enumerate(names)}
    schemas = tuple(schema for member in members for schema in member.schemas)
    return Outline(json=True, ranks=ranks, samples=tuple(samples)[:_MAX_SAMPLES], heads=True, schemas=schemas)


def _behind(prefix: bytes, inner: Outline) -> Outline:
    return replace(inner, prefix=prefix + inner.prefix)


def _may_be_fixed(constraint: Constraint) -> bool:
    """Return True for fixed text, and for text that may be left out."""
    return isinstance(constraint, TextGrammar) or (isinstance(constraint, RepeatedGrammar) and constraint.least == 0)


def _ranks(places: list[tuple[str, Any]]) -> dict[str, int]:
    names: dict[str, int] = {}
    for _, schema in places:
        for name in schema.get("properties", ()) if isinstance(schema, dict) else ():
            names.setdefault(name, len(names))
    return names


def _samples(places: list[tuple[str, Any]]) -> list[bytes]:
    """Return a shortest match of each pattern, and a text of a format beside it, of the first few."""
    found: dict[str, None] = {}
    for _, schema in places:
        pattern = schema.get("pattern") if isinstance(schema, dict) else None
        if isinstance(pattern, str) and len(found) < _MAX_SAMPLES:
            with suppress(NotUnderstood):
                found[shortest_match(pattern)] = None
            if (named := SAMPLES.get(str(schema.get("format")))) is not None:
                found[named] = None
    return list(map(_escaped, found))


def _escaped(text: str) -> bytes:
    return json.dumps(text, ensure_ascii=False)[1:-1].encode("utf-8", "ignore")
