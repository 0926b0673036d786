"""What a step leaves on the device for the rows that go on behind it, before the host has its result."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from inferd_runtime.engine.carried_rows import resolve, sampled_there
from inferd_runtime.engine.drivers.staging import StepInputs
from inferd_runtime.engine.sampling.device_sampling import SamplingInputs
from inferd_runtime.models.batch import Batch


class CarriedRows:
    """``last`` int64[most sequences]: the last token that each sequence of the step before emits, kept with the number of
    rejected tokens of its draft. ``first`` returns rank 0's numbers in every rank of a divided model.
    """

    def __init__(
        self, most: int, page_size: int, device: torch.device, first: Callable[[Tensor], Tensor] | None = None
    ) -> None:
        self.last = torch.zeros(most, dtype=torch.int64, device=device)
        self._rejected = torch.zeros_like(self.last)
        self._drafted = False
        self._page_size = page_size
        self._first = first

    def keep(self, drafted: bool, inputs: StepInputs, packed: Tensor) -> None:
        """Keep what a step verified: ``packed`` as in ``DeviceOutputs``. ``drafted``: it had drafts."""
        self._drafted = drafted
        if drafted:
            self._rejected[: len(packed)] = inputs.draft_lengths - packed[:, 0]

    def moves(self, batch: Batch) -> bool:
        """Return True if rows of the batch may have to move: they go on behind a step that had drafts."""
        return self._drafted and len(batch.carried) > 0

    def move_back(self, inputs: StepInputs) -> None:
        """Move a staged step's rows by the rejected tokens before them. All ranks of a divided model call this together."""
        move_back(inputs, self._rejected if self._first is None else self._first(self._rejected), self._page_size)

    def resolved(self, batch: Batch, sampling: SamplingInputs | None) -> tuple[Batch, SamplingInputs | None]:
        """Return a batch, and its sampling, with the carried tokens and moved rows. The host waits for them."""
        if not len(batch.carried):
            return batch, sampling
        rejected = (self._rejected if self._drafted else torch.zeros_like(self._rejected)).cpu().numpy()
        known = None if sampling is None else sampled_there(sampling, batch, rejected)
        return resolve(batch, self.last.cpu().numpy(), rejected, self._page_size), known


def move_back(inputs: StepInputs, rejected: Tensor, page_size: int) -> None:
    """Move staged rows to the front by the ``rejected`` draft tokens before them, int64[most sequences], by sequence.

    The twin is :mod:`~inferd_runtime.engine.carried_rows`. Nothing here waits for the device.
    """
    shift = torch.where(inputs.carried >= 0, rejected[inputs.carried.clamp(min=0)], 0)
    own = torch.where(inputs.counts > 0, shift[inputs.first.long()], 0).to(torch.int32)
    inputs.lengths.sub_(own)
    inputs.tails.sub_(own)
    inputs.positions.sub_(shift)
    inputs.sampled_positions.sub_(shift[inputs.logit_rows])
    ends = inputs.counts.cumsum(0)
    rows = torch.arange(len(shift), device=shift.device)
    sequences = torch.searchsorted(ends, rows, right=True).clamp(max=len(ends) - 1)
    pages = inputs.pages[inputs.page_first[sequences] + inputs.positions // page_size].long()
    slots = pages * page_size + inputs.positions % page_size
    inputs.slots.copy_(torch.where(shift > 0, slots, inputs.slots))
