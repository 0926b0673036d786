"""The fields of a route's request, in one table: what works, what is accepted only as nothing, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from inferd_runtime.server.dialects.refusals import refusal

Standing = Literal["works", "accepted only as", "refused"]


@dataclass(frozen=True)
class RequestField:
    """A field that clients send. ``note``: what it does, or why it does not work.

    ``only``: None for a field that works; else the values that mean "nothing asked for", with which it is accepted and left
    out. ``null`` always means that.
    """

    name: str
    note: str
    only: tuple[Any, ...] | None = None

    @property
    def standing(self) -> Standing:
        """Return how the field stands, as the documentation's tables say it."""
        if self.only is None:
            return "works"
        return "accepted only as" if self.only else "refused"

    def accepts(self, value: Any) -> bool:
        """Return True if ``value`` asks for nothing, in a field that does not work."""
        return value is None or any(_same(value, each) for each in self.only or ())


@dataclass(frozen=True)
class FieldTable:
    """All fields of a route's request, each once."""

    fields: tuple[RequestField, ...]

    @cached_property
    def by_name(self) -> Mapping[str, RequestField]:
        """The fields by their names."""
        return {field.name: field for field in self.fields}

    @cached_property
    def working(self) -> frozenset[str]:
        """The names of the fields that do something."""
        return frozenset(field.name for field in self.fields if field.only is None)

    def take(self, value: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields that work. Raises InvalidRequest, which names the field, for an unknown and for a refused one."""
        for name, given in value.items():
            field = self.by_name.get(name)
            if field is None:
                raise refusal(name, "there is no such field", "unknown_parameter")
            _check(field, given)
        return {name: given for name, given in value.items() if name in self.working}


def _check(field: RequestField, given: Any) -> None:
    """Raises InvalidRequest for a field that does not work and asks for something."""
    if field.only is None or field.accepts(given):
        return
    if not field.only:
        raise refusal(field.name, f"not supported: {field.note}", "unsupported_parameter")
    accepted = " or ".join(json.dumps(each) for each in field.only)
    raise refusal(field.name, f"only {accepted} is supported: {field.note}", "unsupported_value")


def _same(value: Any, other: Any) -> bool:
    """Return True for equal values; a boolean is no number."""
    return isinstance(value, bool) == isinstance(other, bool) and bool(value == other)
