"""What each side checks of what the other sends, beyond the types of its fields."""

from __future__ import annotations

import math
from collections.abc import Sequence

from inferd.protocol import InferdError, Sampling, check_sampling
from inferd_runtime.draft_models.messages import AskDraft, DraftAnswer, DraftSpec
from inferd_runtime.draft_models.remote.frames import MalformedFrame
from inferd_runtime.draft_models.remote.handshake import DraftTerms
from inferd_runtime.engine.sampling.host_sampling import RowSampler
from inferd_runtime.engine.sampling.penalties import NONE

MOST_WIDTH = 1 << 24
MOST_NUMBER = 1 << 63
MOST_TEXT = 1024
"""Characters of a tenant's name or a salt."""
MOST_ERROR = 500
"""Characters of an answer's error."""


def _require(holds: bool, what: str) -> None:
    if not holds:
        raise MalformedFrame(what)


def check_terms(terms: DraftTerms) -> None:
    """Raise MalformedFrame for terms of a draft engine that cannot be kept to."""
    _require(0 < terms.vocab_size <= MOST_WIDTH, "terms with no vocabulary")
    _require(0 < terms.max_context < 1 << 40 and 0 < terms.most_bytes < 1 << 32, "terms with no context")
    _require(0 < terms.most_tokens < 1 << 20, "terms that let nothing be drawn")
    _require(1.0 <= terms.idle_seconds < math.inf, "terms with no time")
    _require(all(0 <= token < terms.vocab_size for token in terms.eos_tokens), "terms with an unknown token")


def check_ask(request: AskDraft, terms: DraftTerms) -> None:
    """Raise MalformedFrame for a request that no target sends.

    Token ids may be beyond the draft model's vocabulary, as models pad to different widths: the engine answers with an error.
    """
    _require(0 <= request.sequence < MOST_NUMBER, "a sequence's number out of range")
    _require(0 <= request.start <= terms.max_context, "a start out of range")
    _require(request.start + len(request.tokens) <= terms.max_context, "more tokens than a context holds")
    _require(all(0 <= token < MOST_WIDTH for token in request.tokens), "a token out of range")
    _require(1 <= request.count <= terms.most_tokens, "a number of tokens out of range")
    _require(0.0 <= request.least <= 1.0, "a chance out of range")
    _require(0.0 <= request.within < math.inf, "a deadline out of range")
    if request.spec is not None:
        _check_spec(request.spec, terms)


def _check_spec(spec: DraftSpec, terms: DraftTerms) -> None:
    _require(0 < spec.width <= MOST_WIDTH, "a width out of range")
    _require(not spec.probabilities, "distributions, which are not for other machines")
    _require(0 <= spec.prompt <= terms.max_context, "a prompt out of range")
    _require(len(spec.tenant) <= MOST_TEXT and len(spec.salt) <= MOST_TEXT, "a name that is too long")
    sampler = spec.sampler
    _require(0 <= sampler.key < 1 << 64, "a key of noise out of range")
    try:
        check_sampling(_as_sampling(sampler))
    except InferdError as error:
        raise MalformedFrame(f"a sampler that cannot be: {error.message}") from None


def _as_sampling(sampler: RowSampler) -> Sampling:
    penalties = sampler.penalties or NONE
    return Sampling(
        temperature=sampler.temperature, top_k=sampler.top_k, top_p=sampler.top_p, min_p=sampler.min_p,
        repetition_penalty=penalties.repetition, presence_penalty=penalties.presence,
        frequency_penalty=penalties.frequency, bias_tokens=penalties.bias_tokens,
        bias_values=penalties.bias_values, typical_p=sampler.typical_p, xtc_probability=sampler.xtc_probability,
        xtc_threshold=sampler.xtc_threshold,
    )  # fmt: skip


def check_answer(answer: DraftAnswer, asked: AskDraft, terms: DraftTerms) -> None:
    """Raise MalformedFrame for an answer that no draft engine gives to this request."""
    known = asked.start + len(asked.tokens)
    drafted = not (answer.error or answer.lost)
    _require(drafted or not answer.tokens, "tokens of a draft that failed")
    _require(not drafted or 0 <= answer.base <= known, "an answer behind the tokens that were sent")
    known = max(known, answer.base)
    _require(len(answer.tokens) <= known - answer.base + terms.most_tokens, "more tokens than were asked for")
    _require(all(0 <= token < terms.vocab_size for token in answer.tokens), "a token out of range")
    _require(not answer.probabilities, "distributions, which nobody asked for")
    _require(len(answer.confidence) == len(answer.tokens), "not one confidence for each token")
    _require(_chances(answer.confidence), "a confidence out of range")
    _require(0 <= answer.drawn <= len(answer.tokens) + terms.most_tokens, "a number of drawn tokens out of range")
    _require(0.0 <= answer.seconds < math.inf, "a time out of range")
    _require(len(answer.error) <= MOST_ERROR, "an error that is too long")


def _chances(values: Sequence[float]) -> bool:
    return all(0.0 <= value <= 1.0 for value in values)
