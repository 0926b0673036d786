"""The shapes of what Anthropic's routes answer. They serve the document alone: nothing is made of them."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import UNSET, Struct, UnsetType

StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]


class ProblemDetails(Struct):
    """What Anthropic's clients go by, beside the type."""

    error_code: Literal["thread_unsupported_request"]


class AnthropicProblem(Struct):
    """What went wrong; ``param``, this runtime's own, is the path of the field at fault."""

    type: Literal[
        "invalid_request_error", "authentication_error", "permission_error", "not_found_error", "request_too_large",
        "rate_limit_error", "api_error", "overloaded_error", "timeout_error",
    ]  # fmt: skip
    message: str
    param: str | UnsetType = UNSET
    details: ProblemDetails | UnsetType = UNSET


class AnthropicError(Struct):
    """An error in Anthropic's shape."""

    type: Literal["error"]
    error: AnthropicProblem
    request_id: str | None


class AnthropicModel(Struct):
    """What a client may name as its model. Both maxima are the size of its context, null where that is not known."""

    type: Literal["model"]
    id: str
    display_name: str
    created_at: str
    lifecycle: Literal["active"]
    deprecated_at: None
    retires_at: None
    line: None
    max_input_tokens: int | None
    max_tokens: int | None
    capabilities: None


class AnthropicModelPage(Struct):
    """A page of them."""

    data: list[AnthropicModel]
    has_more: bool
    first_id: str | None
    last_id: str | None


class SaidText(Struct, tag="text", tag_field="type"):
    """Text."""

    text: str


class SaidThinking(Struct, tag="thinking", tag_field="type"):
    """What the model thought."""

    thinking: str
    signature: str


class SaidToolUse(Struct, tag="tool_use", tag_field="type"):
    """A call that the model makes."""

    id: str
    name: str
    input: dict[str, Any]


class CacheCreation(Struct):
    """Always 0: caching costs nothing, and everything is cached."""

    ephemeral_5m_input_tokens: int
    ephemeral_1h_input_tokens: int


class ThinkingTokens(Struct):
    """Tokens of the answer that were thought."""

    thinking_tokens: int


class MessageUsage(Struct):
    """What was used, in tokens; ``input_tokens`` are those of the prompt that were computed for this request."""

    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int
    output_tokens_details: ThinkingTokens
    cache_creation: CacheCreation | UnsetType = UNSET
    service_tier: Literal["standard"] | UnsetType = UNSET


class AnsweredMessage(Struct):
    """The model's message."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[SaidText | SaidThinking | SaidToolUse]
    stop_reason: StopReason | None
    stop_sequence: str | None
    stop_details: None
    container: None
    usage: MessageUsage


class BlockDelta(Struct):
    """More of a block, or how the message ended."""

    type: Literal["text_delta", "thinking_delta", "signature_delta", "input_json_delta"] | UnsetType = UNSET
    text: str | UnsetType = UNSET
    thinking: str | UnsetType = UNSET
    signature: str | UnsetType = UNSET
    partial_json: str | UnsetType = UNSET
    stop_reason: StopReason | UnsetType = UNSET
    stop_sequence: str | UnsetType | None = UNSET
    stop_details: UnsetType | None = UNSET
    container: UnsetType | None = UNSET


class MessageEvent(Struct):
    """One event of a stream, whose name is its type."""

    type: Literal[
        "message_start", "ping", "content_block_start", "content_block_delta", "content_block_stop", "message_delta",
        "message_stop", "error",
    ]  # fmt: skip
    message: AnsweredMessage | UnsetType = UNSET
    index: int | UnsetType = UNSET
    content_block: SaidText | SaidThinking | SaidToolUse | UnsetType = UNSET
    delta: BlockDelta | UnsetType = UNSET
    usage: MessageUsage | UnsetType = UNSET
    error: AnthropicProblem | UnsetType = UNSET
    request_id: str | UnsetType | None = UNSET


class CountedTokens(Struct):
    """How many tokens a prompt has."""

    input_tokens: int
