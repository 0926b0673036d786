"""The fast driver: our kernels, sampling on the device, and steps of known shapes recorded once and replayed.

Everything that it cannot do with kernels goes through the reference driver on the same cache: adapters of tenants, and
positions and masks of programs that are no trees. What is drawn is the same either way.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from inferd.protocol import MAX_DRAFT
from inferd_runtime.engine.drivers.accelerator import Accelerator
from inferd_runtime.engine.drivers.buckets import FEW_ROOM, PROMPT_ROOM, StepBucket, StepShapes
from inferd_runtime.engine.drivers.captured import (
    IN_FLIGHT,
    BegunStep,
    ComputedRows,
    DeviceOutputs,
    Fetched,
    LaunchedStep,
    RecordedStep,
    ResultSlot,
    StepBody,
    paged_rows,
    reject,
    sample_rows,
    score,
)  # fmt: skip
from inferd_runtime.engine.drivers.carried import CarriedRows
from inferd_runtime.engine.drivers.compiling import compile_moves, compile_sampling
from inferd_runtime.engine.drivers.packing import is_tree, pack_batch, pack_pages, pack_sampling
from inferd_runtime.engine.drivers.staging import EntryStaging, Staging
from inferd_runtime.engine.drivers.torch_driver import TorchDriver
from inferd_runtime.engine.drivers.watched_kernels import RECORDING
from inferd_runtime.engine.sampling.device_sampling import SampledRows, SamplingInputs, host_inputs
from inferd_runtime.kernels.cache import CacheBlock, resolve_copies
from inferd_runtime.kernels.failures import kernel_failures
from inferd_runtime.kernels.rows import SPLIT_KEYS
from inferd_runtime.kernels.sampling import Adjustments, SampleRows, adjusted
from inferd_runtime.kernels.suite import KernelSuite
from inferd_runtime.kv.table import PageCopy
from inferd_runtime.launch_marks import LaunchMarks
from inferd_runtime.models.batch import Batch, Outputs, PageData
from inferd_runtime.models.lora.files import AdapterFiles, AdapterSize
from inferd_runtime.models.lora.tensors import Lora
from inferd_runtime.models.passes.plain import ModelPass

logger = logging.getLogger(__name__)
NO_PAGES = np.empty(0, np.int32)
NO_MASKS = np.empty((0, 0), np.int32)
GATHERED = 32
"""Pages that are copied to or from the host at a time: they lie on the device once more meanwhile."""
MOST_ENTRIES = 1 << 22
"""Page numbers of a step, at most: 16 MiB of them."""


@dataclass(frozen=True)
class CudaOptions:
    """``most_rows``: rows of a step, at most. ``group``: query heads per key head. ``split_keys``: see
    :class:`~inferd_runtime.kernels.rows.KeySplits`. ``record``: whether steps are recorded; without, all are launched kernel by
    kernel. ``fixed_rows``: see :class:`~inferd_runtime.engine.engine.EngineOptions`: fillers stand behind a sequence's end.
    ``marks``: where it is noted that a step is being recorded. ``first``: returns rank 0's numbers in every rank of a divided
    model.
    """

    most_rows: int
    group: int = 1
    split_keys: int = SPLIT_KEYS
    record: bool = True
    fixed_rows: int = 0
    marks: LaunchMarks | None = None
    first: Callable[[Tensor], Tensor] | None = None


@dataclass(frozen=True, slots=True)
class StagedStep:
    """A forward pass as its inputs were staged: ``block`` as :meth:`Staging.put` takes it. Of the page tables ``columns`` entries
    are read; 0: it is a replay of the recorded step of this shape. ``moves``: rows stand behind drafts of the step before.
    """

    shape: StepBucket
    block: npt.NDArray[np.uint8]
    columns: int = 0
    moves: bool = False


Announce = Callable[[StagedStep | Batch], AbstractContextManager[object]]
"""Tells other ranks of a forward pass, which they have to begin as well, and watches over this one's."""


