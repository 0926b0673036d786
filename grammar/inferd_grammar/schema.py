"""Reads a JSON schema before a library does: checks that it is JSON, within the limits and a schema, and finds keywords.

Only what a library gets wrong is done here. It lets malformed keywords pass where the type makes them moot, ignores
constraints of JSON Schema draft 3 and draft 4's boolean `exclusiveMinimum`, and never says where a keyword stands.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any
from urllib.parse import unquote, urlsplit

from inferd_grammar.errors import GrammarError
from inferd_grammar.limits import CompileLimits

_ONE = ("additionalItems", "additionalProperties", "contains", "else", "if", "items", "not", "propertyNames", "then")
_ONE_MORE = ("unevaluatedItems", "unevaluatedProperties")
_MANY = ("allOf", "anyOf", "items", "oneOf", "prefixItems")
_NAMED = ("dependencies", "dependentSchemas", "patternProperties", "properties")
_DEFINITIONS = ("$defs", "definitions")
_TYPES = ("array", "boolean", "integer", "null", "number", "object", "string")
_COUNTS = (
    "maxContains", "minContains", "maxItems", "maxLength", "maxProperties", "minItems", "minLength", "minProperties",
)  # fmt: skip
_NUMBERS = ("exclusiveMaximum", "exclusiveMinimum", "maximum", "minimum", "multipleOf")
OPEN_BOUNDS = {"exclusiveMaximum": "maximum", "exclusiveMinimum": "minimum"}
"""Keywords that are a bound, or in draft 4 and OpenAPI 3.0 a flag of the other one."""
_STRINGS = ("$anchor", "$dynamicAnchor", "$dynamicRef", "$id", "$recursiveRef", "$ref", "format", "pattern")
DESCRIPTIONS = frozenset(
    ("$comment", "default", "deprecated", "description", "examples", "readOnly", "title", "writeOnly")
)
"""Keywords that allow and forbid nothing."""
# Constraints of draft 3 that libraries take for annotations, and llguidance's switch to weaken a schema from inside.
_REFUSED = ("disallow", "divisibleBy", "extends", "x-guidance")


def schema_text(schema: Mapping[str, Any] | bool | str) -> str:
    """Return the JSON text of a schema; text is returned as it is. Raises GrammarError if it cannot be written as JSON."""
    if isinstance(schema, str):
        return schema
    _require_text_keys(schema)
    try:
        return json.dumps(schema, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    except (TypeError, ValueError) as error:
        raise GrammarError(f"schema is not JSON: {error}") from error


def read_schema(text: str, limits: CompileLimits) -> Any:
    """Parse and check the text of a schema; returns the JSON value. Raises GrammarError naming what is wrong."""
    require_size(text, "schema", limits)
    root = _parse(text, limits)
    _check_caps(root, limits)
    check_keywords(root, limits)
    return root


def check_keywords(root: Any, limits: CompileLimits) -> None:
    """Raise GrammarError if a keyword of a document is not what it has to be, as far as its references are followed."""
    draft4 = isinstance(root, dict) and "draft-04" in str(root.get("$schema"))
    for pointer, schema in iter_schemas(root):
        _check_keywords(schema, pointer, draft4)
        _check_multiples(root, schema, pointer, limits)


def convert_flags(schema: dict[str, Any]) -> None:
    """Convert `"exclusiveMinimum": true` beside `minimum`, as draft 4 has it, in place."""
    for open_, bound in OPEN_BOUNDS.items():
        if isinstance(schema.get(open_), bool) and schema.pop(open_) and bound in schema:
            schema[open_] = schema.pop(bound)


def require_size(text: str, what: str, limits: CompileLimits) -> None:
    """Raise GrammarError unless `text` is UTF-8 text of at most `limits.max_bytes`."""
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        raise GrammarError(f"{what} is not Unicode text: {error}") from error
    if size > limits.max_bytes:
        raise GrammarError(f"{what} has {size} bytes; max_bytes is {limits.max_bytes}")


def require_regex(pattern: str, limits: CompileLimits, pointer: str | None = None) -> None:
    """Raise GrammarError if a regular expression is longer than `limits.max_regex` characters."""
    if len(pattern) > limits.max_regex:
        raise GrammarError(f"regex has {len(pattern)} characters; max_regex is {limits.max_regex}", pointer)


def iter_schemas(root: Any) -> Iterator[tuple[str, Any]]:
    """Yield (JSON pointer, subschema) for the root and all it reaches, `#/...` references followed, each place once.

    `$defs` that nothing refers to are not visited: no text depends on them. References by `$id` or `$anchor` are not
    followed.
    """
    seen: set[str] = set()
    stack = [("", root)]
    while stack:
        pointer, schema = stack.pop()
        if pointer in seen:
            continue
        seen.add(pointer)
        yield pointer, schema
        if isinstance(schema, dict):
            stack.extend(reversed([*_children(pointer, schema), *_target(root, schema)]))


def nested_schemas(pointer: str, schema: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield (JSON pointer, subschema) for all right inside a schema object, its definitions too."""
    yield from _children(pointer, schema)
    for key in _DEFINITIONS:
        if isinstance(schema.get(key), dict):
            yield from ((f"{pointer}/{key}/{escape(name)}", item) for name, item in schema[key].items())


