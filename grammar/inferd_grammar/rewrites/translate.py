"""The translator: a schema of any draft -> one of draft 2020-12 without the keywords that a token mask cannot hold.

Negation is pushed inwards (De Morgan) until it meets a keyword that has a complement. Every `$ref` becomes one into
fresh `$defs`, in two flavours, plain and complemented, so that recursive schemas stay recursive.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from decimal import Decimal
from typing import Any

from inferd_grammar.errors import GrammarError
from inferd_grammar.rewrites import arrays, bounds, combine, formats, multiples, objects, patterns, unevaluated, values
from inferd_grammar.rewrites.base import CannotRewrite, Schema, View, all_of, any_of
from inferd_grammar.rewrites.dialect import Dialect
from inferd_grammar.rewrites.disjoint import kinds_of_view
from inferd_grammar.rewrites.kinds import ALL, ARRAY, NUMBER, OBJECT, STRING, Kinds, of_types, typed

_PLAIN = frozenset(
    (
        *("const", "enum", "exclusiveMaximum", "exclusiveMinimum", "format", "maxItems", "maxLength"),
        *("maxProperties", "maximum", "minItems", "minLength", "minProperties", "minimum", "multipleOf", "pattern"),
        *("required", "type"),
    )
)
_MAX_PROOFS = 2_000
_SMALL = 40
_UNSUPPORTED = ("$dynamicRef", "$recursiveRef", "unevaluatedItems", "unevaluatedProperties")


class SchemaTranslator:
    """Translates one document. `Translator` in `base.py` is what the rewrites see of it.

    With `lenient`, an assertion that has no rewrite is left out where that only widens the schema, and its keyword and
    pointer are noted in `dropped`.
    """

    def __init__(
        self,
        root: Any,
        resolve: Callable[[str], tuple[str, Any] | None],
        names: list[str],
        limit: int,
        *,
        lenient: bool = False,
    ) -> None:
        self.resolve = resolve
        self.dropped: list[tuple[str, str]] = []
        self.holds_unique = False
        self.left_unique = False
        self.narrowed = False
        self._dialect = Dialect(root)
        self._root = root
        self._lenient = lenient
        self._visits = 0
        self._proofs = 0
        self._limit = limit
        self._names: dict[tuple[str, Kinds | None], str] = {}
        self._refused: dict[tuple[str, Kinds | None], CannotRewrite] = {}
        self._defs: dict[str, Schema] = {}
        self._views: dict[str, tuple[Mapping[str, Any], View]] = {}
        self._waiting: list[tuple[str, Any, str]] = []
        self._property_names = names

    def document(self) -> Schema:
        """Return the whole document, translated. Raises CannotRewrite."""
        result = self.positive(self._root, "")
        while self._waiting:
            name, schema, pointer = self._waiting.pop()
            self._defs[name] = self.positive(schema, pointer)
        if isinstance(result, bool) or not self._defs:
            return result
        return {**result, "$defs": self._defs}

    def names(self) -> list[str]:
        return self._property_names

    def view(self, schema: Mapping[str, Any], pointer: str) -> View:
        known = self._views.get(pointer)
        if known is None or known[0] is not schema:
            view = unevaluated.settled(self._dialect.view(schema, pointer), self)
            known = self._views[pointer] = schema, view
        return known[1]

    @property
    def draft(self) -> str:
        return self._dialect.draft

    @property
    def only_widens(self) -> bool:
        return self._lenient

    def positive(self, schema: Schema, pointer: str, kinds: Kinds = ALL, beside: tuple[View, ...] = ()) -> Schema:
        self.visit(pointer)
        if isinstance(schema, bool):
            return schema
        whole = self.view(schema, pointer)
        view = objects.names_beside_patterns(whole, self)
        if view.words.get("patternProperties") is whole.words.get("patternProperties"):
            view = objects.positive_patterns(view)
        view = replace(view, beside=beside)
        within = kinds & kinds_of_view(view, self)
        plain: dict[str, Any] = {}
        parts: list[Schema] = []
        view = self._attempt(view, parts, lambda one: unevaluated.positive(one, self), *unevaluated.KEYWORDS)
        view = self._attempt(view, parts, objects.positive_counts, "minProperties", "maxProperties")
        view = self._attempt(view, parts, formats.positive, "format")
        view = self._attempt(view, parts, patterns.positive, "pattern")
        view = self._attempt(view, parts, multiples.positive, "multipleOf")
        for key in view.words:
            self._add(key, view, within, plain, parts)
        return all_of([plain, *parts]) if "allOf" in plain or not parts else _merged(plain, parts)

    def negative(self, schema: Schema, pointer: str, kinds: Kinds = ALL) -> Schema:
        self.visit(pointer)
        if isinstance(schema, bool):
            return not schema
        return self.negative_view(objects.positive_patterns(self.view(schema, pointer), doubtful=True), kinds)

    def negative_view(self, view: View, kinds: Kinds) -> Schema:
        own = of_types(view.words["type"]) if "type" in view.words else ALL
        options = _other_kinds(kinds, own)
        self.narrowed |= len(options) > 1  # gaps between whole numbers end somewhere
        inner = kinds & own
        # Those that may be left out where something else is left come last.
        for key in sorted(view.words, key=lambda key: key == "format"):
            try:
                options += self._complement(key, view, inner)
            except CannotRewrite:
                if key != "format" or not options or self._lenient:
                    raise
        if ARRAY & inner and {"items", "prefixItems"} & view.words.keys():
            options += arrays.negative_items(view, self)
        if OBJECT & inner:
            options += objects.negative_properties(view, self, bool(options))
        return any_of(options)

    def shared(self, schema: Schema) -> Schema:
        if isinstance(schema, bool) or schema.keys() == {"$ref"} or _is_small(schema):
            return schema
        name = f"part{len(self._defs)}"
        self._defs[name] = schema
        return {"$ref": f"#/$defs/{name}"}

    def narrow(self) -> None:
        self.narrowed = True

    def visit(self, pointer: str) -> None:
        self._visits += 1
        if self._visits > self._limit:
            raise GrammarError(f"rewriting the schema takes more than {self._limit} steps", pointer)

    def may_prove(self) -> bool:
        self._proofs += 1
        return self._proofs <= _MAX_PROOFS

    def _attempt(self, view: View, parts: list[Schema], rewrite: Callable[..., Any], *keys: str) -> View:
        """Apply a rewrite that takes keywords out of the view."""
        try:
            view, more = rewrite(view)
        except CannotRewrite as refusal:
            self._drop(refusal, *(view.at(key) for key in keys if key in view.words))
            return view.without(*keys)
        parts += more
        return view

    def _add(self, key: str, view: View, kinds: Kinds, plain: dict[str, Any], parts: list[Schema]) -> None:
        """Translate one keyword into `plain` or `parts`."""
        made = self._made()
        try:
            if key in _PLAIN:
                plain[key] = view.words[key]
            elif key in _CHILDREN:
                plain[key] = _CHILDREN[key](self, key, view, kinds)
            elif key in _POSITIVE:
                parts += _POSITIVE[key](self, key, view, kinds)
            elif key in _UNSUPPORTED:
                raise CannotRewrite(f"{key} is not supported", view.at(key))
        except CannotRewrite as refusal:
            self._forget(made)
            self._drop(refusal, view.at(key))
            if key == "oneOf":  # some branch must hold; that it is the only one is left to the check
                parts.append(any_of(_in_place(self, key, view, kinds)))

    def _made(self) -> tuple[int, int, int]:
        """Return how much there is of definitions, for :meth:`_forget`."""
        return len(self._names), len(self._defs), len(self._waiting)

    def _forget(self, made: tuple[int, int, int]) -> None:
        """Take back the definitions that were made since: they may refer to what has been given up."""
        names, defs, waiting = made
        while len(self._names) > names:
            self._names.popitem()
        while len(self._defs) > defs:
            self._defs.popitem()
        del self._waiting[waiting:]

    def _unique(self, view: View) -> list[Schema]:
        """Return `uniqueItems` as schemas; without a rewrite, as much of it as schemas can say, if a matcher holds the rest."""
        try:
            return arrays.positive_unique(view, self)
        except CannotRewrite:
            if not self.holds_unique:
                raise
            self.left_unique = True
            return arrays.at_most_all(view, self)

    def _drop(self, refusal: CannotRewrite, *pointers: str) -> None:
        if not self._lenient:
            raise refusal
        self.dropped += [(pointer.rpartition("/")[2], pointer) for pointer in pointers]

    def _reference(self, view: View, kinds: Kinds | None) -> Schema:
        """Return a reference to a translated definition; complemented among `kinds` unless that is None."""
        target = self.resolve(view.words["$ref"])
        if target is None:
            raise GrammarError(f"reference {view.words['$ref']!r} does not exist", view.at("$ref"))
        pointer, schema = target
        name = self._names.get((pointer, kinds))
        if kinds is not None:
            name = name or self._complemented(schema, pointer, kinds)
            if self._defs.get(name) is False:
                return False
        elif name is None:
            name = self._names[pointer, None] = f"is{len(self._names)}"
            self._waiting.append((name, schema, pointer))
        return {"$ref": f"#/$defs/{name}"}

    def _complemented(self, schema: Schema, pointer: str, kinds: Kinds) -> str:
        """Return the name of a new definition, the complement of a schema."""
        if (pointer, kinds) in self._refused:
            raise self._refused[pointer, kinds]
        made = self._made()
        name = self._names[pointer, kinds] = f"not{len(self._names)}"
        try:
            self._defs[name] = self.negative(schema, pointer, kinds)
        except CannotRewrite as refusal:
            self._forget(made)
            self._refused[pointer, kinds] = refusal
            raise
        return name

    def _complement(self, key: str, view: View, kinds: Kinds) -> list[Schema]:
        """Return the complements of one keyword, each of them typed; nothing where the keyword does not matter."""
        family = _FAMILY.get(key, ALL)
        if key == "dependencies" and family & kinds and not self._dialect.defines_dependencies:
            raise CannotRewrite(f"the complement of {key} is not supported in this draft", view.at(key))
        self.narrowed |= key == "multipleOf"
        if key in _NEGATIVE and family & kinds:
            return [_of_family(option, family, view) for option in _NEGATIVE[key](self, key, view, kinds)]
        if key in _REFUSED and family & kinds:
            raise CannotRewrite(f"the complement of {key} is not supported", view.at(key))
        return []


def _is_small(schema: Schema) -> bool:
    """Return True if there are few values in a schema."""
    stack: list[Any] = [schema]
    for _ in range(_SMALL):
        if not stack:
            return True
        value = stack.pop()
        if isinstance(value, dict | list):
            stack += value.values() if isinstance(value, dict) else value
    return False


def _other_kinds(kinds: Kinds, own: Kinds) -> list[Schema]:
    """Return schemas of values of a kind that `type` does not name."""
    missing = kinds - own
    options = [typed(missing, kinds)] if missing else []
    apart = "fraction" in missing and "integer" in kinds - missing
    return options + multiples.between(Decimal(1)) if apart else options


def _merged(plain: dict[str, Any], parts: list[Schema]) -> Schema:
    """Return the keywords of one object, and the parts beside them in `allOf`."""
    rest = all_of(parts)
    if not plain or rest is False:
        return rest
    if rest is True:
        return plain
    return {**plain, "allOf": rest["allOf"] if rest.keys() == {"allOf"} else [rest]}


def _of_family(option: Schema, family: Kinds, view: View) -> Schema:
    if family == ALL or isinstance(option, bool) or "type" in option:
        return option
    return all_of([typed(family), option])


def _one(to: SchemaTranslator, key: str, view: View, kinds: Kinds) -> Any:
    return to.positive(view.words[key], view.at(key))


def _many(to: SchemaTranslator, key: str, view: View, kinds: Kinds) -> Any:
    return [to.positive(part, view.at(key, n)) for n, part in enumerate(view.words[key])]


def _named(to: SchemaTranslator, key: str, view: View, kinds: Kinds) -> Any:
    return {name: to.positive(part, view.at(key, name)) for name, part in view.words[key].items()}


def _in_place(to: SchemaTranslator, key: str, view: View, kinds: Kinds) -> Any:
    beside = (*view.beside, view.without(key))
    return [to.positive(part, view.at(key, n), kinds, beside) for n, part in enumerate(view.words[key])]


def _all_of(to: SchemaTranslator, key: str, view: View, kinds: Kinds) -> Any:
    parts = [(part, view.at(key, n)) for n, part in enumerate(view.words[key])]
    beside = (*view.beside, view.without(key))
    cases = combine.exclusive_cases(parts, beside, to)
    rest = [to.positive(part, place, kinds, beside) for part, place in parts if (part, place) not in cases]
    return rest + ([combine.positive_cases(cases, kinds, beside, to)] if cases else [])


def _plain_reference(to: SchemaTranslator, key: str, view: View, kinds: Kinds) -> Any:
    reference = to._reference(view, None)
    assert isinstance(reference, dict)
    return reference["$ref"]


# Keywords whose value is translated in place.
_CHILDREN: dict[str, Callable[[SchemaTranslator, str, View, Kinds], Any]] = {
    "$ref": _plain_reference,
    "additionalProperties": _one,
    "items": _one,
    "allOf": _all_of,
    "anyOf": _in_place,
    "prefixItems": _many,
    "patternProperties": _named,
    "properties": _named,
}
_Rule = Callable[[SchemaTranslator, str, View, Kinds], list[Schema]]
# Keywords that become schemas which must hold beside the rest.
_POSITIVE: dict[str, _Rule] = {
    "contains": lambda to, key, view, kinds: arrays.positive_contains(view, to),
    "if": lambda to, key, view, kinds: (
        combine.positive_if(view, kinds, to) if {"then", "else"} & view.words.keys() else []
    ),
    "not": lambda to, key, view, kinds: [to.negative(view.words["not"], view.at("not"), kinds)],
    "oneOf": lambda to, key, view, kinds: combine.positive_one_of(view, kinds, to),
    "propertyNames": lambda to, key, view, kinds: objects.positive_names(view, to),
    "uniqueItems": lambda to, key, view, kinds: to._unique(view) if ARRAY & kinds else [],
    **dict.fromkeys(combine.DEPENDENCIES, lambda to, key, view, kinds: combine.positive_dependencies(key, view, to)),
}
# Keywords that have a complement: schemas of which one must hold.
_NEGATIVE: dict[str, _Rule] = {
    **dict.fromkeys(bounds.FAMILIES, lambda to, key, view, kinds: bounds.negative(key, view, kinds)),
    **dict.fromkeys(("const", "enum"), lambda to, key, view, kinds: values.negative(key, view, kinds, to)),
    **dict.fromkeys(combine.DEPENDENCIES, lambda to, key, view, kinds: combine.negative_dependencies(key, view, to)),
    "$ref": lambda to, key, view, kinds: [to._reference(view, kinds)],
    "allOf": lambda to, key, view, kinds: [
        to.negative(part, view.at(key, n), kinds) for n, part in enumerate(view.words[key])
    ],
    "anyOf": lambda to, key, view, kinds: [
        all_of([to.negative(part, view.at(key, n), kinds) for n, part in enumerate(view.words[key])])
    ],
    "contains": lambda to, key, view, kinds: arrays.negative_contains(view, to),
    "format": lambda to, key, view, kinds: formats.negative(view),
    "if": lambda to, key, view, kinds: combine.negative_if(view, kinds, to),
    "multipleOf": lambda to, key, view, kinds: multiples.negative(view, kinds),
    "not": lambda to, key, view, kinds: [to.positive(view.words["not"], view.at("not"), kinds)],
    "oneOf": lambda to, key, view, kinds: combine.negative_one_of(view, kinds, to),
    "pattern": lambda to, key, view, kinds: patterns.negative(view),
    "required": lambda to, key, view, kinds: objects.negative_required(view),
}
_FAMILY: dict[str, Kinds] = {
    **bounds.FAMILIES,
    **dict.fromkeys(("contains", "items", "prefixItems", "uniqueItems", "unevaluatedItems"), ARRAY),
    **dict.fromkeys(("format", "pattern"), STRING),
    **dict.fromkeys((*combine.DEPENDENCIES, "required", "properties", "patternProperties"), OBJECT),
    **dict.fromkeys(("additionalProperties", "propertyNames", "unevaluatedProperties"), OBJECT),
    "multipleOf": NUMBER,
}
# Keywords that have none.
_REFUSED = ("propertyNames", "uniqueItems", *_UNSUPPORTED)
