"""The fields that chat and text completions share, and what those that work become in a neutral request."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from inferd.chat import ChatRequest, OutputFormat, SamplingOptions
from inferd.protocol.contexts import MAX_SALT
from inferd.protocol.generation import MAX_PRIORITY, MAX_STOP_CHARACTERS, MAX_STOP_TOKENS, MAX_STOPS
from inferd.protocol.passes import MAX_LOGPROB_TOKENS, MAX_LOGPROBS
from inferd.protocol.sampling import MAX_ALLOWED, MAX_BIASES, MAX_SEED
from inferd_runtime.server.dialects.exchange import ClientHeaders
from inferd_runtime.server.dialects.field_table import RequestField
from inferd_runtime.server.dialects.openai.output_formats import (
    BAD_WORDS,
    GUIDED,
    PLACE,
    ResponseFormat,
    StructuredOutputs,
    output_format,
    text_without,
)
from inferd_runtime.server.dialects.refusals import refusal
from inferd_runtime.server.dialects.sampling import allowing_no_share

MAX_CHOICES = 128
Name = Annotated[str, Meta(min_length=1, max_length=256)]
MAX_TOKEN = 2**31 - 1
TokenId = Annotated[int, Meta(ge=0, le=MAX_TOKEN)]
StopString = Annotated[str, Meta(min_length=1)]
BadWord = Annotated[str, Meta(min_length=1, max_length=64)]


class StreamOptions(Struct, forbid_unknown_fields=True):
    """What a stream brings besides the text."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: Literal[False] | None = None


@dataclass(frozen=True)
class Reporting:
    """What a client wants to be told: ``usage`` at the end of a stream or (``continuous``) with each chunk, and token ids.

    ``tokens_as_ids``: log-probabilities name tokens by their ids in place of their texts. ``output_field``: what it called the
    field that says what an answer has to be.
    """

    usage: bool = False
    continuous: bool = False
    token_ids: bool = False
    tokens_as_ids: bool = False
    output_field: str = "response_format"


