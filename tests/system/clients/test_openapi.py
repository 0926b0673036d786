"""The document that the server sends of itself, held against the server: requests that it allows, and such that it does not."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings, strategies as st
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi import checks
from tiers import examples

from inferd_runtime.server.openapi.operations import OPERATIONS

from .conftest import TOKEN, LiveServer

AUTHORIZED = {"Authorization": f"Bearer {TOKEN}"}
MODEL = {"enum": ["tiny"]}
FEW: dict[str, Any] = {"type": "integer", "minimum": 1, "maximum": 3}
SMALL: dict[str, dict[str, Any]] = {
    "ChatFields": {"model": MODEL, "max_completion_tokens": FEW, "n": FEW},
    "CompletionFields": {"model": MODEL, "max_tokens": FEW, "n": FEW},
    "MessagesBody": {"model": MODEL, "max_tokens": FEW},
    "CountTokensBody": {"model": MODEL},
    "ResponsesBody": {"model": MODEL, "max_output_tokens": FEW},
    "EmbeddingFields": {"model": MODEL},
}
"""Fields that every request of these tests has, so that it reaches the engine, and does not keep it busy."""
ENDLESS = {"/v1/speculation/cycles", "/v1/session"}
"""Streams that end with their client: only what is refused is tried."""
CALLED = [one for one in OPERATIONS if one.path not in ENDLESS]
CHECKED = [
    not_a_server_error, checks.status_code_conformance, checks.content_type_conformance,
    checks.response_headers_conformance, checks.response_schema_conformance, checks.allow_header_conformance,
]  # fmt: skip
TRIED = settings(
    max_examples=examples(12), deadline=None, derandomize=True, database=None, phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)  # fmt: skip


def closed(schema: dict[str, Any]) -> dict[str, Any]:
    """A schema of objects that have no other fields: what the document leaves open for later versions must not be there now."""
    return (
        schema
        if "additionalProperties" in schema or "properties" not in schema
        else {**schema, "additionalProperties": False}
    )


def small(document: dict[str, Any]) -> dict[str, Any]:
    """The document, for requests that are answered soon."""
    value = copy.deepcopy(document)
    schemas = value["components"]["schemas"]
    for name, fields in SMALL.items():
        schemas[name]["properties"] |= fields
        schemas[name]["required"] = sorted({*schemas[name]["required"], *fields})
    (seconds,) = [one for one in value["paths"]["/v1/slow-step"]["get"]["parameters"] if one["name"] == "seconds"]
    seconds |= {"required": True, "schema": {"type": "number", "minimum": 0, "maximum": 0.01}}
    value["components"]["schemas"] = {name: closed(schema) for name, schema in schemas.items()}
    return value


@pytest.fixture(scope="module")
def document(server: LiveServer) -> dict[str, Any]:
    with server.http() as client:
        response = client.get("/openapi.json")
    assert response.status_code == 200
    value: dict[str, Any] = response.json()
    return small(value)


@pytest.fixture(scope="module")
def api(server: LiveServer, document: dict[str, Any]) -> Any:
    schema = schemathesis.openapi.from_dict(document)
    schema.config.update(base_url=server.url)
    return schema


def tried(api: Any, operation: Any, mode: GenerationMode) -> None:
    """Send what the document allows or (negative) does not, and check what is answered."""
    with requests.Session() as session:

        @TRIED
        @given(data=st.data())
        def check(data: st.DataObject) -> None:
            case = data.draw(api[operation.path][operation.method].as_strategy(generation_mode=mode))
            case.call_and_validate(session=session, headers=AUTHORIZED, checks=CHECKED, timeout=20)

        check()


@pytest.mark.parametrize("operation", CALLED, ids=lambda one: one.id)
def test_what_the_document_allows_is_answered_as_it_says(api: Any, operation: Any) -> None:
    tried(api, operation, GenerationMode.POSITIVE)
