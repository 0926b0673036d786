"""Rejection sampling: the verifier for drafts that come with the probabilities that they were drawn from.

Leviathan et al., "Fast inference from transformers via speculative decoding" (ICML 2023), and Chen et al., "Accelerating
large language model decoding with speculative sampling" (2023). It keeps the distribution, not the tokens of a seed. The
batched version is ``kernels/verify.py: rejection``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from inferd.protocol import ConstraintError
from inferd_runtime.engine.sampling.host_sampling import LogitRows, Masks, RowSampler, allowed_tokens, candidates
from inferd_runtime.engine.sampling.noise import gumbel, stream, uniform
from inferd_runtime.engine.sampling.penalties import Entries, adjust

ACCEPT = 0xACCE97
RESIDUAL = 0x5E51D0
"""Tags of the noise of the accept test, and of the residual's. A draft must have used neither."""
TokenProbabilities = npt.NDArray[np.float64]


def reject(
    logits: LogitRows,
    masks: Masks | None,
    sampler: RowSampler,
    position: int,
    draft: Sequence[int],
    q: npt.NDArray[np.float32] | None,
    adjustments: Sequence[Entries] | None = None,
) -> list[int]:
    """Return the tokens to emit, the first at absolute ``position``: accepted draft tokens, then one sample of the target.

    ``logits`` float32[rows, V] and ``masks`` int32[rows, words], one row per draft token and one after them. ``q``
    float32[len(draft), V]: the distributions that the draft tokens were drawn from; None: each was certain. If a draft was cut
    before a token *because of what that token is* (illegal, end-of-text), that token must still be given as the last one, with
    no row after it: sampling the target instead would favour the tokens that drafts are cut at. So there are ``len(draft)`` rows
    or one more. ``adjustments``: the penalties of each row.

    Raises ConstraintError if a mask allows no token.
    """
    tokens: list[int] = []
    for row in range(len(logits)):
        adjusted = logits[row] if adjustments is None else adjust(logits[row], adjustments[row])
        p = distribution(adjusted, sampler, None if masks is None else masks[row], position + row)
        if row == len(draft):
            return [*tokens, _draw(p, sampler.key, position + row)]
        token = draft[row]
        drawn = _certain(token, p.shape[0]) if q is None else q[row].astype(np.float64)
        if not _accepts(p[token], drawn[token], sampler.key, position + row):
            return [*tokens, _draw(_residual(p, drawn), sampler.key, position + row)]
        tokens.append(token)
    return tokens


def distribution(
    logits: LogitRows, sampler: RowSampler, mask: Masks | None = None, position: int = 0
) -> TokenProbabilities:
    """Return the distribution, float64[V], that :func:`~inferd_runtime.engine.sampling.host_sampling.draw` draws from.

    ``logits`` already have their penalties. Raises ConstraintError if ``mask`` allows no token.
    """
    allowed = np.arange(logits.shape[0]) if mask is None else allowed_tokens(mask, logits.shape[0])
    if not allowed.size:
        raise ConstraintError("the constraint leaves no token to go on with")
    p = np.zeros(logits.shape[0])
    if sampler.temperature == 0:
        p[allowed[np.argmax(logits[allowed])]] = 1.0
        return p
    places, scores = candidates(logits[allowed], sampler, position)
    likely = np.exp(scores)
    p[allowed[places]] = likely / likely.sum()
    return p


def _accepts(likely: float, drawn: float, key: int, position: int) -> bool:
    """True if u < p(x) / q(x), in logarithms so that no quotient overflows. Probability 0 is never accepted."""
    if likely <= 0:
        return False
    u = float(uniform(stream(key, ACCEPT), position, np.zeros(1, np.int64))[0])
    return drawn <= 0 or math.log(u) < math.log(likely) - math.log(drawn)


def _residual(p: TokenProbabilities, q: TokenProbabilities) -> TokenProbabilities:
    """Return max(p - q, 0), unnormalised; p if rounding leaves nothing of that."""
    left = np.maximum(p - q, 0)
    return left if left.any() else p


def _draw(weights: TokenProbabilities, key: int, position: int) -> int:
    tokens = np.flatnonzero(weights)
    noise = gumbel(stream(key, RESIDUAL), position, tokens)
    return int(tokens[np.argmax(np.log(weights[tokens]) + noise)])


def _certain(token: int, vocab_size: int) -> TokenProbabilities:
    q = np.zeros(vocab_size)
    q[token] = 1.0
    return q
