"""``model.*``: which models there are, and their tokenizers."""

from __future__ import annotations

from functools import partial

from inferd import protocol as p
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
    encode = partial(model.tokenizer.encode, request.text, special=request.special)
    answer_with(state, call, len(request.text), encode, p.Tokens)


def detokenize(state: SessionState, call: Call) -> None:
    """Answer with the text of token ids. Raises InvalidRequest for an id outside the vocabulary."""
    request: p.Detokenize = call.request
    p.check_detokenize(request)
    model = state.model(request.model)
    for token in request.tokens:
        if token >= model.info.vocab_size:
            raise p.InvalidRequest(f"token id {token} is outside the vocabulary of {model.info.vocab_size}")
    decode = partial(model.tokenizer.decode, request.tokens, special=request.special)
    answer_with(state, call, len(request.tokens), decode, p.Text)


def usage(state: SessionState, call: Call) -> None:
    """Answer with the session's usage so far."""
    call.respond(state.usage())


HANDLERS = {p.ListModels: list_models, p.Tokenize: tokenize, p.Detokenize: detokenize, p.GetUsage: usage}
