"""Unions whose alternatives are told apart by a property, as pydantic and OpenAPI write them."""

from __future__ import annotations

from typing import Any


def with_tags(schema: Any) -> Any:
    """Return a schema whose unions require the property that is their ``discriminator``.

    OpenAPI asks for that. Pydantic leaves a tag with a default optional, and then reads no value without it.
    """
    if isinstance(schema, list):
        return [with_tags(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: with_tags(part) for key, part in schema.items()}
    tag, required = schema.get("discriminator"), schema.get("required", [])
    name = tag.get("propertyName") if isinstance(tag, dict) else None
    if isinstance(name, str) and isinstance(schema.get("oneOf"), list) and isinstance(required, list):
        made["required"] = [*required, *([] if name in required else [name])]
    return made
