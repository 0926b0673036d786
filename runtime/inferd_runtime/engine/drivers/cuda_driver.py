"""The fast driver: our kernels, sampling on the device, and steps of known shapes recorded once and replayed.

Everything that it cannot do with kernels goes through the reference driver on the same cache: adapters of tenants, and
positions and masks of programs that are no trees. What is drawn is the same either way.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from inferd_runtime.engine.drawing import Drawing, undrawn
from inferd_runtime.engine.drivers.accelerator import Accelerator
from inferd_runtime.engine.drivers.buckets import MOST_ROWS, Shape, bucket, exact_shape
from inferd_runtime.engine.drivers.captured import (
    IN_FLIGHT,
    Computed,
    LaunchedStep,
    ResultSlot,
    StepBody,
    paged_rows,
    reject,
    sample_rows,
)  # fmt: skip
from inferd_runtime.engine.drivers.packing import is_tree, pack_batch, pack_drawing, pack_pages
from inferd_runtime.engine.drivers.staging import Staging
from inferd_runtime.engine.drivers.torch_driver import TorchDriver
from inferd_runtime.kernels.cache import CacheBlock, resolve_copies
from inferd_runtime.kernels.sampling import Adjustments
from inferd_runtime.kernels.suite import KernelSuite
from inferd_runtime.kv.table import PageCopy
from inferd_runtime.models.adapter_files import AdapterFiles, AdapterSize
from inferd_runtime.models.batch import Batch, Outputs, PageData
from inferd_runtime.models.kernel_pass import RowsPass

logger = logging.getLogger(__name__)
Replay = Callable[[], None]
NO_PAGES = np.empty(0, np.int32)
NO_MASKS = np.empty((0, 0), np.int32)
PREFILL_ROWS = 128
"""Rows of queries that one program of the attention takes, heads of a group counted."""


@dataclass(frozen=True)
class CudaOptions:
    """``most_rows``: rows of a step, at most. ``splits(tiles)``: into how many parts the attention cuts the keys.
    ``group``: query heads per key head. ``record``: whether steps are recorded; without, all are launched kernel by kernel.
    """

    most_rows: int
    splits: Callable[[int], int]
    group: int = 1
    record: bool = True


class CudaDriver:
    """See :class:`~inferd_runtime.engine.drawing.SamplingDriver`. ``plain`` is the reference driver over ``block``'s tensors."""

    def __init__(
        self, run: RowsPass, plain: TorchDriver, block: CacheBlock, kernels: KernelSuite, accelerator: Accelerator,
        options: CudaOptions,
    ) -> None:  # fmt: skip
        self.vocab_size = plain.vocab_size
        self.max_context = plain.max_context
        self.pages = plain.pages
        self.page_size = plain.page_size
        self.page_bytes = plain.page_bytes
        self.token_bytes = plain.token_bytes
        self.kv_layout = plain.kv_layout
        self.plain = plain
        self._block = block
        self._kernels = kernels
        self._accelerator = accelerator
        self._options = options
        device = accelerator.device
        self._last = torch.zeros(options.most_rows, dtype=torch.int64, device=device)
        self._body = StepBody(run, block.keys, block.values, kernels, self._last)
        self._columns = torch.arange(-(-plain.max_context // plain.page_size), dtype=torch.int32, device=device)
        self._staging = self._room()
        self._slots = [ResultSlot(accelerator, self._largest_verdicts()) for _ in range(IN_FLIGHT)]
        self._recorded: dict[Shape, tuple[Replay, Computed] | None] = {}

    def _room(self) -> Staging:
        """Host and device memory for the inputs of any step."""
        rows, sequences = self._options.most_rows, min(256, self._options.most_rows)
        largest = Shape(rows, rows, rows, 1, 0), Shape(rows, sequences, rows, 1, 64)
        words = -(-self.vocab_size // 32)
        entries = sequences * len(self._columns)
        return Staging(self._accelerator, largest=largest, page_entries=entries, masks=rows, mask_words=words)

    def _largest_verdicts(self) -> int:
        return 2 * self._options.most_rows + 2 * 64 * min(256, self._options.most_rows)

    # -- Steps ----------------------------------------------------------------------------------------------------

    def forward(self, batch: Batch) -> Outputs:
        """See :class:`~inferd_runtime.engine.plan.Driver`."""
        return self.launch(batch, undrawn(len(batch.logit_rows), self.vocab_size)).wait().outputs

    @torch.inference_mode()
    def launch(self, batch: Batch, drawing: Drawing) -> LaunchedStep:
        """See :class:`~inferd_runtime.engine.drawing.SamplingDriver`.

        Raises ValueError for a step of more rows than there is room for, RuntimeError for more steps in flight than IN_FLIGHT.
        """
        if len(batch.tokens) > self._options.most_rows:
            raise ValueError(f"a step of {len(batch.tokens)} rows; this driver was made for {self._options.most_rows}")
        slot = next((slot for slot in self._slots if not slot.taken), None)
        if slot is None:
            raise RuntimeError(f"{IN_FLIGHT} steps are in flight already")
        done = self._compute_plainly(batch, drawing) if self._needs_plain(batch) else self._compute(batch, drawing)
        drawn, wanted = len(drawing.rows), len(drawing.rows) + len(drawing.host_rows)
        # Copies: the next step leaves its own in the same place.
        logits = done.logits[drawn:wanted].clone()
        hidden = None if done.hidden is None else done.hidden.clone()
        verdicts = slot.receive(done.packed)
        rejected = self._reject(done.logits, drawing)
        mark = self._accelerator.mark()
        return LaunchedStep(slot, verdicts, len(drawing.first), logits, hidden, mark, drawing.rejecting, rejected)

    def _reject(self, logits: Tensor, drawing: Drawing) -> tuple[Tensor, Tensor] | None:
        """Verify the drafts that were sampled. They are few, and their probabilities many: that is not recorded."""
        if drawing.rejecting is None:
            return None
        count = len(drawing.rows)
        shape = Shape(count, max(1, len(drawing.first)), 1, 1, 0)
        samplers = {name: one for name, one in pack_drawing(drawing).items() if not name.startswith("draft")}
        self._staging.upload(shape, samplers, NO_PAGES, drawing.masks)
        rows = replace(sample_rows(self._staging.inputs(shape)), adjustments=self._adjustments(drawing, count))
        first = torch.from_numpy(drawing.first[drawing.rejecting.at].astype(np.int64)).to(logits.device)
        return reject(logits[:count], rows, first, drawing.rejecting, self._kernels.rejection)

    def _needs_plain(self, batch: Batch) -> bool:
        """Whether something in it is not for kernels."""
        if any(span.adapter for span in batch.spans):
            return True
        spans = {span.first: span for span in batch.spans}
        return any(not is_tree(spans[first], placement) for first, placement in batch.placements.items())

    def _compute(self, batch: Batch, drawing: Drawing) -> Computed:
        """A recorded step where there is one of its shape."""
        counts = [span.count for span in batch.spans]
        shape = None if len(batch.hidden_rows) or not self._options.record else bucket(counts)
        if shape is not None and shape.rows <= self._options.most_rows:
            recorded = self._recording(shape)
            if recorded is not None:
                replay, computed = recorded
                self._upload(shape, batch, drawing)
                replay()
                return self._adjusted(shape, computed, drawing)
        return self._compute_exactly(batch, drawing)

    def _compute_exactly(self, batch: Batch, drawing: Drawing) -> Computed:
        """Kernel by kernel, as large as the step is."""
        tile_rows = max(1, PREFILL_ROWS // self._options.group)
        counts = [span.count for span in batch.spans]
        tile_rows = 1 if max(counts) == 1 else MOST_ROWS if max(counts) <= MOST_ROWS else tile_rows
        shape = exact_shape(counts, tile_rows, drawing.tokens.shape[1])
        self._upload(shape, batch, drawing)
        inputs = self._staging.inputs(shape)
        longest = max(-(-(span.start + span.count) // self.page_size) for span in batch.spans)
        rows = paged_rows(inputs, shape, self._columns[:longest], self._options.splits(shape.tiles))
        wanted = len(batch.logit_rows)
        return self._body.compute(
            inputs.with_logit_rows(wanted), rows, self._hidden_rows(batch), self._adjustments(drawing, wanted)
        )

    def _adjusted(self, shape: Shape, computed: Computed, drawing: Drawing) -> Computed:
        """A recorded step's draws; made once more where there are penalties, which are too many to be recorded."""
        adjustments = self._adjustments(drawing, shape.rows)
        if adjustments is None:
            return computed
        return self._body.draw(self._staging.inputs(shape), computed.logits, computed.hidden, adjustments)

    def _adjustments(self, drawing: Drawing, rows: int) -> Adjustments | None:
        """Penalties and biases on the device, for ``rows`` rows, of which the drawn ones come first."""
        if drawing.adjusted is None:
            return None
        first = np.pad(drawing.adjusted.first, (0, rows + 1 - len(drawing.adjusted.first)), "edge")
        columns = (first, *drawing.adjusted[1:])
        return Adjustments(*(torch.from_numpy(column).to(self._accelerator.device) for column in columns))

    def _compute_plainly(self, batch: Batch, drawing: Drawing) -> Computed:
        """Through the reference driver; only what is drawn goes through kernels."""
        if len(batch.carried):
            raise ValueError("tokens are carried over to kernels only")
        logits, hidden = self.plain.compute(batch)
        count = len(batch.logit_rows)
        shape = Shape(max(1, count), max(1, len(drawing.first)), 1, 1, drawing.tokens.shape[1])
        self._staging.upload(shape, pack_drawing(drawing), NO_PAGES, drawing.masks)
        order = torch.from_numpy(np.concatenate([drawing.rows, drawing.host_rows])).to(logits.device)
        return self._body.draw(
            self._staging.inputs(shape).with_logit_rows(count), logits.index_select(0, order), hidden
        )

    def _upload(self, shape: Shape, batch: Batch, drawing: Drawing) -> None:
        pages, page_first = pack_pages(batch.spans, self.page_size)
        values: dict[str, npt.NDArray[Any]] = {
            **pack_batch(batch, shape.tile_rows),
            **pack_drawing(drawing),
            "page_first": page_first,
            "logit_rows": batch.logit_rows[np.concatenate([drawing.rows, drawing.host_rows])],
        }
        self._staging.upload(shape, values, pages, drawing.masks)

    def _hidden_rows(self, batch: Batch) -> Tensor | None:
        if not len(batch.hidden_rows):
            return None
        return torch.from_numpy(batch.hidden_rows).to(self._accelerator.device)

    def _recording(self, shape: Shape) -> tuple[Replay, Computed] | None:
        """The recorded step of a shape, made at its first use; None where it cannot be recorded."""
        if shape not in self._recorded:
            self._recorded[shape] = self._record(shape)
        return self._recorded[shape]

    def _record(self, shape: Shape) -> tuple[Replay, Computed] | None:
        """Record a step of nothing but padding: it is run, too, and must leave the cache and the last tokens as they are."""
        inputs, splits, last = self._staging.inputs(shape), self._options.splits(shape.tiles), self._last.clone()
        self._staging.upload(shape, {}, NO_PAGES, NO_MASKS)
        try:
            return self._accelerator.record(
                lambda: self._body.compute(inputs, paged_rows(inputs, shape, self._columns, splits))
            )
        except RuntimeError as error:
            logger.warning("steps of shape %s are not recorded: %s", shape, error)
            return None
        finally:
            self._last.copy_(last)

    # -- The cache ------------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def copy_pages(self, copies: Sequence[PageCopy]) -> None:
        """See :class:`~inferd_runtime.engine.plan.Driver`."""
        pairs = resolve_copies((copy.source, copy.target) for copy in copies)
        if pairs:
            self._kernels.copy_pages(self._block, *(self._indices(column) for column in zip(*pairs, strict=True)))

    @torch.inference_mode()
    def move_tokens(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """See :class:`~inferd_runtime.engine.plan.Driver`."""
        self._kernels.move_tokens(self._block, self._indices(sources), self._indices(targets))

    @torch.inference_mode()
    def read_pages(self, pages: Sequence[int]) -> PageData:
        """See :class:`~inferd_runtime.engine.plan.Driver`."""
        host: PageData = self._kernels.gather_pages(self._block, self._indices(pages)).cpu().numpy()
        return host

    def bearable(self, data: PageData) -> bool:
        """See :class:`~inferd_runtime.engine.plan.Driver`."""
        return self.plain.bearable(data)

    @torch.inference_mode()
    def write_pages(self, pages: Sequence[int], data: PageData) -> None:
        """See :class:`~inferd_runtime.engine.plan.Driver`."""
        device = self._accelerator.device
        rows = torch.from_numpy(np.ascontiguousarray(data)).to(device)
        self._kernels.scatter_pages(self._block, self._indices(pages), rows)

    def load_adapter(self, key: str, files: AdapterFiles) -> AdapterSize:
        """See :class:`~inferd_runtime.engine.adapters.AdapterDevice`."""
        return self.plain.load_adapter(key, files)

    def unload_adapter(self, key: str) -> None:
        """See :class:`~inferd_runtime.engine.adapters.AdapterDevice`."""
        self.plain.unload_adapter(key)

    def _indices(self, values: Sequence[int]) -> Tensor:
        return torch.tensor(list(values), dtype=torch.int64, device=self._accelerator.device)
