"""Errors as OpenAI writes them: a status, and ``{"error": {"message", "type", "param", "code"}}``."""

from __future__ import annotations

import re
from typing import Any

from inferd.protocol import InferdError, InvalidRequest, LimitExceeded, cut
from inferd_runtime.server.dialects.exchange import ErrorReply
from inferd_runtime.server.dialects.openai.chat_fields import CHAT_FIELDS
from inferd_runtime.server.dialects.reading import MAX_PARAM
from inferd_runtime.server.dialects.statuses import is_prompt_too_long, limit_of, retry_headers, status_of

REQUEST_ERROR, SERVER_ERROR = "invalid_request_error", "server_error"
TYPES = {403: "permission_error", 429: "rate_limit_error"}
CODES = {
    401: "invalid_api_key",
    403: "permission_denied",
    404: "not_found",
    413: "request_too_large",
    429: "rate_limit_exceeded",
}
NAMED_FIELD = re.compile(r"(?P<name>[a-z_]+|token id)(?:\[\d+\]|:| must | \d+ is outside)")
ENGINE_FIELDS = {
    "template_arguments": "chat_template_kwargs",
    "inputs": "input",
    "token id": "prompt",
    "allowed_tokens": "allowed_token_ids",
    "logprob_tokens": "logprob_token_ids",
}
"""What the engine calls a field, where that is not its name here: token ids without a name are the prompt's."""
NAMED_BY_ENGINE = CHAT_FIELDS.working | {"input", "prompt", "tokens"}
CONTEXT_CODE = "context_length_exceeded"
TOO_LONG = "This model's maximum context length is exceeded: "
WRONG_KEY = "Incorrect API key provided: "
LIMITED_FIELDS = {
    "stop": "stop",
    "logit_bias": "logit_bias",
    "allowed_tokens": "allowed_token_ids",
    "max_tokens": "max_tokens",
    "stop_tokens": "stop_token_ids",
    "predicted": "prediction",
    "embed_inputs": "input",
    "chat_messages": "messages",
    "chat_values": "messages",
    "chat_tools": "tools",
    "cache_salt": "cache_salt",
}
"""Which field is beyond a limit."""


def error_reply_openai(error: InferdError) -> ErrorReply:
    """Return an error as OpenAI's clients read it."""
    status = status_of(error)
    headers = {"WWW-Authenticate": "Bearer"} if status == 401 else retry_headers(error)
    return ErrorReply(status, error_body(error), headers)


def error_body(error: InferdError) -> dict[str, Any]:
    """Return an error's object, as a body or as an event of a stream."""
    status = status_of(error)
    kind = TYPES.get(status, REQUEST_ERROR if status < 500 else SERVER_ERROR)
    wire = error.to_wire()
    message = _opening(error, status) + wire.message
    return {"error": {"message": message, "type": kind, "param": _param(error), "code": _code(error, status)}}


def _opening(error: InferdError, status: int) -> str:
    """Return the words that OpenAI's message begins with, where libraries tell errors apart by these: LiteLLM does."""
    if is_prompt_too_long(error):
        return TOO_LONG
    return WRONG_KEY if status == 401 else ""


def _param(error: InferdError) -> str | None:
    param = error.detail.get("param")
    if isinstance(param, str) and param:
        return cut(param, MAX_PARAM)
    named = _named_field(error.message) if isinstance(error, InvalidRequest | LimitExceeded) else None
    if named is not None:
        return named
    return LIMITED_FIELDS.get(limit_of(error))


def _named_field(message: str) -> str | None:
    """Return the field that an error of the engine begins with: what is left of a request has the same names there, but some."""
    found = NAMED_FIELD.match(message)
    name = ENGINE_FIELDS.get(found["name"], found["name"]) if found else ""
    return name if name in NAMED_BY_ENGINE else None


def _code(error: InferdError, status: int) -> str | None:
    if is_prompt_too_long(error):
        return CONTEXT_CODE
    code = error.detail.get("code")
    if isinstance(code, str):
        return cut(code, MAX_PARAM)
    if status == 404 and error.detail.get("param") == "model":
        return "model_not_found"
    return CODES.get(status)
