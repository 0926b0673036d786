"""A step on the CPU by code of our own: rows read keys and values where they are, page by page, and nothing is gathered."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import rms_norm, silu

from inferd_runtime.kernels.attention_rule import AttentionRule
from inferd_runtime.kernels.native.steps import LANES, WIDTHS, AttendedRows, StepKernels, step_kernels
from inferd_runtime.models.batch import Batch, Ids, Placement, Span
from inferd_runtime.models.passes.attention import lay_out
from inferd_runtime.models.passes.step_layout import Angles, ProjectedHeads

PROBED = 21
"""Tokens of the comparison with the torch twin: more than are attended to at a time."""
TOLERANCE = 1e-4


@dataclass(slots=True)
class HostLayout:
    """See :class:`~inferd_runtime.models.passes.step_layout.StepLayout`; for the CPU in float32, through :class:`StepKernels`.

    A row's attention is the same to the bit alone, among others, in a chunk of a prompt and on the path of a draft tree: only the
    keys that it sees are read, in their order. The fields are those of
    :class:`~inferd_runtime.models.passes.attention.GroupedLayout`.
    """

    kernels: StepKernels
    batch: Batch
    keys: Sequence[Tensor]
    values: Sequence[Tensor]
    page_size: int
    slots: Tensor
    hidden_rows: Tensor | None = None
    hidden: Tensor | None = None
    bounded: bool = False
    rows: dict[tuple[int | None, int | None], AttendedRows] = field(default_factory=dict)

    @classmethod
    def of(
        cls, kernels: StepKernels, batch: Batch, keys: Sequence[Tensor], values: Sequence[Tensor], page_size: int
    ) -> HostLayout:
        """Return the layout of a batch."""
        hidden = torch.from_numpy(batch.hidden_rows) if len(batch.hidden_rows) else None
        return cls(kernels, batch, keys, values, page_size, torch.from_numpy(batch.slots), hidden)

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, rule: AttentionRule) -> Tensor:
        """Transformers' own modules, which call this, have the other layout."""
        raise NotImplementedError

    def attend_projected(self, layer: int, qkv: Tensor, angles: Angles, heads: ProjectedHeads) -> Tensor:
        """See :class:`~inferd_runtime.models.passes.step_layout.StepLayout`."""
        keys, values, rule = self.keys[layer], self.values[layer], heads.rule
        states = qkv.view(qkv.shape[0], -1, heads.width).contiguous()
        query = self.kernels.rotate_and_write(
            states, heads.norm, heads.eps, angles, self.slots, keys, values, bounded=self.bounded
        )
        return self.kernels.attend(query, keys, values, self.attended(rule), scaling_of(heads))

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        """See :class:`~inferd_runtime.models.passes.step_layout.StepLayout`."""
        if gate_up.shape[1] % (2 * LANES):
            gate, up = gate_up.chunk(2, dim=-1)
            return silu(gate).mul_(up)
        return self.kernels.silu_mul(gate_up.contiguous())

    def rms_norm(self, rows: Tensor, weight: Tensor, eps: float) -> Tensor:
        """See :class:`~inferd_runtime.models.passes.step_layout.StepLayout`."""
        if rows.shape[1] % LANES:
            return rms_norm(rows, weight.shape, weight, eps)
        return self.kernels.rms_norm(rows.contiguous(), weight, eps)

    def attended(self, rule: AttentionRule) -> AttendedRows:
        """Return which keys the rows see: laid out once per step for the layers of a kind."""
        key = rule.window, rule.chunk
        if key not in self.rows:
            by_slot = bool(self.batch.placements)
            self.rows[key] = (_by_slots if by_slot else _by_pages)(self.batch, self.page_size, *key)
        return self.rows[key]


def scaling_of(heads: ProjectedHeads) -> float:
    """Return what the products of queries and keys are multiplied with."""
    return heads.width**-0.5 if heads.rule.scaling is None else heads.rule.scaling


def host_kernels(layers: Sequence[ProjectedHeads], keys: Sequence[Tensor]) -> StepKernels | None:
    """Return the functions for layers with such heads over such a cache; None where they are not for them, or not here."""
    fits = all(
        heads.width in WIDTHS
        and heads.queries % heads.keys == 0
        and cache.shape[2:] == (heads.keys, heads.width)
        and cache.dtype == torch.float32
        and cache.device.type == "cpu"
        and heads.rule.softcap is None
        and heads.rule.sinks is None
        for heads, cache in zip(layers, keys, strict=True)
    )
    return proved_kernels() if fits else None


