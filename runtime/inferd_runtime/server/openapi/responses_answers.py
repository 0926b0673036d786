"""The shapes of what the routes under ``/v1/responses`` answer. They serve the document alone: nothing is made of them."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import UNSET, Struct, UnsetType

from inferd_runtime.server.openapi.openai_answers import ScoredToken


class InputDetails(Struct):
    """Tokens of the prompt that were not computed for this request; writing into the cache costs nothing."""

    cached_tokens: int
    cache_write_tokens: int


class OutputDetails(Struct):
    """Tokens of the answer that were thought, and what became of those that ``prediction`` guessed."""

    reasoning_tokens: int
    accepted_prediction_tokens: int
    rejected_prediction_tokens: int


class ResponseUsage(Struct):
    """What was used, in tokens."""

    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: OutputDetails
    total_tokens: int


class ShownPart(Struct):
    """A part of an item. Only ``output_text`` has annotations and logprobs."""

    type: Literal["input_text", "output_text", "refusal", "reasoning_text", "summary_text"]
    text: str | UnsetType = UNSET
    refusal: str | UnsetType = UNSET
    annotations: list[Any] | UnsetType = UNSET
    logprobs: list[ScoredToken] | UnsetType = UNSET


class ShownItem(Struct):
    """An item: a message, a call, its output, or what the model thought."""

    id: str
    type: Literal[
        "message", "reasoning", "function_call", "function_call_output", "custom_tool_call", "custom_tool_call_output"
    ]  # fmt: skip
    status: Literal["in_progress", "completed", "incomplete"]
    role: Literal["user", "assistant", "system", "developer"] | UnsetType = UNSET
    content: list[ShownPart] | UnsetType = UNSET
    summary: list[ShownPart] | UnsetType = UNSET
    call_id: str | UnsetType = UNSET
    name: str | UnsetType = UNSET
    namespace: str | UnsetType = UNSET
    arguments: str | UnsetType = UNSET
    input: str | UnsetType = UNSET
    output: str | list[ShownPart] | UnsetType = UNSET


class ResponseProblem(Struct):
    """Why a response failed."""

    code: Literal["rate_limit_exceeded", "invalid_prompt", "server_error"]
    message: str


class IncompleteDetails(Struct):
    """Why a response is not complete: the tokens ran out."""

    reason: Literal["max_output_tokens"]


class ShownResponse(Struct):
    """A response: what was asked, what was answered, and what that used."""

    id: str
    object: Literal["response"]
    created_at: int
    status: Literal["in_progress", "completed", "incomplete", "failed", "cancelled"]
    completed_at: int | None
    error: ResponseProblem | None
    incomplete_details: IncompleteDetails | None
    output: list[ShownItem]
    usage: ResponseUsage | None
    background: bool
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: int | None
    metadata: dict[str, str]
    model: str
    parallel_tool_calls: bool
    previous_response_id: str | None
    prompt_cache_key: str | None
    reasoning: dict[str, Any]
    safety_identifier: str | None
    service_tier: Literal["default"]
    store: bool
    temperature: float
    text: dict[str, Any]
    tool_choice: str | dict[str, Any]
    tools: list[dict[str, Any]]
    top_logprobs: int
    top_p: float
    truncation: Literal["disabled"]
    user: str | None


class ResponseEvent(Struct):
    """One event of a stream, whose name is its type; numbered from 0."""

    type: Literal[
        "response.created", "response.in_progress", "response.completed", "response.incomplete", "response.failed",
        "response.output_item.added", "response.output_item.done", "response.content_part.added",
        "response.content_part.done", "response.output_text.delta", "response.output_text.done",
        "response.reasoning_text.delta", "response.reasoning_text.done", "response.function_call_arguments.delta",
        "response.function_call_arguments.done", "response.custom_tool_call_input.delta",
        "response.custom_tool_call_input.done",
    ]  # fmt: skip
    sequence_number: int
    response: ShownResponse | UnsetType = UNSET
    output_index: int | UnsetType = UNSET
    content_index: int | UnsetType = UNSET
    item_id: str | UnsetType = UNSET
    item: ShownItem | UnsetType = UNSET
    part: ShownPart | UnsetType = UNSET
    delta: str | UnsetType = UNSET
    text: str | UnsetType = UNSET
    logprobs: list[ScoredToken] | UnsetType = UNSET
    name: str | UnsetType = UNSET
    arguments: str | UnsetType = UNSET
    input: str | UnsetType = UNSET


class ResponseItems(Struct):
    """A page of items."""

    object: Literal["list"]
    data: list[ShownItem]
    first_id: str
    last_id: str
    has_more: bool


class CountedInput(Struct):
    """How many tokens a prompt has."""

    object: Literal["response.input_tokens"]
    input_tokens: int


class DeletedResponse(Struct):
    """The response is forgotten."""

    id: str
    object: Literal["response"]
    deleted: bool