class CudaDriver:
    """See :class:`~inferd_runtime.engine.driver.SamplingDriver`. ``plain`` is the reference driver over ``block``'s tensors.

    ``announce`` is called before each forward pass, with the batch where ``plain`` computes it.
    """

    def __init__(
        self, run: ModelPass, plain: TorchDriver, block: CacheBlock, kernels: KernelSuite, accelerator: Accelerator,
        options: CudaOptions,
    ) -> None:  # fmt: skip
        self.vocab_size = plain.vocab_size
        self.max_context = plain.max_context
        self.pages = plain.pages
        self.page_size = plain.page_size
        self.page_bytes = plain.page_bytes
        self.token_bytes = plain.token_bytes
        self.kv_layout = plain.kv_layout
        self.most_rows = options.most_rows
        self.plain = plain
        self.announce: Announce = _unheard
        self._block = block
        self._kernels = kernels
        self._accelerator = accelerator
        self._options = options
        device = accelerator.device
        self._carried = CarriedRows(options.most_rows, plain.page_size, device, options.first)
        self._body = StepBody(run, block.keys, block.values, kernels, self._carried.last)
        self._longest = plain.max_context + options.fixed_rows
        self._shapes = StepShapes(options.most_rows, self._longest, options.group, options.split_keys)
        self._columns = torch.arange(-(-self._longest // plain.page_size), dtype=torch.int32, device=device)
        self._staging = self._make_staging()
        self._entries, self._scored, self._places = (EntryStaging(accelerator) for _ in range(3))
        self._slots = [ResultSlot(accelerator, options.most_rows * (2 + 2 * MAX_DRAFT)) for _ in range(IN_FLIGHT)]
        self._recorded: dict[StepBucket, RecordedStep | None] = {}
        self._records = options.record
        self._logits: Tensor | None = None

    def _make_staging(self) -> Staging:
        """Return host and device memory for the inputs of any step."""
        rows = self._options.most_rows
        few = StepBucket(rows, rows, rows, MAX_DRAFT, tiles=rows, tile_room=FEW_ROOM, split_rows=rows)
        largest = [few, replace(few, prompt_tiles=rows, prompt_room=PROMPT_ROOM)]
        entries = min(rows * len(self._columns), MOST_ENTRIES)
        words = -(-self.vocab_size // 32)
        return Staging(self._accelerator, largest=largest, page_entries=entries, masks=rows, mask_words=words)

    @property
    def records(self) -> bool:
        """True if steps are recorded: that is wanted, and none has failed."""
        return self._records

    def record_all(self) -> int:
        """Record a step of every shape at load. Returns how many could be recorded."""
        if not self._options.record:
            return 0
        with self._accelerator.active(), torch.inference_mode():
            found = [self._recording(shape) for shape in self._shapes.recorded()]
        return sum(one is not None for one in found)

    @torch.inference_mode()
    def compile_all(self) -> None:
        """Run once whatever kernels serving may need and no recorded step has run, so that none is compiled later.

        At load: pages must be unused.
        """
        with self._accelerator.active():
            last = self._carried.last.clone()
            for shape in self._shapes.recorded():
                recorded = self._recording(shape) if self._options.record else None
                logits = self._compute_padding(shape)() if recorded is None else recorded.outputs.logits
                if recorded is None:
                    self._body.draw(self._staging.inputs(shape), logits, None)
            self._carried.last.copy_(last)
            compile_sampling(self._kernels, logits[:1], self._staging.mask_words)
            compile_moves(self._kernels, self._block)
            self._accelerator.mark()()

    # -- Steps ----------------------------------------------------------------------------------------------------

    def forward(self, batch: Batch) -> Outputs:
        """See :class:`~inferd_runtime.engine.driver.Driver`."""
        return self.launch(batch, host_inputs(len(batch.logit_rows), self.vocab_size)).wait().outputs

    @torch.inference_mode()
    def launch(self, batch: Batch, sampling: SamplingInputs) -> LaunchedStep:
        """See :class:`~inferd_runtime.engine.driver.SamplingDriver`.

        Raises ValueError for a step of more rows than there is room for, RuntimeError for more steps in flight than IN_FLIGHT.
        """
        slot = self._free_slot(sampling)
        with self._accelerator.active():
            rows = SampledRows(sampling.rows, sampling.host_rows, sampling.tokens.shape[1])
            return self._launched(slot, self._compute(batch, rows, sampling), sampling)

    @torch.inference_mode()
    def begin(self, batch: Batch, rows: SampledRows) -> BegunStep:
        """See :class:`~inferd_runtime.engine.driver.SamplingDriver`. Raises ValueError for a step of too many rows."""
        with self._accelerator.active():
            return BegunStep(self._compute(batch, rows), self.sample)

    @torch.inference_mode()
    def sample(self, computed: ComputedRows, sampling: SamplingInputs) -> LaunchedStep:
        """Start the sampling of rows whose forward pass has begun. Nothing else may have been launched behind that."""
        slot = self._free_slot(sampling)
        with self._accelerator.active():
            self._staging.upload(computed.shape, pack_sampling(sampling), NO_PAGES, sampling.masks)
            return self._launched(slot, computed, sampling)

    def _free_slot(self, sampling: SamplingInputs) -> ResultSlot:
        """Return a place for the verdicts of a step. Raises RuntimeError if none is left, ValueError for unfit masks."""
        slot = next((slot for slot in self._slots if not slot.taken), None)
        if slot is None:
            raise RuntimeError(f"{IN_FLIGHT} steps are in flight already")
        if sampling.masks.shape[1] != self._staging.mask_words:
            raise ValueError(f"masks of {sampling.masks.shape[1]} words for {self.vocab_size} tokens")
        return slot

    def _launched(self, slot: ResultSlot, computed: ComputedRows, sampling: SamplingInputs) -> LaunchedStep:
        """Queue the sampling and the copies of its results. The slot is taken last, once nothing can fail any more."""
        done = self._draw(computed, self._adjustments(sampling, len(computed.logits)))
        self._carried.keep(sampling.tokens.shape[1] > 0, self._staging.inputs(computed.shape), done.packed)
        verdicts = slot.receive(done.packed)
        fetched = Fetched(self._accelerator, self._results(done, sampling))
        mark = self._accelerator.mark()
        slot.taken = True
        return LaunchedStep(slot, verdicts, sampling, fetched, mark)

    def _results(self, done: DeviceOutputs, sampling: SamplingInputs) -> dict[str, Tensor]:
        """Return what the host wants of a step beside the verdicts; what nobody asked for is empty or left out."""
        sampled, wanted = len(sampling.rows), len(sampling.rows) + len(sampling.host_rows)
        hidden = done.logits[:0, :0] if done.hidden is None else done.hidden
        found = {"logits": done.logits[sampled:wanted].float(), "hidden": hidden.float()}
        rejected, confidence = self._reject(done.logits, sampling), self._confidence(done, sampling)
        if rejected is not None:
            found["accepted"], found["tokens"] = rejected
        if confidence is not None:
            found["confidence"] = confidence
        if sampling.scored is not None:
            at, nodes, top = sampling.scored
            chosen, first = self._scored.upload([at, sampling.first[at]])
            found["scores"] = score(done.logits, done.packed, chosen, first, nodes, top)
        return found

    def _draw(self, computed: ComputedRows, adjustments: Adjustments | None) -> DeviceOutputs:
        """Sample and verify rows, by replaying a recorded step's second part. Penalties are too many to be recorded."""
        if adjustments is None and computed.recorded is not None:
            computed.recorded.draw()
            return computed.recorded.outputs
        inputs = self._staging.inputs(computed.shape)
        return self._body.draw(inputs, computed.logits, computed.hidden, adjustments)

    def _reject(self, logits: Tensor, sampling: SamplingInputs) -> tuple[Tensor, Tensor] | None:
        """Verify the drafts that were sampled. Not recorded: they are few, and their probabilities are large."""
        if sampling.rejecting is None:
            return None
        count, rows = len(sampling.rows), self._samplers(sampling)
        return reject(logits[:count], rows, sampling.first, sampling.rejecting, self._kernels.rejection)

    def _confidence(self, done: DeviceOutputs, sampling: SamplingInputs) -> Tensor | None:
        """Return how sure the draws were, if that is asked for: float32[S]. Not recorded: draft models alone ask."""
        count = len(sampling.rows)
        if not sampling.confident or not count:
            return None
        if count != len(sampling.first):
            raise ValueError(
                f"{len(sampling.first)} sequences with {count} rows: the confidence is that of one row each"
            )
        rows, logits = self._samplers(sampling), done.logits[:count]
        if rows.adjustments is not None:
            logits = adjusted(logits, rows.adjustments)
        return self._kernels.confidence(logits, replace(rows, adjustments=None), done.packed[:count, 1].contiguous())

    def _samplers(self, sampling: SamplingInputs) -> SampleRows:
        """Return a step's samplers on the device once more, with its penalties."""
        count = len(sampling.rows)
        shape = StepBucket(count, max(1, len(sampling.first)), count)
        samplers = {name: one for name, one in pack_sampling(sampling).items() if not name.startswith("draft")}
        self._staging.upload(shape, samplers, NO_PAGES, sampling.masks)
        return replace(sample_rows(self._staging.inputs(shape)), adjustments=self._adjustments(sampling, count))

    def _needs_reference(self, batch: Batch) -> bool:
        """True if the batch has something that no kernel does: an adapter, or a placement that is no tree."""
        if any(span.adapter for span in batch.spans):
            return True
        if not batch.placements:
            return False
        spans = {span.first: span for span in batch.spans}
        return any(not is_tree(spans[first], placement) for first, placement in batch.placements.items())

    def _compute(self, batch: Batch, rows: SampledRows, sampling: SamplingInputs | None = None) -> ComputedRows:
        """Start a forward pass: replay the recorded one of the batch's shape, or run it kernel by kernel.

        What the sampling needs, if it is known, is uploaded with it.
        """
        if len(batch.tokens) > self._options.most_rows:
            raise ValueError(f"a step of {len(batch.tokens)} rows; this driver was made for {self._options.most_rows}")
        if self._needs_reference(batch):
            return self._compute_by_reference(batch, rows, sampling)
        recordable = self._options.record and not len(batch.hidden_rows)
        counts = [span.count for span in batch.spans]
        shape = self._shapes.of(counts, len(batch.logit_rows), rows.nodes) if recordable else None
        recorded = None if shape is None else self._recording(shape)
        if shape is None or recorded is None:
            return self._compute_unrecorded(batch, rows, sampling)
        with self._staged(shape, batch, rows, sampling):
            recorded.forward()
        return ComputedRows(shape, recorded.outputs.logits, None, recorded)

    def _compute_unrecorded(self, batch: Batch, rows: SampledRows, sampling: SamplingInputs | None) -> ComputedRows:
        """Run a forward pass kernel by kernel, in its exact shape."""
        wanted, counts = len(batch.logit_rows), [span.count for span in batch.spans]
        lengths = [span.start + span.count for span in batch.spans]
        shape = self._shapes.exact(counts, lengths, max(1, wanted), rows.nodes)
        hidden_rows = self._hidden_rows(batch)
        columns = -(-max(lengths) // self.page_size)
        with self._staged(shape, batch, rows, sampling, columns):
            return ComputedRows(shape, *self._forward(shape, columns, hidden_rows))

    def _forward(self, shape: StepBucket, columns: int, hidden_rows: Tensor | None) -> tuple[Tensor, Tensor | None]:
        inputs = self._staging.inputs(shape)
        return self._body.forward(inputs, paged_rows(inputs, shape, self._columns[:columns]), hidden_rows)

    @torch.inference_mode()
    def repeat(self, shape: StepBucket, block: bytes, columns: int, moves: bool) -> None:
        """Begin a forward pass that another rank has staged: see :class:`StagedStep`. Nothing is sampled."""
        with self._accelerator.active():
            self._staging.put(block)
            if moves:
                self._carried.move_back(self._staging.inputs(shape))
            recorded = None if columns else self._recorded.get(shape)
            if recorded is not None:
                recorded.forward()
            else:
                self._forward(shape, columns or len(self._columns), None)

    def _adjustments(self, sampling: SamplingInputs, rows: int) -> Adjustments | None:
        """Return penalties and biases on the device, for ``rows`` rows, of which the drawn ones come first."""
        if sampling.adjusted is None:
            return None
        first = np.pad(sampling.adjusted.first, (0, rows + 1 - len(sampling.adjusted.first)), "edge")
        return Adjustments(*self._entries.upload([first, *sampling.adjusted[1:]]))

    def _compute_by_reference(self, batch: Batch, rows: SampledRows, sampling: SamplingInputs | None) -> ComputedRows:
        """Run the forward pass of the reference driver; kernels only sample and verify. Waits for carried tokens."""
        batch, sampling = self._carried.resolved(batch, sampling)
        with self.announce(batch):
            logits, hidden = self.plain.compute(batch)
        count = max(1, len(batch.logit_rows))
        shape = StepBucket(count, count, count, rows.nodes)
        if sampling is not None:
            self._staging.upload(shape, pack_sampling(sampling), NO_PAGES, sampling.masks)
        order = rows.order
        chosen = (
            logits.index_select(0, torch.from_numpy(order).to(logits.device))
            if len(order)
            else logits.new_zeros(1, self.vocab_size)
        )
        return ComputedRows(shape, chosen, hidden)

    @contextmanager
    def _staged(
        self, shape: StepBucket, batch: Batch, rows: SampledRows, sampling: SamplingInputs | None, columns: int = 0
    ) -> Iterator[None]:
        """Stage a step, announce it, and move its rows to where they belong, before the forward pass begins."""
        moves = self._carried.moves(batch)
        with self.announce(StagedStep(shape, self._upload(shape, batch, rows, sampling), columns, moves)):
            if moves:
                self._carried.move_back(self._staging.inputs(shape))
            yield

    def _upload(
        self, shape: StepBucket, batch: Batch, rows: SampledRows, sampling: SamplingInputs | None
    ) -> npt.NDArray[np.uint8]:
        pages, page_first = pack_pages(batch.spans, self.page_size)
        values: dict[str, npt.NDArray[Any]] = {
            **pack_batch(batch, shape),
            **({} if sampling is None else pack_sampling(sampling)),
            "page_first": page_first,
            "logit_rows": batch.logit_rows[rows.order],
        }
        return self._staging.upload(shape, values, pages, NO_MASKS if sampling is None else sampling.masks)

    def _hidden_rows(self, batch: Batch) -> Tensor | None:
        if not len(batch.hidden_rows):
            return None
        return torch.from_numpy(batch.hidden_rows).to(self._accelerator.device)

    def _recording(self, shape: StepBucket) -> RecordedStep | None:
        """Return the recorded step of a shape, made at its first use; None where it cannot be recorded."""
        if shape not in self._recorded and self._records:
            marks = self._options.marks
            with nullcontext() if marks is None else marks.during(RECORDING):
                self._recorded[shape] = self._record(shape)
        return self._recorded.get(shape)

    def _record(self, shape: StepBucket) -> RecordedStep | None:
        """Record a step of nothing but padding: it is run, too, and must leave the cache and the last tokens as they are.

        In two parts, as a mask may be known only while the first one runs.
        """
        compute, inputs, last = self._compute_padding(shape), self._staging.inputs(shape), self._carried.last.clone()

        def forward() -> Tensor:
            computed = compute()
            return shared[: len(computed)].copy_(computed)

        try:
            shared = self._shared_logits(compute)
            replay, logits = self._accelerator.record(forward)
            return RecordedStep(replay, *self._accelerator.record(lambda: self._body.draw(inputs, logits, None)))
        except kernel_failures() as error:
            # One that broke off leaves PyTorch's allocator (to 2.11) in a state in which the next one may end the process.
            self._records = False
            logger.warning("steps are not recorded from shape %s on: %s", shape, error)
            return None
        finally:
            self._carried.last.copy_(last)

    def _compute_padding(self, shape: StepBucket) -> Callable[[], Tensor]:
        """Stage nothing but padding. Returns a call that returns its logits: it leaves the cache as it is."""
        inputs = self._staging.inputs(shape)
        self._staging.upload(shape, {}, NO_PAGES, NO_MASKS)
        return lambda: self._body.forward(inputs, paged_rows(inputs, shape, self._columns))[0]

    def _shared_logits(self, compute: Callable[[], Tensor]) -> Tensor:
        """Return where all recorded steps leave their logits: each is read before the next one runs. Of their own they would take
        gigabytes with a large vocabulary. Made before the first recording, so that it is no part of that one's memory.
        """
        if self._logits is None:
            example = compute()
            most = max(shape.logits for shape in self._shapes.recorded())
            self._logits = example.new_empty(most, example.shape[1])
        return self._logits

    # -- The cache ------------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def copy_pages(self, copies: Sequence[PageCopy]) -> None:
        """See :class:`~inferd_runtime.engine.driver.Driver`."""
        pairs = resolve_copies((copy.source, copy.target) for copy in copies)
        if not pairs:
            return
        with self._accelerator.active():
            self._kernels.copy_pages(self._block, *self._indices(*zip(*pairs, strict=True)))

    @torch.inference_mode()
    def move_tokens(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """See :class:`~inferd_runtime.engine.driver.Driver`."""
        with self._accelerator.active():
            self._kernels.move_tokens(self._block, *self._indices(sources, targets))

    @torch.inference_mode()
    def read_pages(self, pages: Sequence[int]) -> PageData:
        """See :class:`~inferd_runtime.engine.driver.Driver`."""
        return self.start_reading(pages)()

    @torch.inference_mode()
    def start_reading(self, pages: Sequence[int]) -> Callable[[], PageData]:
        """See :class:`~inferd_runtime.engine.sequences.parking.PageReader`."""
        with self._accelerator.active():
            (where,) = self._indices(pages)
            chunks = (where[first : first + GATHERED] for first in range(0, len(pages), GATHERED))
            parts = (self._kernels.gather_pages(self._block, chunk) for chunk in chunks)
            arrived = self._accelerator.fetch(parts, len(pages) * self.page_bytes)
        return lambda: arrived().numpy().reshape(len(pages), self.page_bytes)

    def bearable(self, data: PageData) -> bool:
        """See :class:`~inferd_runtime.engine.driver.Driver`."""
        return self.plain.bearable(data)

    @torch.inference_mode()
    def write_pages(self, pages: Sequence[int], data: PageData) -> None:
        """See :class:`~inferd_runtime.engine.driver.Driver`."""
        with self._accelerator.active():
            (where,) = self._indices(pages)
            for first in range(0, len(pages), GATHERED):
                rows = self._accelerator.bring(torch.from_numpy(np.ascontiguousarray(data[first : first + GATHERED])))
                self._kernels.scatter_pages(self._block, where[first : first + GATHERED], rows)

    def adapter_reader(self) -> Callable[[AdapterFiles], Lora]:
        """See :class:`~inferd_runtime.engine.adapters.AdapterDevice`."""
        return self.plain.adapter_reader()

    def load_adapter(self, key: str, read: Lora) -> AdapterSize:
        """See :class:`~inferd_runtime.engine.adapters.AdapterDevice`."""
        return self.plain.load_adapter(key, read)

    def unload_adapter(self, key: str) -> None:
        """See :class:`~inferd_runtime.engine.adapters.AdapterDevice`."""
        self.plain.unload_adapter(key)

    def _indices(self, *columns: Sequence[int]) -> list[Tensor]:
        """Return int64 on the device. The host does not wait for what is queued there."""
        return self._places.upload([np.asarray(column, np.int64) for column in columns])


def _unheard(step: StagedStep | Batch) -> AbstractContextManager[object]:
    """Do nothing: a model in one piece has no other ranks to tell."""
    return nullcontext()