@functools.cache
def proved_kernels() -> StepKernels | None:
    """Return the functions if there are any here, and they agree with their torch twins."""
    kernels = step_kernels()
    return kernels if kernels is not None and _agrees(kernels) else None


@torch.inference_mode()
def _agrees(kernels: StepKernels) -> bool:
    draw, width = torch.Generator().manual_seed(0), WIDTHS[0]
    heads = ProjectedHeads(
        AttentionRule(None, PROBED - 4, None), 4, 2, width, torch.randn(6, width, generator=draw), 1e-5
    )
    states, weight = torch.randn(PROBED, 8 * heads.width, generator=draw), torch.ones(2 * heads.width)
    angles = states[:, None, : heads.width], states[:, None, -heads.width :]
    at = np.arange(PROBED)
    batch = Batch(at, at, at, at, [Span(0, PROBED, 0, [0, 1])])
    keys, values, own_keys, own_values = ([torch.zeros(2, 16, 2, heads.width)] for _ in range(4))
    plain, own = lay_out(batch, keys, values, 16), HostLayout.of(kernels, batch, own_keys, own_values, 16)
    pairs = [
        (layout.attend_projected(0, states, (angles[0].contiguous(), angles[1].contiguous()), heads), layout.silu_mul(states),
         layout.rms_norm(states[:, : len(weight)], weight, heads.eps))
        for layout in (plain, own)
    ]  # fmt: skip
    return all(torch.allclose(one, other, TOLERANCE, TOLERANCE) for one, other in zip(*pairs, strict=True))


def _first_seen(positions: Ids, window: int | None, chunk: int | None) -> Ids:
    """Return the first position that each row sees."""
    first = np.zeros_like(positions) if window is None else np.maximum(positions + 1 - window, 0)
    return first if chunk is None else np.maximum(first, positions // chunk * chunk)


def _by_pages(batch: Batch, page_size: int, window: int | None, chunk: int | None) -> AttendedRows:
    """Return rows whose tables are all slots of the spans' pages."""
    counts = [-(-(span.start + span.count) // page_size) for span in batch.spans]
    tables, within = np.zeros((len(counts), max(counts), page_size), np.int64), np.arange(page_size)
    for table, span, count in zip(tables, batch.spans, counts, strict=True):
        table[:count] = np.asarray(span.pages[:count], np.int64)[:, None] * page_size + within
    which, at = np.empty_like(batch.positions), np.empty_like(batch.positions)
    for index, span in enumerate(batch.spans):
        rows = slice(span.first, span.first + span.count)
        which[rows], at[rows] = index, np.arange(span.start, span.start + span.count)
    return _attended_rows(tables.reshape(len(counts), -1), which, _first_seen(at, window, chunk), at + 1)


def _by_slots(batch: Batch, page_size: int, window: int | None, chunk: int | None) -> AttendedRows:
    """Return rows whose tables are the slots that each sees, in order: for batches with sequences that do not see all before."""
    seen = [slots for span in batch.spans for slots in _seen_slots(batch, span, page_size, window, chunk)]
    rows = np.concatenate([np.arange(span.first, span.first + span.count) for span in batch.spans])
    ends = np.array([len(slots) for slots in seen])
    tables = np.zeros((len(seen), int(ends.max())), np.int64)
    for row, slots in zip(rows, seen, strict=True):
        tables[row, : len(slots)] = slots
    every = np.empty_like(ends)
    every[rows] = ends
    return _attended_rows(tables, np.arange(len(seen)), np.zeros_like(every), every)


def _seen_slots(batch: Batch, span: Span, page_size: int, window: int | None, chunk: int | None) -> Iterator[Ids]:
    """Yield the slots that each row of a span sees, by their index in its sequence."""
    index = np.arange(span.start + span.count)
    slots = np.asarray(span.pages, np.int64)[index // page_size] * page_size + index % page_size
    placement = batch.placements.get(span.first) or _usual(span)
    own = placement.positions[span.start :]
    first = _first_seen(own, window, chunk)
    for row in range(span.count):
        yield slots[placement.visible[row] & (placement.positions >= first[row])]


def _usual(span: Span) -> Placement:
    """Return the placement of a sequence whose tokens see all before them."""
    index = np.arange(span.start + span.count)
    return Placement(index, index <= index[span.start :, None])


def _attended_rows(tables: Ids, which: Ids, firsts: Ids, ends: Ids) -> AttendedRows:
    arrays = [torch.from_numpy(part) for part in (tables, which, firsts, ends)]
    return AttendedRows(arrays[0], arrays[1], arrays[2], arrays[3], int((ends - firsts).max()))
