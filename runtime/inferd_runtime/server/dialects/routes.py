"""Which dialect a path speaks: the table of routes, and the shape of errors under each of them."""

from __future__ import annotations

from collections.abc import Callable, Container

from inferd.protocol import InferdError
from inferd_runtime.server.dialects.anthropic.dialect import read_messages
from inferd_runtime.server.dialects.anthropic.errors import error_reply_anthropic
from inferd_runtime.server.dialects.exchange import Dialect, ErrorReply
from inferd_runtime.server.dialects.openai.chat import read_chat
from inferd_runtime.server.dialects.openai.completions import read_completions
from inferd_runtime.server.dialects.openai.errors import error_reply_openai

ErrorShape = Callable[[InferdError], ErrorReply]
CHAT_ROUTES: dict[str, Dialect] = {
    "/v1/chat/completions": read_chat,
    "/v1/completions": read_completions,
    "/v1/messages": read_messages,
}
"""By path what reads its requests, which programs answer."""
OPENAI_PATHS = (
    "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/embeddings", "/v1/models", "/tokenize", "/detokenize",
)  # fmt: skip
NOT_SERVED = {"/v1/responses/compact": "leave items out instead; truncation: auto leaves out the first"}
"""Paths of the vendors' that look like one of an own route with an id, and why there is nothing."""
ERROR_SHAPES: dict[str, ErrorShape] = {
    "/v1/messages": error_reply_anthropic,
    **dict.fromkeys(OPENAI_PATHS, error_reply_openai),
}
"""By the beginning of a path."""
SHARED_PATH = "/v1/models"
"""What both vendors call their list of models, which they shape differently."""
ANTHROPIC_HEADER = "anthropic-version"
"""Every client of Anthropic's sends it, and no other one does."""
VENDORS_HEADER = "x-stainless-lang"
"""Every client of OpenAI's and of Anthropic's sends it."""


def is_for_anthropic(path: str, headers: Container[str]) -> bool:
    """Return True if a request under the shared path is of an Anthropic client."""
    return path.startswith(SHARED_PATH) and ANTHROPIC_HEADER in headers


def error_shape(path: str, headers: Container[str] = ()) -> ErrorShape | None:
    """Return how errors under a path are written, for a request with these headers; None for the runtime's own routes."""
    if is_for_anthropic(path, headers):
        return error_reply_anthropic
    return next((shape for start, shape in ERROR_SHAPES.items() if path.startswith(start)), None)


def vendor_shape(headers: Container[str]) -> ErrorShape | None:
    """Return how a vendor's client that asks for what only the vendor has reads errors; None for any other client."""
    if ANTHROPIC_HEADER in headers:
        return error_reply_anthropic
    return error_reply_openai if VENDORS_HEADER in headers else None
