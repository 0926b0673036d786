"""References by `$id`, `$anchor`, `$dynamicRef` and `$recursiveRef` as references by place: `#/...`, which all readers follow."""

from __future__ import annotations

import re
from collections.abc import Iterator
from copy import deepcopy
from typing import Any, NamedTuple
from urllib.parse import quote, unquote, urldefrag, urljoin, urlsplit

from inferd_grammar.errors import GrammarError
from inferd_grammar.limits import CompileLimits
from inferd_grammar.schema import (
    check_keywords,
    convert_flags,
    escape,
    iter_schemas,
    map_schemas,
    nested_schemas,
    read_schema,
    resolve,
)

_DRAFT = re.compile(r"json-schema\.org/draft")
_BY_NAME = re.compile(r"https?://json-schema\.org/(draft(-0[467]|/20(19-09|20-12)))/schema#?")
_OLD = ("draft-04", "draft-06", "draft-07")
_DIALECTS = re.compile(r"http://json-schema\.org/draft-0[467]/schema")
"""Drafts that one schema describes; those of later ones are several, which refer to each other dynamically."""
ELSEWHERE = "leads to another document, {}, and none is fetched: write what it names into this one's $defs"
_NAMES = ("$anchor", "$dynamicAnchor", "$recursiveAnchor")
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")


class _Unknown(Exception):
    """Raised for a reference whose target depends on where the schema is used; with a reason, for one without a target."""


class _Place(NamedTuple):
    """A schema with its pointer, and URI and pointer of the resource that it belongs to."""

    schema: dict[str, Any]
    pointer: str
    base: str
    resource: str


def read_by_place(text: str, limits: CompileLimits) -> Any:
    """Return what `read_schema` does, with references by name as JSON pointers, and without the names, which nothing needs then.

    It stays as written if all references are pointers already, if one leads out of the document, or if a target depends on the
    value. Raises GrammarError as `read_schema` does, and for a name that is no URI.
    """
    root = read_schema(text, limits)
    if not isinstance(root, dict):
        return root
    if not _DRAFT.search(str(root.get("$schema"))):
        # An unknown dialect is read as the latest one; libraries would look for its document.
        root.pop("$schema", None)
    else:
        root = _of_draft(root, _draft(str(root["$schema"])))
    document = _Document(root)
    if document.has_names:
        document.refer_by_place()
        check_keywords(root, limits)
    else:
        document.forget_address()
    # OpenAPI 3.0 and generators for later drafts have the flags of draft 4, of which those know nothing.
    if "draft-04" not in str(root.get("$schema")):
        for _, schema in iter_schemas(root):
            if isinstance(schema, dict):
                convert_flags(schema)
    return root


def _draft(name: str) -> str:
    """Return the address of a draft that is named by it, or by http for https."""
    found = _BY_NAME.fullmatch(name)
    return (
        name.rstrip("#")
        if found is None
        else f"{'http' if found[3] is None else 'https'}://json-schema.org/{found[1]}/schema"
    )


def _of_draft(root: dict[str, Any], address: str) -> dict[str, Any]:
    """Return the document with its draft by that address. By another one, such as https for http, some readers take the latest
    draft: siblings of a reference count then.
    """
    if root["$schema"].startswith(address):
        return root
    return {**map_schemas(root, _with_siblings), "$schema": address}


def _with_siblings(schema: dict[str, Any]) -> dict[str, Any]:
    if "$ref" not in schema or len(schema) == 1:
        return schema
    rest = {key: value for key, value in schema.items() if key != "$ref"}
    return {**rest, "allOf": [{"$ref": schema["$ref"]}, *schema.get("allOf", ())]}


def _dialect(uri: str) -> dict[str, Any] | None:
    """Return the schema that schemas of a draft satisfy; None without the package that has it."""
    try:
        from jsonschema_specifications import REGISTRY
    except ImportError:
        return None
    schema: dict[str, Any] = deepcopy(REGISTRY.contents(f"{uri}#"))
    del schema["$schema"]
    return schema


