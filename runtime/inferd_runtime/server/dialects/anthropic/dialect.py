"""What the gateway's routes need of Anthropic's dialect."""

from __future__ import annotations

from dataclasses import dataclass

from inferd.chat import ChatRequest
from inferd_runtime.server.dialects.anthropic.answer import AnthropicExchange
from inferd_runtime.server.dialects.anthropic.request import (
    counted_request,
    messages_request,
    read_count_body,
    read_messages_body,
)
from inferd_runtime.server.dialects.exchange import ClientHeaders


def read_messages(body: bytes, headers: ClientHeaders) -> AnthropicExchange:
    """The :data:`Dialect` of ``POST /v1/messages``."""
    read = read_messages_body(body)
    hides = read.thinking is not None and read.thinking.display == "omitted"
    return AnthropicExchange(read.model, messages_request(read, headers), headers.request_id, hides)


@dataclass(frozen=True)
class TokenCount:
    """A request for the number of a prompt's tokens. ``model`` is what the client calls the model."""

    model: str
    request: ChatRequest

    def body(self, tokens: int) -> dict[str, int]:
        """Return the answer."""
        return {"input_tokens": tokens}


def read_count_tokens(body: bytes, headers: ClientHeaders) -> TokenCount:
    """Return a request of ``POST /v1/messages/count_tokens``. Raises as a :data:`Dialect` does."""
    read = read_count_body(body)
    return TokenCount(read.model, counted_request(read))
