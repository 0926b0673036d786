"""One operation of the gateway, as the document describes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from inferd_runtime.server.dialects.field_table import FieldTable

Method = Literal["GET", "POST", "DELETE"]
Place = Literal["query", "header"]
JSON = "application/json"


@dataclass(frozen=True)
class OperationParameter:
    """A parameter beside the path's own: its ``schema`` is JSON Schema."""

    name: str
    note: str
    schema: Mapping[str, Any]
    place: Place = "query"


@dataclass(frozen=True)
class OperationAnswer:
    """What is sent with one status: ``kind`` is the type of a JSON body: None for text, ``dict`` for any object. ``other``: the
    type of the body for the other vendor's clients, where two share a route.

    ``stream``: the type of each event, where the answer may come as server-sent events. ``lines``: the media type of such a
    stream as lines of JSON, "" where there is none.
    """

    note: str
    kind: Any = None
    media: str = JSON
    stream: Any = None
    other: Any = None
    lines: str = ""


@dataclass(frozen=True, kw_only=True)
class Operation:
    """A method of a path. Path parameters are those that the path names in braces.

    ``body``: the types that a request's JSON body may have, with the table of their fields, where they have one. ``errors``: the
    statuses of errors, beside those that any request may get.
    """

    method: Method
    path: str
    tag: str
    summary: str
    answers: Mapping[int, OperationAnswer]
    body: tuple[Any, ...] = ()
    fields: FieldTable | None = None
    parameters: tuple[OperationParameter, ...] = ()
    errors: tuple[int, ...] = ()
    public: bool = False

    @property
    def id(self) -> str:
        """Return a name that no other operation has."""
        words = "".join(each if each.isalnum() else "_" for each in self.path.strip("/"))
        return f"{self.method.lower()}_{words}".replace("__", "_").rstrip("_")
