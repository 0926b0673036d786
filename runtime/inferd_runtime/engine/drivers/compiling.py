"""Kernels that are compiled at load: Triton compiles one when it is first launched, which takes seconds while somebody waits.

Steps of every shape have run by then, or been recorded. Here is the rest, on what may be overwritten or stays as it is:
penalties, how sure a draw was, long drafts, drafts that were sampled, and the cache's operations.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from inferd.protocol import MAX_DRAFT, MAX_LOGPROBS
from inferd_runtime.kernels.cache import CacheBlock
from inferd_runtime.kernels.logprobs import token_scores
from inferd_runtime.kernels.sampling import Adjustments, SampleRows, processed
from inferd_runtime.kernels.suite import KernelSuite
from inferd_runtime.kernels.verify import DraftRows, Drafts, Noise

SAMPLED = (1, 64)
"""Rows that are sampled with penalties: few and many have programs of their own."""
DRAFTED = (1, MAX_DRAFT)
MOVED = (1, 8, 32, 100)
"""Tokens or pages that are moved at a time: a kernel for few, for more, and one that goes through memory."""


def compile_sampling(kernels: KernelSuite, logits: Tensor, mask_words: int) -> None:
    """Sample ``logits`` [1, V] with penalties, verify long drafts and such as were sampled."""
    device, vocab = logits.device, logits.shape[1]
    for count in SAMPLED:
        first = torch.ones(count + 1, dtype=torch.int32, device=device)
        first[0] = 0
        entry = torch.zeros(1, device=device)
        adjustments = Adjustments(first, entry.to(torch.int32), entry + 1, entry)
        rows = sampler_rows(count, mask_words, device, adjustments)
        several = logits.expand(count, vocab).contiguous()
        drawn = kernels.sample(several, rows).to(torch.int32)
        for one in (several, several.float()):
            kernels.confidence(one, replace(rows, adjustments=None), drawn)
        token_scores(several, torch.arange(count, device=device), drawn.long(), min(MAX_LOGPROBS, vocab))
    for width in DRAFTED:
        rows = sampler_rows(width + 1, mask_words, device)
        target = processed(logits.expand(width + 1, vocab).float(), rows).view(1, width + 1, vocab)
        one = torch.zeros(1, dtype=torch.int64, device=device)
        tokens = torch.zeros(1, width, dtype=torch.int64, device=device)
        likely = torch.full((1, width, vocab), 1 / vocab, device=device)
        kernels.rejection(target, Drafts(tokens, one + width, None, likely), Noise(one, one))
        few, draft = one.to(torch.int32), tokens.to(torch.int32)
        kernels.agree(torch.zeros(width + 1, dtype=torch.int64, device=device), DraftRows(few, few, draft, draft - 1))


def sampler_rows(
    count: int, mask_words: int, device: torch.device, adjustments: Adjustments | None = None
) -> SampleRows:
    """Return samplers of so many rows, with a mask that none of them uses."""
    floats = torch.ones(count, dtype=torch.float64, device=device)
    whole = torch.zeros(count, dtype=torch.int64, device=device)
    unmasked = torch.full((count,), -1, dtype=torch.int32, device=device)
    masks = torch.zeros(1, mask_words, dtype=torch.int32, device=device)
    return SampleRows(
        floats, floats.clone(), floats - 1, whole, whole.clone(), whole.clone(), unmasked, masks, adjustments
    )


def compile_moves(kernels: KernelSuite, block: CacheBlock) -> None:
    """Move the cache's first token and page to where they are."""
    for count in MOVED:
        same = torch.zeros(count, dtype=torch.int64, device=block.flat.device)
        kernels.move_tokens(block, same, same)
        kernels.copy_pages(block, same, same)
        kernels.scatter_pages(block, same, kernels.gather_pages(block, same))
