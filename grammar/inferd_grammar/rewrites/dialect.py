"""Drafts: which keywords count, and older forms of them as draft 2020-12 writes them.

Sound: an ignored keyword constrains nothing in its draft, and each converted form has the same meaning in both
(`2.0` is a count like `2`).
`dependencies` is kept in every draft: 2019-09 and later define it no more, but schemas that hold it mean it. Its complement
there is refused, so that nothing depends on who is right.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from inferd_grammar.rewrites.base import View
from inferd_grammar.schema import convert_flags

_DRAFTS = ("draft-04", "draft-06", "draft-07", "2019-09", "2020-12")
_SINCE = {
    "draft-06": ("const", "contains", "propertyNames"),
    "draft-07": ("if", "then", "else"),
    "2019-09": (
        *("dependentRequired", "dependentSchemas", "maxContains", "minContains"),
        *("unevaluatedItems", "unevaluatedProperties"),
    ),
    "2020-12": ("prefixItems", "$dynamicRef"),
}
_ALWAYS = (
    *("$ref", "$recursiveRef", "additionalItems", "additionalProperties", "allOf", "anyOf", "dependencies", "enum"),
    *("exclusiveMaximum", "exclusiveMinimum", "format", "items", "maxItems", "maxLength", "maxProperties", "maximum"),
    *("minItems", "minLength", "minProperties", "minimum", "multipleOf", "not", "oneOf", "pattern"),
    *("patternProperties", "properties", "required", "type", "uniqueItems"),
)
# What may have looked at members before `unevaluated...` does.
_APPLICATORS = frozenset(
    ("$dynamicRef", "$recursiveRef", "$ref", "allOf", "anyOf", "contains", "dependentSchemas", "if", "not", "oneOf")
)
COUNTS = frozenset(("maxItems", "maxLength", "maxProperties", "minItems", "minLength", "minProperties"))
KEYWORDS = frozenset((*_ALWAYS, *(word for words in _SINCE.values() for word in words)))
"""Every keyword of any draft that constrains a value."""


class Dialect:
    """The draft that a document's `$schema` names; 2020-12 where it names none that is known."""

    def __init__(self, root: Any) -> None:
        name = root.get("$schema", "") if isinstance(root, dict) else ""
        index = next((n for n, draft in enumerate(_DRAFTS) if draft in name), len(_DRAFTS) - 1)
        self.draft = _DRAFTS[index]
        self._known = {*_ALWAYS, *(word for draft in _DRAFTS[: index + 1] for word in _SINCE.get(draft, ()))}
        self.defines_dependencies = index <= _DRAFTS.index("draft-07")
        self.reference_alone = index <= _DRAFTS.index("draft-07")

    def view(self, schema: Mapping[str, Any], pointer: str) -> View:
        """Return the keywords of one schema object that count, in 2020-12's form."""
        words = {key: value for key, value in schema.items() if key in self._known}
        if self.reference_alone and "$ref" in words:
            return View({"$ref": words["$ref"]}, pointer)
        convert_flags(words)
        for key in COUNTS & words.keys():
            words[key] = int(words[key])
        names = _convert_items(words)
        if not _APPLICATORS & words.keys():
            names |= _convert_unevaluated(words)
        return View(words, pointer, names)


def _convert_items(words: dict[str, Any]) -> dict[str, str]:
    """Convert a list in `items` to `prefixItems`, and `additionalItems` to `items`, as written before 2020-12."""
    rest = words.pop("additionalItems", None)
    if not isinstance(words.get("items"), list):
        return {}
    words["prefixItems"] = words.pop("items")
    if rest is not None:
        words["items"] = rest
    return {"prefixItems": "items", "items": "additionalItems"}


def _convert_unevaluated(words: dict[str, Any]) -> dict[str, str]:
    """Convert unevaluated members to additional ones where nothing else looks at members."""
    names = {}
    for key, same in (("unevaluatedProperties", "additionalProperties"), ("unevaluatedItems", "items")):
        schema = words.pop(key, None)
        if schema is not None and same not in words:
            words[same] = schema
            names[same] = key
    return names
