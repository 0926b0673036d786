"""The OpenAPI document: it has every route, each field of the dialects, and nothing that is not there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any
from unittest.mock import Mock

import jsonschema
import pytest
from dialect_reference import TABLES
from starlette.routing import Route, WebSocketRoute

from inferd_runtime.server.gateway.app import all_routes
from inferd_runtime.server.gateway.auth import PUBLIC_PATHS
from inferd_runtime.server.gateway.chat_routes import ChatApi
from inferd_runtime.server.gateway.model_routes import ModelApi
from inferd_runtime.server.gateway.routes import Api
from inferd_runtime.server.openapi.document import document
from inferd_runtime.server.openapi.operations import OPERATIONS

NOBODY: Any = Mock()
CONVERTOR = re.compile(r"\{(\w+):\w+\}")


@pytest.fixture(scope="module")
def described() -> dict[str, Any]:
    return document()


def routed() -> set[tuple[str, str]]:
    """Method and path of every route of the gateway; a WebSocket's handshake is a GET."""
    chat = ChatApi(NOBODY, NOBODY, NOBODY)
    found: set[tuple[str, str]] = set()
    for route in all_routes(Api(NOBODY, NOBODY, NOBODY, NOBODY), ModelApi(chat, NOBODY), chat, NOBODY):
        assert isinstance(route, Route | WebSocketRoute)
        methods = (route.methods or set()) - {"HEAD"} if isinstance(route, Route) else {"GET"}
        found |= {(method, CONVERTOR.sub(r"{\1}", route.path)) for method in methods}
    return found


def references(value: Any) -> Iterator[str]:
    """Every reference in a JSON value."""
    if isinstance(value, dict):
        yield from [value["$ref"]] if isinstance(value.get("$ref"), str) else []
        value = list(value.values())
    if isinstance(value, list):
        for each in value:
            yield from references(each)


def test_every_route_is_described_and_nothing_else() -> None:
    listed = [(one.method, one.path) for one in OPERATIONS]
    assert sorted(listed) == sorted(routed())
    assert len({one.id for one in OPERATIONS}) == len(OPERATIONS)


def test_what_needs_no_token_is_told() -> None:
    assert {one.path for one in OPERATIONS if one.public} == PUBLIC_PATHS


def test_every_table_of_fields_is_told() -> None:
    told = [one.fields for one in OPERATIONS]
    assert all(table in told for table in TABLES.values())


@pytest.mark.parametrize("operation", [one for one in OPERATIONS if one.fields], ids=lambda one: one.path)
def test_every_field_is_told_with_its_note(operation: Any, described: dict[str, Any]) -> None:
    properties = described["components"]["schemas"][operation.body[0].__name__]["properties"]
    assert set(properties) == set(operation.fields.by_name)
    for field in operation.fields.fields:
        told = properties[field.name]
        assert told["description"].endswith(field.note)
        assert field.only is None or told["enum"] == [*field.only, None]


def test_every_reference_leads_somewhere(described: dict[str, Any]) -> None:
    names = {ref.rpartition("/")[2] for ref in references(described)}
    schemas = described["components"]["schemas"]
    assert names <= set(schemas)
    unused = set(schemas) - names
    assert unused == set(), "nothing refers to these"


def test_every_schema_is_one(described: dict[str, Any]) -> None:
    for schema in described["components"]["schemas"].values():
        jsonschema.Draft202012Validator.check_schema(schema)


def test_answers_of_a_dialect_have_its_errors(described: dict[str, Any]) -> None:
    def error(path: str, method: str = "post", status: str = "401") -> str:
        return str(
            described["paths"][path][method]["responses"][status]["content"]["application/json"]["schema"]["$ref"]
        )

    assert error("/v1/messages/count_tokens").endswith("/AnthropicError")
    assert error("/v1/responses/{response}", "delete", "404").endswith("/OpenAiError")
    assert error("/v1/runs").endswith("/OwnError")
