"""``/tokenize``, ``/detokenize`` and ``/v1/chat/completions/render``: texts and conversations as tokens, for debugging."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from inferd.chat import ChatRequest
from inferd.protocol import TokenizerInfo
from inferd_runtime.server.dialects.exchange import ClientHeaders
from inferd_runtime.server.dialects.field_table import FieldTable, RequestField
from inferd_runtime.server.dialects.openai.chat_fields import Effort, chat_request, read_chat_fields
from inferd_runtime.server.dialects.openai.common_fields import Name, TokenId
from inferd_runtime.server.dialects.openai.messages import AnyMessage
from inferd_runtime.server.dialects.openai.tools import MAX_FUNCTIONS, AnyTool
from inferd_runtime.server.dialects.reading import as_kind, read_object
from inferd_runtime.server.dialects.refusals import refusal

DEFAULT, TOKEN_TEXTS = "default", "return_token_strs"


class TokenizeFields(Struct, kw_only=True, forbid_unknown_fields=True):
    """The fields of a text that is to be tokenized."""

    model: Name | None = None
    prompt: str
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None


class TokenizeConversation(Struct, kw_only=True, forbid_unknown_fields=True):
    """The fields of a conversation that is to be tokenized: those of a chat request that say what its prompt is."""

    model: Name | None = None
    messages: Annotated[list[AnyMessage], Meta(min_length=1)]
    tools: Annotated[list[AnyTool], Meta(max_length=MAX_FUNCTIONS)] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    documents: list[dict[str, str]] | None = None
    reasoning_effort: Effort | None = None
    add_special_tokens: Literal[False] | None = None
    return_token_strs: bool | None = None


class DetokenizeFields(Struct, kw_only=True, forbid_unknown_fields=True):
    """The fields of tokens that are to be made text."""

    model: Name | None = None
    tokens: list[TokenId]


TOKENIZE_FIELDS = FieldTable(
    (
        RequestField("model", "a served model; the default without it"),
        RequestField("prompt", "a text; this or messages"),
        RequestField("add_special_tokens", "true (the default) for a prompt: begin as the model expects it"),
        RequestField("return_token_strs", "the text of each token, too"),
    )
)
DETOKENIZE_FIELDS = FieldTable(
    (RequestField("model", "a served model; the default without it"), RequestField("tokens", "token ids"))
)


@dataclass(frozen=True)
class TokenizeQuery:
    """What is to be tokenized: ``chat``, where it is a conversation, else ``prompt``. ``model`` "" is the default."""

    model: str
    prompt: str = ""
    chat: ChatRequest | None = None
    special_tokens: bool = True
    token_texts: bool = False


@dataclass(frozen=True)
class DetokenizeQuery:
    """Tokens that are to be made text. ``model`` "" is the default."""

    model: str
    tokens: list[int]


def read_tokenize(body: bytes) -> TokenizeQuery:
    """Return the query of a request. Raises InvalidRequest, which names the field."""
    value = read_object(body)
    if "messages" in value:
        return _read_chat(value)
    asked: TokenizeFields = as_kind(TOKENIZE_FIELDS.take(value), TokenizeFields)
    special = asked.add_special_tokens is not False
    return TokenizeQuery(asked.model or "", asked.prompt, None, special, bool(asked.return_token_strs))


def _read_chat(value: dict[str, Any]) -> TokenizeQuery:
    """Return the query of a conversation: what decides its prompt, and nothing about the answer."""
    texts = value.pop(TOKEN_TEXTS, None)
    if texts is not None and not isinstance(texts, bool):
        raise refusal(TOKEN_TEXTS, "Expected `bool | null`", "invalid_type")
    for name in value:
        if name not in TokenizeConversation.__struct_fields__:
            raise refusal(name, "unknown field of a conversation", "unknown_parameter")
    model = value.get("model")
    asked = read_chat_fields({**value, "model": DEFAULT if model is None else model})
    chat = chat_request(asked, ClientHeaders())
    name = "" if model is None else chat.model
    return TokenizeQuery(name, chat=replace(chat, model=name), token_texts=bool(texts))


def tokenized_body(tokens: Sequence[int], max_context: int, texts: Sequence[str] | None = None) -> dict[str, Any]:
    """Return a text's tokens; ``texts`` are those of the tokens, where they were asked for."""
    return {
        "count": len(tokens),
        "max_model_len": max_context,
        "tokens": list(tokens),
        "token_strs": None if texts is None else list(texts),
    }


def read_detokenize(body: bytes) -> DetokenizeQuery:
    """Return the query of a request. Raises InvalidRequest, which names the field."""
    asked: DetokenizeFields = as_kind(DETOKENIZE_FIELDS.take(read_object(body)), DetokenizeFields)
    return DetokenizeQuery(asked.model or "", asked.tokens)


def detokenized_body(text: str) -> dict[str, Any]:
    """Return the text of tokens."""
    return {"prompt": text}


def tokenizer_body(info: TokenizerInfo, max_context: int) -> dict[str, Any]:
    """Return what is known of a tokenizer, by the names of ``tokenizer_config.json``, as vLLM tells it."""
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_bos_token": bool(info.start_tokens),
        "model_max_length": max_context,
        "chat_template": info.chat_template or None,
        **{role: info.special.get(role) for role in ("bos_token", "eos_token", "pad_token", "unk_token")},
    }


def rendered_body(request_id: str, model: str, text: str, tokens: Sequence[int]) -> dict[str, Any]:
    """Return a conversation as the model reads it: the template's text, and its tokens."""
    return {"request_id": request_id, "model": model, "prompt_text": text, "token_ids": list(tokens)}