class _Document:
    def __init__(self, root: dict[str, Any]) -> None:
        draft = str(root.get("$schema", ""))
        self._root = root
        self._draft = _draft(draft)
        self._old = any(name in draft for name in _OLD)
        self._id = "id" if "draft-04" in draft else "$id"
        self._resources: dict[str, str] = {}
        self._anchors: dict[str, str] = {}
        self._dynamic: dict[str, dict[str, str]] = {}
        self._places = list(self._noted(root, "", "", ""))
        self._add_dialect(urldefrag(draft)[0])

    @property
    def has_names(self) -> bool:
        """True if some reference is not by place, or some schema below the root has a name."""
        return any(
            not f"{place.schema.get('$ref', '#')}/".startswith("#/")
            or any(name in place.schema for name in (*_NAMES, *_REFERENCES[1:]))
            or (place.pointer and self._id in place.schema)
            for place in self._places
        )

    def forget_address(self) -> None:
        """Leave out the address of the whole document, to which nothing refers: libraries refuse some, such as `#schema`."""
        self._root.pop(self._id, None)

    def refer_by_place(self) -> None:
        """Change the document; leave it as it is where a target is not known. Raises GrammarError for one that nobody knows."""
        targets, reached = list[list[str]](), {pointer for pointer, _ in iter_schemas(self._root)}
        for place in self._places:
            try:
                targets.append(list(self._targets(place)))
            except _Unknown as unknown:
                if unknown.args and place.pointer in reached:
                    raise GrammarError(unknown.args[0], f"{place.pointer}/{unknown.args[1]}") from unknown
        if len(targets) < len(self._places):
            return
        for place, found in zip(self._places, targets, strict=True):
            schema = place.schema
            for name in (self._id, *_NAMES, *_REFERENCES, *(["$schema"] if place.pointer else [])):
                schema.pop(name, None)
            if found:
                schema["$ref"] = f"#{quote(found[0])}"
            if found[1:]:
                schema["allOf"] = [*schema.get("allOf", ()), *({"$ref": f"#{quote(target)}"} for target in found[1:])]

    def _add_dialect(self, uri: str) -> None:
        """Define the schema of the document's own draft, where the document refers to that: those of OpenAPI and AsyncAPI do."""
        refers = any(urldefrag(str(place.schema.get("$ref")))[0] == uri for place in self._places)
        if uri in self._resources or not refers or not _DIALECTS.fullmatch(uri):
            return
        dialect = _dialect(uri)
        definitions = self._root.setdefault("definitions", {})
        if dialect is not None and isinstance(definitions, dict):
            definitions[uri] = dialect
            self._places += self._noted(dialect, f"/definitions/{escape(uri)}", "", "")

    def _noted(self, schema: Any, pointer: str, base: str, resource: str) -> Iterator[_Place]:
        """Yield a schema and all in it, and note what names they have."""
        if not isinstance(schema, dict):
            return
        name = schema.get(self._id)
        if isinstance(name, str) and not (self._old and "$ref" in schema):
            if name.startswith("#"):
                self._anchors[base + name] = pointer
            else:
                base, resource = self._joined(base, name, pointer), pointer
        self._resources.setdefault(base, resource)
        for key in ("$anchor", "$dynamicAnchor"):
            if isinstance(schema.get(key), str):
                self._anchors[f"{base}#{schema[key]}"] = pointer
        if isinstance(schema.get("$dynamicAnchor"), str):
            self._dynamic.setdefault(schema["$dynamicAnchor"], {})[base] = pointer
        if schema.get("$recursiveAnchor") is True:
            self._dynamic.setdefault("", {})[base] = pointer
        yield _Place(schema, pointer, base, resource)
        for place, inner in nested_schemas(pointer, schema):
            yield from self._noted(inner, place, base, resource)

    def _joined(self, base: str, name: str, pointer: str) -> str:
        try:
            urlsplit(name)  # the others pass over one that stands alone
            return urldefrag(urljoin(base, name))[0]
        except ValueError as error:
            raise GrammarError(f"{name!r} is no URI: {error}", f"{pointer}/{self._id}") from error

    def _targets(self, place: _Place) -> Iterator[str]:
        """Yield the pointers that a schema refers to. Raises _Unknown."""
        if self._id in place.schema and _draft(str(place.schema.get("$schema", self._draft))) != self._draft:
            raise _Unknown  # a dialect of its own
        for key in _REFERENCES:
            reference = place.schema.get(key)
            if isinstance(reference, str):
                target, uri = self._static(key, reference, place.base)
                by_name = key != "$ref" and "#/" not in reference
                yield self._outermost(target, uri) if by_name else target
                if self._old:
                    return

    def _static(self, key: str, reference: str, base: str) -> tuple[str, str]:
        told = f"the {key} {reference!r}"
        try:
            uri, fragment = urldefrag(base + reference if reference.startswith("#") else urljoin(base, reference))
        except ValueError as error:
            raise _Unknown(f"{told} is no URI: {error}", key) from error
        if uri not in self._resources:
            # "/$defs/Name", as LiteLLM writes it, has no other meaning where the document has no address.
            written = resolve(self._root, f"#{reference}") if reference.startswith("/") and not base else None
            if written is not None:
                return written[0], uri
            raise _Unknown() if _DRAFT.search(uri) else _Unknown(f"{told} {ELSEWHERE.format(uri)}", key)
        inside = self._resources[uri] + unquote(fragment)
        target = self._anchors.get(f"{uri}#{fragment}", inside)
        if resolve(self._root, f"#{quote(target)}") is None:
            raise _Unknown(f"{told} leads to nothing in {uri or 'the document'}", key)
        return target, uri

    def _outermost(self, target: str, uri: str) -> str:
        """Return where a dynamic reference leads: to the root's place of that name, the outermost, or to the only one."""
        for places in self._dynamic.values():
            if places.get(uri) == target:
                outer = places.get(self._places[0].base)
                if outer is None and len(places) > 1:
                    raise _Unknown
                return target if outer is None else outer
        return target
