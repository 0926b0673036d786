"""What a measure of a draw's confidence has to do, on any device."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from inferd_runtime.engine.sampling.noise import gumbel
from inferd_runtime.kernels.noise import signed
from inferd_runtime.kernels.sampling import SampleRows

Confidence = Callable[[Tensor, SampleRows, Tensor], Tensor]


def sample_rows(
    temperatures: Sequence[float], vocab: int, *, keys: Sequence[int] = (), positions: Sequence[int] = (),
    allowed: np.ndarray | None = None, device: str = "cpu",
) -> SampleRows:  # fmt: skip
    """Samplers without filters; ``allowed`` bool[vocab] holds for every other row."""
    count = len(temperatures)
    own = torch.tensor([signed(key) for key in keys or range(5, 5 + count)], dtype=torch.int64)
    at = torch.tensor(list(positions or range(3, 3 + count)), dtype=torch.int64)
    words = np.zeros((0 if allowed is None else 1, -(-vocab // 32) * 32), np.uint8)
    if allowed is not None:
        words[0, :vocab] = allowed
    masks = torch.from_numpy(np.packbits(words, axis=1, bitorder="little").view(np.int32).copy())
    mask_rows = torch.tensor([-1 if allowed is None or n % 2 else 0 for n in range(count)], dtype=torch.int32)
    ones, none = torch.ones(count, dtype=torch.float64), torch.zeros(count, dtype=torch.int64)
    heat = torch.tensor(list(temperatures), dtype=torch.float64)
    rows = (heat, ones, ones - 1, none, own, at, mask_rows, masks)
    return SampleRows(*(part.to(device) for part in rows))


def check_confidence(
    run: Confidence, temperatures: Sequence[float], vocab: int, dtype: torch.dtype, masked: bool, device: str = "cpu"
) -> None:
    """Against float64, for the tokens that win; the last row has drawn nothing. Rows of the logits lie apart."""
    chance = np.random.default_rng(vocab + len(temperatures))
    wide = torch.from_numpy(chance.normal(size=(len(temperatures), vocab + 3)).astype(np.float32) * 4).to(dtype)
    logits = wide[:, :vocab]
    allowed = chance.random(vocab) < 0.5 if masked else None
    if allowed is not None:
        allowed[vocab // 2] = True
    rows = sample_rows(temperatures, vocab, allowed=allowed)
    tokens, expected = [], []
    for n, temperature in enumerate(temperatures):
        scores = logits[n].double().numpy()
        if allowed is not None and n % 2 == 0:
            scores = np.where(allowed, scores, -np.inf)
        best = scores.max()
        noise = 0.0 if temperature == 0 else gumbel(int(rows.keys[n]), int(rows.positions[n]), np.arange(vocab))
        noisy = (scores - best) / max(temperature, 1e-30) + noise if temperature else scores - best
        tokens.append(int(noisy.argmax()))
        expected.append(1.0 / np.exp(noisy - noisy.max()).sum())
    if tokens:
        tokens[-1], expected[-1] = -1, 0.0
    there = sample_rows(temperatures, vocab, allowed=allowed, device=device)
    drawn = torch.tensor(tokens, dtype=torch.int32, device=device)
    got = run(wide.to(device)[:, :vocab], there, drawn).cpu().numpy()
    assert got.dtype == np.float32
    assert np.allclose(got, expected, rtol=2e-3, atol=1e-6), (got, expected)