def map_schemas(schema: Any, change: Callable[[dict[str, Any]], Any]) -> Any:
    """Return the schema with every object schema in it changed, inner ones first; definitions too that nothing refers to."""
    if not isinstance(schema, dict):
        return schema
    result: dict[str, Any] = {}
    for key, value in schema.items():
        if key in _MANY and isinstance(value, list):
            result[key] = [map_schemas(item, change) for item in value]
        elif key in (*_NAMED, *_DEFINITIONS) and isinstance(value, dict):
            result[key] = {name: map_schemas(item, change) for name, item in value.items()}
        else:
            result[key] = map_schemas(value, change) if key in (*_ONE, *_ONE_MORE) else value
    return change(result)


def find_keyword(root: Any, keys: Sequence[str], value: Any = None) -> str | None:
    """Return the pointer of `keys[0]` in the first subschema that has all of `keys` (and this `value`, unless None), or None."""
    for pointer, schema in iter_schemas(root):
        present = isinstance(schema, dict) and all(key in schema for key in keys)
        if present and (value is None or schema[keys[0]] == value):
            return f"{pointer}/{escape(keys[0])}"
    return None


def _require_text_keys(value: Any) -> None:
    """Raise GrammarError for keys such as 1 and None, which json.dumps would turn into text."""
    stack, seen = [value], set()
    while stack:
        item = stack.pop()
        if not isinstance(item, (dict, list, tuple)) or id(item) in seen:
            continue
        seen.add(id(item))
        if isinstance(item, dict):
            for key in item:
                if not isinstance(key, str):
                    raise GrammarError(f"schema is not JSON: key {key!r} is not text")
        stack.extend(item.values() if isinstance(item, dict) else item)


def _parse(text: str, limits: CompileLimits) -> Any:
    try:
        value = json.loads(
            text, object_pairs_hook=unique_keys, parse_float=finite, parse_int=within, parse_constant=_no_constant
        )
        json.dumps(value, ensure_ascii=False).encode()  # half of a surrogate pair is no text
        return value
    except RecursionError as error:
        raise GrammarError(f"schema nests too deep to read; max_depth is {limits.max_depth}") from error
    except ValueError as error:
        raise GrammarError(f"schema is not JSON text: {error}") from error


def finite(text: str) -> float:
    """Return a number. Raises ValueError for one that no 64-bit float holds, with which keywords cannot reckon, and for NaN."""
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text[:20]} is beyond what 64-bit floats hold")
    return number


