"""The two verifiers as tensors, one signature: what a fused kernel has to compute, for many sequences at once.

Agreement is the engine's default: it emits the tokens that would be sampled without a draft. Rejection sampling keeps
the distribution of the target, not the tokens of a seed.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from inferd.protocol import InvalidRequest
from inferd_runtime.kernels.noise import gumbel, stream, uniform
from inferd_runtime.kernels.sampling import PAD, check_tensor

__all__ = [
    "ACCEPT", "PAD", "RESIDUAL", "DraftRows", "Drafts", "Noise", "MaskWords", "Verdict", "Verifier", "agree", "agreement",
    "read_verdicts", "rejection",
]  # fmt: skip

MaskWords = npt.NDArray[np.int32]
ACCEPT = 0xACCE97
RESIDUAL = 0x5E51D0


class Drafts(NamedTuple):
    """Drafts of B sequences, padded to K nodes.

    ``tokens`` int64[B, K]; ``lengths`` int64[B], nodes that count. ``parents`` int64[B, K], each smaller than its own
    index, -1 for what follows the committed tokens; None: chains. ``probabilities`` float32[B, K, V], the processed
    distributions that the tokens were drawn from, for the verifier that needs them; None: each token was certain.
    """

    tokens: Tensor
    lengths: Tensor
    parents: Tensor | None = None
    probabilities: Tensor | None = None


class Noise(NamedTuple):
    """Where a sequence's randomness comes from: its ``keys`` int64[B] and the absolute ``positions`` int64[B] of the first
    token that is sampled.
    """

    keys: Tensor
    positions: Tensor


class Verdict(NamedTuple):
    """``accepted`` int64[B] nodes stand. ``tokens`` int64[B, K + 1]: theirs, one sample of the target, then PAD.
    ``path`` int64[B, K]: which nodes, then PAD.
    """

    accepted: Tensor
    tokens: Tensor
    path: Tensor


class DraftRows(NamedTuple):
    """Drafts of B sequences, padded to K nodes, beside the flat rows of a step.

    ``first`` int32[B]: the row behind the committed tokens; node i's row is ``first + 1 + i``. ``lengths`` int32[B]: nodes
    that count; -1: a padding sequence, which emits nothing. ``tokens`` and ``parents`` int32[B, K]: each parent smaller than
    its node's index, -1 for what follows the committed tokens.
    """

    first: Tensor
    lengths: Tensor
    tokens: Tensor
    parents: Tensor


class Verifier(Protocol):
    """``target`` float[B, K + 1, V]: processed scores (unnormalised log-probabilities, -inf for what is excluded), row 0
    behind the committed tokens and row i + 1 behind node i.
    """

    def __call__(self, target: Tensor, drafts: Drafts, noise: Noise) -> Verdict:
        """Return which nodes are accepted and what is emitted."""
        ...


def agreement(target: Tensor, drafts: Drafts, noise: Noise) -> Verdict:
    """Sample the row, go to the child that is the sample, emit the first sample that no child is; chains and trees.

    What is emitted is always the target's sample with the noise of its own position. So the output is what it would be
    without a draft, whatever the draft was made from, that noise included.
    """
    parents = _chain(drafts.tokens) if drafts.parents is None else drafts.parents
    positions = noise.positions[:, None] + _depths(parents)
    samples = _sample(target.to(torch.float64), noise.keys, positions)
    return _walk(samples, drafts, parents)


def agree(samples: Tensor, drafts: DraftRows) -> Tensor:
    """:func:`agreement` for rows that are sampled already: ``samples`` int64[N], flat. Any shape may hold padding.

    One row per sequence, int32[B, 2 + 2 K], made to be copied to the host at once and read by :func:`read_verdicts`: how
    many nodes stand; K + 1 tokens, theirs and one sample, then PAD; their K indices in order, then PAD. Raises ValueError where
    ``drafts`` are not what they say.
    """
    check_drafts(samples, drafts)
    width = drafts.tokens.shape[1]
    places = drafts.first[:, None].long() + torch.arange(width + 1, device=samples.device)
    own = samples[places.clamp(0, samples.shape[0] - 1)]
    nodes = Drafts(drafts.tokens.long(), drafts.lengths.long())
    accepted, tokens, path = _walk(own, nodes, drafts.parents.long())
    tokens = tokens.masked_fill((drafts.lengths < 0)[:, None], PAD)
    return torch.cat([accepted[:, None], tokens, path], dim=1).to(torch.int32)


def check_drafts(samples: Tensor, drafts: DraftRows) -> None:
    """Raise ValueError, which names it, for a tensor whose dtype, shape or layout the kernel cannot read."""
    shape = drafts.tokens.shape
    wanted = {"first": shape[:1], "lengths": shape[:1], "tokens": shape, "parents": shape}
    check_tensor("samples", samples, torch.int64, samples.shape[:1])
    for name, size in wanted.items():
        check_tensor(name, getattr(drafts, name), torch.int32, size)


def read_verdicts(packed: MaskWords) -> tuple[MaskWords, MaskWords, MaskWords]:
    """Return views of what :func:`agree` packed: accepted int32[B], tokens int32[B, K + 1], path int32[B, K]."""
    behind = packed.shape[1] // 2 + 1
    return packed[:, 0], packed[:, 1:behind], packed[:, behind:]


def rejection(target: Tensor, drafts: Drafts, noise: Noise) -> Verdict:
    """Leviathan et al. 2023 and Chen et al. 2023: a token x drawn from q stands with min(1, p(x) / q(x)); at the first that
    does not, norm((p - q)+) is drawn from and nothing behind counts; when all stand, p of the row behind.

    The draft must not have used the noise of the tags ACCEPT and RESIDUAL, and must hold every token that was drawn: one
    left out for what it is changes the distribution. Raises InvalidRequest for trees.
    """
    check_chains(drafts)
    # A row that allows nothing has no distribution: 0 everywhere.
    p = target.to(torch.float64).softmax(dim=2).nan_to_num(0.0)
    q = _distributions(drafts, p.shape[2])
    stands = _accepted(p, q, drafts, noise)
    accepted = stands.long().cumprod(dim=1).sum(dim=1)
    last = accepted[:, None, None].expand(-1, 1, p.shape[2])
    here = p.gather(1, last)[:, 0]
    # Behind the draft q is 0, so that the residual is p itself: the bonus.
    residual = (here - torch.nn.functional.pad(q, (0, 0, 0, 1)).gather(1, last)[:, 0]).clamp(min=0)
    residual = torch.where(residual.sum(dim=1, keepdim=True) > 0, residual, here)
    positions = noise.positions + accepted
    drawn = _sample(residual.log()[:, None], stream(noise.keys, RESIDUAL), positions[:, None])[:, 0]
    return _chain_verdict(drafts.tokens, accepted, drawn)


def check_chains(drafts: Drafts) -> None:
    """Raise InvalidRequest for trees."""
    if drafts.parents is not None:
        raise InvalidRequest("the rejection verifier takes chains: use agreement for trees")


def _distributions(drafts: Drafts, vocab_size: int) -> Tensor:
    """Return the draft distributions q, float64[B, K, V]; zero behind each draft's end."""
    if drafts.probabilities is None:
        q = torch.nn.functional.one_hot(drafts.tokens.clamp(min=0), vocab_size).to(torch.float64)
    else:
        q = drafts.probabilities.to(torch.float64)
    return q * _counts(drafts)[:, :, None]


