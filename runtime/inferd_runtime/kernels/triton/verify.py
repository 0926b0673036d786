"""The agreement scan in Triton, a program per sequence. Reference: :mod:`inferd_runtime.kernels.verify`."""

from __future__ import annotations

from collections.abc import Iterator

import triton
import triton.language as tl
from torch import Tensor

from inferd_runtime.kernels.triton.variant import Variant
from inferd_runtime.kernels.verify import DraftRows, check_drafts

PAD = tl.constexpr(-1)
LANES = (16, 128)
"""For drafts of captured steps, and for all that the engine accepts, with the token behind them."""


@triton.jit(do_not_specialize=["width"])
def _agree(
    samples: tl.tensor, firsts: tl.tensor, lengths: tl.tensor, tokens: tl.tensor, parents: tl.tensor, packed: tl.tensor,
    width: tl.tensor, nodes: tl.constexpr,
):  # fmt: skip
    """Walk from the root as long as a child of the row is the row's sample: a node's parent comes before it."""
    b = tl.program_id(0).to(tl.int64)
    length, first = tl.load(lengths + b), tl.load(firsts + b).to(tl.int64)
    node = tl.arange(0, nodes)
    inside = node < length
    token = tl.load(tokens + b * width + node, mask=inside, other=PAD)
    parent = tl.load(parents + b * width + node, mask=inside, other=PAD)
    own = packed + b * (2 * width + 2)
    # What is not written below is PAD; all threads meet before anything is.
    for part in range(0, 2 * width + 2, nodes):
        tl.store(own + part + node, PAD, mask=part + node < 2 * width + 2)
    tl.debug_barrier()
    accepted = tl.full((), 0, tl.int32)
    row = tl.where(length >= 0, -1, nodes)
    while row < nodes:
        sample = tl.load(samples + first + 1 + row).to(tl.int32)
        tl.store(own + 1 + accepted, sample)
        child = tl.min(tl.where(inside & (node > row) & (parent == row) & (token == sample), node, nodes))
        if child < nodes:
            tl.store(own + 2 + width + accepted, child)
            accepted += 1
        row = child
    tl.store(own, accepted)


def lanes_of(nodes: int) -> int:
    """Return the lanes of a program for so many nodes: a few sizes, so that no kernel is compiled for a draft's length."""
    return next((lanes for lanes in LANES if lanes >= nodes), 0) or int(triton.next_power_of_2(nodes))


def agree(samples: Tensor, drafts: DraftRows) -> Tensor:
    """See :func:`inferd_runtime.kernels.verify.agree`."""
    batch, width = drafts.tokens.shape
    packed = drafts.tokens.new_empty(batch, 2 + 2 * width)
    if batch:
        check_drafts(samples, drafts)
        _agree[(batch,)](
            samples, drafts.first, drafts.lengths, drafts.tokens, drafts.parents, packed, width,
            nodes=lanes_of(width), num_warps=1,
        )  # fmt: skip
    return packed


def variants() -> Iterator[Variant]:
    """Yield the kernels for drafts of captured steps, and for larger trees."""
    types = {"samples": "*i64", "packed": "*i32", "width": "i32"}
    types |= dict.fromkeys(("firsts", "lengths", "tokens", "parents"), "*i32")
    for nodes in LANES:
        yield Variant(f"agree {nodes}", _agree, types, {"nodes": nodes}, num_warps=1)
