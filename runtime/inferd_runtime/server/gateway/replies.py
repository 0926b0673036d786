"""What the gateway answers: every JSON shape and every status code in one place."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any

import msgspec
from starlette.datastructures import Headers
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket

from inferd.protocol import InferdError, LimitExceeded
from inferd_runtime.server.dialects.routes import ErrorShape, error_shape
from inferd_runtime.server.dialects.statuses import STATUSES, TRANSIENT_LIMITS, limit_of, retry_after, status_of_code
from inferd_runtime.server.programs.bundles import Program
from inferd_runtime.server.run_store.records import RunRecord
from inferd_runtime.server.supervisor.run_events import Ending, RunEvent
from inferd_runtime.server.supervisor.run_keeper import AnyRun
from inferd_runtime.server.supervisor.runtime import Runtime
from inferd_runtime.server.telemetry.request_ids import REQUEST_KEY

STATUS = {**STATUSES, "program": 422, "client.idempotency_key": 422}
TOO_LARGE = 413
HEAD_TOO_LARGE = 431
TOO_MANY = 429
RETRIED = (TOO_MANY, 503)
REQUEST_ID = "request_id"
"""The key of the request's id in the errors of a dialect that has it."""
NO_REQUEST: Mapping[str, Any] = {"path": "", "headers": []}
"""The scope of a request that could not be read."""
JSON_TYPE = "application/json"
RESULT = b'"result":'
NO_RESULT = b'"result":null'
SIZE_LIMITS = frozenset(
    {
        "body_bytes", "source_bytes", "source_lines", "files", "parameters", "interface_bytes", "parse_cpu_s",
        "parse_memory_mb",
    }
)  # fmt: skip
NO_ROOM = 507
ROOM_LIMITS = frozenset({"programs", "stored_bytes"})


def own_status(error: InferdError) -> int:
    """Return the HTTP status of an error of the runtime's own routes: its code's, else the nearest parent's.

    429, after which clients send the same request again, is for limits that this request may be within later.
    """
    limit = limit_of(error)
    if limit == "head_bytes":
        return HEAD_TOO_LARGE
    if limit in SIZE_LIMITS:
        return TOO_LARGE
    if limit in ROOM_LIMITS or error.detail.get("reason") == "disk_full":
        return NO_ROOM
    if isinstance(error, LimitExceeded) and limit in TRANSIENT_LIMITS:
        return TOO_MANY
    return status_of_code(error.code, STATUS)


def reply(value: Any, status: int = 200) -> Response:
    """Return a JSON response."""
    return Response(msgspec.json.encode(value), status, media_type=JSON_TYPE)


def error_reply(error: InferdError, scope: Mapping[str, Any] = NO_REQUEST, shape: ErrorShape | None = None) -> Response:
    """Return an error in the shape of the request's dialect, or as ``{"error": {code, message, detail}}`` where it has none.

    ``shape``: instead of the dialect's.
    """
    shape = shape or error_shape(scope["path"], Headers(raw=list(scope["headers"])))
    if shape is not None:
        shaped = shape(error)
        named = {key: scope.get(REQUEST_KEY) for key in shaped.body if key == REQUEST_ID}
        response = reply({**shaped.body, **named}, shaped.status)
        response.headers.update(shaped.headers)
    else:
        response = reply({"error": error.to_wire()}, own_status(error))
        if response.status_code in RETRIED:
            response.headers["Retry-After"] = retry_after(error)
    if response.status_code == 401:
        response.headers["WWW-Authenticate"] = "Bearer"
    return response


async def deny(error: InferdError, scope: Scope, receive: Receive, send: Send) -> None:
    """Answer a request, or a WebSocket's handshake, with an error, and close the connection."""
    response = error_reply(error, scope)
    response.headers["Connection"] = "close"
    if scope["type"] == "websocket":
        await WebSocket(scope, receive, send).send_denial_response(response)
    else:
        await response(scope, receive, send)


def program_json(program: Program) -> dict[str, Any]:
    """Return a program with its interface; ``interface.arguments`` is the JSON Schema of a launch's arguments."""
    interface = program.interface
    return {
        "id": program.id,
        "name": program.name,
        "version": program.version,
        "limits": program.limits,
        "retry_safe": program.retry_safe,
        "serves": program.serves,
        "packages": program.bundle.lock,
        "interface": {
            "doc": interface.doc,
            "parameters": interface.parameters,
            "arguments": interface.arguments_schema,
            "returns": interface.returns_schema,
        },
    }


def run_summary(record: RunRecord) -> dict[str, Any]:
    """Return a run as it is now, without its result. Times in seconds since the epoch, None for what has not happened."""
    return msgspec.structs.asdict(record)


async def run_reply(run: AnyRun, status: int = 200) -> Response:
    """Return a run as it is now, with its result (null without one)."""
    slices = run.result_slices()
    first, second = await anext(slices, b""), await anext(slices, b"")
    empty = msgspec.json.encode({**run_summary(run.record()), "result": None})
    if not second:
        return Response(with_result(empty, first), status, media_type=JSON_TYPE)
    head, _, tail = empty.rpartition(NO_RESULT)

    async def parts() -> AsyncIterator[bytes]:
        yield head + RESULT + first
        yield second
        async for part in slices:
            yield part
        yield tail

    return StreamingResponse(parts(), status, media_type=JSON_TYPE)


def with_result(encoded: bytes, result: bytes) -> bytes:
    """Return a JSON object that ends with ``"result":null`` with ``result``, which is JSON, in its place; unchanged for b""."""
    head, _, tail = encoded.rpartition(NO_RESULT)
    return head + RESULT + result + tail if result else encoded


def event_json(event: RunEvent) -> dict[str, Any]:
    """Return an event: ``index``, ``type``, ``time``, and what its type carries."""
    value: dict[str, Any] = {"index": event.index, "type": event.kind, "time": event.time}
    if event.kind in ("stdout", "stderr"):
        value["text"] = event.payload
    elif event.kind == "message":
        value["message"] = msgspec.Raw(event.payload.encode())
    elif event.kind in ("call", "file"):
        value[event.kind] = msgspec.Raw(event.payload.encode())
    elif event.kind == "dropped":
        value["count"] = event.payload
    elif isinstance(event.payload, Ending):
        value |= ending_json(event.payload)
    return value


def ending_json(ending: Ending) -> dict[str, Any]:
    """Return how a run ended, except its result: see :func:`with_result`."""
    return {"state": ending.state, "error": ending.error, "usage": ending.usage, "result": None}


def tenant_json(runtime: Runtime, tenant: str) -> dict[str, Any]:
    """Return a tenant's quotas and what it uses of them now; rates are what is used up of a minute's worth."""
    use, pool = runtime.use, runtime.fleet.pool
    now = {
        "runs": pool.running_by_tenant[tenant],
        "waiting": pool.waiting_by_tenant[tenant],
        "sockets": use.sockets.held(tenant),
        "connections": use.connections.held(tenant),
        **use.per_minute(tenant),
    }
    return {"tenant": tenant, "quotas": use.quotas(tenant), "use": now}
