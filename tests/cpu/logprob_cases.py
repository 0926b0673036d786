"""Log-probabilities on a device beside the host's, row by row: what the tests on a CPU and on a device share."""

from __future__ import annotations

import numpy as np
import torch

from inferd_runtime.engine.sampling.probes import token_logprob
from inferd_runtime.kernels.logprobs import ROWS, token_scores


def check_scores(device: str, dtype: torch.dtype, vocab: int, top: int) -> None:
    """With equal logits, both zeros, impossible tokens, and rows that are read twice; more rows than go together."""
    chance = torch.Generator().manual_seed(vocab)
    logits = (4 * torch.randn(ROWS + 5, vocab, generator=chance)).to(dtype)
    logits[:, ::3] = (logits[:, ::3] * 2).round() / 2
    logits[1, :] = 0.0
    logits[1, vocab // 2 :] = -0.0
    logits[2, 1:-1] = float("-inf")
    rows = torch.randint(len(logits), (2 * ROWS + 3,), generator=chance)
    tokens = torch.randint(vocab, (len(rows),), generator=chance)
    found = token_scores(*(one.to(device) for one in (logits, rows, tokens)), top).cpu().numpy()
    assert found.shape == (len(rows), 2 + 2 * top)
    for line, row, token in zip(found, rows.tolist(), tokens.tolist(), strict=True):
        told = token_logprob(logits[row].float().numpy(), token, top)
        possible = len(told.top_tokens)
        assert line[1] == told.rank
        assert line[2 : 2 + possible].tolist() == told.top_tokens
        scores = [line[0], *line[2 + top : 2 + top + possible]]
        assert np.allclose(scores, [told.logprob, *told.top_logprobs], rtol=0, atol=1e-5)
        assert (line[2 + top + possible :] == -np.inf).all()
