"""Checking a finished text against its schema, for `best_effort`: what masks do not hold is found here.

The validator is `jsonschema` in the draft that `$schema` names. Of a `format` it holds what every reader asks for (masks hold
all of those they know), remote references are never fetched, keys that repeat are refused, and regular expressions are
matched in linear time: Python's own can backtrack for ever.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple
from urllib.parse import quote

from inferd_grammar.errors import GrammarError
from inferd_grammar.memo import Memo, memoising
from inferd_grammar.pattern_search import Unsupported, search
from inferd_grammar.schema import escape, finite, iter_schemas, resolve, unique_keys, within

# Looks at a keyword that one text may cost, about 4 us each: so many, and more for each of its bytes.
_MAX_LOOKS, _LOOKS_PER_BYTE = 30_000, 4
_REFERENCES = ("$ref", "$dynamicRef")
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
            import jsonschema
            import referencing.exceptions
            from jsonschema_specifications import REGISTRY
            from referencing.jsonschema import DRAFT202012, specification_with

            from inferd_grammar.keyword_checks import Budget, counted_validator
        except ImportError as error:
            raise GrammarError("best_effort needs the package jsonschema") from error
        self._failures = (referencing.exceptions.Unresolvable, RecursionError, Unsupported)
        default = jsonschema.validators.validator_for({"$schema": _LATEST})
        kind = jsonschema.validators.validator_for(schema, default=default)
        self._budget = Budget()
        safe = counted_validator(kind, schema, self._budget)
        _require_one_draft(schema, lambda part: jsonschema.validators.validator_for(part, default=kind) is kind)
        _require_guarded(schema)
        self._memo = Memo()
        with memoising(self._memo):
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
            with memoising(self._memo):
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
                search(pattern, "")
            except Unsupported as error:
                raise GrammarError(f"best_effort cannot check this either: {error}", f"{pointer}{place}") from error


def _require_known(root: Any, lookup: Callable[[str], Any]) -> None:
    """Raise GrammarError with the pointer of a reference out of the document, or to nothing in it. `lookup` is its resolver's."""
    from referencing.exceptions import Unresolvable  # of the optional package jsonschema

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


def _pointer(path: Any) -> str:
    return "".join(f"/{escape(str(part))}" for part in path)
