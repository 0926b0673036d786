"""The second verifier: rejection sampling with residual, for drafts that come with the probabilities they were drawn with.

Leviathan et al., "Fast inference from transformers via speculative decoding" (ICML 2023), and Chen et al., "Accelerating
large language model decoding with speculative sampling" (2023). It keeps the distribution, not the tokens of a seed. The
batched twin is ``kernels/verify.py: rejection``.
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
"""Tags of the noise that decides, and of the noise that the residual is drawn with. A draft must have used neither."""
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
    """The tokens to emit: draft tokens that stand, then one sample of the target, the first at absolute ``position``.

    ``logits`` float32[rows, V] and ``masks`` int32[rows, words], one row per draft token and one behind them. ``q``
    float32[len(draft), V]: the distributions, as they were sampled, that the draft tokens were drawn from; None: each was
    certain. Where a draft ends before a token *because of what that token is* (illegal, end-of-text), the token has to be
    passed on as the last one all the same, with no row behind it: to sample the target instead would give the tokens that
    drafts end with more than their share. So there are ``len(draft)`` rows or one more. ``adjustments``: of each row, behind
    the draft tokens before it.

    Raises ConstraintError when a mask allows no token.
    """
    tokens: list[int] = []
    for row in range(len(logits)):
        adjusted = logits[row] if adjustments is None else adjust(logits[row], adjustments[row])
        p = distribution(adjusted, sampler, None if masks is None else masks[row])
        if row == len(draft):
            return [*tokens, _draw(p, sampler.key, position + row)]
        guess = draft[row]
        drawn = _certain(guess, p.shape[0]) if q is None else q[row].astype(np.float64)
        if not _stands(p[guess], drawn[guess], sampler.key, position + row):
            return [*tokens, _draw(_residual(p, drawn), sampler.key, position + row)]
        tokens.append(guess)
    return tokens


def distribution(logits: LogitRows, sampler: RowSampler, mask: Masks | None = None) -> TokenProbabilities:
    """float64[V], what :func:`~inferd_runtime.engine.sampling.host_sampling.draw` draws from, of a row with its
    adjustments. Raises
    ConstraintError as it does.
    """
    allowed = np.arange(logits.shape[0]) if mask is None else allowed_tokens(mask, logits.shape[0])
    if not allowed.size:
        raise ConstraintError("the constraint leaves no token to go on with")
    p = np.zeros(logits.shape[0])
    if sampler.temperature == 0:
        p[allowed[np.argmax(logits[allowed])]] = 1.0
        return p
    places, scores = candidates(logits[allowed], sampler)
    likely = np.exp(scores)
    p[allowed[places]] = likely / likely.sum()
    return p


def _stands(likely: float, drawn: float, key: int, position: int) -> bool:
    """Whether u < p(x) / q(x), in logarithms so that no quotient overflows. Probability 0 never stands."""
    if likely <= 0:
        return False
    u = float(uniform(stream(key, ACCEPT), position, np.zeros(1, np.int64))[0])
    return drawn <= 0 or math.log(u) < math.log(likely) - math.log(drawn)


def _residual(p: TokenProbabilities, q: TokenProbabilities) -> TokenProbabilities:
    """What p has more than q, unnormalised. Where rounding leaves nothing, p and q are equal, and p will do."""
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
