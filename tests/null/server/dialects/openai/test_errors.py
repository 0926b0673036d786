"""Errors in OpenAI's shape: statuses, types and codes."""

from __future__ import annotations

import json

import httpx2
import openai
import pytest
from recorded_answers import openai_client

from inferd.protocol import (
    ConstraintError,
    Forbidden,
    InferdError,
    InternalError,
    InvalidRequest,
    LimitExceeded,
    ProgramError,
    Unauthorized,
    Unavailable,
)
from inferd_runtime.server.dialects.exchange import unknown_model
from inferd_runtime.server.dialects.openai.errors import error_reply_openai

CASES: list[tuple[InferdError, int, str, str | None, str | None]] = [
    (InvalidRequest("n: no", param="n", code="invalid_value"), 400, "invalid_request_error", "n", "invalid_value"),
    (InvalidRequest("no"), 400, "invalid_request_error", None, None),
    (InvalidRequest("logit_bias: token id 9 is outside"), 400, "invalid_request_error", "logit_bias", None),
    (InvalidRequest("stop_token_ids[1] must be"), 400, "invalid_request_error", "stop_token_ids", None),
    (InvalidRequest("token id 4096 is outside the vocabulary"), 400, "invalid_request_error", "prompt", None),
    (InvalidRequest("inputs[0]: token id 9 is outside"), 400, "invalid_request_error", "input", None),
    (InvalidRequest("template_arguments: '$' is not"), 400, "invalid_request_error", "chat_template_kwargs", None),
    (InvalidRequest("the context is empty: add a prompt first"), 400, "invalid_request_error", None, None),
    (ConstraintError("no", pointer="/a"), 400, "invalid_request_error", None, None),
    (unknown_model("x"), 404, "invalid_request_error", "model", "model_not_found"),
    (Unauthorized("no"), 401, "invalid_request_error", None, "invalid_api_key"),
    (Forbidden("no"), 403, "permission_error", None, "permission_denied"),
    (LimitExceeded("no", limit="context_tokens"), 400, "invalid_request_error", None, "context_length_exceeded"),
    (LimitExceeded("no", limit="max_context"), 400, "invalid_request_error", None, "context_length_exceeded"),
    (LimitExceeded("no", limit="stop"), 400, "invalid_request_error", "stop", None),
    (LimitExceeded("no", limit="body_bytes"), 413, "invalid_request_error", None, "request_too_large"),
    (LimitExceeded("no", limit="head_bytes"), 431, "invalid_request_error", None, None),
    (LimitExceeded("no", limit="chat_messages"), 400, "invalid_request_error", "messages", None),
    (LimitExceeded("tools[0] is nested too", limit="chat_depth"), 400, "invalid_request_error", "tools", None),
    (LimitExceeded("no", limit="render_seconds"), 400, "invalid_request_error", None, None),
    (LimitExceeded("no", limit="a program's own"), 400, "invalid_request_error", None, None),
    (LimitExceeded("no", limit="wall_s"), 504, "server_error", None, None),
    (InvalidRequest("inputs[0]: token id 9 is outside"), 400, "invalid_request_error", "input", None),
    (InvalidRequest("token id 9 is outside"), 400, "invalid_request_error", "prompt", None),
    (InvalidRequest("tokens: token id 9 is outside"), 400, "invalid_request_error", "tokens", None),
    (LimitExceeded("no", limit="runs"), 429, "rate_limit_error", None, "rate_limit_exceeded"),
    (Unavailable("no"), 503, "server_error", None, None),
    (ProgramError("no"), 500, "server_error", None, None),
    (InternalError("no"), 500, "server_error", None, None),
]


@pytest.mark.parametrize(("error", "status", "kind", "param", "code"), CASES)
def test_each_error_has_its_status_and_type(
    error: InferdError, status: int, kind: str, param: str | None, code: str | None
) -> None:
    reply = error_reply_openai(error)
    assert reply.status == status
    told = dict(reply.body["error"])
    assert told.pop("message").endswith(error.message)
    assert told == {"type": kind, "param": param, "code": code}


def test_messages_begin_with_the_words_that_libraries_look_for() -> None:
    """LiteLLM, and what stands on it, tells a wrong key and a full context from other wrong requests by OpenAI's words."""
    wrong_key = error_reply_openai(Unauthorized("it has expired")).body["error"]["message"]
    assert wrong_key == "Incorrect API key provided: it has expired"
    too_long = error_reply_openai(LimitExceeded("9 tokens, 8 fit", limit="context_tokens")).body["error"]["message"]
    assert too_long == "This model's maximum context length is exceeded: 9 tokens, 8 fit"


def test_clients_are_told_when_to_come_again() -> None:
    error = LimitExceeded("no", limit="tokens_per_minute")
    error.detail["retry_after_s"] = 2.5
    assert error_reply_openai(error).headers == {"Retry-After": "3"}
    assert error_reply_openai(LimitExceeded("no", limit="runs")).headers == {"Retry-After": "1"}
    assert "Retry-After" not in error_reply_openai(InvalidRequest("no")).headers


def test_what_took_too_long_is_not_asked_again() -> None:
    assert error_reply_openai(LimitExceeded("no", limit="wall_s")).headers == {"x-should-retry": "false"}


def test_a_limit_that_stands_is_not_asked_again() -> None:
    assert error_reply_openai(LimitExceeded("no", limit="cache_salt")).headers == {}


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "soon"])
def test_an_odd_time_to_come_again_does_no_harm(value: object) -> None:
    error = Unavailable("no", retry_after_s=value)
    assert error_reply_openai(error).headers == {"Retry-After": "1"}


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (unknown_model("x"), openai.NotFoundError),
        (Unauthorized("no"), openai.AuthenticationError),
        (Forbidden("no"), openai.PermissionDeniedError),
        (LimitExceeded("no", limit="runs"), openai.RateLimitError),
        (InternalError("no"), openai.InternalServerError),
    ],
)
def test_the_client_raises_its_own_error(error: InferdError, kind: type[openai.APIStatusError]) -> None:
    reply = error_reply_openai(error)
    client = openai_client(lambda request: httpx2.Response(reply.status, json=dict(reply.body)))
    with pytest.raises(kind) as raised:
        client.models.list()
    assert raised.value.code == reply.body["error"]["code"]


def test_a_message_of_any_text_can_be_sent() -> None:
    reply = error_reply_openai(InvalidRequest("\ud800" * 100_000, param="\ud800", code="\ud800"))
    assert json.loads(json.dumps(dict(reply.body), ensure_ascii=False).encode()) == reply.body
