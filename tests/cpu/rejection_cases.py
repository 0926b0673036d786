"""Targets and drafts to verify by rejection, for the kernel in the interpreter and on a device."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from inferd_runtime.kernels import verify
from inferd_runtime.kernels.verify import Drafts, Noise, Verifier


def random_case(seed: int, batch: int, width: int, vocab: int) -> tuple[Tensor, Drafts, Noise]:
    """Scores float64[B, K + 1, V], a fifth of them -inf, in turn whole rows; q close to p; draws of q; lengths 0..K."""
    generator = torch.Generator().manual_seed(seed)
    target = torch.randn(batch, width + 1, vocab, generator=generator, dtype=torch.float64) * 2
    q = (target[:, :-1] + torch.randn(batch, width, vocab, generator=generator) * 0.4).softmax(dim=2).float()
    tokens = torch.multinomial(q.reshape(-1, vocab), 1, generator=generator).reshape(batch, width)
    target = target.masked_fill(torch.rand(target.shape, generator=generator) < 0.2, -torch.inf)
    if batch > 5:
        target[5] = -torch.inf
    lengths = torch.arange(batch) % (width + 1)
    tokens = tokens.masked_fill(torch.arange(width) >= lengths[:, None], verify.PAD)
    keys = torch.randint(-(2**62), 2**62, (batch,), generator=generator)
    return target, Drafts(tokens, lengths, None, q), Noise(keys, torch.arange(batch) * 1000)


def cases(seed: int, batch: int, width: int, vocab: int) -> Iterator[tuple[Tensor, Drafts, Noise]]:
    """Near, equal and disjoint distributions, and drafts that were certain; float32 scores, too."""
    target, drafts, noise = random_case(seed, batch, width, vocab)
    yield target, drafts, noise
    yield target.float(), drafts, noise
    yield target, drafts._replace(probabilities=None), noise
    finite = target.clamp(min=-3)
    yield finite, drafts._replace(probabilities=finite[:, :-1].softmax(dim=2)), noise
    inside = torch.arange(vocab) < vocab // 2
    apart = target.masked_fill(inside, -torch.inf)
    q = torch.where(inside, 1.0 / max(1, vocab // 2), 0.0).expand(batch, width, vocab)
    yield apart, drafts._replace(tokens=drafts.tokens.clamp(max=vocab // 2 - 1), probabilities=q), noise


def check_rejection(verifier: Verifier, seed: int, batch: int, width: int, vocab: int, device: str = "cpu") -> None:
    """The kernel's verdict is the reference's, which is computed on the CPU, in all parts."""
    seen = []
    for target, drafts, noise in cases(seed, batch, width, vocab):
        expected = verify.rejection(target, drafts, noise)
        moved = Drafts(*(None if each is None else each.to(device) for each in drafts))  # type: ignore[arg-type]
        got = verifier(target.to(device), moved, Noise(*(each.to(device) for each in noise)))
        for mine, theirs in zip(got, expected, strict=True):
            assert mine.dtype == torch.int64
            assert mine.cpu().tolist() == theirs.tolist()
        seen.append(float(expected.accepted.sum() / drafts.lengths.sum().clamp(min=1)))
    if width > 1:
        near, _, _, equal, disjoint = seen
        assert (equal, disjoint) == (1, 0)
        assert 0 < near < 1 or batch < 8
