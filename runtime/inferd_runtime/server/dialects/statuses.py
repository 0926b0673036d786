"""The HTTP status of an error, the same in every dialect."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from inferd.protocol import InferdError, LimitExceeded
from inferd_runtime.sandbox.messages import Limits

STATUSES: Mapping[str, int] = {
    "program": 500,
    "client": 400,
    "client.not_found": 404,
    "client.unauthorized": 401,
    "client.forbidden": 403,
    "limit": 400,
    "cancelled": 409,
    "unavailable": 503,
    "internal": 500,
}
"""By code; a code that is not here has its parent's."""
PROMPT_LIMITS = frozenset({"context_tokens", "max_context"})
"""Limits that the prompt itself is beyond: the same request never works."""
TRANSIENT_LIMITS = frozenset(
    {
        "runs", "waiting", "kept_runs", "kept_bytes", "sockets", "connections", "programs", "stored_bytes",
        "launches_per_minute", "tokens_per_minute", "kv_pages", "tenant_kv_pages", "max_sockets", "max_connections",
        "max_waiting", "held_body_bytes", "requests", "request_bytes", "outstanding_calls", "outstanding_bytes", "operations",
        "messages", "followers", "speculation_streams", "waiting_constraints", "waiting_messages", "waiting_message_bytes",
        "waiting_snapshot_bytes", "waiting_uploads", "uploads", "program_bytes", "adapters", "packages_s", "held_numbers",
        "gateway_operations", "gateway_bytes", "tenant_gateway_bytes", "tenant_file_bytes", "tenant_file_runs", "fetches",
        "fetches_per_minute", "open_fetches", "lookups", "mcp_open_calls", "mcp_offers", "servers of tools", "snapshots",
        "topics", "topic_bytes", "notes", "tenant_note_bytes", "durable_bytes", "queue_room", "subscriber_room",
        "subscribers", "subscriptions",
    }
)  # fmt: skip
"""Limits of what is there for all, or in a minute: the same request may work later. Beyond any other limit it never does."""
WALL_LIMIT = "wall_s"
RUN_LIMITS = frozenset(Limits.__struct_fields__)
"""Limits of one run: what answers the request is at fault, not how often it was asked."""
BODY_LIMIT, HEAD_LIMIT = "body_bytes", "head_bytes"


def status_of(error: InferdError) -> int:
    """Return the HTTP status of an error."""
    limit = limit_of(error)
    if isinstance(error, LimitExceeded) and limit in TRANSIENT_LIMITS:
        return 429
    if isinstance(error, LimitExceeded) and limit == WALL_LIMIT:
        return 504
    if isinstance(error, LimitExceeded) and limit in RUN_LIMITS:
        return 500
    if limit == BODY_LIMIT:
        return 413
    if limit == HEAD_LIMIT:
        return 431
    return status_of_code(error.code, STATUSES)


def status_of_code(code: str, statuses: Mapping[str, int]) -> int:
    """Return the status of a code, else that of its nearest parent."""
    while code not in statuses and "." in code:
        code = code.rpartition(".")[0]
    return statuses.get(code, 500)


def limit_of(error: InferdError) -> str:
    """Return the name of the limit that an error is about, "" for none: a program's error has any JSON value there."""
    limit = error.detail.get("limit")
    return limit if isinstance(limit, str) else ""


def is_prompt_too_long(error: InferdError) -> bool:
    """Return True if a request's prompt has more tokens than the model's context has room for."""
    return isinstance(error, LimitExceeded) and limit_of(error) in PROMPT_LIMITS


def retry_headers(error: InferdError) -> dict[str, str]:
    """Return the headers that say whether and when to try again."""
    status = status_of(error)
    if status in (500, 504):
        return {"x-should-retry": "false"}  # OpenAI's and Anthropic's clients ask again otherwise, and get the same
    return {"Retry-After": retry_after(error)} if status in (429, 503) else {}


def retry_after(error: InferdError) -> str:
    """Return the seconds after which to try again, a whole number as the header ``Retry-After`` has it."""
    seconds: Any = error.detail.get("retry_after_s")
    known = isinstance(seconds, int | float) and math.isfinite(seconds)
    return str(max(1, math.ceil(seconds)) if known else 1)
