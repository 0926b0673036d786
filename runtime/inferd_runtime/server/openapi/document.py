"""The document, made of the operations."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from inferd_runtime import __version__
from inferd_runtime.server.dialects.anthropic.errors import error_reply_anthropic
from inferd_runtime.server.dialects.field_table import FieldTable
from inferd_runtime.server.dialects.routes import error_shape
from inferd_runtime.server.openapi.anthropic_answers import AnthropicError
from inferd_runtime.server.openapi.openai_answers import OpenAiError
from inferd_runtime.server.openapi.operation import JSON, Operation, OperationAnswer, OperationParameter
from inferd_runtime.server.openapi.operations import OPERATIONS
from inferd_runtime.server.openapi.own_answers import OwnError
from inferd_runtime.server.openapi.schemas import Schema, component_schemas, either, reference

VERSION = "3.1.0"
IN_PATH = re.compile(r"\{(\w+)\}")
SSE = "text/event-stream"
ERRORS: Mapping[int, str] = {
    400: "The request is wrong: the message says what, and names the field.",
    401: "There is no valid token.",
    403: "The token does not allow this.",
    404: "What was named does not exist for this tenant.",
    405: "It was asked for with a GET that opens no WebSocket.",
    409: "It was cancelled meanwhile.",
    413: "The body, or what it holds, is too large.",
    422: "The program is wrong, or the key was used for another launch.",
    429: "A quota or a queue is full.",
    431: "The request's line and headers are too long.",
    500: "A program behind a model failed, or the runtime did.",
    503: "The engine or the store does not answer now.",
    504: "The request took longer than it may.",
    507: "There is no room for it.",
}
OF_ANY = (400, 429, 431, 500, 503)
"""Statuses that any request may get: the first from what is no HTTP, too."""
RETRIED = (429, 503)
DESCRIPTION = """The routes of an inferd server: its own, and those of LLM clients in the shapes of OpenAI, vLLM and Anthropic.
Whatever a route does not know or support is refused by name. Every answer has the header `x-request-id`."""


def document() -> dict[str, Any]:
    """Return the document as JSON."""
    paths: dict[str, dict[str, Any]] = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _operation(operation)
    return {
        "openapi": VERSION,
        "info": {"title": "inferd", "version": __version__, "description": DESCRIPTION},
        "security": [{"bearer": []}, {"apiKey": []}],
        "paths": paths,
        "components": {
            "schemas": component_schemas(_kinds(OPERATIONS), _tables(OPERATIONS)),
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "apiKey": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
    }


def document_bytes() -> bytes:
    """Return the document as it is served."""
    return msgspec.json.encode(document())


def _kinds(operations: Iterable[Operation]) -> list[Any]:
    """Return every type that the operations name, each once."""
    found: list[Any] = [OwnError, OpenAiError, AnthropicError]
    for operation in operations:
        found += operation.body
        for answer in operation.answers.values():
            found += [kind for kind in (answer.kind, answer.stream, answer.other) if kind not in (None, dict)]
    return list(dict.fromkeys(found))


def _tables(operations: Iterable[Operation]) -> dict[type, FieldTable]:
    """Return the tables of fields by the type of body that comes first."""
    return {one.body[0]: one.fields for one in operations if one.fields is not None}


def _operation(operation: Operation) -> dict[str, Any]:
    value: dict[str, Any] = {
        "operationId": operation.id,
        "tags": [operation.tag],
        "summary": operation.summary,
        "parameters": [_path_parameter(name) for name in IN_PATH.findall(operation.path)]
        + [_parameter(one) for one in operation.parameters],
        "responses": {
            **{str(status): _answer(answer) for status, answer in operation.answers.items()},
            **{str(status): _error(status, operation) for status in _statuses(operation)},
        },
    }
    if operation.body:
        body = either(*map(reference, operation.body))
        value["requestBody"] = {"required": True, "content": {JSON: {"schema": body}}}
    if operation.public:
        value["security"] = []
    return value


def _statuses(operation: Operation) -> list[int]:
    """Return the statuses of the errors that an operation may answer."""
    found = {*OF_ANY, *operation.errors}
    if not operation.public:
        found.add(401)
    if operation.body:
        found.add(413)
    if IN_PATH.search(operation.path):
        found.add(404)
    return sorted(found - set(operation.answers))


def _path_parameter(name: str) -> dict[str, Any]:
    return {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}


def _parameter(parameter: OperationParameter) -> dict[str, Any]:
    return {
        "name": parameter.name, "in": parameter.place, "required": False, "description": parameter.note,
        "schema": dict(parameter.schema),
    }  # fmt: skip


def _answer(answer: OperationAnswer) -> dict[str, Any]:
    content: dict[str, Any] = {}
    if answer.media:
        body = _body_schema(answer.kind)
        content[answer.media] = {"schema": either(body, reference(answer.other)) if answer.other else body}
    if answer.stream is not None:
        data = {"type": "string", "contentMediaType": JSON, "contentSchema": reference(answer.stream)}
        event = {"type": "object", "properties": {"event": {"type": "string"}, "data": data}, "required": ["data"]}
        content[SSE] = {"schema": event}
        if answer.lines:
            content[answer.lines] = {"schema": data}
    return {"description": answer.note, **({"content": content} if content else {})}


def _body_schema(kind: Any) -> Schema:
    """Return the schema of an answer: None is text, ``dict`` any object."""
    if kind is None or kind is dict:
        return {"type": "string" if kind is None else "object"}
    return reference(kind)


def _error(status: int, operation: Operation) -> dict[str, Any]:
    """Return an error's answer in the shape of its path, or in either where two dialects share it."""
    schema = _error_schema(operation.path)
    if any(answer.other for answer in operation.answers.values()):
        schema = either(schema, reference(AnthropicError))
    value: dict[str, Any] = {"description": ERRORS[status], "content": {JSON: {"schema": schema}}}
    if status in RETRIED:
        value["headers"] = {
            "Retry-After": {"description": "Seconds to wait", "schema": {"type": "integer", "minimum": 1}}
        }
    return value


def _error_schema(path: str) -> Schema:
    shape = error_shape(path)
    if shape is None:
        return reference(OwnError)
    return reference(AnthropicError if shape is error_reply_anthropic else OpenAiError)