def _counts(drafts: Drafts) -> Tensor:
    """Return bool[B, K]: True for nodes that are no padding."""
    nodes = torch.arange(drafts.tokens.shape[1], device=drafts.tokens.device)
    return nodes < drafts.lengths[:, None]


def _accepted(p: Tensor, q: Tensor, drafts: Drafts, noise: Noise) -> Tensor:
    """Return bool[B, K]: True where u < p(x) / q(x), in logarithms so that no quotient overflows. Probability 0 never stands."""
    token = drafts.tokens.clamp(min=0)[:, :, None]
    likely, drawn = p[:, :-1].gather(2, token)[:, :, 0], q.gather(2, token)[:, :, 0]
    places = noise.positions[:, None] + torch.arange(token.shape[1], device=token.device)
    u = uniform(stream(noise.keys, ACCEPT)[:, None], places, torch.zeros_like(places))
    return (likely > 0) & (u.log() < likely.log() - drawn.log()) & _counts(drafts)


def _sample(scores: Tensor, keys: Tensor, positions: Tensor) -> Tensor:
    """Return int64[B, R] by Gumbel-argmax of scores float64[B, R, V] at positions int64[B, R]; PAD where all is -inf."""
    tokens = torch.arange(scores.shape[2], device=scores.device)
    best = (scores + gumbel(keys[:, None, None], positions[:, :, None], tokens)).max(dim=2)
    return best.indices.masked_fill(best.values == float("-inf"), PAD)


def _chain(tokens: Tensor) -> Tensor:
    return torch.arange(-1, tokens.shape[1] - 1, device=tokens.device).expand_as(tokens)


def _depths(parents: Tensor) -> Tensor:
    """Return int64[B, K + 1]: how many tokens stand between the committed ones and what each row samples."""
    depths = torch.zeros(parents.shape[0], parents.shape[1] + 1, dtype=torch.int64, device=parents.device)
    for node in range(parents.shape[1]):
        depths[:, node + 1] = depths.gather(1, parents[:, node : node + 1] + 1)[:, 0] + 1
    return depths


def _walk(samples: Tensor, drafts: Drafts, parents: Tensor) -> Verdict:
    """Walk from the root as long as a child of the row is the row's sample."""
    batch, width = drafts.tokens.shape
    tokens, path = torch.full_like(samples, PAD), torch.full_like(drafts.tokens, PAD)
    row = torch.zeros(batch, 1, dtype=torch.int64, device=samples.device)
    alive, accepted = torch.ones_like(row, dtype=torch.bool), torch.zeros_like(row)
    for step in range(width + 1):
        sample = samples.gather(1, row)
        tokens[:, step : step + 1] = torch.where(alive, sample, PAD)
        if step == width:
            break
        child = _counts(drafts) & (parents == row - 1) & (drafts.tokens == sample)
        alive = alive & child.any(dim=1, keepdim=True)
        node = child.long().argmax(dim=1, keepdim=True)
        path[:, step : step + 1] = torch.where(alive, node, PAD)
        accepted = accepted + alive
        row = torch.where(alive, node + 1, row)
    return Verdict(accepted[:, 0], tokens, path)


def _chain_verdict(draft: Tensor, accepted: Tensor, drawn: Tensor) -> Verdict:
    nodes = torch.arange(draft.shape[1], device=draft.device)
    stands = nodes < accepted[:, None]
    tokens = torch.nn.functional.pad(torch.where(stands, draft, PAD), (0, 1), value=PAD)
    return Verdict(
        accepted, tokens.scatter(1, accepted[:, None], drawn[:, None]), torch.where(stands, nodes.expand_as(draft), PAD)
    )
