"""What a client asks of a chat model, whatever its dialect: plain values that a program gets as its argument ``request``."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Literal

from inferd.constraints import Gbnf, Lark
from inferd.protocol import Sampling
from inferd.protocol.carrying import LARGEST_INTEGER, LEAST_INTEGER
from inferd.protocol.chat import MAX_CHAT_DEPTH
from inferd.protocol.sampling import MAX_SEED, check_sampling
from inferd.sampling import Sampler
from inferd.schema import Choice, JsonSchema, OutputConstraint, Regex

Role = Literal["system", "developer", "user", "assistant", "tool"]
ANY_OBJECT = {"type": "object"}
NO_ARGUMENTS: dict[str, Any] = {"type": "object", "properties": {}}
"""Parameters of a function that is described without any."""
INPUT = "input"
"""The argument of a custom tool's function."""
FORMAT_NAMES = {"regex": "regular expression", "lark": "Lark grammar"}
"""How a model is told of the kinds of formats."""
UNBOUNDED = 1 << 30
"""More tokens than any context has room for: the text then ends with the context."""


@dataclass(frozen=True)
class ToolCall:
    """A call that the model made. ``arguments`` is the JSON text of an object, or the part of it that was written."""

    id: str
    name: str
    arguments: str = "{}"


@dataclass(frozen=True)
class ChatMessage:
    """A message. ``tool_call_id``, in one of role tool: which call it answers. ``reasoning``: what the model thought first."""

    role: Role
    content: str = ""
    reasoning: str = ""
    tool_calls: list[ToolCall] = field(default_factory=list)
    tool_call_id: str = ""
    name: str = ""


@dataclass(frozen=True)
class ToolChoice:
    """Whether the model may, must or must not call a tool. ``names``, where it is not empty: which tools it may call.

    ``parallel``: it may make several calls.
    """

    mode: Literal["auto", "none", "required"] = "auto"
    names: list[str] = field(default_factory=list)
    parallel: bool = True


@dataclass(frozen=True)
class OutputFormat:
    """What the answer's text has to be: any JSON object, JSON of a schema (as text in ``value``), or text of a regular
    expression, of a grammar, or one of ``options``.
    """

    kind: Literal["json_object", "json_schema", "regex", "lark", "gbnf", "choice"]
    value: str = ""
    options: list[str] = field(default_factory=list)

    def constraint(self) -> OutputConstraint:
        """Return the constraint. Raises InvalidRequest for an invalid one."""
        match self.kind:
            case "json_object":
                return JsonSchema(ANY_OBJECT)
            case "json_schema":
                return JsonSchema(self.value)
            case "regex":
                return Regex(self.value)
            case "lark":
                return Lark(self.value)
            case "gbnf":
                return Gbnf(self.value)
            case "choice":
                return Choice(self.options)


@dataclass(frozen=True)
class CustomInput:
    """What a custom tool takes: a text, which is held to ``format`` where there is one: regex, lark or choice."""

    format: OutputFormat | None = None


@dataclass(frozen=True)
class Tool:
    """A function that the model may call. ``parameters`` is the JSON Schema of its arguments, an object.

    ``custom``: its client knows it as a tool that takes a text. The model calls it as a function with that text as its argument
    ``input``; see :func:`custom_tool`.
    """

    name: str
    description: str = ""
    parameters: dict[str, Any] = field(default_factory=lambda: dict(NO_ARGUMENTS))
    custom: CustomInput | None = None

    @property
    def input_format(self) -> OutputFormat | None:
        """What the text of a custom tool is held to; None for any text, and for other tools."""
        return None if self.custom is None else self.custom.format


