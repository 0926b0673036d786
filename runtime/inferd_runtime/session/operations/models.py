"""``model.*``: which models there are, and their tokenizers."""

from __future__ import annotations

import base64
from functools import partial

from inferd import protocol as p
from inferd_runtime.engine.sampling.probes import check_vocabulary
from inferd_runtime.session.served_model import ServedModel
from inferd_runtime.session.state import Call, SessionState
from inferd_runtime.session.texts import answer_with, check_text

MAX_CONTEXTS = 4
"""A text may be tokenized that takes at most so many contexts: it may be cut into pieces afterwards."""


def list_models(state: SessionState, call: Call) -> None:
    """Answer with every model; the first is the default."""
    call.respond(p.Models([model.info for model in state.models.values()]))


def tokenize(state: SessionState, call: Call) -> None:
    """Answer with the token ids of a text."""
    request: p.Tokenize = call.request
    model = state.model(request.model)
    check_text(model, len(request.text), MAX_CONTEXTS * model.info.max_context)
    encode = partial(model.tokenizer.encode, request.text, special=request.special, start=request.start)
    answer_with(state, call, len(request.text), encode, p.Tokens)


def detokenize(state: SessionState, call: Call) -> None:
    """Answer with the text of token ids. Raises InvalidRequest for an id outside the vocabulary."""
    request: p.Detokenize = call.request
    model = checked_ids(state, request)
    decode = partial(model.tokenizer.decode, request.tokens, special=request.special)
    answer_with(state, call, len(request.tokens), decode, p.Text)


def token_bytes(state: SessionState, call: Call) -> None:
    """Answer with the bytes of token ids. Raises InvalidRequest for an id outside the vocabulary."""
    request: p.TokenBytes = call.request
    model = checked_ids(state, request)
    pieces = [base64.b64encode(model.bytes_of(token)).decode() for token in request.tokens]
    call.respond(p.TokenPieces(pieces))


def vocabulary(state: SessionState, call: Call) -> None:
    """Answer with the bytes of all tokens."""
    request: p.GetVocabulary = call.request
    call.respond(state.model(request.model).vocabulary)


def tokenizer_info(state: SessionState, call: Call) -> None:
    """Answer with what is known of a model's tokenizer."""
    request: p.GetTokenizerInfo = call.request
    tokenizer = state.model(request.model).tokenizer
    call.respond(p.TokenizerInfo(dict(tokenizer.special), tokenizer.chat_template, tokenizer.encode("", start=True)))


def checked_ids(state: SessionState, request: p.Detokenize | p.TokenBytes) -> ServedModel:
    """Return the model whose tokens are meant. Raises InvalidRequest for an id outside its vocabulary."""
    model = state.model(request.model)
    most = max(MAX_CONTEXTS * model.info.max_context, model.info.vocab_size)
    if len(request.tokens) > most:
        text = f"tokens: {len(request.tokens)} of them; {most} are allowed"
        raise p.LimitExceeded(text, limit="token_ids", value=most, raise_with="several calls")
    p.check_detokenize(request)
    check_vocabulary("tokens", request.tokens, model.info.vocab_size)
    return model


def usage(state: SessionState, call: Call) -> None:
    """Answer with the session's usage so far."""
    call.respond(state.usage())


HANDLERS = {
    p.ListModels: list_models,
    p.Tokenize: tokenize,
    p.Detokenize: detokenize,
    p.TokenBytes: token_bytes,
    p.GetVocabulary: vocabulary,
    p.GetTokenizerInfo: tokenizer_info,
    p.GetUsage: usage,
}
