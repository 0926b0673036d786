"""The shapes of what OpenAI's and vLLM's routes answer. They serve the document alone: nothing is made of them."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import UNSET, Struct, UnsetType

from inferd.protocol import ModelInfo

FinishedBy = Literal["stop", "length", "tool_calls"]


class OpenAiProblem(Struct):
    """What went wrong: ``param`` is the path of the field at fault."""

    message: str
    type: Literal["invalid_request_error", "permission_error", "rate_limit_error", "server_error"]
    param: str | None
    code: str | None


class OpenAiError(Struct):
    """An error in OpenAI's shape."""

    error: OpenAiProblem


class PromptDetails(Struct):
    """Tokens of the prompt that were not computed for this request."""

    cached_tokens: int


class CompletionDetails(Struct):
    """Tokens of the answers that were thought, and what became of those that ``prediction`` guessed."""

    reasoning_tokens: int
    accepted_prediction_tokens: int
    rejected_prediction_tokens: int


class CompletionUsage(Struct):
    """What was used, in tokens."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails
    completion_tokens_details: CompletionDetails


class LikelyToken(Struct):
    """A token with its log-probability."""

    token: str
    bytes: list[int] | None
    logprob: float


class ScoredToken(LikelyToken):
    """A token of the answer, and the most likely ones at its place."""

    top_logprobs: list[LikelyToken]


class AnswerLogprobs(Struct):
    """The log-probabilities of an answer's tokens."""

    content: list[ScoredToken]
    refusal: None


class ShownFunction(Struct):
    """A function to call; ``arguments`` is the JSON text of an object."""

    name: str
    arguments: str


class ShownInput(Struct):
    """A custom tool to call, with its text."""

    name: str
    input: str


class ShownCall(Struct):
    """A call that the model makes, of a function or of a custom tool."""

    id: str
    type: Literal["function", "custom"]
    function: ShownFunction | UnsetType = UNSET
    custom: ShownInput | UnsetType = UNSET


class AnswerMessage(Struct):
    """What the model says. ``reasoning_content`` is the older name of ``reasoning``."""

    role: Literal["assistant"]
    content: str | None
    refusal: None
    annotations: list[Any]
    reasoning: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[ShownCall] | UnsetType = UNSET


class ChatChoice(Struct):
    """One of the answers."""

    index: int
    message: AnswerMessage
    logprobs: AnswerLogprobs | None
    finish_reason: FinishedBy
    stop_reason: str | int | None
    token_ids: list[int] | UnsetType = UNSET


class PromptToken(Struct):
    """How likely a token was; ``rank``: 1 for the most likely at its place."""

    logprob: float
    rank: int
    decoded_token: str


class ChatCompletion(Struct):
    """The answers to a conversation."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChoice]
    usage: CompletionUsage
    prompt_token_ids: list[int] | UnsetType | None = UNSET
    prompt_logprobs: list[dict[str, PromptToken] | None] | UnsetType = UNSET


class FunctionDelta(Struct):
    """More of a call's function."""

    name: str | UnsetType = UNSET
    arguments: str | UnsetType = UNSET


class InputDelta(Struct):
    """More of a call's custom tool."""

    name: str | UnsetType = UNSET
    input: str | UnsetType = UNSET


class CallDelta(Struct):
    """More of a call, or its beginning, which has an id."""

    index: int
    id: str | UnsetType = UNSET
    type: Literal["function", "custom"] | UnsetType = UNSET
    function: FunctionDelta | UnsetType = UNSET
    custom: InputDelta | UnsetType = UNSET


class MessageDelta(Struct):
    """More of a message."""

    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[CallDelta] | UnsetType = UNSET


class ChunkChoice(Struct):
    """More of one of the answers."""

    index: int
    delta: MessageDelta
    logprobs: AnswerLogprobs | None
    finish_reason: FinishedBy | None
    stop_reason: str | int | UnsetType | None = UNSET
    token_ids: list[int] | UnsetType = UNSET


class ChatCompletionChunk(Struct):
    """One event of a stream, whose last is ``[DONE]``."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChunkChoice]
    usage: CompletionUsage | UnsetType | None = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET


class TextLogprobs(Struct):
    """Log-probabilities as lists side by side; ``text_offset``: where in the text each token begins."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class TextChoice(Struct):
    """One of the texts, or more of it."""

    index: int
    text: str
    logprobs: TextLogprobs | None
    finish_reason: Literal["stop", "length"] | None
    stop_reason: str | int | UnsetType | None = UNSET
    token_ids: list[int] | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType | None = UNSET
    prompt_logprobs: list[dict[str, PromptToken] | None] | UnsetType = UNSET


class TextCompletion(Struct):
    """Texts that go on behind prompts; as an event of a stream more of them, with usage where that was asked for."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[TextChoice]
    usage: CompletionUsage | UnsetType | None = UNSET


class ShownVector(Struct):
    """A vector: numbers, or (base64) 32-bit floats, little-endian."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class EmbeddingUsage(Struct):
    """Tokens of all inputs together."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingList(Struct):
    """A vector for each input, in order."""

    id: str
    object: Literal["list"]
    data: list[ShownVector]
    model: str
    usage: EmbeddingUsage


class ShownModel(Struct):
    """A name that clients may give as their ``model``; the last three as vLLM adds them."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    root: str
    parent: str | None
    max_model_len: int | None


class ModelList(Struct):
    """All of them, and (``models``) the served models with their sizes; the first is the default."""

    object: Literal["list"]
    data: list[ShownModel]
    models: list[ModelInfo]


class Tokenized(Struct):
    """A text's or a conversation's tokens."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class Detokenized(Struct):
    """The text of tokens."""

    prompt: str


class ToldTokenizer(Struct):
    """A tokenizer, by the names of ``tokenizer_config.json``. ``model_max_length``: the most tokens of a context."""

    tokenizer_class: str
    add_bos_token: bool
    model_max_length: int
    chat_template: str | None
    bos_token: str | None
    eos_token: str | None
    pad_token: str | None
    unk_token: str | None


class RenderedPrompt(Struct):
    """A conversation as the model reads it."""

    request_id: str
    model: str
    prompt_text: str
    token_ids: list[int]
