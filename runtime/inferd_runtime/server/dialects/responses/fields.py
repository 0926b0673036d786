"""The fields of requests of ``/v1/responses``."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from inferd.protocol.chat import MAX_TOOLS
from inferd.protocol.generation import MAX_PRIORITY, MAX_STOPS
from inferd.protocol.sampling import MAX_BIASES, MAX_SEED
from inferd_runtime.server.dialects.field_table import FieldTable, RequestField
from inferd_runtime.server.dialects.openai.common_fields import StopString
from inferd_runtime.server.dialects.openai.output_formats import SchemaName, StructuredOutputs
from inferd_runtime.server.dialects.reading import MAX_WHOLE
from inferd_runtime.server.dialects.responses.items import FunctionName, ItemId

LOGPROBS = "message.output_text.logprobs"
INCLUDED = (LOGPROBS, "reasoning.encrypted_content")
"""What may be included. What the model thinks is told in the clear, and read from there: nothing has to be encrypted for that."""
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

    name: SchemaName
    schema: dict[str, Any]
    description: str | None = None
    strict: bool | None = None


class ResponseText(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the answer's text has to be."""

    format: ResponseTextFormat | ResponseObjectFormat | ResponseSchemaFormat | None = None
    verbosity: Any = None


def asked_format(body: ResponsesBody) -> ResponseTextFormat | ResponseObjectFormat | ResponseSchemaFormat:
    """Return what the answer's text has to be: any text, where nothing is said."""
    return (body.text and body.text.format) or ResponseTextFormat()


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
    async_: Any = msgspec.field(name="async", default=None)


class ResponseAnyInput(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="text"):
    """A custom tool takes any text."""


class ResponseGrammarInput(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="grammar"):
    """A custom tool takes texts of a grammar, to which calls are always held."""

    syntax: Literal["lark", "regex"]
    definition: str


