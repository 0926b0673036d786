"""What all rewrites share: schemas, the view of one schema object, and the translator they call for subschemas.

Notation of the modules here: a rewrite is sound if every text that the result accepts, the original accepts. All are
equivalences unless their text says that they are narrower.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from inferd_grammar.errors import GrammarError
from inferd_grammar.schema import escape, resolve

Schema = bool | dict[str, Any]


class CannotRewrite(GrammarError):
    """A keyword has no sound rewrite here. Always carries the keyword's pointer."""


@dataclass(frozen=True)
class View:
    """One schema object as draft 2020-12 would write it, with the pointers of the original.

    Fields:
        words: the keywords that count in the document's draft; legacy forms are converted, annotations are dropped.
        pointer: JSON pointer of the object in the document.
        names: original name of a keyword that was converted.
        beside: views that hold for the same value, because this one stands in their `allOf` or `anyOf`.
    """

    words: Mapping[str, Any]
    pointer: str
    names: Mapping[str, str] = field(default_factory=dict)
    beside: tuple[View, ...] = ()

    def at(self, key: str, *parts: str | int) -> str:
        """Return the pointer of a keyword's value, or of a part of it."""
        return "/".join([self.pointer, *(escape(str(part)) for part in (self.names.get(key, key), *parts))])

    def without(self, *keys: str) -> View:
        """Return the same view less some keywords."""
        return replace(self, words={key: value for key, value in self.words.items() if key not in keys})

    def always(self, root: Any) -> Iterator[str]:
        """Yield the pointers of the schemas that hold wherever this one does: its reference's in the document, its `allOf`."""
        reference = self.words.get("$ref")
        target = resolve(root, reference) if isinstance(reference, str) else None
        if target is not None:
            yield target[0]
        yield from (self.at("allOf", n) for n in range(len(self.words.get("allOf", ()))))


class Translator(Protocol):
    """Translates subschemas; given to each rewrite. Both methods raise CannotRewrite."""

    @property
    def draft(self) -> str:
        """The draft that the document's `$schema` names."""

    @property
    def only_widens(self) -> bool:
        """True if what has no rewrite is left out, so that nothing valid may be refused instead."""

    def view(self, schema: Mapping[str, Any], pointer: str) -> View: ...

    def resolve(self, reference: str) -> tuple[str, Any] | None:
        """Return pointer and schema of a `#/...` reference, or None if it names nothing."""

    def narrow(self) -> None:
        """Note that some valid values are left out: that nothing is left is then no proof that nothing is valid."""

    def visit(self, pointer: str) -> None:
        """Count one step. Raises GrammarError if the document has taken too many."""

    def may_prove(self) -> bool:
        """Count one proof by automata. Returns False if the document has had its share."""

    def names(self) -> list[str]:
        """Return every name that the document gives to a property, each once."""

    def positive(
        self, schema: Schema, pointer: str, kinds: frozenset[str] = ..., beside: tuple[View, ...] = ...
    ) -> Schema:
        """Return a schema that accepts what `schema` accepts, of values whose kind is in `kinds` and that `beside` accepts."""

    def negative(self, schema: Schema, pointer: str, kinds: frozenset[str] = ...) -> Schema:
        """Return a schema that accepts what `schema` rejects, of values whose kind is in `kinds`."""

    def negative_view(self, view: View, kinds: frozenset[str]) -> Schema:
        """Return `negative` of a view that was put together by hand."""

    def shared(self, schema: Schema) -> Schema:
        """Return a translated schema as it is written in several places: a large one by the name of a new definition."""


def any_of(options: list[Schema]) -> Schema:
    """Return one schema for the union; a union of nothing is false."""
    flat: dict[str, Schema] = {}  # by what is written: {"const": 1} equals {"const": True} in Python
    for option in options:
        if option is True or option == {}:
            return True
        nested = option.get("anyOf") if isinstance(option, dict) and option.keys() == {"anyOf"} else [option]
        flat |= {repr(item): item for item in nested or [] if item is not False}
    kept = list(flat.values())
    if not kept:
        return False
    return kept[0] if len(kept) == 1 else {"anyOf": kept}


def all_of(parts: list[Schema]) -> Schema:
    """Return one schema for the intersection; an intersection of nothing is true."""
    if any(part is False for part in parts):
        return False
    kept = [part for part in parts if part is not True and part != {}]
    if not kept:
        return True
    return kept[0] if len(kept) == 1 else {"allOf": kept}