@dataclass(frozen=True)
class SamplingOptions:
    """How tokens are drawn: :class:`~inferd.protocol.Sampling` with the bias as a mapping, token ids as strings."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[str, float] = field(default_factory=dict)
    allowed_tokens: list[int] = field(default_factory=list)

    def sampler(self, choice: int = 0) -> Sampler:
        """Return the sampler of one of several answers: each has a seed of its own. Raises InvalidRequest that names a field."""
        sampling = Sampling(
            self.temperature, self.top_k, self.top_p, self.min_p,
            None if self.seed is None else (self.seed + choice) % (MAX_SEED + 1),
            self.repetition_penalty, self.presence_penalty, self.frequency_penalty,
            tuple(int(token) for token in self.logit_bias), tuple(self.logit_bias.values()),
            allowed_tokens=tuple(self.allowed_tokens),
        )  # fmt: skip
        check_sampling(sampling)
        return Sampler(sampling)


@dataclass(frozen=True)
class ChatRequest:
    """A request for ``n`` answers to a conversation, or (``prompt``) for text that goes on behind some.

    ``model``: a model of the runtime ("" is the default), ``adapter``: a LoRA adapter of it ("" is none). ``max_tokens`` None: to
    the end of the context. ``stop_token_ids``, ``ignore_eos`` and ``min_tokens`` are those of ``generate``.
    ``logprobs``: how many of the most likely tokens are told for each place; None: nothing. ``logprob_tokens``: which tokens are
    told there, in their place.
    ``prediction``: what the answer will probably be. ``speculation``: whether the runtime drafts. ``continue_final``: the last
    message is an assistant's, and is to be gone on with. ``template_arguments`` go to the model's chat template. ``session``
    names a conversation, ``cache_salt`` keeps its computed prefix from being found without it. ``echo``: begin with the prompt.
    ``reasoning_budget``: tokens that the model may think (None: as many as it likes), where its template marks what it thinks.
    ``include_stop``: the stop string that ends a text is a part of it. ``truncate``: only the last so many tokens of the prompt
    are read; -1: as many as the context has room for; None: all. ``bare_prompt``: nothing is put before a text ``prompt``.
    ``prompt_logprobs``: as ``logprobs``, for the prompt's tokens. ``special_text``: special tokens show as their names.
    ``return_tokens``: token ids are wanted with the text. ``user`` and ``metadata`` are the client's own.
    """

    model: str = ""
    messages: list[ChatMessage] = field(default_factory=list)
    prompt: str | list[int] | None = None
    tools: list[Tool] = field(default_factory=list)
    tool_choice: ToolChoice = field(default_factory=ToolChoice)
    output: OutputFormat | None = None
    sampling: SamplingOptions = field(default_factory=SamplingOptions)
    n: int = 1
    max_tokens: int | None = None
    stop: list[str] = field(default_factory=list)
    stop_token_ids: list[int] = field(default_factory=list)
    ignore_eos: bool = False
    min_tokens: int = 0
    logprobs: int | None = None
    prediction: str = ""
    speculation: bool | Literal["auto"] = "auto"
    adapter: str = ""
    priority: int = 0
    continue_final: bool = False
    template_arguments: dict[str, Any] = field(default_factory=dict)
    session: str = ""
    cache_salt: str = ""
    echo: bool = False
    return_tokens: bool = False
    stream: bool = False
    user: str = ""
    metadata: dict[str, str] = field(default_factory=dict)
    reasoning_budget: int | None = None
    include_stop: bool = False
    truncate: int | None = None
    bare_prompt: bool = False
    prompt_logprobs: int | None = None
    special_text: bool = False
    logprob_tokens: list[int] = field(default_factory=list)

    @property
    def most_tokens(self) -> int:
        """How many tokens an answer may have, for ``generate(max_tokens=)``."""
        return UNBOUNDED if self.max_tokens is None else self.max_tokens

    def sampler(self, choice: int = 0) -> Sampler:
        """Return the sampler of an answer. Raises InvalidRequest that names a field."""
        return self.sampling.sampler(choice)

    def template_messages(self) -> list[dict[str, Any]]:
        """Return the messages as chat templates expect them. A call's arguments are an object, or the text that is none."""
        return [_template_message(message) for message in self.messages]

    def template_tools(self) -> list[dict[str, Any]]:
        """Return the tools that may be called, as chat templates expect them."""
        return [{"type": "function", "function": _function(tool)} for tool in self.callable_tools()]

    def callable_tools(self) -> list[Tool]:
        """Return the tools that the choice leaves."""
        if self.tool_choice.mode == "none":
            return []
        names = self.tool_choice.names
        return [tool for tool in self.tools if not names or tool.name in names]


def custom_tool(name: str, description: str = "", input_format: OutputFormat | None = None) -> Tool:
    """Return a custom tool. Its function tells the model what the text has to be."""
    told = "The input of the tool, a text."
    if input_format is not None:
        told += f" All of it is one text of this {FORMAT_NAMES.get(input_format.kind, input_format.kind)}:\n{input_format.value}"
    schema = {"type": "object", "properties": {INPUT: {"type": "string", "description": told}}, "required": [INPUT]}
    return Tool(name, description, schema, CustomInput(input_format))


def custom_arguments(text: str) -> str:
    """Return the arguments of a call of a custom tool."""
    return json.dumps({INPUT: text}, ensure_ascii=False)


def _function(tool: Tool) -> dict[str, Any]:
    return {"name": tool.name, "description": tool.description, "parameters": tool.parameters}


def _template_message(message: ChatMessage) -> dict[str, Any]:
    value: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.reasoning:
        value["reasoning_content"] = message.reasoning
    if message.tool_calls:
        value["tool_calls"] = [_template_call(call) for call in message.tool_calls]
    if message.tool_call_id:
        value["tool_call_id"] = message.tool_call_id
    if message.name:
        value["name"] = message.name
    return value


def _template_call(call: ToolCall) -> dict[str, Any]:
    arguments = _object_of(call.arguments)
    function = {"name": call.name, "arguments": call.arguments if arguments is None else arguments}
    return {"id": call.id, "type": "function", "function": function}


def _object_of(arguments: str) -> dict[str, Any] | None:
    """Return the object of some arguments; None for a text that is none, as that of a call which was cut, and for an object that
    no message carries: then they stay text.
    """
    try:
        value = json.loads(arguments or "{}", parse_int=_number)
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()  # raises for halves of letters, too
    except (ValueError, OverflowError, RecursionError):
        return None
    return value if isinstance(value, dict) and _levels(value) <= MAX_CHAT_DEPTH else None


def _number(digits: str) -> int | float:
    """Return a whole number; the nearest other one beyond 64 bits, which no message carries. Raises OverflowError."""
    number = int(digits)
    return number if LEAST_INTEGER <= number <= LARGEST_INTEGER else float(number)


def _levels(value: Any) -> int:
    """Return how deep lists and objects lie in each other."""
    levels, level = 0, [value]
    while level := [each for each in level if isinstance(each, dict | list)]:
        levels += 1
        level = [item for each in level for item in (each.values() if isinstance(each, dict) else each)]
    return levels
