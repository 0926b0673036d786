"""Checking a finished text against its schema, for `best_effort`: what masks do not hold is found here.

The validator is `jsonschema` in the draft that `$schema` names. Of a `format` it holds what every reader asks for (masks hold
all of those they know), remote references are never fetched, keys that repeat are refused, and regular expressions are
matched in linear time: Python's own can backtrack for ever.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fractions import Fraction
from typing import Any, NamedTuple
from urllib.parse import quote

from inferd_grammar.errors import GrammarError
from inferd_grammar.evaluated import Follow, evaluated_names
from inferd_grammar.one_work import Work, kept_for_work, one_work
from inferd_grammar.rewrites.formats import wide
from inferd_grammar.rewrites.patterns import finds, is_plain, search_steps
from inferd_grammar.rewrites.regex_dialect import Ambiguous, as_library, foreign, is_spared
from inferd_grammar.rewrites.regex_syntax import NotUnderstood, parse
from inferd_grammar.rewrites.rewrite import moves_base
from inferd_grammar.schema import escape, find_keyword, finite, iter_schemas, resolve, unique_keys, within

# Looks at a keyword that one text may cost, about 4 us each: so many, and more for each of its bytes.
_MAX_LOOKS, _LOOKS_PER_BYTE = 30_000, 4
_REFERENCES = ("$ref", "$dynamicRef")
# What the first two lead to depends on the way to them; the library goes every way for the third, which nothing else would bound.
_BY_WAY = ("$dynamicRef", "$recursiveRef", "unevaluatedItems")
_BY_PATTERN = ("patternProperties", "additionalProperties")
# The validator recurses a few frames for each level of a value and of the schema.
_MAX_DEPTH = 64
_STEPS_A_LOOK = 300  # of a search for a pattern
_MAX_CHAIN = 32
_LATEST = "https://json-schema.org/draft/2020-12/schema"


class Checked(NamedTuple):
    """An assertion that masks do not hold: its keyword, and its JSON pointer in the schema."""

    keyword: str
    pointer: str


class Problem(NamedTuple):
    """The reason that a finished text is not valid.

    Fields:
        message: one line for a person (or for the model's next attempt).
        keyword: the keyword that failed, or None where the text is not JSON.
        schema_pointer: where that keyword stands in the schema.
        pointer: the place in the text's value.
    """

    message: str
    keyword: str | None = None
    schema_pointer: str = ""
    pointer: str = ""


class SchemaValidator:
    """Validates texts under one schema. Thread-safe."""

    def __init__(self, schema: Any) -> None:
        """`schema` has passed `read_schema`. Raises GrammarError if `jsonschema` is absent, a reference circles or leads to
        nothing that is known, or there is a pattern that nothing matches.
        """
        try:
            import attrs
            import jsonschema
            import referencing.exceptions
            from jsonschema_specifications import REGISTRY
            from referencing.jsonschema import DRAFT202012, specification_with
        except ImportError as error:
            raise GrammarError("best_effort needs the package jsonschema") from error
        self._failures = (referencing.exceptions.Unresolvable, RecursionError, _Unsupported)
        default = jsonschema.validators.validator_for({"$schema": _LATEST})
        kind = jsonschema.validators.validator_for(schema, default=default)
        self._budget = _Budget()
        follow, kept = _follower(schema), not any(find_keyword(schema, [key]) for key in _BY_WAY)
        keywords = {
            **kind.VALIDATORS,
            "pattern": _pattern,
            "patternProperties": _pattern_properties,
            "additionalProperties": _additional_properties,
            "uniqueItems": _unique_items,
            "format": _format,
            "multipleOf": _multiple_of,
            "$ref": _reference(follow, self._budget if kept else None),
            "anyOf": _any_of,
            "oneOf": _one_of,
        }
        if "unevaluatedProperties" in keywords:
            keywords["unevaluatedProperties"] = _unevaluated_properties(follow, self._budget)
        safe = jsonschema.validators.extend(
            kind, {name: self._budget.counted(name, check) for name, check in keywords.items()}
        )
        safe.evolve = attrs.evolve  # the library's takes its own class for a schema with a `$schema`
        if kept:
            safe.is_valid = self._budget.kept(safe.is_valid)
        _require_one_draft(schema, lambda part: jsonschema.validators.validator_for(part, default=kind) is kind)
        _require_guarded(schema)
        self._work = Work()
        with one_work(self._work):
            _require_matched(schema)
        named = str(schema.get("$schema")) if isinstance(schema, dict) else _LATEST
        document = specification_with(named, DRAFT202012).create_resource(schema)
        _require_known(schema, REGISTRY.resolver_with_root(document).lookup)
        self._validator = safe(schema, registry=referencing.Registry())
        self.spent = 0
        """Looks at keywords so far, about 4 us each; exact where one thread asks."""

    def problem(self, text: str, looks: int = _MAX_LOOKS) -> Problem | None:
        """Return the first error in a finished text, or None if it is valid. `looks`: how much work that may take, beside
        some for each of its bytes.
        """
        try:
            value = json.loads(
                text, object_pairs_hook=unique_keys, parse_float=finite, parse_int=within, parse_constant=finite
            )
        except (ValueError, RecursionError) as error:
            return Problem(f"not JSON: {error}")
        if _deeper(value, _MAX_DEPTH):
            return Problem(f"cannot be checked: the value nests deeper than {_MAX_DEPTH}")
        try:
            with self._spending(looks + _LOOKS_PER_BYTE * len(text)):
                wrong = next(self._validator.iter_errors(value), None)
        except self._failures as failure:
            return Problem(f"cannot be checked: {failure}")
        except BaseException as panic:
            if type(panic).__name__ != "PanicException":  # Rust below the library, out of stack; no Exception
                raise
            return Problem("cannot be checked: it nests too deep")
        if wrong is None:
            return None
        place = _pointer(wrong.absolute_schema_path)
        return Problem(wrong.message, str(wrong.validator), place, _pointer(wrong.absolute_path))

    def holds(self, schema: Any, value: Any, looks: int = _MAX_LOOKS) -> bool:
        """Return True if a value is valid under a part of the schema; False where that cannot be said within `looks`."""
        try:
            with self._spending(looks):
                return bool(self._validator.evolve(schema=schema).is_valid(value))
        except self._failures:
            return False

    @contextmanager
    def _spending(self, looks: int) -> Iterator[None]:
        """Allow so many looks in the block, and count what it takes."""
        self._budget.left, self._budget.steps = looks, 0
        try:
            with one_work(self._work):
                yield
        finally:
            self._budget.known = {}
            self.spent += looks - self._budget.left + self._budget.steps // _STEPS_A_LOOK


def _require_one_draft(root: Any, is_of_it: Callable[[Any], bool]) -> None:
    """Raise GrammarError with the pointer of a `$schema` that names another draft than the document's."""
    for pointer, schema in iter_schemas(root):
        if pointer and not is_of_it(schema):
            reason = "best_effort cannot check this either: a schema of another draft inside of the document"
            raise GrammarError(reason, f"{pointer}/$schema")


def _require_guarded(root: Any) -> None:
    """Refuse references that come back to themselves on one value: the validator would never end.

    Raises GrammarError with the pointer of such a reference.
    """
    done: set[str] = set()
    for pointer, schema in iter_schemas(root):
        _visit(root, pointer, schema, [], done)


def _require_matched(root: Any) -> None:
    """Raise GrammarError with the pointer of a pattern that no text can be checked against."""
    for pointer, schema in iter_schemas(root):
        if not isinstance(schema, dict):
            continue
        patterns = [(f"/patternProperties/{escape(key)}", key) for key in schema.get("patternProperties", ())]
        for place, pattern in [("/pattern", schema["pattern"]), *patterns] if "pattern" in schema else patterns:
            try:
                _search(pattern, "")
            except _Unsupported as error:
                raise GrammarError(f"best_effort cannot check this either: {error}", f"{pointer}{place}") from error


def _follower(root: Any) -> Follow:
    """Return what finds the targets of references: by place in a document without names, in which the library takes a property
    `id` for one.
    """
    from referencing.jsonschema import lookup_recursive_ref

    local = not moves_base(list(iter_schemas(root)))

    def follow(validator: Any, keyword: str, reference: str) -> Any:
        target = resolve(root, reference) if local else None
        if target is not None:
            return validator.evolve(schema=target[1])
        resolver = validator._resolver
        found = lookup_recursive_ref(resolver) if keyword == "$recursiveRef" else resolver.lookup(reference)
        return validator.evolve(schema=found.contents, _resolver=found.resolver)

    return follow


def _reference(follow: Follow, budget: _Budget | None) -> Callable[..., Iterator[Any]]:
    """`budget`: what keeps whether a schema holds; None where nothing does."""
    from jsonschema import ValidationError

    def check(validator: Any, reference: Any, value: Any, _schema: Any) -> Iterator[Any]:
        target = follow(validator, "$ref", reference)
        if budget is None or not target.is_valid(value):
            yield from (ValidationError(""),) if budget is not None and budget.quiet else target.iter_errors(value)

    return check


def _require_known(root: Any, lookup: Callable[[str], Any]) -> None:
    """Raise GrammarError with the pointer of a reference out of the document, or to nothing in it. `lookup` is its resolver's."""
    from referencing.exceptions import Unresolvable

    for pointer, schema in iter_schemas(root):
        references = [key for key in _REFERENCES if key in schema] if isinstance(schema, dict) else []
        for key in (key for key in references if resolve(root, schema[key]) is None):
            try:
                lookup(f"#{quote(pointer)}").resolver.lookup(schema[key])
            # Also what is no URI, and where a property on the way is called `id`.
            except (Unresolvable, ValueError, AttributeError) as error:
                reason = f"best_effort cannot check this either: the reference {schema[key]!r} leads to nothing that is known"
                raise GrammarError(reason, f"{pointer}/{key}") from error


def _visit(root: Any, pointer: str, schema: Any, path: list[str], done: set[str]) -> None:
    if pointer in done or not isinstance(schema, dict):
        return
    if pointer in path:
        raise GrammarError("the reference comes back to itself", f"{pointer}/$ref")
    if len(path) > _MAX_CHAIN:
        raise GrammarError(f"more than {_MAX_CHAIN} schemas apply to one value", pointer)
    for place, part in _in_place(root, pointer, schema):
        _visit(root, place, part, [*path, pointer], done)
    done.add(pointer)


def _in_place(root: Any, pointer: str, schema: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Return the schemas that apply to the same value."""
    target = resolve(root, schema["$ref"]) if isinstance(schema.get("$ref"), str) else None
    if target is not None:
        yield target
    for key in ("allOf", "anyOf", "oneOf"):
        yield from ((f"{pointer}/{key}/{n}", part) for n, part in enumerate(schema.get(key, ())))
    for key in ("if", "then", "else", "not"):
        yield f"{pointer}/{key}", schema.get(key)
    for key in ("dependencies", "dependentSchemas"):
        yield from ((f"{pointer}/{key}/{escape(name)}", part) for name, part in schema.get(key, {}).items())


def _deeper(value: Any, limit: int) -> bool:
    level = [value]
    for _ in range(limit):
        level = [
            item
            for parent in level
            if isinstance(parent, (dict, list))
            for item in (parent.values() if isinstance(parent, dict) else parent)
        ]
        if not level:
            return False
    return True


_READ_DIFFERENTLY = re.compile(r"\\[dDsSwWb]|\(\?[a-z]")
"""What dialects read differently beside what no automaton here reads."""


class _Unsupported(Exception):
    """Raised for what cannot be checked here: an expression that is not matched in linear time, or too much work."""


class _Budget(threading.local):
    """Counts how many more keywords may be looked at for the text of this thread."""

    left = _MAX_LOOKS
    steps = 0
    """Of searches for patterns so far: they cost, and are not bounded here, because texts are."""

    quiet = False
    """True where nobody asks what is wrong."""

    def __init__(self) -> None:
        self.known: dict[tuple[int, int], tuple[bool, Any, Any]] = {}

    def kept(self, is_valid: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool]:
        """Return the same of a validator and a value, worked out once for each schema and place in the text: branches of branches
        would ask 2**depth times.
        """

        def found(validator: Any, value: Any) -> bool:
            key, before = (id(validator.schema), id(value)), self.quiet
            if key not in self.known:
                self.quiet = True
                try:  # both are held, so that nothing else gets their ids
                    self.known[key] = is_valid(validator, value), validator.schema, value
                finally:
                    self.quiet = before
            return self.known[key][0]

        return found

    def spend(self, looks: int) -> None:
        """Raise _Unsupported where not so many are left."""
        self.left -= looks
        if self.left < 0:
            raise _Unsupported("it takes too many steps")

    def counted(self, name: str, check: Callable[..., Any]) -> Callable[..., Iterator[Any]]:
        """Return the `check` of the keyword `name`, paid for: more for a keyword or a value with many entries, and one that
        matches each key with each pattern.
        """
        by_pattern = name in _BY_PATTERN

        def paid(validator: Any, keyword: Any, value: Any, schema: Any) -> Iterator[Any]:
            self.spend(1 + (_entries(keyword) + _entries(value)) // 16)
            if name == "pattern" and isinstance(value, str):
                self.steps += search_steps(keyword, value)
            if by_pattern:
                patterns, keys = schema.get("patternProperties", ()), value if isinstance(value, dict) else ()
                self.spend(_entries(value) * len(patterns))
                self.steps += sum(search_steps(pattern, key) for pattern in patterns for key in keys)
            yield from check(validator, keyword, value, schema) or ()

        return paid


def _entries(value: Any) -> int:
    return len(value) if isinstance(value, (dict, list)) else 0


@kept_for_work(4096)
def _search(pattern: str, text: str) -> bool:
    try:
        return finds(pattern, text)
    except NotUnderstood:
        found = _search_by_library(pattern, text)
    if not found and _is_doubtful(pattern, text):
        raise _Unsupported("dialects of regular expressions differ on this text")
    return found


def _is_doubtful(pattern: str, text: str) -> bool:
    """Return True if some dialect may find a pattern in a text though the library, as it reads it, does not."""
    if is_plain(text):
        return False
    try:
        parse(pattern)
    except NotUnderstood:
        return ("\x01" in text and is_spared(pattern)) or _READ_DIFFERENTLY.search(pattern) is not None
    return True


def _search_by_library(pattern: str, text: str) -> bool:
    """Search by the grammar library's automaton over single bytes; it has no look-around and no back references either."""
    import llguidance

    if (name := foreign(pattern)) is not None:
        raise _Unsupported(f"{name} is not supported in a regular expression")
    tokenizer = llguidance.LLTokenizer("byte")
    try:
        schema = json.dumps({"type": "string", "pattern": as_library(pattern)})
    except Ambiguous as error:
        raise _Unsupported(f"dialects of regular expressions differ: {error}") from error
    grammar = llguidance.LLMatcher.grammar_from_json_schema(schema)
    matcher = llguidance.LLMatcher(tokenizer, grammar, log_level=0)
    tokens = tokenizer.tokenize_str(json.dumps(text, ensure_ascii=False))
    if matcher.is_error():
        raise _Unsupported(f"the pattern {pattern!r} is not supported")
    return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()


def _any_of(validator: Any, branches: Any, value: Any, _schema: Any) -> Iterator[Any]:
    """Ends each branch at its first error, unlike the library's."""
    from jsonschema import ValidationError

    if not any(validator.evolve(schema=branch).is_valid(value) for branch in branches):
        yield ValidationError(f"{value!r} is not valid under any of the given schemas")


def _one_of(validator: Any, branches: Any, value: Any, _schema: Any) -> Iterator[Any]:
    from jsonschema import ValidationError

    holding = [branch for branch in branches if validator.evolve(schema=branch).is_valid(value)]
    if not holding:
        yield ValidationError(f"{value!r} is not valid under any of the given schemas")
    elif len(holding) > 1:
        yield ValidationError(f"{value!r} is valid under each of {', '.join(map(repr, holding))}")


def _pattern(validator: Any, pattern: str, value: Any, _schema: Any) -> Iterator[Any]:
    from jsonschema import ValidationError

    if isinstance(value, str) and not _search(pattern, value):
        yield ValidationError(f"{value!r} does not match {pattern!r}")


def _format(validator: Any, name: Any, value: Any, _schema: Any) -> Iterator[Any]:
    from jsonschema import ValidationError

    pattern = wide(name) if isinstance(name, str) else None
    if isinstance(value, str) and pattern is not None and not _search(pattern, value):
        yield ValidationError(f"{value!r} is not a {name!r}")


def _multiple_of(validator: Any, step: Any, value: Any, _schema: Any) -> Iterator[Any]:
    """Reckons with numbers as they are written, as masks do: by floats 0.58 is no multiple of 0.01."""
    from jsonschema import ValidationError

    if validator.is_type(value, "number") and Fraction(str(value)) % Fraction(str(step)):
        yield ValidationError(f"{value!r} is not a multiple of {step}")


def _pattern_properties(validator: Any, patterns: Any, value: Any, _schema: Any) -> Iterator[Any]:
    if not isinstance(value, dict):
        return
    for pattern, schema in patterns.items():
        for key, item in value.items():
            if _search(pattern, key):
                yield from validator.descend(item, schema, path=key, schema_path=pattern)


def _additional_properties(validator: Any, additional: Any, value: Any, schema: Any) -> Iterator[Any]:
    from jsonschema import ValidationError

    if not isinstance(value, dict):
        return
    listed, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
    extra = [key for key in value if key not in listed and not any(_search(pattern, key) for pattern in patterns)]
    if additional is False and extra:
        yield ValidationError(f"additional properties are not allowed: {extra}")
    elif isinstance(additional, dict):
        for key in extra:
            yield from validator.descend(value[key], additional, path=key)


def _unique_items(validator: Any, unique: Any, value: Any, _schema: Any) -> Iterator[Any]:
    """Linear in the size of the value: comparing each with each is not."""
    from jsonschema import ValidationError

    if unique and isinstance(value, list) and len({_canonical(item) for item in value}) < len(value):
        yield ValidationError(f"{value!r} has non-unique elements")


def _canonical(value: Any) -> str:
    """Equal for values that are equal in JSON: 1 is 1.0 but not true, and objects have no order."""

    def plain(part: Any) -> Any:
        if isinstance(part, float) and part.is_integer():
            return int(part)
        if isinstance(part, list):
            return [plain(item) for item in part]
        return {key: plain(item) for key, item in part.items()} if isinstance(part, dict) else part

    return json.dumps(plain(value), sort_keys=True)


def _unevaluated_properties(follow: Follow, budget: _Budget) -> Callable[..., Iterator[Any]]:
    from jsonschema import ValidationError

    def search(pattern: str, name: str) -> bool:
        budget.steps += search_steps(pattern, name)
        return _search(pattern, name)

    def followed(validator: Any, keyword: str, reference: str) -> Any:
        budget.spend(1)  # for each way to a schema: whether it holds is known
        return follow(validator, keyword, reference)

    def check(validator: Any, unevaluated: Any, value: Any, schema: Any) -> Iterator[Any]:
        if not isinstance(value, dict):
            return
        rest = {key: word for key, word in schema.items() if key != "unevaluatedProperties"}
        known = evaluated_names(validator.evolve(schema=rest), value, followed, search)
        for name in (name for name in value if name not in known):
            if any(validator.evolve(schema=unevaluated).iter_errors(value[name])):
                yield ValidationError(f"unevaluated property {name!r} is not allowed, or not valid")

    return check


def _pointer(path: Any) -> str:
    return "".join(f"/{escape(str(part))}" for part in path)
