"""The fields of Anthropic's requests."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from inferd.protocol.chat import MAX_TOOLS
from inferd.protocol.generation import MAX_STOPS
from inferd.protocol.sampling import MAX_SEED
from inferd_runtime.server.dialects.anthropic.blocks import CacheControl, Name
from inferd_runtime.server.dialects.field_table import FieldTable, RequestField
from inferd_runtime.server.dialects.reading import MAX_WHOLE

MIN_BUDGET = 1024
KEEP_THINKING = {"type": "clear_thinking_20251015", "keep": "all"}
"""An edit of the conversation that edits nothing."""
Text = Annotated[str, Meta(min_length=1)]


class AnthropicTool(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A tool of the client's. Arguments always hold the schema, so that ``strict`` says nothing new; neither does eagerness."""

    name: Name
    input_schema: dict[str, Any]
    type: Literal["custom"] | None = None
    description: str | None = None
    strict: bool | None = False
    cache_control: CacheControl | None = None
    eager_input_streaming: bool | None = None
    allowed_callers: Any = None
    defer_loading: Any = False
    input_examples: Any = None


class AnthropicToolChoice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Whether and which tool to call."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = False


class Thinking(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Whether the model thinks first."""

    type: Literal["enabled", "disabled", "adaptive", "between_tools"]
    budget_tokens: Annotated[int, Meta(ge=MIN_BUDGET, le=MAX_WHOLE)] | None = None
    display: Literal["summarized", "omitted"] | None = None
    block_binding: None = None


class AnthropicFormat(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the answer's text has to be."""

    type: Literal["json_schema"]
    schema: dict[str, Any]


class OutputConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the answer has to be, and how much effort it is worth."""

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: AnthropicFormat | None = None
    task_budget: None = None


class AnthropicMetadata(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the client says about a request."""

    user_id: str | None = None


class CountTokensBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """``POST /v1/messages/count_tokens``, and what ``POST /v1/messages`` has in common with it: the fields that work."""

    model: Text
    messages: Annotated[list[Any], Meta(min_length=1)]
    system: str | list[Any] | None = None
    tools: Annotated[list[Any], Meta(max_length=MAX_TOOLS)] | None = None
    tool_choice: AnthropicToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    output_format: AnthropicFormat | None = None
    cache_control: CacheControl | None = None


class MessagesBody(CountTokensBody, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """``POST /v1/messages``: the fields that work."""

    max_tokens: Annotated[int, Meta(ge=0, le=MAX_WHOLE)]
    stream: bool | None = None
    stop_sequences: Annotated[list[Text], Meta(max_length=MAX_STOPS)] | None = None
    temperature: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=MAX_WHOLE)] | None = None
    metadata: AnthropicMetadata | None = None
    speculation: bool | Literal["auto"] | None = None
    prediction: str | None = None
    seed: Annotated[int, Meta(ge=0, le=MAX_SEED)] | None = None
    cache_salt: str | None = None


_COUNTED = (
    RequestField("model", "a served model, an adapter, or a program that serves chat; required"),
    RequestField(
        "messages", "blocks text, thinking, tool_use and tool_result; a last one of the assistant is gone on with"
    ),
    RequestField("system", "text, or text blocks"),
    RequestField(
        "tools",
        f"up to {MAX_TOOLS} of the client's own; hosted ones are refused; arguments are held to the schema, strict or not",
    ),
    RequestField("tool_choice", "auto, any, tool, none; disable_parallel_tool_use: one call at most"),
    RequestField("thinking", "the chat template's enable_thinking; behind budget_tokens of it its end is forced"),
    RequestField("output_config", "format: JSON of a schema; effort goes to the chat template as reasoning_effort"),
    RequestField("output_format", "the older name of output_config.format"),
    RequestField("cache_control", "accepted; all prompts are found by their beginning"),
    RequestField("speed", "there is one speed; see speculation", ("standard",)),
    RequestField("user_profile_id", "see metadata.user_id", ()),
    RequestField("workspace_id", "there are none", ()),
    RequestField("context_management", "leave out messages instead", ({}, {"edits": []}, {"edits": [KEEP_THINKING]})),
    RequestField("billing_policy", "nothing is billed", ()),
    RequestField("compaction", "leave out messages instead", ()),
    RequestField("mcp_servers", "the runtime calls no servers", ([],)),
)
COUNT_TOKENS_FIELDS = FieldTable(_COUNTED)
MESSAGES_FIELDS = FieldTable(
    (
        *_COUNTED,
        RequestField(
            "max_tokens", "0: compute the prompt, and answer nothing, so that the next request finds it; required"
        ),
        RequestField("stream", "server-sent events"),
        RequestField("stop_sequences", f"up to {MAX_STOPS} texts"),
        RequestField("temperature", "0 to 1, 1 by default; 0 takes the most likely token"),
        RequestField("top_p", "0 to 1; 0 takes the most likely token, -1 is as none"),
        RequestField("top_k", "so many of the most likely tokens; 0 (the default) and -1 are all"),
        RequestField("metadata", "user_id: programs see it"),
        RequestField("speculation", 'this runtime\'s own: whether it drafts: true, false, or "auto" (the default)'),
        RequestField(
            "prediction", "this runtime's own: a text that is drafted, so that an answer like it comes sooner"
        ),
        RequestField("seed", "this runtime's own: the same seed draws the same tokens"),
        RequestField("cache_salt", "this runtime's own: the computed prompt is found again only with the same salt"),
        RequestField("service_tier", "there is one tier", ("auto", "standard_only")),
        RequestField("container", "there are none", ()),
        RequestField("diagnostics", "usage tells what was found in the cache", ()),
        RequestField("inference_geo", "the runtime is where it is", ()),
        RequestField("fallbacks", "the model that is asked answers", ([],)),
        RequestField("fallback_credit_token", "nothing is billed", ()),
        RequestField("thread", "send the messages: where this is refused, a tool runner does so by itself", ()),
    )
)
