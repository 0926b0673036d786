"""Models of pydantic, told by their methods: it is never imported. Those of pydantic 2, and of pydantic 1, which the sandbox
can have (``dependencies = ["pydantic<2"]``), because it is Python alone.
"""

from __future__ import annotations

import json
from typing import Any


def is_pydantic(kind: Any) -> bool:
    """Return True if this is a pydantic model class."""
    return isinstance(kind, type) and (
        _is_second(kind) or (hasattr(kind, "parse_obj") and hasattr(kind, "schema_json"))
    )


def pydantic_schema(kind: Any) -> dict[str, Any]:
    """Return a model's own JSON Schema."""
    schema: dict[str, Any] = kind.model_json_schema() if _is_second(kind) else kind.schema()
    return schema


def validated(kind: Any, value: Any) -> Any:
    """Return a value as the model. Raises pydantic's ValidationError, a ValueError."""
    return kind.model_validate(value) if _is_second(kind) else kind.parse_obj(value)


def validated_json(kind: Any, text: str) -> Any:
    """Return JSON text as the model. Raises pydantic's ValidationError, a ValueError."""
    return kind.model_validate_json(text) if _is_second(kind) else kind.parse_raw(text)


def plain(value: Any) -> Any:
    """Return a model's instance as JSON values."""
    return value.model_dump(mode="json") if _is_second(type(value)) else json.loads(value.json())


def _is_second(kind: type) -> bool:
    return hasattr(kind, "model_json_schema") and hasattr(kind, "model_validate_json")
