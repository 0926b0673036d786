"""Requests in Anthropic's shape, as neutral ones."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from inferd.chat import ChatMessage, ChatRequest, OutputFormat, SamplingOptions, Tool, ToolChoice
from inferd_runtime.server.dialects.anthropic.blocks import read_messages, read_text
from inferd_runtime.server.dialects.anthropic.fields import (
    COUNT_TOKENS_FIELDS,
    MESSAGES_FIELDS,
    AnthropicTool,
    AnthropicToolChoice,
    CountTokensBody,
    MessagesBody,
)
from inferd_runtime.server.dialects.exchange import ClientHeaders
from inferd_runtime.server.dialects.reading import (
    as_kind,
    check_object_schema,
    check_tools,
    invalid,
    not_supported,
    read_object,
    read_tool,
    schema_format,
)
from inferd_runtime.server.dialects.sampling import allowing_no_share

TOOL_MEANS_NOTHING: Mapping[str, Sequence[Any]] = {
    "allowed_callers": (None, ["direct"]),
    "defer_loading": (None, False),
    "input_examples": (None, []),
}
CHOICES: Mapping[str, Literal["auto", "none", "required"]] = {
    "auto": "auto",
    "any": "required",
    "tool": "required",
    "none": "none",
}
NOT_CHOSEN = -1
"""A top_p, or a top_k, that is as none: LangChain for JavaScript sent both with each request up to its version 0.3."""


def read_messages_body(body: bytes) -> MessagesBody:
    """Return a request's fields. Raises InvalidRequest that names a field."""
    taken = MESSAGES_FIELDS.take(read_object(body))
    if taken.get("top_p") == NOT_CHOSEN:
        del taken["top_p"]
    read: MessagesBody = as_kind(taken, MessagesBody)
    return read


def read_count_body(body: bytes) -> CountTokensBody:
    """Return the fields of a request for a count. Raises InvalidRequest that names a field."""
    read: CountTokensBody = as_kind(COUNT_TOKENS_FIELDS.take(read_object(body)), CountTokensBody)
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
        "stop": body.stop_sequences or [],
        "prediction": body.prediction or "",
        "speculation": "auto" if body.speculation is None else body.speculation,
        "session": headers.session,
        "cache_salt": body.cache_salt or "",
        "stream": bool(body.stream),
        "user": (body.metadata and body.metadata.user_id) or "",
        "reasoning_budget": budget,
    }
    return dataclasses.replace(request, **changed)


def counted_request(body: CountTokensBody) -> ChatRequest:
    """Return what the prompt depends on, as a neutral request. Raises InvalidRequest that names a field."""
    tools = [_tool(value, f"tools[{number}]") for number, value in enumerate(body.tools or [])]
    choice = _tool_choice(body.tool_choice)
    check_tools(tools, choice)
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
    tool = read_tool(value, "custom", AnthropicTool, TOOL_MEANS_NOTHING, at)
    check_object_schema(tool.input_schema, f"{at}.input_schema")
    return Tool(tool.name, tool.description or "", tool.input_schema)


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
    wanted = body.output_config.format if body.output_config is not None else None
    if body.output_format is None:
        return None if wanted is None else schema_format(wanted.schema, "output_config.format.schema")
    if wanted is not None:
        raise invalid("output_format", "output_format: it is the older name of output_config.format; give one of them")
    return schema_format(body.output_format.schema, "output_format.schema")


def _template_arguments(body: CountTokensBody) -> dict[str, Any]:
    """Return what thinking and effort are to a chat template: the names that models' templates have for them."""
    arguments: dict[str, Any] = {}
    if body.output_config is not None and body.output_config.effort is not None:
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
    sampling = SamplingOptions(
        temperature=1.0 if body.temperature is None else body.temperature,
        top_p=1.0 if body.top_p is None else body.top_p,
        top_k=max(0, body.top_k or 0),
        seed=body.seed,
    )
    return allowing_no_share(sampling)