class CommonFields(Struct, kw_only=True, forbid_unknown_fields=True):
    """What a chat and a text completion take alike."""

    model: Name
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    presence_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None
    repetition_penalty: Annotated[float, Meta(ge=0.01, le=100)] | None = None
    logit_bias: dict[str, Annotated[float, Meta(ge=-100, le=100)]] | None = None
    allowed_token_ids: Annotated[list[TokenId], Meta(min_length=1, max_length=MAX_ALLOWED)] | None = None
    seed: Annotated[int, Meta(ge=-(2**63), le=MAX_SEED)] | None = None
    n: Annotated[int, Meta(ge=1, le=MAX_CHOICES)] | None = None
    stop: StopString | Annotated[list[StopString], Meta(max_length=MAX_STOPS)] | None = None
    stop_token_ids: Annotated[list[TokenId], Meta(max_length=MAX_STOP_TOKENS)] | None = None
    ignore_eos: bool | None = None
    min_tokens: Annotated[int, Meta(ge=0)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: str | dict[str, Any] | None = None
    guided_regex: str | None = None
    guided_choice: Annotated[list[str], Meta(min_length=1)] | None = None
    guided_grammar: str | None = None
    guided_json_object: bool | None = None
    json_schema: str | dict[str, Any] | None = None
    regex: str | None = None
    ebnf: str | None = None
    truncate_prompt_tokens: Annotated[int, Meta(ge=-1, le=MAX_TOKEN)] | None = None
    truncation_side: Literal["left"] | None = None
    priority: Annotated[int, Meta(ge=-MAX_PRIORITY, le=MAX_PRIORITY)] | None = None
    session_id: Name | None = None
    request_id: Annotated[str, Meta(pattern=r"^[\x21-\x7e]{1,128}\Z")] | None = None
    cache_salt: Annotated[str, Meta(min_length=1, max_length=MAX_SALT)] | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    prompt_logprobs: Annotated[int, Meta(ge=0, le=MAX_LOGPROBS)] | None = None
    logprob_token_ids: Annotated[list[TokenId], Meta(max_length=MAX_LOGPROB_TOKENS)] | None = None
    speculation: bool | Literal["auto"] | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    bad_words: Annotated[list[BadWord], Meta(max_length=MAX_STOPS)] | None = None


COMMON_FIELDS = (
    RequestField("model", "a served model, an adapter, or a program that serves chat; required"),
    RequestField("temperature", "0 to 2, 1 by default; 0 takes the most likely token"),
    RequestField("top_p", "0 to 1; 0 takes the most likely token"),
    RequestField("top_k", "so many of the most likely tokens; -1 and 0 (the default) are all"),
    RequestField("min_p", "0 to 1: tokens that are less likely than this share of the likeliest are left out"),
    RequestField("presence_penalty", "-2 to 2"),
    RequestField("frequency_penalty", "-2 to 2"),
    RequestField("repetition_penalty", "0.01 to 100, 1 by default"),
    RequestField("logit_bias", f"token id to a number from -100 to 100, for up to {MAX_BIASES} tokens"),
    RequestField(
        "allowed_token_ids",
        f"1 to {MAX_ALLOWED} tokens, the only ones of an answer; a format or tools hold beside them, and say where it ends",
    ),
    RequestField("seed", "any integer of 64 bits; the same seed draws the same tokens"),
    RequestField("n", f"1 to {MAX_CHOICES} answers"),
    RequestField("stop", f"a string, or up to {MAX_STOPS} of them"),
    RequestField("stop_token_ids", f"up to {MAX_STOP_TOKENS} tokens that end the text as the model's own end does"),
    RequestField("ignore_eos", "true: the model's own end does not end the text; not with a format or tools"),
    RequestField("min_tokens", "so many tokens come before any token or stop string ends the text"),
    RequestField("stream", "server-sent events"),
    RequestField(
        "stream_options",
        "include_usage, continuous_usage_stats (with include_usage); include_obfuscation only as false",
    ),
    RequestField("user", "the client's own: programs see it"),
    RequestField(
        "response_format", "text, json_object or json_schema, with a schema that is always enforced, strict or not"
    ),
    RequestField("structured_outputs", "exactly one of json, regex, choice, grammar (Lark or GBNF), json_object: true"),
    RequestField("priority", "-3 to 3; as in vLLM a lower number is served earlier: each step doubles its share"),
    RequestField("session_id", "names a conversation; the header X-Session-Id does, too"),
    RequestField("request_id", "becomes a part of the answer's id"),
    RequestField("cache_salt", "the computed prompt is found again only with the same salt"),
    RequestField("return_token_ids", "token_ids of the answers, and prompt_token_ids"),
    RequestField("return_tokens_as_token_ids", "true: logprobs name each token as token_id:NUMBER"),
    RequestField(
        "prompt_logprobs",
        f"0 to {MAX_LOGPROBS}: log-probabilities of the prompt's tokens, by their ids; without stream",
    ),
    RequestField("speculation", 'whether the runtime drafts: true, false, or "auto" (the default)'),
    RequestField("include_stop_str_in_output", "true: the stop string that ends the text is a part of it"),
    RequestField(
        "truncate_prompt_tokens", "the last so many tokens of the prompt; -1: as many as the context has room for"
    ),
    RequestField("truncation_side", "left, with truncate_prompt_tokens"),
    RequestField("skip_special_tokens", "false: special tokens show in the text, by their names"),
    RequestField("spaces_between_special_tokens", "texts have no special tokens", (True,)),
    RequestField("use_beam_search", "there is no beam search; a program can do it", (False,)),
    RequestField("length_penalty", "there is no beam search", (1.0,)),
    RequestField(
        "logprob_token_ids",
        f"up to {MAX_LOGPROB_TOKENS} tokens, with logprobs: these are told of at each place, instead of the most likely",
    ),
    RequestField(
        "bad_words", f"up to {MAX_STOPS} texts that are no part of the answer; not with a format, tools or ignore_eos"
    ),
    RequestField("watermarking", "there is none", (False,)),
    RequestField("return_token_offsets", "offsets are not told", (False,)),
    RequestField("return_mm_kwargs", "there is only text", (True,)),
    RequestField("routed_experts_prompt_start", "routing is not told", (0,)),
    RequestField("repetition_detection", "use repetition_penalty", ()),
    RequestField("stream_interval", "each step is sent at once", (1,)),
    RequestField("kv_transfer_params", "prompts are computed where they are answered", ()),
    RequestField("ec_transfer_params", "there is only text", ()),
    RequestField("vllm_xargs", "there are no extensions of this kind; write a program", ({},)),
    RequestField("guided_json", "the older name of structured_outputs.json"),
    RequestField("guided_regex", "the older name of structured_outputs.regex"),
    RequestField("guided_choice", "the older name of structured_outputs.choice"),
    RequestField("guided_grammar", "the older name of structured_outputs.grammar"),
    RequestField("guided_json_object", "the older name of structured_outputs.json_object"),
    RequestField("json_schema", "SGLang's name of structured_outputs.json"),
    RequestField("regex", "SGLang's name of structured_outputs.regex"),
    RequestField("ebnf", "SGLang's name of structured_outputs.grammar"),
    RequestField("guided_decoding_backend", "the runtime chooses it", ("auto", "guidance")),
    RequestField("guided_whitespace_pattern", "there is no such choice", ()),
)


def common_request(asked: CommonFields, headers: ClientHeaders) -> ChatRequest:
    """Return the neutral request, except what only one of the routes has. Raises InvalidRequest, which names the field."""
    _check_stream_options(asked)
    if asked.truncate_prompt_tokens == 0:
        raise refusal("truncate_prompt_tokens", "at least 1, or -1")
    if asked.prompt_logprobs is not None and asked.stream:
        raise refusal("prompt_logprobs", "does not go with stream")
    options = asked.stream_options or StreamOptions()
    return ChatRequest(
        model=asked.model,
        output=_output(asked),
        sampling=_sampling(asked),
        n=asked.n or 1,
        stop=stop_strings(asked.stop),
        stop_token_ids=asked.stop_token_ids or [],
        ignore_eos=bool(asked.ignore_eos),
        min_tokens=asked.min_tokens or 0,
        speculation="auto" if asked.speculation is None else asked.speculation,
        priority=-(asked.priority or 0),
        session=asked.session_id or headers.session,
        cache_salt=asked.cache_salt or "",
        return_tokens=bool(asked.return_token_ids or options.continuous_usage_stats),
        stream=bool(asked.stream),
        user=asked.user or "",
        include_stop=bool(asked.include_stop_str_in_output),
        truncate=asked.truncate_prompt_tokens,
        prompt_logprobs=asked.prompt_logprobs,
        logprob_tokens=list(dict.fromkeys(asked.logprob_token_ids or [])),
        special_text=asked.skip_special_tokens is False,
    )


def _output(asked: CommonFields) -> OutputFormat | None:
    """Return what the text is held to. Raises InvalidRequest, which names the field."""
    output = output_format(asked.response_format, *_structured(asked))
    if not asked.bad_words:
        return output
    if output is not None:
        raise refusal(BAD_WORDS, "does not go with an output format")
    return text_without(asked.bad_words)


def _structured(asked: CommonFields) -> tuple[StructuredOutputs | None, str]:
    """Return what the text is held to beside ``response_format``, and the field that says so. Libraries that do not know which
    vLLM they speak to send vLLM's older names beside the new one. Raises InvalidRequest where they differ.
    """
    found, place = asked.structured_outputs, PLACE
    for name, kind in GUIDED.items():
        value = getattr(asked, name)
        if value is None or value is False:
            continue
        older = StructuredOutputs(**{kind: value})
        if found not in (None, older):
            raise refusal(name, f"differs from {place}: give one of them")
        found, place = (older, name) if found is None else (found, place)
    return found, place


def _check_stream_options(asked: CommonFields) -> None:
    if asked.stream_options is None:
        return
    if not asked.stream:
        raise refusal("stream_options", "needs stream: true")
    if asked.stream_options.continuous_usage_stats and not asked.stream_options.include_usage:
        raise refusal("stream_options.continuous_usage_stats", "needs include_usage: true")


def checked_request(request: ChatRequest) -> ChatRequest:
    """Return a complete request. Raises InvalidRequest for fields that do not go together."""
    if request.logprob_tokens and request.logprobs is None:
        raise refusal("logprob_token_ids", "needs logprobs")
    if request.max_tokens is not None and request.min_tokens > request.max_tokens:
        raise refusal("min_tokens", f"more than max_tokens, which is {request.max_tokens}")
    if request.ignore_eos and (request.output is not None or request.callable_tools()):
        raise refusal("ignore_eos", "does not go with an output format or tools, whose end is the end of the text")
    return request


def stop_reason(stopped_by: str, stop_token: int | None, request: ChatRequest) -> str | int | None:
    """Return the stop string or the token of ``stop_token_ids`` that ended a text, as vLLM tells it; None for any other end."""
    return stopped_by or (stop_token if stop_token in request.stop_token_ids else None)


def _sampling(asked: CommonFields) -> SamplingOptions:
    """Return how tokens are drawn; what is left out, or null, is OpenAI's default."""
    sampling = SamplingOptions(
        temperature=1.0 if asked.temperature is None else asked.temperature,
        top_p=1.0 if asked.top_p is None else asked.top_p,
        top_k=max(0, asked.top_k or 0),
        min_p=asked.min_p or 0.0,
        seed=None if asked.seed is None else asked.seed & MAX_SEED,  # negative ones, too, stand for one seed each
        repetition_penalty=1.0 if asked.repetition_penalty is None else asked.repetition_penalty,
        presence_penalty=asked.presence_penalty or 0.0,
        frequency_penalty=asked.frequency_penalty or 0.0,
        logit_bias=checked_biases(asked.logit_bias or {}),
        allowed_tokens=asked.allowed_token_ids or [],
    )
    return allowing_no_share(sampling)


def checked_biases(biases: dict[str, float]) -> dict[str, float]:
    """Return them. Raises InvalidRequest for a key that is no token id as JSON writes numbers, and for too many."""
    if len(biases) > MAX_BIASES:
        raise refusal("logit_bias", f"names {len(biases)} tokens; {MAX_BIASES} are allowed")
    for token in biases:
        if not (token.isascii() and token.isdigit() and len(token) <= 10 and token == str(int(token))):
            raise refusal(f"logit_bias.{token}", "not a token id")
    return biases


def stop_strings(stop: str | list[str] | None) -> list[str]:
    """Return the strings. Raises InvalidRequest for too many characters."""
    stops = [stop] if isinstance(stop, str) else list(stop or [])
    if sum(map(len, stops)) > MAX_STOP_CHARACTERS:
        raise refusal("stop", f"{MAX_STOP_CHARACTERS} characters in all are allowed")
    return stops


def reporting(asked: CommonFields) -> Reporting:
    """Return what the client wants to be told besides the text."""
    options = asked.stream_options or StreamOptions()
    structured, place = _structured(asked)
    return Reporting(
        usage=bool(options.include_usage),
        continuous=bool(options.continuous_usage_stats),
        token_ids=bool(asked.return_token_ids),
        tokens_as_ids=bool(asked.return_tokens_as_token_ids),
        output_field=BAD_WORDS if asked.bad_words else "response_format" if structured is None else place,
    )