class ResponseCustomTool(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A tool that takes a text in place of arguments."""

    type: Literal["custom"]
    name: FunctionName
    description: str | None = None
    format: ResponseAnyInput | ResponseGrammarInput | None = None
    allowed_callers: Any = None
    defer_loading: Any = None
    async_: Any = msgspec.field(name="async", default=None)


class ResponseNamespace(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Functions and custom tools whose names are this namespace's own."""

    type: Literal["namespace"]
    name: FunctionName
    tools: Annotated[list[Any], Meta(min_length=1, max_length=MAX_TOOLS)]
    description: str | None = None


class ResponseNamedChoice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A tool that is to be called."""

    type: Literal["function", "custom"]
    name: str


class ResponseAllowedTools(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Tools that may be called."""

    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: Annotated[list[ResponseNamedChoice], Meta(min_length=1, max_length=MAX_TOOLS)]


class ExpectedText(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the answer will probably be, as chat completions take it."""

    type: Literal["content"]
    content: str


class InputTokensBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """``POST /v1/responses/input_tokens``, and what ``POST /v1/responses`` has in common with it: the fields that work."""

    model: Annotated[str, Meta(min_length=1)] | None = None
    input: str | list[Any] | None = None
    instructions: str | None = None
    previous_response_id: ItemId | None = None
    tools: Annotated[list[Any], Meta(max_length=MAX_TOOLS)] | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    text: ResponseText | None = None
    reasoning: ReasoningOptions | None = None
    truncation: Literal["auto", "disabled"] | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class ResponsesBody(InputTokensBody, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """``POST /v1/responses``: the fields that work."""

    model: Annotated[str, Meta(min_length=1)]
    store: bool | None = None
    stream: bool | None = None
    background: bool | None = None
    max_tool_calls: Count | None = None
    max_output_tokens: Count | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    include: list[str] | None = None
    metadata: Annotated[dict[MetadataKey, MetadataValue], Meta(max_length=MAX_METADATA)] | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    speculation: bool | Literal["auto"] | None = None
    prediction: str | ExpectedText | None = None
    seed: Annotated[int, Meta(ge=0, le=MAX_SEED)] | None = None
    top_k: Annotated[int, Meta(ge=0, le=MAX_WHOLE)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    cache_salt: str | None = None
    thinking_token_budget: Annotated[int, Meta(ge=-1, le=MAX_WHOLE)] | None = None
    stop: StopString | Annotated[list[StopString], Meta(max_length=MAX_STOPS)] | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    presence_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None
    repetition_penalty: Annotated[float, Meta(ge=0.01, le=100)] | None = None
    logit_bias: dict[str, Annotated[float, Meta(ge=-100, le=100)]] | None = None
    priority: Annotated[int, Meta(ge=-MAX_PRIORITY, le=MAX_PRIORITY)] | None = None
    structured_outputs: StructuredOutputs | None = None
    client_metadata: dict[str, str] | None = None


MODEL = "a served model, an adapter, or a program that serves chat"
_COUNTED = (
    RequestField(
        "input",
        "text, or items message, reasoning, function_call, function_call_output, custom_tool_call, custom_tool_call_output and "
        "item_reference",
    ),
    RequestField("instructions", "a system message, for this response alone"),
    RequestField("previous_response_id", "goes on behind a response that was stored and did not fail"),
    RequestField(
        "tools",
        f"up to {MAX_TOOLS} functions and custom tools, also in namespaces; hosted tools are refused; arguments are held to the "
        "schema, strict or not, the input of a custom tool to its grammar",
    ),
    RequestField("tool_choice", "none, auto, required, a function or custom tool by name, allowed_tools"),
    RequestField("parallel_tool_calls", "false: one call at most"),
    RequestField("text", "format: text, json_object, json_schema; verbosity only as medium"),
    RequestField("reasoning", "effort goes to the chat template, with enable_thinking, which 'none' makes false"),
    RequestField("truncation", "disabled (the default), or auto: a prompt that is too long loses its beginning"),
    RequestField("chat_template_kwargs", "as in vLLM: go to the chat template"),
    RequestField("conversation", "use previous_response_id", ()),
)
INPUT_TOKENS_FIELDS = FieldTable(
    (
        RequestField("model", f"{MODEL}; the first that is served without it"),
        *_COUNTED,
        RequestField("personality", "say in the instructions how to answer", ()),
    )
)
RESPONSES_FIELDS = FieldTable(
    (
        RequestField("model", f"{MODEL}; required"),
        *_COUNTED,
        RequestField("store", "true by default: as many are kept as the tenant's quotas of runs say"),
        RequestField("stream", "named events"),
        RequestField("background", "answered while nobody waits; with store"),
        RequestField("max_tool_calls", "accepted; it counts hosted tools, and there are none"),
        RequestField("max_output_tokens", "at least 1; without it an answer may fill the context"),
        RequestField("temperature", "0 to 2, 1 by default; 0 takes the most likely token"),
        RequestField("top_p", "0 to 1; 0 takes the most likely token"),
        RequestField("top_logprobs", "0 to 20"),
        RequestField("include", " and ".join(INCLUDED)),
        RequestField("metadata", f"the client's own: programs see it; up to {MAX_METADATA} strings"),
        RequestField("client_metadata", "accepted: what a client says about itself"),
        RequestField("user", "the client's own: programs see it"),
        RequestField("safety_identifier", "like user, before it"),
        RequestField("prompt_cache_key", "accepted; a tenant's prompts are found by their beginning, whatever the key"),
        RequestField("speculation", 'this runtime\'s own: whether it drafts: true, false, or "auto" (the default)'),
        RequestField(
            "prediction", "this runtime's own: drafted, so that an answer like it comes sooner; the answer is the same"
        ),
        RequestField("seed", "this runtime's own: the same seed draws the same tokens"),
        RequestField("top_k", "this runtime's own: so many of the most likely tokens"),
        RequestField(
            "min_p", "this runtime's own: tokens that are less likely than this share of the likeliest are left out"
        ),
        RequestField("cache_salt", "this runtime's own: the computed prompt is found again only with the same salt"),
        RequestField(
            "thinking_token_budget",
            "this runtime's own: behind so many tokens of reasoning its end is forced; -1 is no limit",
        ),
        RequestField("stop", f"as in vLLM: a string, or up to {MAX_STOPS} of them"),
        RequestField("include_stop_str_in_output", "as in vLLM: the stop string that ends the text is a part of it"),
        RequestField("ignore_eos", "as in vLLM: the model's own end does not end the text; not with a format or tools"),
        RequestField("presence_penalty", "as in vLLM: -2 to 2"),
        RequestField("frequency_penalty", "as in vLLM: -2 to 2"),
        RequestField("repetition_penalty", "as in vLLM: 0.01 to 100, 1 by default"),
        RequestField("logit_bias", f"as in vLLM: token id to a number from -100 to 100, for up to {MAX_BIASES} tokens"),
        RequestField("priority", "as in vLLM: -3 to 3, and a lower number is served earlier"),
        RequestField("structured_outputs", "as in vLLM, without text.format: as chat completions take it"),
        RequestField("stream_options", "events have no padding", ({}, {"include_obfuscation": False})),
        RequestField(
            "prompt_cache_retention", "computed prompts are kept while there is room", ("in_memory", "in-memory")
        ),
        RequestField("prompt_cache_options", "prompts are found by their beginning", ({}, {"mode": "implicit"})),
        RequestField("service_tier", "there is one tier", ("auto", "default")),
        RequestField("background_options", "it begins as soon as it can", ({}, {"completion_window": "soonest"})),
        RequestField("context_management", "send less instead", ([],)),
        RequestField("prompt", "write a program", ()),
        RequestField("moderation", "nothing is moderated", ()),
        RequestField("access_programs", "there are none", ({"cyber": "standard"},)),
        RequestField("image", "there is only text", ({},)),
    )
)