def within(text: str) -> int:
    """Return a whole number. Raises ValueError for one that no 64-bit float comes near."""
    finite(text)
    return int(text)


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the object of these pairs, for `json.loads`. Raises ValueError if a key repeats."""
    result = dict(pairs)
    if len(result) != len(pairs):
        times = Counter(name for name, _ in pairs)
        repeated = sorted(name for name, count in times.items() if count > 1)
        raise ValueError(f"keys repeat in one object: {repeated}")
    return result


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _check_caps(root: Any, limits: CompileLimits) -> None:
    """Check the caps on any JSON value, also where it is not a schema: data is small, and a reference may point anywhere."""
    stack, pointers = [("", root, 0)], 0
    while stack:
        pointer, value, depth = stack.pop()
        if depth > limits.max_depth:
            raise GrammarError(f"schema nests deeper than max_depth {limits.max_depth}", pointer)
        pointers += len(pointer) * len(value) if isinstance(value, (dict, list)) else 0
        if pointers > limits.max_pointers:  # before those of the parts are made
            raise GrammarError(f"keys with much under them are too long; max_pointers is {limits.max_pointers}")
        if isinstance(value, dict):
            _check_object_caps(pointer, value, root, limits)
            stack.extend((f"{pointer}/{escape(key)}", item, depth + 1) for key, item in value.items())
        elif isinstance(value, list):
            stack.extend((f"{pointer}/{n}", item, depth + 1) for n, item in enumerate(value))


def _check_object_caps(pointer: str, value: Mapping[str, Any], root: Any, limits: CompileLimits) -> None:
    for key, name, limit in (("enum", "max_enum", limits.max_enum), ("allOf", "max_branches", limits.max_branches)):
        items = value.get(key)
        if isinstance(items, list) and len(items) > limit:
            raise GrammarError(f"{key} has {len(items)} members; {name} is {limit}", f"{pointer}/{key}")
    branches = value.get("allOf")
    count = sum(_has_pattern(part, root) for part in branches) if isinstance(branches, list) else 0
    if count > limits.max_all_of:
        raise GrammarError(f"allOf has {count} patterns; max_all_of is {limits.max_all_of}", f"{pointer}/allOf")
    if isinstance(pattern := value.get("pattern"), str):
        require_regex(pattern, limits, f"{pointer}/pattern")
    if isinstance(patterns := value.get("patternProperties"), dict):
        for key in patterns:
            require_regex(key, limits, f"{pointer}/patternProperties/{escape(key)}")


def _has_pattern(schema: Any, root: Any) -> bool:
    if not isinstance(schema, dict):
        return False
    return "pattern" in schema or any(
        "pattern" in target for _, target in _target(root, schema) if isinstance(target, dict)
    )


def _check_keywords(schema: Any, pointer: str, draft4: bool) -> None:
    if isinstance(schema, bool):
        return
    if not isinstance(schema, dict):
        raise GrammarError(f"a schema is an object or a boolean, not {_kind(schema)}", pointer)
    for key, value in schema.items():
        if key in _REFUSED:
            raise GrammarError(f"keyword {key!r} is not supported", f"{pointer}/{key}")
        if isinstance(value, bool) and key in OPEN_BOUNDS and (draft4 or OPEN_BOUNDS[key] in schema):
            continue
        named = "$id" if draft4 and key == "id" and not pointer else key  # what stands below may be called so, too
        if expected := _malformed(named, value):
            raise GrammarError(f"{key!r} must be {expected}, not {_kind(value)}", f"{pointer}/{escape(key)}")


def _malformed(key: str, value: Any) -> str | None:
    """Return what a keyword's value should have been, or None if it is well formed."""
    if key == "type":
        kinds = value if isinstance(value, list) else [value]
        return None if kinds and all(kind in _TYPES for kind in kinds) else f"one of {', '.join(_TYPES)}, or a list"
    if key in _COUNTS:
        return None if _is_number(value) and value >= 0 and value == int(value) else "a count"
    if key in _NUMBERS:
        return None if _is_number(value) and (key != "multipleOf" or value > 0) else "a number"
    if key == "$schema":
        return None if _is_uri(value) else "a URI"
    if key in _STRINGS:
        return None if isinstance(value, str) else "text"
    if key in _NAMED:
        return None if isinstance(value, dict) else "an object of schemas"
    return _malformed_list(key, value)


