"""The request of ``/v1/chat/completions``: its fields, and what they become."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from inferd.chat import ChatMessage, ChatRequest, Tool, ToolChoice
from inferd_runtime.server.dialects.exchange import ClientHeaders
from inferd_runtime.server.dialects.field_table import FieldTable, RequestField
from inferd_runtime.server.dialects.openai.common_fields import (
    COMMON_FIELDS,
    CommonFields,
    checked_request,
    common_request,
)
from inferd_runtime.server.dialects.openai.messages import HINTS, AnyMessage, TextPart, read_messages, without_nulls
from inferd_runtime.server.dialects.openai.tools import (
    MAX_FUNCTIONS,
    AnyTool,
    AnyToolChoice,
    FunctionDefinition,
    NamedFunction,
    OlderChoice,
    functions_by_default,
    read_choice,
    read_functions,
    read_older_choice,
    read_tools,
)
from inferd_runtime.server.dialects.reading import MAX_WHOLE, as_kind, thinking_budget
from inferd_runtime.server.dialects.refusals import refusal

MAX_TOP_LOGPROBS = 20
MAX_METADATA = 16
RENDERED_HERE = frozenset(
    {"messages", "tools", "documents", "chat_template", "tokenize", "add_generation_prompt", "continue_final_message"}
)
"""Template arguments that are fields of their own, or do not work."""
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
MetadataKey = Annotated[str, Meta(max_length=64)]
MetadataValue = Annotated[str, Meta(max_length=512)]


class Prediction(Struct, tag="content", tag_field="type", forbid_unknown_fields=True):
    """What the answer will probably be."""

    content: str | list[TextPart]


class ChatFields(CommonFields, kw_only=True, forbid_unknown_fields=True):
    """The fields that work."""

    messages: Annotated[list[AnyMessage], Meta(min_length=1)]
    max_tokens: Annotated[int, Meta(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Meta(ge=1)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    tools: Annotated[list[AnyTool], Meta(max_length=MAX_FUNCTIONS)] | None = None
    tool_choice: AnyToolChoice | None = None
    parallel_tool_calls: bool | None = None
    functions: Annotated[list[FunctionDefinition], Meta(max_length=MAX_FUNCTIONS)] | None = None
    function_call: OlderChoice | None = None
    prediction: Prediction | None = None
    reasoning_effort: Effort | None = None
    thinking_token_budget: Annotated[int, Meta(ge=-1, le=MAX_WHOLE)] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    documents: list[dict[str, str]] | None = None
    continue_final_message: bool | None = None
    add_generation_prompt: bool | None = None
    metadata: Annotated[dict[MetadataKey, MetadataValue], Meta(max_length=MAX_METADATA)] | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None


CHAT_FIELDS = FieldTable(
    (
        RequestField("messages", "roles system, developer, user, assistant and tool; text, or a list of text parts"),
        *COMMON_FIELDS,
        RequestField("max_tokens", "the older name of max_completion_tokens"),
        RequestField("max_completion_tokens", "at least 1; without it an answer may fill the context"),
        RequestField("logprobs", "log-probabilities of the tokens"),
        RequestField("top_logprobs", f"0 to {MAX_TOP_LOGPROBS}, with logprobs"),
        RequestField(
            "tools",
            f"up to {MAX_FUNCTIONS} functions, whose arguments are held to the schema, strict or not, and custom tools, whose "
            "input is held to their grammar",
        ),
        RequestField(
            "tool_choice",
            "none, auto, required (any, as Mistral calls it), a function or custom tool by name, allowed_tools",
        ),
        RequestField("parallel_tool_calls", "false: one call at most"),
        RequestField("functions", "the older form of tools: an answer has one function_call at most"),
        RequestField("function_call", "the older form of tool_choice: none, auto, a function by name"),
        RequestField("prediction", "drafted, so that an answer like it comes sooner; the answer is the same"),
        RequestField("reasoning_effort", "goes to the chat template, with enable_thinking, which 'none' makes false"),
        RequestField(
            "thinking_token_budget",
            "behind so many tokens of reasoning its end is forced; -1 (the default) is no limit",
        ),
        RequestField("chat_template_kwargs", "go to the chat template"),
        RequestField("documents", "objects of texts for the chat template; refused where it reads none"),
        RequestField("continue_final_message", "goes on with the last message, an assistant's"),
        RequestField("add_generation_prompt", "false only with continue_final_message, which excludes true"),
        RequestField("metadata", f"the client's own: programs see it; up to {MAX_METADATA} strings"),
        RequestField("safety_identifier", "like user, where that is not given"),
        RequestField("prompt_cache_key", "accepted; a tenant's prompts are found by their beginning, whatever the key"),
        RequestField(
            "prompt_cache_retention", "computed prompts are kept while there is room", ("in_memory", "in-memory")
        ),
        RequestField("prompt_cache_options", "prompts are found by their beginning", ({}, {"mode": "implicit"})),
        RequestField("store", "answers of this route are not kept; /v1/responses keeps them", (False,)),
        RequestField("service_tier", "there is one tier; see priority", ("auto", "default")),
        RequestField("modalities", "there is only text", (["text"],)),
        RequestField("verbosity", "say it in a message", ("medium",)),
        RequestField("audio", "there is only text", ()),
        RequestField("moderation", "nothing is moderated", ()),
        RequestField("web_search_options", "the runtime searches nothing", ()),
        RequestField("search_parameters", "xAI's; the runtime searches nothing", ({"mode": "off"},)),
        RequestField("include_reasoning", "what a model thinks is told apart", (True,)),
        RequestField("echo", "use continue_final_message", (False,)),
        RequestField("add_special_tokens", "the chat template writes them", (False,)),
        RequestField("chat_template", "the model's own is used", ()),
        RequestField("media_io_kwargs", "there is only text", ({},)),
        RequestField("mm_processor_kwargs", "there is only text", ({},)),
        RequestField("return_prompt_text", "use /v1/chat/completions/render", (False,)),
        RequestField("safe_prompt", "Mistral's, whose clients send it: put one before the messages", (False,)),
    )
)


def read_chat_fields(value: dict[str, Any]) -> ChatFields:
    """Return the fields of a request. Raises InvalidRequest, which names the field."""
    taken = CHAT_FIELDS.take(value)
    if "messages" in taken:
        taken["messages"] = without_nulls(taken["messages"])
    if "tools" in taken:
        taken["tools"] = functions_by_default(taken["tools"])
    return as_kind(taken, ChatFields, hints=HINTS)


def chat_request(asked: ChatFields, headers: ClientHeaders) -> ChatRequest:
    """Return the neutral request. Raises InvalidRequest, which names the field."""
    messages = read_messages(asked.messages)
    tools, choice = _tools(asked)
    request = replace(
        common_request(asked, headers),
        messages=messages,
        tools=tools,
        tool_choice=choice,
        max_tokens=_max_tokens(asked),
        logprobs=_logprobs(asked),
        prediction=_predicted_text(asked.prediction),
        continue_final=_continues(asked, messages[-1]),
        template_arguments=_template_arguments(asked),
        user=asked.user or asked.safety_identifier or "",
        metadata=asked.metadata or {},
        reasoning_budget=thinking_budget(asked.thinking_token_budget),
    )
    if asked.bad_words and request.callable_tools():
        raise refusal("bad_words", "does not go with tools")
    return checked_request(request)


def _tools(asked: ChatFields) -> tuple[list[Tool], ToolChoice]:
    """Return the tools and the choice among them. Raises InvalidRequest for tools in both of their forms."""
    if not asked.functions:
        if isinstance(asked.function_call, NamedFunction):
            raise refusal("function_call", "needs functions")
        tools = read_tools(asked.tools or [])
        return tools, read_choice(asked.tool_choice, asked.parallel_tool_calls is not False, tools)
    if asked.tools or asked.tool_choice is not None:
        raise refusal("functions", "tools take their place: give one of them")
    tools = read_functions([(f"functions[{index}]", each) for index, each in enumerate(asked.functions)])
    return tools, read_older_choice(asked.function_call, tools)


def _max_tokens(asked: ChatFields) -> int | None:
    old, new = asked.max_tokens, asked.max_completion_tokens
    if old is not None and new is not None and old != new:
        raise refusal("max_tokens", "differs from max_completion_tokens, which takes its place: give one of them")
    return old if new is None else new


def _logprobs(asked: ChatFields) -> int | None:
    if asked.logprobs:
        return asked.top_logprobs or 0
    if asked.top_logprobs:
        raise refusal("top_logprobs", "needs logprobs: true")
    return None


def _predicted_text(prediction: Prediction | None) -> str:
    """Return the text of a prediction: its parts follow each other without anything between them."""
    if prediction is None or isinstance(prediction.content, str):
        return "" if prediction is None else str(prediction.content)
    return "".join(part.text for part in prediction.content)


def _continues(asked: ChatFields, last: ChatMessage) -> bool:
    if not asked.continue_final_message:
        if asked.add_generation_prompt is False:
            raise refusal("add_generation_prompt", "false needs continue_final_message: true")
        return False
    if asked.add_generation_prompt:
        raise refusal("add_generation_prompt", "excludes continue_final_message")
    if last.role != "assistant" or last.tool_calls:
        raise refusal("continue_final_message", "the last message must be an assistant's text")
    return True


def _template_arguments(asked: ChatFields) -> dict[str, Any]:
    """Return what the template gets besides messages and tools. Raises InvalidRequest for an argument that is not its own."""
    arguments = with_effort(asked.reasoning_effort, asked.chat_template_kwargs)
    return {**arguments, "documents": asked.documents} if asked.documents else arguments


def with_effort(effort: str | None, kwargs: dict[str, Any] | None) -> dict[str, Any]:
    """Return what the template gets; chat_template_kwargs go before what follows from reasoning_effort, as in vLLM.

    Raises InvalidRequest for an argument that is not the template's.
    """
    given = kwargs or {}
    for name in given:
        if name in RENDERED_HERE:
            raise refusal(f"chat_template_kwargs.{name}", "is not for the template", "unsupported_parameter")
    return given if effort is None else {"reasoning_effort": effort, "enable_thinking": effort != "none", **given}
