"""Requests of ``/v1/responses``, as neutral ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from inferd.chat import ChatMessage, ChatRequest, OutputFormat, SamplingOptions, Tool, ToolChoice
from inferd.chat.request import ANY_OBJECT
from inferd.protocol import cut
from inferd.protocol.sampling import MAX_SEED
from inferd_runtime.server.dialects.exchange import ClientHeaders
from inferd_runtime.server.dialects.reading import (
    MAX_SHOWN,
    MAX_WHOLE,
    as_kind,
    check_means_nothing,
    check_tools,
    invalid,
    is_object_schema,
    not_supported,
    read_object,
    schema_format,
)
from inferd_runtime.server.dialects.responses.items import FunctionName, ItemId

LOGPROBS = "message.output_text.logprobs"
MAX_METADATA = 16
Count = Annotated[int, Meta(ge=1, le=MAX_WHOLE)]
MetadataKey = Annotated[str, Meta(max_length=64)]
MetadataValue = Annotated[str, Meta(max_length=512)]


class ResponseTextFormat(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="text"):
    """Any text."""


class ResponseObjectFormat(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="json_object"
):
    """Any JSON object."""


class ResponseSchemaFormat(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="json_schema"
):
    """JSON of a schema, which always holds: ``strict`` says nothing new."""

    name: Annotated[str, Meta(pattern=r"^[a-zA-Z0-9_-]{1,64}\Z")]
    schema: dict[str, Any]
    description: str | None = None
    strict: bool | None = None


class ResponseText(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the answer's text has to be."""

    format: ResponseTextFormat | ResponseObjectFormat | ResponseSchemaFormat = ResponseTextFormat()
    verbosity: Any = None


class ReasoningOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How much the model thinks, as far as its chat template knows that."""

    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    summary: Any = None
    generate_summary: Any = None
    context: Any = None
    mode: Any = None


class ResponseTool(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A function. Arguments always hold the schema, so that ``strict`` says nothing new."""

    name: FunctionName
    type: Literal["function"] = "function"
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    allowed_callers: Any = None
    defer_loading: Any = None
    output_schema: Any = None


class ResponseNamedChoice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A function that is to be called."""

    type: Literal["function"]
    name: str


class ResponseAllowedTools(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Functions that may be called."""

    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: Annotated[list[ResponseNamedChoice], Meta(min_length=1)]


