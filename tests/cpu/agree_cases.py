"""Ragged drafts whose samples agree with them often, for the reference, the kernel in the interpreter and on a device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from inferd_runtime.kernels.verify import PAD, DraftRows, Drafts, Noise, agreement, read_verdicts

Agree = Callable[[torch.Tensor, DraftRows], torch.Tensor]


@dataclass
class Ragged:
    """Trees of K nodes over a vocabulary so small that many children agree; a sequence in five is padding."""

    samples: torch.Tensor
    drafts: DraftRows

    @classmethod
    def make(cls, seed: int, batch: int, width: int, chain: bool, vocab: int = 3) -> Ragged:
        generator = np.random.default_rng(seed)
        lengths = generator.integers(-1, width + 1, size=batch).astype(np.int32)
        rows = lengths.clip(-1) + 1
        order = generator.permutation(batch)
        first = np.zeros(batch, np.int32)
        first[order] = np.cumsum(rows[order]) - rows[order] + 2  # two rows of somebody else stand before them,
        total = int(rows.sum()) + 4  # and two behind.
        parents = np.tile(np.arange(-1, width - 1, dtype=np.int32), (batch, 1))
        if not chain:
            parents = np.array([[generator.integers(-1, n) for n in range(width)] for _ in range(batch)], np.int32)
        tokens = generator.integers(0, vocab, size=(batch, width)).astype(np.int32)
        tokens[np.arange(width) >= lengths[:, None]] = PAD
        first[lengths < 0] = generator.choice([0, total - 1, 10**6, -7], size=int((lengths < 0).sum()))
        samples = torch.from_numpy(generator.integers(0, vocab, size=total))
        return cls(
            samples,
            DraftRows(*(torch.from_numpy(each) for each in (first, lengths, tokens, parents.reshape(batch, width)))),
        )

    def padded(self) -> torch.Tensor:
        """Scores float64[B, K + 1, 3] that only the flat samples can be drawn from."""
        width = self.drafts.tokens.shape[1]
        places = self.drafts.first[:, None] + torch.arange(width + 1)
        own = self.samples[places.clamp(0, len(self.samples) - 1)]
        return torch.where(torch.arange(3) == own[:, :, None], 0.0, -torch.inf)


def check_agree(agree: Agree, batch: int, width: int, chain: bool, device: str = "cpu") -> None:
    """What is packed is what the padded verifier says, and nothing for padding."""
    for seed in range(3):
        case = Ragged.make(seed, batch, width, chain)
        packed = agree(case.samples.to(device), DraftRows(*(each.to(device) for each in case.drafts)))
        assert packed.shape == (batch, 2 + 2 * width)
        assert packed.dtype == torch.int32
        accepted, tokens, path = read_verdicts(packed.cpu().numpy())
        drafts = Drafts(*(each.long() for each in case.drafts[2:0:-1]), case.drafts.parents.long())
        zeros = torch.zeros(batch, dtype=torch.int64)
        expected = agreement(case.padded(), drafts, Noise(zeros, zeros))
        live = case.drafts.lengths.numpy() >= 0
        assert accepted.tolist() == expected.accepted.tolist()
        assert tokens[live].tolist() == expected.tokens[torch.from_numpy(live)].tolist()
        assert path.tolist() == expected.path.tolist()
        assert (tokens[~live] == PAD).all()
        if width == 8:
            assert accepted.max() > 1
