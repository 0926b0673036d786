"""Models of pydantic, told by their methods: it is never imported. Those of pydantic 2, and of pydantic 1, which the sandbox
can have (``dependencies = ["pydantic<2"]``), because it is Python alone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from inferd.program.tagged_unions import with_tags
from inferd.protocol import InvalidRequest

HEADS = ("$defs", "definitions")
"""Where the two versions put the models that a model refers to."""
REFERENCE = "#/$defs/"


def is_pydantic(kind: Any) -> bool:
    """Return True if this is a pydantic model class."""
    return isinstance(kind, type) and (
        _is_second(kind) or (hasattr(kind, "parse_obj") and hasattr(kind, "schema_json"))
    )


def pydantic_schema(kind: Any) -> dict[str, Any]:
    """Return a model's own JSON Schema, with the tags of its tagged unions. Raises InvalidRequest for a model that has none."""
    try:
        schema: dict[str, Any] = kind.model_json_schema() if _is_second(kind) else kind.schema()
    except (RuntimeError, TypeError, ValueError) as error:  # pydantic's own are of these
        why = str(error).partition("\n")[0]
        raise InvalidRequest(
            f"{kind.__name__}: pydantic makes no JSON Schema of it: {why}; use types that JSON has"
        ) from None
    made: dict[str, Any] = with_tags(schema)
    return made


def pydantic_parts(kind: Any) -> tuple[str, dict[str, Any]]:
    """Return the name of a model's own schema, and that of each model in it by name. References in them are as pydantic writes
    them: see :func:`renamed`.
    """
    schema = dict(pydantic_schema(kind))
    parts = {name: part for key in HEADS for name, part in schema.pop(key, {}).items()}
    root = _name_of(schema.get("$ref"))
    if root is None:
        root = kind.__name__
        while root in parts:
            root += "_"
        parts[root] = schema
    return root, parts


def renamed(schema: Any, names: Mapping[str, str]) -> Any:
    """Return a schema whose references name other definitions."""
    if isinstance(schema, list):
        return [renamed(part, names) for part in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: renamed(part, names) for key, part in schema.items()}
    referred = _name_of(schema.get("$ref")) or ""
    if referred in names:
        made["$ref"] = REFERENCE + names[referred]
    made.pop("discriminator", None)  # an annotation of OpenAPI's: the alternatives say it by themselves
    return made


def _name_of(reference: Any) -> str | None:
    """Return the name of the definition that a reference is to."""
    text = reference if isinstance(reference, str) else ""
    return next((text.removeprefix(f"#/{head}/") for head in HEADS if text.startswith(f"#/{head}/")), None)


def validated(kind: Any, value: Any) -> Any:
    """Return JSON values as the model. Raises pydantic's ValidationError, a ValueError."""
    return kind.model_validate_json(json.dumps(value)) if _is_second(kind) else kind.parse_obj(value)


def validated_json(kind: Any, text: str) -> Any:
    """Return JSON text as the model. Raises pydantic's ValidationError, a ValueError."""
    return kind.model_validate_json(text) if _is_second(kind) else kind.parse_raw(text)


def plain(value: Any) -> Any:
    """Return a model's instance as JSON values."""
    return value.model_dump(mode="json") if _is_second(type(value)) else json.loads(value.json())


def _is_second(kind: type) -> bool:
    return hasattr(kind, "model_json_schema") and hasattr(kind, "model_validate_json")
