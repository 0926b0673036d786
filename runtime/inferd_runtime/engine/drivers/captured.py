"""Launched steps: the operations of one on the device, which are recorded once per shape, and its results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from inferd_runtime.engine.driver import StepResult
from inferd_runtime.engine.drivers.accelerator import Accelerator
from inferd_runtime.engine.drivers.buckets import StepBucket
from inferd_runtime.engine.drivers.staging import StepInputs
from inferd_runtime.engine.sampling.device_sampling import (
    Ints,
    Rejecting,
    SampledTokens,
    SamplingInputs,
    merged,
    spread,
)
from inferd_runtime.kernels.logprobs import token_scores
from inferd_runtime.kernels.rows import KeySplits, PagedRows, Tiles
from inferd_runtime.kernels.sampling import Adjustments, SampleRows, adjusted, processed
from inferd_runtime.kernels.suite import KernelSuite
from inferd_runtime.kernels.verify import DraftRows, Drafts, Noise, Verifier, read_verdicts
from inferd_runtime.models.batch import Outputs
from inferd_runtime.models.passes.kernel_layout import KernelLayout
from inferd_runtime.models.passes.plain import ModelPass

Replay = Callable[[], None]
IN_FLIGHT = 2
"""Steps that may be launched before the first of them is waited for."""


@dataclass(frozen=True, slots=True)
class RecordedStep:
    """A step of one shape: ``forward`` leaves its logits where ``draw`` reads them, which leaves ``outputs``."""

    forward: Replay
    draw: Replay
    outputs: DeviceOutputs


@dataclass(frozen=True, slots=True)
class ComputedRows:
    """A forward pass that has been launched. ``logits`` [R, V] and ``hidden`` [H, E] are on the device.

    ``shape``: of its block of inputs, in which the samplers stand, too. ``recorded``: the step that it is a replay of.
    """

    shape: StepBucket
    logits: Tensor
    hidden: Tensor | None = None
    recorded: RecordedStep | None = None


@dataclass(frozen=True, slots=True)
class DeviceOutputs:
    """What a step leaves on the device: ``logits`` [R, V], ``packed`` int32[B, 2 + 2 K] (``kernels/verify.py: agree``), and
    ``hidden`` [H, E]. A recorded step leaves it in the same place every time.
    """

    logits: Tensor
    packed: Tensor
    hidden: Tensor | None = None


class StepBody:
    """Everything that a step does on the device, from its inputs on. It never waits for the device.

    ``last`` int64[most sequences] keeps the last token that each sequence of a step emits, for the step behind it.
    """

    def __init__(
        self, run: ModelPass, keys: Sequence[Tensor], values: Sequence[Tensor], kernels: KernelSuite, last: Tensor
    ) -> None:
        self._run = run
        self._keys = keys
        self._values = values
        self._kernels = kernels
        self._last = last

    def forward(
        self, inputs: StepInputs, rows: PagedRows, hidden_rows: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Run the forward pass: logits [R, V], and hidden states [H, E] if rows of them are asked for."""
        carried = self._last[inputs.carried.clamp(min=0)]
        tokens = torch.where(inputs.tokens < 0, carried, inputs.tokens)
        layout = KernelLayout(rows, self._keys, self._values, self._kernels, hidden_rows)
        return self._run(tokens, inputs.positions, layout, inputs.logit_rows), layout.hidden

    def draw(
        self, inputs: StepInputs, logits: Tensor, hidden: Tensor | None, adjustments: Adjustments | None = None
    ) -> DeviceOutputs:
        """Sample and verify rows of logits that are there already."""
        samples = self._kernels.sample(logits, replace(sample_rows(inputs), adjustments=adjustments))
        packed = self._kernels.agree(samples, draft_rows(inputs))
        # A row that nothing could be drawn from has no token, and the step behind it reads one all the same.
        last = packed.gather(1, (packed[:, :1] + 1).long())[:, 0]
        self._last[: len(packed)].copy_(last.clamp(min=0))
        return DeviceOutputs(logits, packed, hidden)


