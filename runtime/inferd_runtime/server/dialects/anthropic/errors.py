"""Errors in Anthropic's shape."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from inferd.protocol import InferdError
from inferd_runtime.server.dialects.exchange import ErrorReply
from inferd_runtime.server.dialects.statuses import is_prompt_too_long, retry_headers, status_of

TYPES: Mapping[int, str] = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    409: "invalid_request_error",
    413: "request_too_large",
    422: "invalid_request_error",
    429: "rate_limit_error",
    431: "request_too_large",
    500: "api_error",
    503: "overloaded_error",
    504: "timeout_error",
    507: "invalid_request_error",
}

TOO_LONG = "prompt is too long: "
"""How Anthropic's message begins: clients that then make their conversation shorter look for these words."""

ERROR_CODES: Mapping[str, str] = {"thread": "thread_unsupported_request"}
"""What ``details`` say beside a refused field: by this code a tool runner sends its conversation once more, without a thread."""


def error_reply_anthropic(error: InferdError, request_id: str = "") -> ErrorReply:
    """Return an error as Anthropic's clients expect it. The field at fault is named by its message."""
    status = status_of(error)
    return ErrorReply(status, error_body(error, request_id), retry_headers(error))


def error_body(error: InferdError, request_id: str = "") -> dict[str, Any]:
    """Return an error's JSON. ``param`` is this runtime's own: the field at fault."""
    info = error.to_wire()
    message = TOO_LONG + info.message if is_prompt_too_long(error) else info.message
    described: dict[str, Any] = {"type": TYPES.get(status_of(error), "api_error"), "message": message}
    if info.detail.get("param"):
        described["param"] = info.detail["param"]
    if code := ERROR_CODES.get(info.detail.get("param", "")):
        described["details"] = {"error_code": code}
    return {"type": "error", "error": described, "request_id": request_id or None}
