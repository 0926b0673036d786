"""What the ranks of a divided model do together: over the process group, and in memory that they share where that is faster."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.functional import pad

logger = logging.getLogger(__name__)
ONE_SHOT_BYTES = 256 << 10
"""Up to so many bytes each rank reads all others' rows at once: there a sum is bound by how long ranks wait for each other.
Not measured here; others give 200 to 500 KiB for eight devices."""
MISSING = (RuntimeError, ImportError, AttributeError, TypeError)
"""What PyTorch raises where symmetric memory is not there: in this version, or between these devices."""
SharedSum = Callable[[Tensor, Tensor], Tensor]
"""Copies a rank's rows to its part of the shared memory, of their shape, and returns the sum of all ranks'."""


class Ranks(Protocol):
    """What the ranks of a divided model do together, each in the same order. Any of it may be part of a recorded step."""

    rank: int
    count: int

    def add(self, rows: Tensor) -> Tensor:
        """Return the sum of all ranks' rows, alike in each to the bit. These may be overwritten with it."""

    def join(self, columns: Tensor, width: int) -> Tensor:
        """Return all ranks' columns [T, own] side by side, [T, width]: ceil(width / count) of each but the last ones."""

    def first(self, numbers: Tensor) -> Tensor:
        """Return rank 0's numbers, in the place of these."""


class GroupRanks:
    """The process group that this process has joined: gloo on the CPU, NCCL on CUDA."""

    def __init__(self) -> None:
        self.rank, self.count = dist.get_rank(), dist.get_world_size()

    def add(self, rows: Tensor) -> Tensor:
        """See :class:`Ranks`."""
        dist.all_reduce(rows)
        return rows

    def join(self, columns: Tensor, width: int) -> Tensor:
        """See :class:`Ranks`."""
        each = share_of(width, self.count)
        own = pad(columns, (0, each - columns.shape[1])).contiguous()
        parts = own.new_empty(self.count, *own.shape)
        dist.all_gather(list(parts.unbind(0)), own)
        return parts.transpose(0, 1).reshape(len(own), -1)[:, :width]

    def first(self, numbers: Tensor) -> Tensor:
        """See :class:`Ranks`."""
        dist.broadcast(numbers, 0)
        return numbers


class LoneRanks:
    """Ranks of which this one waits for none: what it lacks of them is zero. For trials, in which it may fail alone."""

    def __init__(self, rank: int, count: int) -> None:
        self.rank, self.count = rank, count

    def add(self, rows: Tensor) -> Tensor:
        """See :class:`Ranks`."""
        return rows

    def join(self, columns: Tensor, width: int) -> Tensor:
        """See :class:`Ranks`."""
        return pad(columns, (0, width - columns.shape[1]))

    def first(self, numbers: Tensor) -> Tensor:
        """See :class:`Ranks`."""
        return numbers


class SymmetricRanks(GroupRanks):
    """The same, but few rows are added up by one kernel in each rank, which reads them where the other ranks have put them.

    ``shared``: this rank's part of the memory, one-dimensional; ``total`` adds up.
    """

    def __init__(self, shared: Tensor, total: SharedSum) -> None:
        super().__init__()
        self._shared = shared
        self._total = total

    def add(self, rows: Tensor) -> Tensor:
        """See :class:`Ranks`."""
        if rows.numel() > self._shared.numel() or rows.dtype != self._shared.dtype:
            return super().add(rows)
        return self._total(self._shared[: rows.numel()].view(rows.shape), rows)


def ranks_on(like: Tensor) -> Ranks:
    """Return the ranks of this group for sums on the device and of the dtype of ``like``, the fastest way that all have.

    All ranks call this together.
    """
    group = GroupRanks()
    return group if like.device.type == "cpu" else (symmetric_ranks(group, like) or group)


def symmetric_ranks(group: GroupRanks, like: Tensor) -> SymmetricRanks | None:
    """Return the ranks with sums in symmetric memory, where all of them have it and it gives the group's sums; else None."""
    found = symmetric_memory(like)
    if not ranks_agree(found is not None, like, group) or found is None:
        return None
    # Of ranks without it the others would wait without end: so it is tried only now.
    symmetric, numbers = SymmetricRanks(*found), torch.arange(16, device=like.device).to(like.dtype) + group.rank
    return symmetric if ranks_agree(_same(symmetric, group, numbers), like, group) else None


def ranks_agree(holds: bool, like: Tensor, ranks: Ranks) -> bool:
    """True if it holds in every rank."""
    return float(ranks.add(torch.full((1,), float(holds), device=like.device))) == ranks.count


def share_of(whole: int, count: int) -> int:
    """Return how many of ``whole`` each rank has, of which the last ones may have fewer."""
    return -(-whole // count)


def symmetric_memory(like: Tensor) -> tuple[Tensor, SharedSum] | None:
    """Return memory that all ranks of the group read, and what adds it up; None where PyTorch has none here."""
    try:
        from torch.distributed import _symmetric_memory as symmetric

        group = dist.group.WORLD.group_name  # type: ignore[union-attr]
        shared = symmetric.empty(ONE_SHOT_BYTES // like.element_size(), dtype=like.dtype, device=like.device)
        symmetric.rendezvous(shared, group)
    except MISSING as error:
        logger.info("ranks add up through the process group, without symmetric memory: %s", error)
        return None
    return shared, lambda part, rows: torch.ops.symm_mem.one_shot_all_reduce_copy(part, rows, "sum", group)


def _same(one: Ranks, other: Ranks, numbers: Tensor) -> bool:
    """True if two ways add small whole numbers up alike."""
    expected = other.add(numbers.clone())
    try:
        return torch.equal(one.add(numbers.clone()), expected)
    except MISSING as error:
        logger.info("ranks add up through the process group: %s", error)
        return False
