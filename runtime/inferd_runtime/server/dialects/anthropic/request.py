"""Requests in Anthropic's shape, as neutral ones."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from inferd.chat import ChatMessage, ChatRequest, OutputFormat, SamplingOptions, Tool, ToolChoice
from inferd.protocol import cut
from inferd.protocol.sampling import MAX_SEED
from inferd_runtime.server.dialects.anthropic.blocks import CacheControl, Name, read_messages, read_text
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

MIN_BUDGET = 1024
Portion = Annotated[float, Meta(gt=0, le=1)]
Text = Annotated[str, Meta(min_length=1)]


class AnthropicTool(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A tool of the client's. Arguments always hold the schema, so that ``strict`` says nothing new; neither does eagerness."""

    name: Name
    input_schema: dict[str, Any]
    type: Literal["custom"] | None = None
    description: str = ""
    strict: bool = False
    cache_control: CacheControl | None = None
    eager_input_streaming: bool | None = None
    allowed_callers: Any = None
    defer_loading: Any = False
    input_examples: Any = None


class AnthropicToolChoice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Whether and which tool to call."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool = False


class Thinking(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Whether the model thinks first."""

    type: Literal["enabled", "disabled", "adaptive", "between_tools"]
    budget_tokens: Annotated[int, Meta(ge=MIN_BUDGET, le=MAX_WHOLE)] | None = None
    display: Literal["summarized", "omitted"] | None = None


class AnthropicFormat(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the answer's text has to be."""

    type: Literal["json_schema"]
    schema: dict[str, Any]


class OutputConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the answer has to be, and how much effort it is worth."""

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: AnthropicFormat | None = None


class AnthropicMetadata(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the client says about a request."""

    user_id: str | None = None


class CountTokensBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """``POST /v1/messages/count_tokens``, and what ``POST /v1/messages`` has in common with it."""

    model: Text
    messages: Annotated[list[Any], Meta(min_length=1)]
    system: str | list[Any] | None = None
    tools: list[Any] = []
    tool_choice: AnthropicToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig = OutputConfig()
    output_format: AnthropicFormat | None = None
    cache_control: CacheControl | None = None
    speed: Any = None
    user_profile_id: Any = None
    workspace_id: Any = None
    context_management: Any = None
    mcp_servers: Any = None


class MessagesBody(CountTokensBody, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """``POST /v1/messages``. The last line of fields is this runtime's own."""

    max_tokens: Annotated[int, Meta(ge=1, le=MAX_WHOLE)]
    stream: bool | None = None
    stop_sequences: list[Text] = []
    temperature: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_p: Portion | None = None
    top_k: Annotated[int, Meta(ge=0, le=MAX_WHOLE)] | None = None
    metadata: AnthropicMetadata = AnthropicMetadata()
    service_tier: Literal["auto", "standard_only"] = "auto"
    container: Any = None
    diagnostics: Any = None
    inference_geo: Any = None
    billing_policy: Any = None
    compaction: Any = None
    fallbacks: Any = None
    fallback_credit_token: Any = None
    thread: Any = None
    speculation: bool | Literal["auto"] = "auto"
    prediction: str = ""
    seed: Annotated[int, Meta(ge=0, le=MAX_SEED)] | None = None
    cache_salt: str = ""


COUNTED_MEANS_NOTHING: Mapping[str, Sequence[Any]] = {
    "speed": (None, "standard"),
    "user_profile_id": (None,),
    "workspace_id": (None,),
    "context_management": (None,),
    "mcp_servers": (None, []),
}
MEANS_NOTHING: Mapping[str, Sequence[Any]] = {
    "container": (None,),
    "diagnostics": (None,),
    "inference_geo": (None,),
    "billing_policy": (None,),
    "compaction": (None,),
    "fallbacks": (None, []),
    "fallback_credit_token": (None,),
    "thread": (None,),
}
TOOL_MEANS_NOTHING: Mapping[str, Sequence[Any]] = {
    "allowed_callers": (None, ["direct"]),
    "defer_loading": (False,),
    "input_examples": (None, []),
}
CHOICES: Mapping[str, Literal["auto", "none", "required"]] = {
    "auto": "auto",
    "any": "required",
    "tool": "required",
    "none": "none",
}


def read_messages_body(body: bytes) -> MessagesBody:
    """Return a request's body. Raises InvalidRequest that names a field."""
    read: MessagesBody = as_kind(read_object(body), MessagesBody)
    check_means_nothing(read, COUNTED_MEANS_NOTHING)
    check_means_nothing(read, MEANS_NOTHING)
    return read


def read_count_body(body: bytes) -> CountTokensBody:
    """Return the body of a request for a count. Raises InvalidRequest that names a field."""
    read: CountTokensBody = as_kind(read_object(body), CountTokensBody)
    check_means_nothing(read, COUNTED_MEANS_NOTHING)
    return read


def messages_request(body: MessagesBody, headers: ClientHeaders) -> ChatRequest:
    """Return the neutral request. Raises InvalidRequest that names a field."""
    request = counted_request(body)
    budget = body.thinking.budget_tokens if body.thinking else None
    if budget is not None and budget >= body.max_tokens:
        raise invalid("thinking.budget_tokens", "thinking.budget_tokens: it must be below max_tokens")
    changed: dict[str, Any] = {
        "sampling": _sampling(body),
        "max_tokens": body.max_tokens,
        "stop": body.stop_sequences,
        "prediction": body.prediction,
        "speculation": body.speculation,
        "session": headers.session,
        "cache_salt": body.cache_salt,
        "stream": bool(body.stream),
        "user": body.metadata.user_id or "",
    }
    return dataclasses.replace(request, **changed)


def counted_request(body: CountTokensBody) -> ChatRequest:
    """Return what the prompt depends on, as a neutral request. Raises InvalidRequest that names a field."""
    tools = [_tool(value, f"tools[{number}]") for number, value in enumerate(body.tools)]
    choice = _tool_choice(body.tool_choice)
    check_tools(tools, choice, "tools", "tool_choice")
    messages = read_messages(body.messages)
    system = read_text(body.system or "", "system", "system")
    request = ChatRequest(
        model=body.model,
        messages=[ChatMessage("system", system), *messages] if system else messages,
        tools=tools,
        tool_choice=choice,
        output=_output(body),
        continue_final=_is_prefill(messages),
        template_arguments=_template_arguments(body),
    )
    _check_prefill(body, request)
    return request


def _tool(value: Any, at: str) -> Tool:
    kind = value.get("type") if isinstance(value, dict) else None
    if isinstance(kind, str) and kind != "custom":
        raise not_supported(f"{at}.type", f"tools of type {cut(kind, MAX_SHOWN)!r} are")
    tool: AnthropicTool = as_kind(value, AnthropicTool, at)
    check_means_nothing(tool, TOOL_MEANS_NOTHING, f"{at}.")
    if not is_object_schema(tool.input_schema):
        raise invalid(f"{at}.input_schema", f'{at}.input_schema: its type must be "object"')
    return Tool(tool.name, tool.description, tool.input_schema)


def _tool_choice(choice: AnthropicToolChoice | None) -> ToolChoice:
    if choice is None:
        return ToolChoice()
    if (choice.type == "tool") != (choice.name is not None):
        raise invalid("tool_choice.name", 'tool_choice.name: it belongs to the type "tool", and is needed there')
    if choice.type == "none" and choice.disable_parallel_tool_use:
        raise invalid(
            "tool_choice.disable_parallel_tool_use", "tool_choice.disable_parallel_tool_use: no tool is called"
        )
    names = [] if choice.name is None else [choice.name]
    return ToolChoice(CHOICES[choice.type], names, parallel=not choice.disable_parallel_tool_use)


def _output(body: CountTokensBody) -> OutputFormat | None:
    if body.output_format is not None and body.output_config.format is not None:
        raise invalid("output_format", "output_format: it is the older name of output_config.format; give one of them")
    if body.output_format is not None:
        return schema_format(body.output_format.schema, "output_format.schema")
    wanted = body.output_config.format
    return None if wanted is None else schema_format(wanted.schema, "output_config.format.schema")


def _template_arguments(body: CountTokensBody) -> dict[str, Any]:
    """Return what thinking and effort are to a chat template: the names that models' templates have for them."""
    arguments: dict[str, Any] = {}
    if body.output_config.effort is not None:
        arguments["reasoning_effort"] = body.output_config.effort
    thinking = body.thinking
    if thinking is None:
        return arguments
    if thinking.type == "between_tools":
        raise not_supported("thinking.type", '"between_tools" is')
    if (thinking.type == "enabled") != (thinking.budget_tokens is not None):
        raise invalid(
            "thinking.budget_tokens", 'thinking.budget_tokens: it belongs to the type "enabled", and is needed there'
        )
    if thinking.type == "disabled" and thinking.display is not None:
        raise invalid("thinking.display", "thinking.display: nothing is thought")
    return {**arguments, "enable_thinking": thinking.type != "disabled"}


def _is_prefill(messages: Sequence[ChatMessage]) -> bool:
    return bool(messages) and messages[-1].role == "assistant"


def _check_prefill(body: CountTokensBody, request: ChatRequest) -> None:
    """Refuse to go on with what cannot be gone on with. Raises InvalidRequest."""
    if not request.continue_final:
        return
    at = f"messages[{len(body.messages) - 1}]"
    if request.messages[-1].tool_calls:
        raise invalid(at, f"{at}: the last message calls tools; a tool_result block has to follow")
    if not request.messages[-1].content:
        raise invalid(at, f"{at}: the last message is the assistant's, and has no text to go on with")
    if request.output is not None:
        raise invalid(at, f"{at}: an answer that is begun cannot be held to an output format")
    if body.thinking is not None and body.thinking.type != "disabled":
        raise invalid(at, f"{at}: an answer that is begun leaves no room for thinking")


def _sampling(body: MessagesBody) -> SamplingOptions:
    return SamplingOptions(
        temperature=1.0 if body.temperature is None else body.temperature,
        top_p=1.0 if body.top_p is None else body.top_p,
        top_k=body.top_k or 0,
        seed=body.seed,
    )
