"""Which limits a client is told to ask again for: each limit of the sources is one that passes, or one that stands."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from inferd.protocol import LimitExceeded
from inferd_runtime.server.dialects.anthropic.errors import error_reply_anthropic
from inferd_runtime.server.dialects.openai.errors import error_reply_openai
from inferd_runtime.server.dialects.statuses import (
    BODY_LIMIT,
    HEAD_LIMIT,
    PROMPT_LIMITS,
    RUN_LIMITS,
    TRANSIENT_LIMITS,
    retry_headers,
    status_of,
)
from inferd_runtime.server.gateway.replies import error_reply

ROOT = Path(__file__).parents[4]
PLACES = {
    "quota_exceeded": 0,
    "exceeded": 0,
    "_too_large": 1,
    "_check_count": 1,
    "_check_room": 1,
    "GrammarLimit": 1,
    "SharedPlaces": 1,
}
"""Which argument of these calls is a limit's name; elsewhere it is the keyword ``limit``."""
STANDING = {
    "accept_tokens", "adapter_bytes", "adapter_rank", "allowed_tokens", "attention_mask", "cache_salt", "chat_depth",
    "chat_messages", "chat_tools", "chat_values", "cpu_seconds", "disk", "embed_inputs", "export_bytes", "files",
    "grammar_bytes", "grammars", "handles", "matcher_tokens", "mcp_list_bytes", "mcp_memory_mb", "mcp_schema_parts",
    "packages_disk_bytes", "held_tokens", "contexts", "interface_bytes", "logit_bias", "mask_seconds", "matchers",
    "max_tokens", "memory", "memory_bytes", "message_bytes", "models_bytes", "parameters", "parse_cpu_s", "parse_memory_mb",
    "parts", "predicted", "probes", "render_seconds", "reply_numbers", "shown_tokens", "snapshot_bytes", "source_bytes",
    "source_lines", "stop", "stop_tokens", "token_ids", "tool_calls", "answer_bytes", "candidates", "child_result_bytes",
    "data_bytes", "dependencies", "file_bytes", "http_body_bytes", "http_header_bytes", "http_headers", "http_interim",
    "http_request_bytes", "http_write_bytes", "mcp_call_s", "mcp_check_s", "mcp_message_bytes", "mcp_message_containers",
    "mcp_pages", "mcp_reply_bytes", "mcp_tools", "note_bytes", "package_bytes", "package_files", "redirects", "run_event_bytes",
    "run_file_bytes", "run_files", "slow_subscriber_s", "timeout", "tool_definitions", "tool_result", "tool_time",
    "url_characters", "value_bytes",
}  # fmt: skip
"""Limits that the same request is always beyond, besides those with a status of their own."""


def limits_of_the_sources() -> set[str]:
    sources = [path for room in ("runtime", "sdk", "grammar") for path in (ROOT / room).rglob("*.py")]
    calls = (node for path in sources for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call))
    named = (node.value for call in calls for node in names_in(call) if isinstance(node, ast.Constant))
    return {name for name in named if isinstance(name, str)}


def names_in(call: ast.Call) -> Iterator[ast.expr]:
    yield from (keyword.value for keyword in call.keywords if keyword.arg == "limit")
    place = PLACES.get(getattr(call.func, "attr", getattr(call.func, "id", "")))
    if place is not None:
        yield from call.args[place : place + 1]


def test_no_limit_is_told_to_pass_or_to_stand_by_accident() -> None:
    found = limits_of_the_sources()
    known = TRANSIENT_LIMITS | STANDING | PROMPT_LIMITS | RUN_LIMITS | {BODY_LIMIT, HEAD_LIMIT}
    assert found <= known
    assert found >= {"launches_per_minute", "chat_tools", "max_sockets", "held_body_bytes", "mask_seconds"}


def test_a_limit_that_stands_is_not_asked_for_again() -> None:
    for limit in STANDING:
        error = LimitExceeded("no", limit=limit)
        assert (status_of(error), retry_headers(error)) == (400, {})


def test_a_limit_that_passes_is_asked_for_again() -> None:
    for limit in TRANSIENT_LIMITS:
        error = LimitExceeded("no", limit=limit)
        assert (status_of(error), retry_headers(error)) == (429, {"Retry-After": "1"})


@pytest.mark.parametrize("limit", [[1], {"a": 1}, 5, None, True])
def test_a_limit_that_a_program_made_up_is_none_and_no_bug(limit: object) -> None:
    """It was looked up in a set, and a list cannot be."""
    error = LimitExceeded("mine", limit=limit)
    assert error_reply_openai(error).status == error_reply_anthropic(error).status == 400
    assert error_reply(error).status_code == 400