def reject(
    logits: Tensor, rows: SampleRows, first: Ints, rejecting: Rejecting, rejection: Verifier
) -> tuple[Tensor, Tensor]:
    """Verify the sampled drafts by rejection sampling: accepted int64[R] and tokens int64[R, K + 1], on the device.

    ``first`` int32[S]: each sequence's first row of ``logits`` [N, V].
    """
    device, (count, width) = logits.device, rejecting.tokens.shape
    start = first[rejecting.at].astype(np.int64)
    # Behind a refused token there is no row: any will do, for what is sampled there is not read.
    steps = np.minimum(np.arange(width + 1), rejecting.rows[:, None] - 1)
    chosen, begins, lengths, tokens, likely = (
        torch.from_numpy(one).to(device)
        for one in (
            (start[:, None] + steps).reshape(-1), start, rejecting.lengths, rejecting.tokens, rejecting.probabilities,
        )
    )  # fmt: skip
    if rows.adjustments is not None:
        logits = adjusted(logits, rows.adjustments)
    target = processed(logits[chosen], rows.select(chosen)).view(count, width + 1, -1)
    noise = Noise(rows.keys[begins], rows.positions[begins])
    verdict = rejection(target, Drafts(tokens, lengths, None, likely), noise)
    return verdict.accepted, verdict.tokens


def score(logits: Tensor, packed: Tensor, at: Tensor, first: Tensor, nodes: int, top: int) -> Tensor:
    """Return what the rows of some sequences say of the tokens that they drew: float64[L * (nodes + 1), 2 + 2 * top].

    ``packed`` int32[B, 2 + 2 K] as in :class:`DeviceOutputs`; ``at`` int32[L]: which of the B sequences; ``first`` int32[L]:
    where their rows begin.
    """
    own = packed[at].long()
    behind = packed.shape[1] // 2 + 1
    tokens, path = own[:, 1 : 2 + nodes], own[:, behind : behind + nodes]
    # Behind the last accepted node the path is padding: any row will do.
    rows = first.long()[:, None] + torch.nn.functional.pad((path + 1).clamp(min=0), (1, 0))
    return token_scores(logits, rows.reshape(-1), tokens.reshape(-1), top)


def paged_rows(inputs: StepInputs, shape: StepBucket, columns: Tensor) -> PagedRows:
    """Return where a step's rows stand; ``columns`` int32[P]: 0, 1, ... up to the longest page table."""
    where = (inputs.page_first[:, None] + columns).clamp(max=len(inputs.pages) - 1)
    tiles = []
    # An empty step has the launch for few rows all the same: it clears what is padding.
    if shape.tiles or not shape.prompt_tiles:
        few = (inputs.tile_sequences, inputs.tile_starts, inputs.tile_splits, inputs.tile_live)
        tiles.append(Tiles(*few, shape.tile_rows, shape.tiles))
    if shape.prompt_tiles:
        prompts = (inputs.prompt_sequences, inputs.prompt_starts, inputs.prompt_splits, inputs.prompt_live)
        tiles.append(Tiles(*prompts, shape.prompt_rows, shape.prompt_tiles))
    splits = (inputs.split_counts, inputs.split_first, inputs.split_rows, inputs.split_live)
    return PagedRows(
        slots=inputs.slots,
        positions=inputs.positions,
        pages=inputs.pages[where],
        first=inputs.first,
        counts=inputs.counts,
        lengths=inputs.lengths,
        tails=inputs.tails,
        seen=inputs.seen,
        tiles=tuple(tiles),
        splits=KeySplits(*splits, shape.split_lines, shape.split_keys),
    )


