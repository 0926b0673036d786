"""Rows to sample, for the reference on the CPU, the kernel in the interpreter and the kernel on a device: one builder for all."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
import triton
import triton.language as tl

from inferd.protocol import Sampling
from inferd_grammar.tokens import bit_mask
from inferd_runtime.engine.sampling.host_sampling import RowSampler, draw
from inferd_runtime.engine.sampling.noise import MASK, mix, stream
from inferd_runtime.kernels.noise import FIRST, GOLDEN, SECOND, key_tensor
from inferd_runtime.kernels.sampling import PAD, Adjustments, SampleRows
from inferd_runtime.kernels.triton import noise
from inferd_runtime.kernels.verify import ACCEPT

Row = npt.NDArray[np.float32]
Sampler = Callable[[torch.Tensor, SampleRows], torch.Tensor]
SAMPLINGS = [
    Sampling(),
    Sampling(1.0),
    Sampling(1e-4),
    Sampling(1.5, top_k=3),
    Sampling(1.0, top_k=1),
    Sampling(1.3, top_k=10_000_000),
    Sampling(0.8, top_p=0.7),
    Sampling(1.7, top_p=0.999),
    Sampling(1.0, top_p=1e-9),
    Sampling(1.2, min_p=0.2),
    Sampling(1.0, min_p=1.0),
    Sampling(2.0, top_k=7, top_p=0.93),
    Sampling(3.0, top_k=40, top_p=0.5),
    Sampling(0.9, top_k=5, top_p=0.9, min_p=0.05),
    Sampling(50.0, top_k=20, top_p=0.8),
]


@dataclass
class Case:
    """Rows with a sampler each; the entry of ``masks`` and of ``entries`` (token: (repetition, shift)) is None for none."""

    logits: npt.NDArray[np.float32]
    samplers: Sequence[RowSampler]
    positions: Sequence[int]
    masks: Sequence[npt.NDArray[np.int32] | None] = ()
    entries: Sequence[dict[int, tuple[float, float]] | None] = ()
    dtype: torch.dtype = torch.float32
    device: str = "cpu"

    def expected(self) -> list[int]:
        """The host's draws; PAD where nothing is allowed."""
        return [self._draw(at) for at in range(len(self.logits))]

    def _draw(self, at: int) -> int:
        row = adjusted_row(self.logits[at], self.entries[at] if self.entries else None)
        mask = self.masks[at] if self.masks else None
        allowed = np.ones(len(row), bool) if mask is None else unpacked(mask, len(row))
        if not (row[allowed] > -np.inf).any():
            return PAD
        return draw(row, self.samplers[at], self.positions[at], mask)

    def tensors(self) -> tuple[torch.Tensor, SampleRows]:
        samplers = self.samplers
        given = [(at, mask) for at, mask in enumerate(self.masks) if mask is not None]
        numbers = {at: place for place, (at, _) in enumerate(given)}
        width = -(-self.logits.shape[1] // 32)
        masks = np.stack([mask for _, mask in given]) if given else np.zeros((0, width), np.int32)
        rows = SampleRows(
            temperature=self._tensor([each.temperature for each in samplers], torch.float64),
            top_p=self._tensor([each.top_p for each in samplers], torch.float64),
            min_p=self._tensor([each.min_p for each in samplers], torch.float64),
            top_k=self._tensor([each.top_k for each in samplers], torch.int64),
            keys=key_tensor([each.key for each in samplers]).to(self.device),
            positions=self._tensor(self.positions, torch.int64),
            mask_rows=self._tensor([numbers.get(at, -1) for at in range(len(samplers))], torch.int32),
            masks=torch.from_numpy(masks).to(self.device),
            adjustments=self._adjustments() if self.entries else None,
        )
        return torch.from_numpy(self.logits).to(self.dtype).to(self.device), rows

    def _tensor(self, values: Sequence[float], dtype: torch.dtype) -> torch.Tensor:
        return torch.tensor(values, dtype=dtype, device=self.device)

    def _adjustments(self) -> Adjustments:
        """With three entries of padding behind, which must change nothing."""
        rows = [each or {} for each in self.entries]
        flat = [(token, *pair) for each in rows for token, pair in each.items()]
        return Adjustments(
            first=self._tensor(list(itertools.accumulate((len(each) for each in rows), initial=0)), torch.int32),
            tokens=self._tensor([token for token, _, _ in flat] + [0, 0, 1 << 30], torch.int32),
            repetition=self._tensor([r for _, r, _ in flat] + [3.0, 0.0, 2.0], torch.float32),
            shift=self._tensor([s for _, _, s in flat] + [9.0, 1.0, 5.0], torch.float32),
        )

    def every(self, step: int) -> Case:
        """Each ``step``-th row."""
        lists = {name: getattr(self, name)[::step] for name in ("logits", "samplers", "positions", "masks", "entries")}
        return replace(self, **lists)

    def check(self, sample: Sampler) -> None:
        """The tokens are the host's, and the caller's logits are as they were."""
        logits, rows = self.tensors()
        before = logits.clone()
        got = sample(logits, rows)
        assert got.dtype == torch.int64
        assert torch.equal(logits, before)
        assert got.tolist() == self.expected()


def unpacked(mask: npt.NDArray[np.int32], vocab: int) -> npt.NDArray[np.bool_]:
    return np.unpackbits(mask.view(np.uint8), bitorder="little", count=vocab).astype(bool)


def adjusted_row(row: Row, entries: dict[int, tuple[float, float]] | None) -> Row:
    """What :class:`Adjustments` says, one entry after the other."""
    done = row.copy()
    for token, (repetition, shift) in (entries or {}).items():
        before, by = float(row[token]), float(np.float32(repetition))
        done[token] = np.float32((before / by if before > 0 else before * by) + float(np.float32(shift)))
    return done


def resolved(samplings: Sequence[Sampling], count: int, seed: int) -> list[RowSampler]:
    """``count`` samplers in turn, with a key each."""
    return [
        RowSampler.resolve(each, seed=seed * 1_000_003 + at, lineage=at % 3)
        for at, each in zip(range(count), itertools.cycle(samplings), strict=False)
    ]


def kinds_of_rows(generator: np.random.Generator, vocab: int) -> Iterator[Row]:
    """What logits look like, and what they must not break: ties, -inf, huge, flat, one peak, all equal, all tiny."""
    plain = generator.standard_normal(vocab)
    yield from (plain * scale for scale in (1, 4, 30))
    yield np.round(plain * 2)
    yield np.where(generator.random(vocab) < 0.6, -np.inf, plain)
    yield np.where(np.arange(vocab) == generator.integers(vocab), 1.0, -np.inf)
    yield plain * 1e37
    yield plain - 3e4
    yield plain * 1e-4
    yield np.zeros(vocab)
    yield np.where(np.arange(vocab) == generator.integers(vocab), 30.0, plain)
    yield plain * 1e-42


def every_pair(vocab: int, seed: int, samplings: Sequence[Sampling] = SAMPLINGS) -> Case:
    """Every kind of row with every sampler."""
    generator = np.random.default_rng(seed)
    kinds = [row.astype(np.float32) for row in kinds_of_rows(generator, vocab)]
    logits = np.stack([row for row in kinds for _ in samplings])
    positions = [0, 1, 4095, *generator.integers(1 << 40, size=len(logits) - 3).tolist()]
    return Case(logits, resolved(samplings, len(logits), seed), positions)


def with_masks(case: Case, seed: int) -> Case:
    """None, one allowed token, no allowed token, few and most, in turn; bits past the vocabulary are set and mean nothing."""
    generator = np.random.default_rng(seed)
    rows, vocab = case.logits.shape
    shares = (None, -1.0, 0.0, 0.05, 0.95)
    case.masks = [_mask(generator, vocab, shares[at % len(shares)]) for at in range(rows)]
    return case


def _mask(generator: np.random.Generator, vocab: int, share: float | None) -> npt.NDArray[np.int32] | None:
    if share is None:
        return None
    chosen = [int(generator.integers(vocab))] if share < 0 else np.flatnonzero(generator.random(vocab) < share).tolist()
    mask = np.asarray(bit_mask(chosen, vocab), np.int32).copy()
    if vocab % 32:
        mask[-1] |= np.int32(-1 << (vocab % 32))
    return mask


def with_adjustments(case: Case, seed: int) -> Case:
    """From none to a fifth of the vocabulary; among them a ban, and one that lifts a token above all others."""
    generator = np.random.default_rng(seed)
    rows, vocab = case.logits.shape
    case.entries = [_entries(generator, vocab, at) for at in range(rows)]
    return case


def _entries(generator: np.random.Generator, vocab: int, at: int) -> dict[int, tuple[float, float]] | None:
    if at % 4 == 0:
        return None
    chosen = generator.permutation(vocab)[: 1 + generator.integers(1 + vocab // 5)].tolist()
    entries = {token: (float(generator.uniform(0.5, 2)), float(generator.normal())) for token in chosen}
    if at % 4 == 1:
        entries[chosen[0]] = (1.0, float("-inf"))
    if at % 4 == 2:
        entries[chosen[0]] = (1.3, 25.0)
    return entries


@triton.jit
def _noise(rows, tokens, words, exact, rough, block: tl.constexpr):
    place = tl.program_id(0) * block + tl.arange(0, block)
    row, token = tl.load(rows + place).to(tl.uint64), tl.load(tokens + place)
    tl.store(words + place, noise.token_words(row, token).to(tl.int64))
    tl.store(exact + place, noise.gumbel(row, token))
    tl.store(rough + place, noise.rough_gumbel(row, token))


@triton.jit
def _row_words(keys, positions, words, tag: tl.constexpr, block: tl.constexpr):
    place = tl.arange(0, block)
    key = tl.load(keys + place).to(tl.uint64)
    word = noise.row_word(noise.stream(key, tag) if tag else key, tl.load(positions + place))
    tl.store(words + place, word.to(tl.int64))


NOISE_BLOCK = 128
KEYS = (0, 1, 2**63 - 1, 2**63, 2**64 - 1, 0x9E3779B97F4A7C15, 12345, 2**40)
POSITIONS = (0, 1, 4095, 2**31 - 1, 2**31, 2**40, 7, 2**62)
ODD_WORDS = [
    word & (2**64 - 1)
    for centre in (0, 1 << 12, 1 << 32, 1 << 52, 0xF8 << 56, 1 << 63, 2**64 - (1 << 12), 2**64 - (1 << 30))
    for word in (centre - (1 << 12), centre - 1, centre, centre + 1, centre + (1 << 12) + 5)
]
"""Where u is next to 0, to 1, or to where the series begins, and where a half of a word is next to 0 or all ones."""


def check_row_words(device: str) -> None:
    """What a row's tokens share is the engine's, for the sampler's stream and others'."""
    pairs = list(itertools.product(KEYS, POSITIONS))
    positions = torch.tensor([position for _, position in pairs], device=device)
    keys = key_tensor([key for key, _ in pairs]).to(device)
    for tag in (0, ACCEPT):
        words = torch.empty(len(pairs), dtype=torch.int64, device=device)
        _row_words[(1,)](keys, positions, words, tag=tag, block=len(pairs))
        expected = [
            (mix((mix(stream(key, tag) if tag else key) ^ position) & MASK) + GOLDEN) & MASK for key, position in pairs
        ]
        assert [word & MASK for word in words.tolist()] == expected


def check_noise(device: str, count: int) -> None:
    """All bits of a token's word are the engine's, and the two kinds of noise made of them are as close as they say.

    Of random words, and of the odd ones, whose row words are computed backwards.
    """
    generator = np.random.default_rng(3)
    tokens = generator.integers(1 << 31, size=count)
    tokens[: min(count, 200)] = np.arange(min(count, 200))
    rows = generator.integers(1 << 63, size=count, dtype=np.uint64) * np.uint64(2) + np.uint64(1)
    for at, word in enumerate(ODD_WORDS):
        rows[at] = (unmixed(word) - int(tokens[at]) * GOLDEN) & MASK
    expected = np.array(
        [finished((int(row) + int(token) * GOLDEN) & MASK) for row, token in zip(rows, tokens, strict=True)], np.uint64
    )
    assert expected[: len(ODD_WORDS)].tolist() == ODD_WORDS
    words, exact, rough = (
        torch.empty(count, dtype=t, device=device) for t in (torch.int64, torch.float64, torch.float32)
    )
    given = (torch.from_numpy(each).to(device) for each in (rows.view(np.int64), tokens.astype(np.int32)))
    _noise[(count // NOISE_BLOCK,)](*given, words, exact, rough, block=NOISE_BLOCK)
    assert np.array_equal(words.cpu().numpy().view(np.uint64), expected)
    host = -np.log(-np.log(((expected >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52))
    np.testing.assert_allclose(exact.cpu().numpy(), host, rtol=1e-14, atol=1e-15)
    np.testing.assert_allclose(rough.cpu().numpy(), host, rtol=0, atol=noise.ROUGH)


def finished(word: int) -> int:
    """The finaliser behind its first addition."""
    return mix((word - GOLDEN) & MASK)


def unmixed(word: int) -> int:
    """The number that :func:`finished` makes ``word`` of."""
    for shift, factor in ((31, SECOND), (27, FIRST), (30, 1)):
        whole = word
        for _ in range(64 // shift + 1):
            whole = word ^ (whole >> shift)
        word = whole * pow(factor, -1, 1 << 64) & MASK
    return word
