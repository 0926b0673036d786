"""Requests of ``/v1/responses``, as neutral ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from inferd.chat import ChatMessage, ChatRequest, OutputFormat, SamplingOptions, Tool, ToolChoice, custom_tool
from inferd.chat.request import NO_ARGUMENTS
from inferd.protocol import cut
from inferd.protocol.chat import MAX_TOOLS
from inferd_runtime.server.dialects.exchange import ClientHeaders
from inferd_runtime.server.dialects.openai.chat_fields import with_effort
from inferd_runtime.server.dialects.openai.common_fields import checked_biases, checked_request, stop_strings
from inferd_runtime.server.dialects.openai.output_formats import PLACE, output_format
from inferd_runtime.server.dialects.reading import (
    MAX_SHOWN,
    as_kind,
    check_means_nothing,
    check_object_schema,
    check_tools,
    invalid,
    not_supported,
    read_object,
    read_tool,
    schema_format,
    thinking_budget,
)
from inferd_runtime.server.dialects.responses.fields import (
    INCLUDED,
    INPUT_TOKENS_FIELDS,
    LOGPROBS,
    RESPONSES_FIELDS,
    ExpectedText,
    InputTokensBody,
    ReasoningOptions,
    ResponseAllowedTools,
    ResponseCustomTool,
    ResponseGrammarInput,
    ResponseNamedChoice,
    ResponseNamespace,
    ResponseObjectFormat,
    ResponsesBody,
    ResponseSchemaFormat,
    ResponseText,
    ResponseTextFormat,
    ResponseTool,
    asked_format,
)
from inferd_runtime.server.dialects.responses.items import as_sent
from inferd_runtime.server.dialects.responses.namespaces import NAMESPACE, shown_name
from inferd_runtime.server.dialects.sampling import allowing_no_share

TEXT_MEANS_NOTHING: Mapping[str, Sequence[Any]] = {"verbosity": (None, "medium")}
REASONING_MEANS_NOTHING: Mapping[str, Sequence[Any]] = {
    "summary": (None, "auto", "detailed"),
    "generate_summary": (None, "auto", "detailed"),
    "context": (None, "auto"),
    "mode": (None, "standard"),
}
"""The most detailed summary is what the model thinks itself, which is told in full: there is none beside it."""
CUSTOM_TOOL_MEANS_NOTHING: Mapping[str, Sequence[Any]] = {
    "allowed_callers": (None, ["direct"]),
    "defer_loading": (None, False),
    "async_": (None, False),
}
TOOL_MEANS_NOTHING: Mapping[str, Sequence[Any]] = {**CUSTOM_TOOL_MEANS_NOTHING, "output_schema": (None,)}


def read_responses_body(body: bytes) -> ResponsesBody:
    """Return a request's body. Raises InvalidRequest that names a field."""
    given = read_object(body)
    return checked_body(given, RESPONSES_FIELDS.take(given))


def checked_body(given: Mapping[str, Any], working: Mapping[str, Any], *, needs_input: bool = True) -> ResponsesBody:
    """Return a request's body, of which ``given`` is all that was sent, and ``working`` the fields that work.

    Raises InvalidRequest that names a field.
    """
    read: ResponsesBody = as_kind(working, ResponsesBody)
    _check_counted(read, needs_input=needs_input)
    for number, included in enumerate(read.include or []):
        if included not in INCLUDED:
            raise not_supported(f"include[{number}]", f"{cut(included, MAX_SHOWN)!r} is")
    if read.background and read.store is False:
        raise invalid("store", "store: a response in the background has to be stored")
    if given.get("stream_options") is not None and not read.stream:
        raise invalid("stream_options", "stream_options: they need stream: true")
    return read


def read_input_tokens_body(body: bytes, default_model: str) -> ResponsesBody:
    """Return the request whose prompt is to be counted. Raises InvalidRequest that names a field."""
    read: InputTokensBody = as_kind(INPUT_TOKENS_FIELDS.take(read_object(body)), InputTokensBody)
    _check_counted(read, needs_input=True)
    return ResponsesBody(**{**msgspec.structs.asdict(read), "model": read.model or default_model})


def _check_counted(read: InputTokensBody, *, needs_input: bool) -> None:
    check_means_nothing(read.text or ResponseText(), TEXT_MEANS_NOTHING, "text.")
    check_means_nothing(read.reasoning or ReasoningOptions(), REASONING_MEANS_NOTHING, "reasoning.")
    if needs_input and not read.input and read.previous_response_id is None:
        raise invalid("input", "input: this field is required without a previous_response_id")


def responses_request(body: ResponsesBody, headers: ClientHeaders) -> ChatRequest:
    """Return the neutral request, with no messages but the instructions. Raises InvalidRequest that names a field."""
    tools = read_tools(body)
    choice = _tool_choice(body, tools)
    check_tools(tools, choice)
    request = ChatRequest(
        model=body.model,
        messages=[ChatMessage("system", body.instructions)] if body.instructions else [],
        tools=tools,
        tool_choice=choice,
        output=_output(body),
        sampling=_sampling(body),
        max_tokens=body.max_output_tokens,
        stop=stop_strings(body.stop),
        include_stop=bool(body.include_stop_str_in_output),
        ignore_eos=bool(body.ignore_eos),
        logprobs=_logprobs(body),
        prediction=_prediction(body.prediction),
        speculation="auto" if body.speculation is None else body.speculation,
        priority=-(body.priority or 0),
        template_arguments=_template_arguments(body),
        session=headers.session,
        cache_salt=body.cache_salt or "",
        stream=bool(body.stream),
        user=body.safety_identifier or body.user or "",
        metadata=dict(body.metadata or {}),
        reasoning_budget=thinking_budget(body.thinking_token_budget),
        truncate=-1 if body.truncation == "auto" else None,
    )
    return checked_request(request)


