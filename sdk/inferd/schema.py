"""Constraints on generated output (``generate(constrain=...)``) and how the output is read back: JSON, patterns, choices."""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Generic, Literal, TypeVar, overload

from inferd.program.json_types import guarded, schema_of, structure
from inferd.program.pydantic_models import is_pydantic, validated_json
from inferd.protocol import ConstraintError, ConstraintSpec, InvalidRequest, check_constraint_fields
from inferd.protocol.texts import checked_text

T = TypeVar("T")
ConstraintMode = Literal["strict", "best_effort"]


class OutputConstraint(ABC):
    """Base of the constraints below. ``constraint`` is what is sent to the runtime."""

    constraint: ConstraintSpec

    @abstractmethod
    def parse(self, text: str) -> Any:
        """Return the value that ``text`` stands for. Raises ConstraintError when it does not satisfy the constraint."""

    def json_parser(self) -> OutputConstraint | None:
        """Return the constraint that reads the text as JSON; None if this one says nothing about JSON."""
        return None

    @property
    def expected(self) -> Any:
        """The type that the text is read into, where it is JSON; Any for plain values."""
        return Any


class JsonSchema(OutputConstraint, Generic[T]):
    """JSON that is valid under a schema.

    ``schema`` is a JSON Schema as a dict or as JSON text, or a Python type: a dataclass, a TypedDict, an Enum, a pydantic
    model (by its own schema; the sandbox has those of pydantic 1 alone), or any type built from bool, int, float, str,
    None, Any, date, datetime, time, UUID, Decimal, list[T], tuple[...], set[T], frozenset[T], dict[str, T], Literal, Optional
    and unions of them. Objects made from types are closed (no other keys), and a field without a default is required. With a
    type, :meth:`parse` and ``collect_json`` return an instance of it; with a schema, plain values.

    ``mode`` "strict": a schema that the runtime cannot enforce token by token is refused when the generation starts
    (ConstraintError). "best_effort": what cannot be enforced is left out, and the finished text is checked for it;
    ``Generator.checked`` names it, and a text that fails ends with ConstraintViolated.

    ``soft_max_length`` and ``soft_max_items`` (0: none) end strings and arrays for which the schema says no end, so that a model
    which repeats itself comes to one: so many characters, and so many items. With mode "strict" only.

    Raises InvalidRequest, which names the field, for a type that JSON cannot hold, for text that is not a JSON object, and
    for another mode.
    """

    @overload
    def __init__(
        self: JsonSchema[Any],
        schema: dict[str, Any] | str,
        *,
        mode: ConstraintMode = ...,
        soft_max_length: int = ...,
        soft_max_items: int = ...,
    ) -> None: ...

    @overload
    def __init__(
        self, schema: type[T], *, mode: ConstraintMode = ..., soft_max_length: int = ..., soft_max_items: int = ...
    ) -> None: ...

    @overload
    def __init__(
        self: JsonSchema[Any],
        schema: object,
        *,
        mode: ConstraintMode = ...,
        soft_max_length: int = ...,
        soft_max_items: int = ...,
    ) -> None: ...

    def __init__(
        self, schema: Any, *, mode: ConstraintMode = "strict", soft_max_length: int = 0, soft_max_items: int = 0
    ) -> None:
        self._type: Any = Any if isinstance(schema, (dict, str)) else schema
        if isinstance(schema, str):
            text = _checked_schema_text(schema)
        else:
            text = _dumped(schema if isinstance(schema, dict) else schema_of(schema))
        self.constraint = ConstraintSpec(
            "json_schema", value=text, mode=mode, soft_max_length=soft_max_length, soft_max_items=soft_max_items
        )
        check_constraint_fields(self.constraint)

    @property
    def schema(self) -> dict[str, Any]:
        """The JSON Schema, as a new dict."""
        value: dict[str, Any] = json.loads(self.constraint.value)
        return value

    @property
    def expected(self) -> Any:
        """The type that the JSON is read into; Any for plain values."""
        return self._type

    def json_parser(self) -> OutputConstraint:
        """Return the constraint itself."""
        return self

    def parse(self, text: str) -> T:
        """Return ``text`` as the type (or plain values). Raises ConstraintError for a repeated key, or a value that does
        not fit.

        Plain values are checked to be JSON, not against the schema: that is what the runtime enforces.
        """
        value = parse_json(text)
        try:
            if is_pydantic(self._type):
                result: T = guarded(lambda: validated_json(self._type, text), "output")
            else:
                result = structure(self._type, value, "output")
        except InvalidRequest as error:
            raise ConstraintError(error.message) from error
        return result


class AnyJson(OutputConstraint):
    """Any one JSON value."""

    def __init__(self) -> None:
        self.constraint = ConstraintSpec("any_json")

    def json_parser(self) -> OutputConstraint:
        """Return the constraint itself."""
        return self

    def parse(self, text: str) -> Any:
        """Return ``text`` as plain values. Raises ConstraintError for text that is not JSON, or repeats a key."""
        return parse_json(text)


class Regex(OutputConstraint):
    """Text that matches ``pattern`` as a whole: Rust ``regex`` syntax, no look-around, no back references.

    The runtime compiles the pattern when the generation starts, and refuses it there (ConstraintError).
    """

    def __init__(self, pattern: str) -> None:
        self.constraint = ConstraintSpec("regex", value=checked_text("pattern", pattern))

    def parse(self, text: str) -> str:
        """Return the text itself."""
        return text


class Choice(OutputConstraint):
    """Exactly one of ``options``, a list of at least one string."""

    def __init__(self, options: Sequence[str]) -> None:
        if isinstance(options, str) or not isinstance(options, Sequence):
            raise InvalidRequest(f"options must be a list of strings, not {options!r}")
        if not all(isinstance(option, str) for option in options):
            raise InvalidRequest(f"options must hold strings, not {list(options)!r}")
        self.constraint = ConstraintSpec("choice", options=list(options))
        check_constraint_fields(self.constraint)

    def parse(self, text: str) -> str:
        """Return the option. Raises ConstraintError for text that is none of them."""
        if text not in self.constraint.options:
            raise ConstraintError(f"{text!r} is none of the options {self.constraint.options}")
        return text


def parse_json(text: str) -> Any:
    """Return plain values of a JSON text. Raises ConstraintError for text that is not JSON (NaN included) or repeats a key."""
    try:
        return json.loads(
            text, object_pairs_hook=_unique_keys, parse_constant=_refuse_constant, parse_float=_finite_float
        )
    except (ValueError, RecursionError) as error:
        raise ConstraintError(f"the output is not JSON: {error}") from error


def is_complete_json(text: str) -> bool:
    """Return True if no further character could belong to the JSON value: true of whole values, but never of a bare number."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return isinstance(value, bool) or not isinstance(value, (int, float))


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in pairs:
        if key in result:
            raise ValueError(f"the key {key!r} is repeated")
        result[key] = value
    return result


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _finite_float(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"the number {text} is too large")
    return value


def _checked_schema_text(text: str) -> str:
    try:
        schema = json.loads(text, object_pairs_hook=_unique_keys, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"schema is not JSON: {error}") from error
    if not isinstance(schema, dict):
        raise InvalidRequest(f"schema must be a JSON object, not {text[:60]!r}")
    return text


def _dumped(schema: dict[str, Any]) -> str:
    try:
        return json.dumps(schema, allow_nan=False, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidRequest(f"schema cannot be written as JSON: {error}") from error
