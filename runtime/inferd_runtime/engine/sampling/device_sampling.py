"""Sampling on the device: the inputs that a driver gets with a forward pass, and the tokens that it returns.

The host's sampler (:mod:`~inferd_runtime.engine.sampling.host_sampling`) draws the same tokens from the same noise.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from inferd.protocol import ConstraintError, TokenLogprob
from inferd_runtime.engine.job import Planned
from inferd_runtime.engine.sampling.host_sampling import Masks
from inferd_runtime.engine.sampling.penalties import Entries
from inferd_runtime.engine.stages import Verified, Work
from inferd_runtime.models.batch import Batch, Ids
from inferd_runtime.speculation.drafts import NO_DRAFT, Draft, Probabilities

Ints = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float64]
ABSENT = -1
NO_ENTRIES = Entries(np.empty(0, np.int64), np.empty(0, np.float32), np.empty(0, np.float32))


class Adjusted(NamedTuple):
    """Penalties and biases of N rows, sparse, as in ``kernels/sampling.py: Adjustments``.

    Row n owns the entries ``first[n]`` to ``first[n + 1] - 1``. ``first`` int32[N + 1], ``tokens`` int32[A], ``repetition`` and
    ``shift`` float32[A].
    """

    first: Ints
    tokens: Ints
    repetition: npt.NDArray[np.float32]
    shift: npt.NDArray[np.float32]


class Rejecting(NamedTuple):
    """R sequences whose drafts come with the probabilities that they were drawn from, and are verified by rejection sampling.

    ``at`` int64[R]: which of the S sequences, each with ``rows`` int64[R] rows. ``lengths`` int64[R]: tokens of the draft, as
    many as rows if the last one is refused whatever it is (``Draft.refused``), else one less. ``tokens`` int64[R, K] and
    ``probabilities`` float32[R, K, V] are padded. All drafts are chains.
    """

    at: Ids
    rows: Ids
    lengths: Ids
    tokens: Ids
    probabilities: Probabilities


class ScoredSequences(NamedTuple):
    """Sequences whose tokens come with their log-probabilities. ``at`` int32[L]: which of the S sequences. ``nodes``: of their
    longest draft. ``top``: how many of the likeliest tokens are told with each.
    """

    at: Ints
    nodes: int
    top: int


@dataclass(frozen=True, slots=True)
class SamplingInputs:
    """N rows of S sequences. A sequence's rows are adjacent: the one after its committed tokens, then one per draft node.

    ``rows`` int64[N]: indices of the sampled rows among the batch's logit rows; ``host_rows`` int64[H]: the other ones, which
    go to the host. ``temperature``, ``top_p``, ``min_p`` float64[N], ``top_k`` int64[N]; ``keys`` int64[N]: the noise keys, in
    two's complement; ``positions`` int64[N]: of the sampled tokens. ``mask_rows`` int32[N]: the row of ``masks`` int32[M,
    ceil(V / 32)] with the allowed tokens, ABSENT: all tokens.

    ``first`` int32[S]: a sequence's first row of the N. ``lengths`` int32[S]: nodes of its draft; ``tokens`` and ``parents``
    int32[S, K]: those, padded. ``adjusted`` None: no row has penalties or biases. ``rejecting`` None: no draft was sampled; one
    that was has no nodes here. ``confident``: how sure each draw was is wanted; every sequence has one row then. ``scored``
    None: no log-probabilities are wanted.
    """

    rows: Ids
    host_rows: Ids
    temperature: Floats
    top_k: Ids
    top_p: Floats
    min_p: Floats
    keys: Ids
    positions: Ids
    mask_rows: Ints
    masks: Masks
    first: Ints
    lengths: Ints
    tokens: Ints
    parents: Ints
    adjusted: Adjusted | None = None
    rejecting: Rejecting | None = None
    confident: bool = False
    scored: ScoredSequences | None = None


class SampledRows(NamedTuple):
    """Indices among a batch's logit rows: ``rows`` int64[N], which the device samples, and ``host_rows`` int64[H], the others.
    ``nodes``: of the longest draft that is verified by agreement.
    """

    rows: Ids
    host_rows: Ids
    nodes: int = 0

    @property
    def order(self) -> Ids:
        """All of them, the sampled ones first."""
        return np.concatenate([self.rows, self.host_rows])


class SampledTokens(NamedTuple):
    """What the device sampled. ``accepted`` int[S]: the number of accepted nodes. ``tokens`` int[S, K + 1]: their tokens and one
    sample more. ``path`` int[S, K]: the accepted nodes. Entries after those have no meaning. A token of ABSENT: its mask allows
    none. ``confidence`` float32[S]: if it was asked for. ``scores`` float64[S, K' + 1, 2 + 2 T]: of each token
    (``kernels/logprobs.py``), if they were asked for; those of other sequences have no meaning.
    """

    accepted: npt.NDArray[np.integer]
    tokens: npt.NDArray[np.integer]
    path: npt.NDArray[np.integer]
    confidence: npt.NDArray[np.float32] | None = None
    scores: Floats | None = None


def is_sampled(work: Work) -> bool:
    """True if a driver that samples samples this work. It does not if the job reads the logits, or its sampler is the host's."""
    return work.sampler is not None and not work.scored and not work.sampler.host_only


def sampling_inputs(plan: Sequence[Planned], vocab_size: int) -> SamplingInputs:
    """Return the sampling inputs of a planned step, in the plan's order."""
    sampled = [item for item in plan if is_sampled(item.work) and item.work.rows]
    counts = np.asarray([item.work.rows for item in sampled], np.int64)
    samplers = [item.work.sampler for item in sampled if item.work.sampler is not None]
    floats = np.asarray([(one.temperature, one.top_p, one.min_p) for one in samplers], np.float64).reshape(-1, 3)
    temperature, top_p, min_p = np.repeat(floats, counts, axis=0).T.copy()
    mask_rows, masks = _masks(sampled, vocab_size)
    agreeing = [item.work.draft if item.work.draft.probabilities is None else NO_DRAFT for item in sampled]
    tokens, parents = _drafts(agreeing)
    return SamplingInputs(
        *sampled_rows(plan)[:2],
        temperature=temperature,
        top_k=np.repeat(np.asarray([one.top_k for one in samplers], np.int64), counts),
        top_p=top_p,
        min_p=min_p,
        keys=np.repeat(np.asarray([one.key for one in samplers], np.uint64).view(np.int64), counts),
        positions=_positions(sampled, counts),
        mask_rows=mask_rows,
        masks=masks,
        first=(np.cumsum(counts) - counts).astype(np.int32),
        lengths=np.asarray([len(draft) for draft in agreeing], np.int32),
        tokens=tokens,
        parents=parents,
        adjusted=_adjusted([item.work for item in sampled]),
        rejecting=_rejecting([item.work.draft for item in sampled]),
        confident=any(item.work.confident for item in sampled),
        scored=_scored([item.work for item in sampled], vocab_size),
    )


def host_inputs(rows: int, vocab_size: int) -> SamplingInputs:
    """Return inputs that sample nothing: all ``rows`` logit rows go to the host."""
    nothing = sampling_inputs((), vocab_size)
    return replace(nothing, host_rows=np.arange(rows))


def greedy_inputs(batch: Batch, vocab_size: int) -> SamplingInputs:
    """Return inputs for trial steps: every row is sampled by argmax, a sequence's rows verify a chain of token 0."""
    counts = np.asarray([span.count for span in batch.spans], np.int64)
    rows, width = int(counts.sum()), int(counts.max()) - 1
    chain = np.arange(ABSENT, width - 1, dtype=np.int32)
    return SamplingInputs(
        rows=np.arange(rows), host_rows=np.empty(0, np.int64),
        temperature=np.zeros(rows), top_k=np.zeros(rows, np.int64), top_p=np.ones(rows), min_p=np.zeros(rows),
        keys=np.zeros(rows, np.int64), positions=batch.positions + 1,
        mask_rows=np.full(rows, ABSENT, np.int32), masks=np.empty((0, -(-vocab_size // 32)), np.int32),
        first=(np.cumsum(counts) - counts).astype(np.int32), lengths=(counts - 1).astype(np.int32),
        tokens=np.zeros((len(counts), width), np.int32), parents=np.tile(chain, (len(counts), 1)),
    )  # fmt: skip


def sampled_rows(plan: Sequence[Planned]) -> SampledRows:
    """Return which logit rows of a planned step are sampled on the device."""
    sampled = np.repeat(
        np.asarray([is_sampled(item.work) for item in plan], np.bool_),
        np.asarray([item.work.rows for item in plan], np.int64),
    )
    drafts = [item.work.draft for item in plan if is_sampled(item.work)]
    nodes = max((len(draft) for draft in drafts if draft.probabilities is None), default=0)
    return SampledRows(np.flatnonzero(sampled), np.flatnonzero(~sampled), nodes)


def _positions(sampled: Sequence[Planned], counts: Ids) -> Ids:
    """Return the position of each row's sample: after the fed tokens that are no draft, plus the depth of the row's node."""
    base = [item.start + len(item.work.tokens) - len(item.work.draft) for item in sampled]
    if not len(counts) or counts.max() == 1:
        return np.asarray(base, np.int64)
    depths = [depth for item in sampled for depth in (0, *_depths(item.work.draft))]
    return np.repeat(np.asarray(base, np.int64), counts) + np.asarray(depths, np.int64)


def _depths(draft: Draft) -> Iterator[int]:
    """Return each node's depth: the number of draft tokens between the committed ones and what its row samples."""
    depths: list[int] = []
    for parent in draft.parents:
        depths.append(1 if parent < 0 else depths[parent] + 1)
    return iter(depths)


def _masks(sampled: Sequence[Planned], vocab_size: int) -> tuple[Ints, Masks]:
    """Return the index of each row's mask (ABSENT: none), and the masks."""
    masked = [item.work.masks for item in sampled]
    found = [one for one in masked if one is not None]
    if not found:
        rows = sum(item.work.rows for item in sampled)
        return np.full(rows, ABSENT, np.int32), np.empty((0, -(-vocab_size // 32)), np.int32)
    has = np.repeat([one is not None for one in masked], [item.work.rows for item in sampled])
    return np.where(has, np.cumsum(has) - 1, ABSENT).astype(np.int32), np.concatenate(found)


def _drafts(drafts: Sequence[Draft]) -> tuple[Ints, Ints]:
    """Return tokens and parents, int32[S, K], padded to the longest draft."""
    width = max(map(len, drafts), default=0)
    tokens, parents = (np.full((len(drafts), width), ABSENT, np.int32) for _ in range(2))
    for row, draft in enumerate(drafts):
        if draft.tokens:
            tokens[row, : len(draft)] = draft.tokens
            parents[row, : len(draft)] = draft.parents
    return tokens, parents


def _adjusted(sampled: Sequence[Work]) -> Adjusted | None:
    """Return the penalties and biases of all rows; None if there are none."""
    if all(work.adjustments is None for work in sampled):
        return None
    rows = [entries for work in sampled for entries in work.adjustments or [NO_ENTRIES] * work.rows]
    first = np.cumsum([0, *(len(entries.tokens) for entries in rows)])
    tokens, repetition, shift = (np.concatenate(column) for column in zip(*rows, strict=True))
    return Adjusted(first.astype(np.int32), tokens.astype(np.int32), repetition, shift)


def _scored(sampled: Sequence[Work], vocab_size: int) -> ScoredSequences | None:
    """Return whose tokens come with their log-probabilities; None if nobody's do."""
    found = [(at, len(work.draft), work.logprobs) for at, work in enumerate(sampled) if work.logprobs is not None]
    if not found:
        return None
    at, nodes, top = zip(*found, strict=True)
    return ScoredSequences(np.asarray(at, np.int32), max(nodes), min(max(top), vocab_size))


def spread(scored: ScoredSequences, scores: Floats, sequences: int) -> Floats:
    """Return the scores float64[L * (nodes + 1), 2 + 2 T] of some sequences among those of all."""
    found = np.zeros((sequences, scored.nodes + 1, scores.shape[1]))
    found[scored.at] = scores.reshape(len(scored.at), scored.nodes + 1, -1)
    return found


def _rejecting(drafts: Sequence[Draft]) -> Rejecting | None:
    """Return the drafts that rejection sampling verifies; None if there are none."""
    found = [(at, draft) for at, draft in enumerate(drafts) if draft.probabilities is not None]
    if not found:
        return None
    chains = [[*draft.tokens, *([draft.refused] if draft.refused >= 0 else [])] for _, draft in found]
    lengths = np.asarray([len(chain) for chain in chains], np.int64)
    first = next(draft.probabilities for _, draft in found if draft.probabilities is not None)
    tokens = np.full((len(found), lengths.max()), ABSENT, np.int64)
    probabilities = np.zeros((*tokens.shape, first.shape[1]), np.float32)
    for row, ((_, draft), chain) in enumerate(zip(found, chains, strict=True)):
        tokens[row, : len(chain)] = chain
        if draft.probabilities is not None:
            probabilities[row, : len(chain)] = draft.probabilities[: len(chain)]
    at, rows = np.asarray([(at, len(draft) + 1) for at, draft in found], np.int64).T.copy()
    return Rejecting(at, rows, lengths, tokens, probabilities)


def merged(sampled: SampledTokens, rejecting: Rejecting, accepted: Ids, tokens: Ids) -> SampledTokens:
    """Return the result of agreement with the rejection-sampled sequences replaced: ``accepted`` int64[R], ``tokens``
    int64[R, K + 1]. Where all of a draft is accepted and no row is left after it, no further token is sampled.
    """
    count, width = sampled.tokens.shape
    wide = max(width, tokens.shape[1])
    all_tokens = np.full((count, wide), ABSENT, np.int64)
    all_tokens[:, :width] = sampled.tokens
    all_tokens[rejecting.at, : tokens.shape[1]] = tokens
    path = np.tile(np.arange(wide - 1), (count, 1))
    path[:, : width - 1] = sampled.path
    path[rejecting.at] = np.arange(wide - 1)
    all_accepted = sampled.accepted.astype(np.int64)
    all_accepted[rejecting.at] = np.minimum(accepted, rejecting.rows - 1)
    return SampledTokens(all_accepted, all_tokens, path)


def read_sampled(work: Work, sampled: SampledTokens, index: int) -> Verified:
    """Return the outcome of sampled sequence ``index``. Raises ConstraintError if its mask allowed no token."""
    accepted = int(sampled.accepted[index])
    tokens = sampled.tokens[index, : accepted + 1].tolist()
    if tokens[-1] == ABSENT:
        raise ConstraintError("the constraint leaves no token to go on with")
    confidence = 1.0 if sampled.confidence is None else float(sampled.confidence[index])
    done = Verified(work, tokens, sampled.path[index, :accepted].tolist(), confidence=confidence)
    if work.logprobs is None or sampled.scores is None:
        return done
    lines = zip(tokens, sampled.scores[index].tolist(), strict=False)
    return done._replace(logprobs=[_logprob(token, line, work.logprobs) for token, line in lines])


def _logprob(token: int, line: Sequence[float], top: int) -> TokenLogprob:
    """Return what a line of scores says of a token and of the ``top`` likeliest that are possible at all."""
    logprob, rank, *best = line
    half = len(best) // 2
    likeliest = [
        (int(one), score) for one, score in zip(best[:half][:top], best[half:], strict=False) if score > -np.inf
    ]
    return TokenLogprob(token, logprob, int(rank), [one for one, _ in likeliest], [score for _, score in likeliest])