def read_tools(body: ResponsesBody) -> list[Tool]:
    """Return the tools, with those in namespaces. Raises InvalidRequest that names one which is not the client's own."""
    tools: list[Tool] = []
    for number, value in enumerate(body.tools or []):
        is_group = isinstance(value, dict) and value.get("type") == NAMESPACE
        at = f"tools[{number}]"
        tools += _namespace(value, at) if is_group else [_tool(value, at)]
    if len(tools) > MAX_TOOLS:
        raise invalid("tools", f"tools: {len(tools)} tools; {MAX_TOOLS} are allowed")
    return tools


def _namespace(value: Any, at: str) -> list[Tool]:
    """Return the tools of a namespace, each of which says what the namespace is."""
    group: ResponseNamespace = as_kind(value, ResponseNamespace, at)
    tools = [_tool(each, f"{at}.tools[{number}]") for number, each in enumerate(group.tools)]
    return [
        replace(
            tool,
            name=shown_name(group.name, tool.name),
            description="\n".join(filter(None, (group.description, tool.description))),
        )
        for tool in tools
    ]


def _tool(value: Any, at: str) -> Tool:
    if isinstance(value, dict) and value.get("type") == "custom":
        return _custom(value, at)
    tool = read_tool(as_sent(value), "function", ResponseTool, TOOL_MEANS_NOTHING, at)
    check_object_schema(tool.parameters or {}, f"{at}.parameters")
    return Tool(tool.name, tool.description or "", tool.parameters or dict(NO_ARGUMENTS))


def _custom(value: Any, at: str) -> Tool:
    tool = read_tool(as_sent(value), "custom", ResponseCustomTool, CUSTOM_TOOL_MEANS_NOTHING, at)
    held = tool.format if isinstance(tool.format, ResponseGrammarInput) else None
    wanted = None if held is None else OutputFormat(held.syntax, held.definition)
    return custom_tool(tool.name, tool.description or "", wanted)


def _tool_choice(body: ResponsesBody, tools: Sequence[Tool]) -> ToolChoice:
    parallel = body.parallel_tool_calls is not False
    match body.tool_choice:
        case None:
            return ToolChoice(parallel=parallel)
        case "auto" | "none" | "required" as mode:
            return ToolChoice(mode, parallel=parallel)
        case {"type": "function" | "custom"}:
            named: ResponseNamedChoice = as_kind(body.tool_choice, ResponseNamedChoice, "tool_choice")
            _check_kind(named, "tool_choice", tools)
            return ToolChoice("required", [named.name], parallel=False)
        case {"type": "allowed_tools"}:
            allowed: ResponseAllowedTools = as_kind(body.tool_choice, ResponseAllowedTools, "tool_choice")
            for number, each in enumerate(allowed.tools):
                _check_kind(each, f"tool_choice.tools[{number}]", tools)
            return ToolChoice(allowed.mode, [tool.name for tool in allowed.tools], parallel)
    raise not_supported(
        "tool_choice", "anything but auto, none, required, a function, a custom tool and allowed_tools is"
    )


def _check_kind(choice: ResponseNamedChoice, at: str, tools: Sequence[Tool]) -> None:
    """Raises InvalidRequest for a tool that is chosen as what it is not; for one that is not there others do."""
    if any(tool.name == choice.name and (tool.custom is None) == (choice.type == "custom") for tool in tools):
        raise invalid(f"{at}.type", f"{at}.type: {cut(choice.name, MAX_SHOWN)!r} is not of type {choice.type!r}")


def output_field(body: ResponsesBody) -> str:
    """Return what the client called the field that says what the text has to be."""
    return "text.format" if body.structured_outputs is None else PLACE


def _output(body: ResponsesBody) -> OutputFormat | None:
    asked = _text_format(body)
    if body.structured_outputs is None:
        return asked
    if asked is not None:
        raise invalid(PLACE, f"{PLACE}: text.format and {PLACE} exclude each other")
    return output_format(None, body.structured_outputs)


def _text_format(body: ResponsesBody) -> OutputFormat | None:
    match asked_format(body):
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


def _template_arguments(body: ResponsesBody) -> dict[str, Any]:
    """Return what the template gets: see :func:`with_effort`."""
    effort = None if body.reasoning is None else body.reasoning.effort
    return with_effort(effort, body.chat_template_kwargs)


def _sampling(body: ResponsesBody) -> SamplingOptions:
    sampling = SamplingOptions(
        temperature=1.0 if body.temperature is None else body.temperature,
        top_p=1.0 if body.top_p is None else body.top_p,
        top_k=body.top_k or 0,
        min_p=body.min_p or 0.0,
        seed=body.seed,
        repetition_penalty=1.0 if body.repetition_penalty is None else body.repetition_penalty,
        presence_penalty=body.presence_penalty or 0.0,
        frequency_penalty=body.frequency_penalty or 0.0,
        logit_bias=checked_biases(body.logit_bias or {}),
    )
    return allowing_no_share(sampling)