def _malformed_list(key: str, value: Any) -> str | None:
    if key in ("allOf", "anyOf", "oneOf"):
        return None if isinstance(value, list) and value else "a list of schemas with at least one member"
    if key == "required":
        return None if isinstance(value, list) and all(isinstance(name, str) for name in value) else "a list of names"
    if key == "enum":
        return None if isinstance(value, list) else "a list"
    if key == "dependentRequired":
        named = value.values() if isinstance(value, dict) else (None,)
        listed = all(isinstance(item, list) and all(isinstance(name, str) for name in item) for item in named)
        return None if listed else "an object of lists of names"
    if key == "uniqueItems":
        return None if isinstance(value, bool) else "a boolean"
    return None


def _check_multiples(root: Any, schema: Any, pointer: str, limits: CompileLimits) -> None:
    """Check the least common multiple of all that must hold together: the library's automaton has as many states."""
    if not isinstance(schema, dict) or not ({"multipleOf", "allOf", "$ref"} & schema.keys()):
        return
    try:
        together = math.lcm(*_multiples(root, schema, set()))
    except RecursionError as error:
        raise GrammarError("the schema's references lead too deep to follow", pointer) from error
    if together > limits.max_multiple_of:
        text = f"multipleOf amounts to {together}; max_multiple_of is {limits.max_multiple_of}"
        raise GrammarError(f"{text}: as many remainders are told apart; a larger unit or an enum needs none", pointer)


def _multiples(root: Any, schema: Any, seen: set[int]) -> Iterator[int]:
    """Yield the digits of every `multipleOf` that may apply together with `schema` to one value (branches all counted)."""
    if not isinstance(schema, dict) or id(schema) in seen:
        return
    seen.add(id(schema))
    if _is_number(schema.get("multipleOf")):
        yield _scaled(schema["multipleOf"])
    for key in ("allOf", "anyOf", "oneOf"):
        for branch in schema.get(key) or ():
            yield from _multiples(root, branch, seen)
    for _, target in _target(root, schema):
        yield from _multiples(root, target, seen)


def _scaled(value: int | float) -> int:
    """Return a positive number with its decimal point taken away: 0.25 -> 25, 1e-9 -> 1, 300 -> 300."""
    _, digits, exponent = Decimal(str(value)).normalize().as_tuple()
    assert isinstance(exponent, int)  # finite: JSON text has no other numbers
    whole = int("".join(map(str, digits)))
    return whole * int(10 ** min(max(exponent, 0), 400))


def _children(pointer: str, schema: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, value in schema.items():
        here = f"{pointer}/{escape(key)}"
        if key in _MANY and isinstance(value, list):
            yield from ((f"{here}/{n}", item) for n, item in enumerate(value))
        elif key in _NAMED and isinstance(value, dict):
            named = ((f"{here}/{escape(name)}", item) for name, item in value.items())
            # A dependency may be a list of names.
            yield from ((place, item) for place, item in named if key != "dependencies" or not isinstance(item, list))
        elif key in _ONE or key in _ONE_MORE:
            yield here, value


def _target(root: Any, schema: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Return the (pointer, value) that a `#/...` reference names, if it exists."""
    reference = schema.get("$ref")
    if isinstance(reference, str) and (found := resolve(root, reference)):
        yield found


def resolve(root: Any, reference: str) -> tuple[str, Any] | None:
    """(pointer, value) that `#` or a `#/...` reference names in a document; None for others and for what is absent."""
    if not (reference == "#" or reference.startswith("#/")):
        return None
    pointer, value = unquote(reference[1:]), root
    for part in pointer.split("/")[1:]:
        key = part.replace("~1", "/").replace("~0", "~")
        if isinstance(value, dict) and key in value:
            value = value[key]
        elif isinstance(value, list) and key.isdecimal() and int(key) < len(value):
            value = value[int(key)]
        else:
            return None  # the library refuses it and names the pointer
    return pointer, value


def escape(key: str) -> str:
    """Return a key as a part of a JSON pointer (RFC 6901)."""
    return key.replace("~", "~0").replace("/", "~1")


def _is_uri(value: Any) -> bool:
    try:
        return isinstance(value, str) and urlsplit(value) is not None
    except ValueError:
        return False


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _kind(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else f"{text[:40]}..."