class ExpectedText(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the answer will probably be, as chat completions take it."""

    type: Literal["content"]
    content: str


class ResponsesBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """``POST /v1/responses``. The fields from ``speculation`` on are this runtime's own."""

    model: Annotated[str, Meta(min_length=1)]
    input: str | list[Any] | None = None
    instructions: str | None = None
    previous_response_id: ItemId | None = None
    store: bool | None = None
    stream: bool | None = None
    stream_options: dict[str, Any] | None = None
    tools: list[Any] | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    max_tool_calls: Count | None = None
    text: ResponseText | None = None
    max_output_tokens: Count | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    include: list[str] | None = None
    metadata: Annotated[dict[MetadataKey, MetadataValue], Meta(max_length=MAX_METADATA)] | None = None
    reasoning: ReasoningOptions | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: Any = None
    prompt_cache_options: Any = None
    truncation: Any = None
    service_tier: Any = None
    background: Any = None
    background_options: Any = None
    conversation: Any = None
    context_management: Any = None
    prompt: Any = None
    moderation: Any = None
    access_programs: Any = None
    image: Any = None
    speculation: bool | Literal["auto"] | None = None
    prediction: str | ExpectedText | None = None
    seed: Annotated[int, Meta(ge=0, le=MAX_SEED)] | None = None
    top_k: Annotated[int, Meta(ge=0, le=MAX_WHOLE)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    cache_salt: str | None = None


MEANS_NOTHING: Mapping[str, Sequence[Any]] = {
    "stream_options": (None, {}, {"include_obfuscation": False}),
    "prompt_cache_retention": (None, "in_memory"),
    "prompt_cache_options": (None, {}, {"mode": "implicit"}),
    "truncation": (None, "disabled"),
    "service_tier": (None, "auto", "default"),
    "background": (None, False),
    "background_options": (None, {}),
    "conversation": (None,),
    "context_management": (None, []),
    "prompt": (None,),
    "moderation": (None,),
    "access_programs": (None, {"cyber": "standard"}),
    "image": (None, {}),
}
TEXT_MEANS_NOTHING: Mapping[str, Sequence[Any]] = {"verbosity": (None, "medium")}
REASONING_MEANS_NOTHING: Mapping[str, Sequence[Any]] = {
    "summary": (None, "auto"),
    "generate_summary": (None, "auto"),
    "context": (None, "auto"),
    "mode": (None, "standard"),
}
"""A summary "auto" is the most that there is: none, since what the model thinks is told in full."""
TOOL_MEANS_NOTHING: Mapping[str, Sequence[Any]] = {
    "allowed_callers": (None, ["direct"]),
    "defer_loading": (None, False),
    "output_schema": (None,),
}
INCLUDED = (LOGPROBS, "reasoning.encrypted_content")
"""What may be included. What the model thinks is told in the clear, and read from there: nothing has to be encrypted for that."""


def read_responses_body(body: bytes) -> ResponsesBody:
    """Return a request's body. Raises InvalidRequest that names a field."""
    read: ResponsesBody = as_kind(read_object(body), ResponsesBody)
    check_means_nothing(read, MEANS_NOTHING)
    check_means_nothing(read.text or ResponseText(), TEXT_MEANS_NOTHING, "text.")
    check_means_nothing(read.reasoning or ReasoningOptions(), REASONING_MEANS_NOTHING, "reasoning.")
    for number, included in enumerate(read.include or []):
        if included not in INCLUDED:
            raise not_supported(f"include[{number}]", f"{cut(included, MAX_SHOWN)!r} is")
    if not read.input and read.previous_response_id is None:
        raise invalid("input", "input: this field is required without a previous_response_id")
    if read.stream_options is not None and not read.stream:
        raise invalid("stream_options", "stream_options: they need stream: true")
    return read


def responses_request(body: ResponsesBody, headers: ClientHeaders) -> ChatRequest:
    """Return the neutral request, with no messages but the instructions. Raises InvalidRequest that names a field."""
    tools = read_tools(body)
    choice = _tool_choice(body)
    check_tools(tools, choice, "tools", "tool_choice")
    return ChatRequest(
        model=body.model,
        messages=[ChatMessage("system", body.instructions)] if body.instructions else [],
        tools=tools,
        tool_choice=choice,
        output=_output(body.text or ResponseText()),
        sampling=_sampling(body),
        max_tokens=body.max_output_tokens,
        logprobs=_logprobs(body),
        prediction=_prediction(body.prediction),
        speculation="auto" if body.speculation is None else body.speculation,
        template_arguments=_template_arguments(body.reasoning),
        session=headers.session,
        cache_salt=body.cache_salt or "",
        stream=bool(body.stream),
        user=body.safety_identifier or body.user or "",
        metadata=dict(body.metadata or {}),
    )


def read_tools(body: ResponsesBody) -> list[Tool]:
    """Return the tools. Raises InvalidRequest that names one which is no function."""
    return [_tool(value, f"tools[{number}]") for number, value in enumerate(body.tools or [])]


def _tool(value: Any, at: str) -> Tool:
    kind = value.get("type") if isinstance(value, dict) else None
    if isinstance(kind, str) and kind != "function":
        raise not_supported(f"{at}.type", f"tools of type {cut(kind, MAX_SHOWN)!r} are")
    tool: ResponseTool = as_kind(value, ResponseTool, at)
    check_means_nothing(tool, TOOL_MEANS_NOTHING, f"{at}.")
    if not is_object_schema(tool.parameters or {}):
        raise invalid(f"{at}.parameters", f'{at}.parameters: its type must be "object"')
    return Tool(tool.name, tool.description or "", tool.parameters or dict(ANY_OBJECT))


def _tool_choice(body: ResponsesBody) -> ToolChoice:
    parallel = body.parallel_tool_calls is not False
    match body.tool_choice:
        case None:
            return ToolChoice(parallel=parallel)
        case "auto" | "none" | "required" as mode:
            return ToolChoice(mode, parallel=parallel)
        case {"type": "function"}:
            named: ResponseNamedChoice = as_kind(body.tool_choice, ResponseNamedChoice, "tool_choice")
            return ToolChoice("required", [named.name], parallel)
        case {"type": "allowed_tools"}:
            allowed: ResponseAllowedTools = as_kind(body.tool_choice, ResponseAllowedTools, "tool_choice")
            return ToolChoice(allowed.mode, [tool.name for tool in allowed.tools], parallel)
    raise not_supported("tool_choice", "anything but auto, none, required, a function and allowed_tools is")


def _output(text: ResponseText) -> OutputFormat | None:
    match text.format:
        case ResponseTextFormat():
            return None
        case ResponseObjectFormat():
            return OutputFormat("json_object")
        case ResponseSchemaFormat(schema=schema):
            return schema_format(schema, "text.format.schema")


def _logprobs(body: ResponsesBody) -> int | None:
    wanted = LOGPROBS in (body.include or []) or body.top_logprobs
    return (body.top_logprobs or 0) if wanted else None


def _prediction(prediction: str | ExpectedText | None) -> str:
    return prediction.content if isinstance(prediction, ExpectedText) else prediction or ""


def _template_arguments(reasoning: ReasoningOptions | None) -> dict[str, Any]:
    """Return what effort is to a chat template: the names that models' templates have for it."""
    effort = None if reasoning is None else reasoning.effort
    if effort is None:
        return {}
    return {"enable_thinking": False} if effort == "none" else {"reasoning_effort": effort}


def _sampling(body: ResponsesBody) -> SamplingOptions:
    return SamplingOptions(
        temperature=1.0 if body.temperature is None else body.temperature,
        top_p=1.0 if body.top_p is None else body.top_p,
        top_k=body.top_k or 0,
        min_p=body.min_p or 0.0,
        seed=body.seed,
    )