def sample_rows(inputs: StepInputs) -> SampleRows:
    """Return a step's samplers."""
    return SampleRows(
        inputs.temperature, inputs.top_p, inputs.min_p, inputs.top_k, inputs.keys, inputs.sampled_positions,
        inputs.mask_rows, inputs.masks,
    )  # fmt: skip


def draft_rows(inputs: StepInputs) -> DraftRows:
    """Return a step's drafts."""
    return DraftRows(inputs.draft_first, inputs.draft_lengths, inputs.draft_tokens, inputs.draft_parents)


@dataclass(frozen=True, slots=True)
class BegunStep:
    """See :class:`~inferd_runtime.engine.driver.Begun`. ``draw`` samples rows that are computed."""

    rows: ComputedRows
    draw: Callable[[ComputedRows, SamplingInputs], LaunchedStep]

    def sample(self, inputs: SamplingInputs) -> LaunchedStep:
        """See :class:`~inferd_runtime.engine.driver.Begun`."""
        return self.draw(self.rows, inputs)


class ResultSlot:
    """Host memory that a step's verdicts are copied to."""

    def __init__(self, accelerator: Accelerator, size: int) -> None:
        self._host = accelerator.staging(size * 4).view(torch.int32)
        self.active = accelerator.active
        self.taken = False

    def receive(self, packed: Tensor) -> Tensor:
        """Queue the copy of int32[B, 2 + 2 K]."""
        host = self._host[: packed.numel()].view(packed.shape)
        host.copy_(packed, non_blocking=True)
        return host


class Fetched:
    """Tensors on their way to the host, by name: queued behind what made them, and before what the next step does.

    A copy that began only when it is read would wait for the step behind, which is launched by then.
    """

    def __init__(self, accelerator: Accelerator, tensors: Mapping[str, Tensor]) -> None:
        # The widest numbers first, so that each begins where it may.
        parts = sorted(tensors.items(), key=lambda part: -part[1].element_size())
        self._shapes = [(name, tensor.dtype, tensor.shape, tensor.nbytes) for name, tensor in parts]
        size = sum(tensor.nbytes for tensor in tensors.values())
        if not size:
            self._arrived = _no_bytes
            return
        # As one: more of them would be waited for by turns.
        joined = torch.cat([part.reshape(-1).view(torch.uint8) for _, part in parts])
        self._arrived = accelerator.fetch([joined], size)

    def wait(self) -> dict[str, npt.NDArray[Any]]:
        """Return what has arrived."""
        host, at, found = self._arrived(), 0, {}
        for name, dtype, shape, size in self._shapes:
            found[name] = host[at : at + size].view(dtype).view(shape).numpy()
            at += size
        return found


def _no_bytes() -> Tensor:
    return torch.empty(0, dtype=torch.uint8)


@dataclass(frozen=True, slots=True)
class LaunchedStep:
    """See :class:`~inferd_runtime.engine.driver.Launched`. ``fetched``: what the host wants beside the verdicts."""

    slot: ResultSlot
    verdicts: Tensor
    sampling: SamplingInputs
    fetched: Fetched
    done: Callable[[], None]

    def wait(self) -> StepResult:
        """See :class:`~inferd_runtime.engine.driver.Launched`."""
        try:
            self.done()
            with self.slot.active():
                found = self.fetched.wait()
                return StepResult(Outputs(found["logits"], found["hidden"]), self._sampled(found))
        finally:
            self.slot.taken = False

    def _sampled(self, found: Mapping[str, npt.NDArray[Any]]) -> SampledTokens:
        sequences, sampling = len(self.sampling.first), self.sampling
        sampled = SampledTokens(*read_verdicts(self.verdicts[:sequences].numpy().copy()))
        if sampling.rejecting is not None:
            sampled = merged(sampled, sampling.rejecting, found["accepted"], found["tokens"])
        if sampling.confident and sequences:
            sampled = sampled._replace(confidence=found["confidence"])
        if sampling.scored is None:
            return sampled
        return sampled._replace(scores=spread(sampling.scored, found["scores"], sequences))
