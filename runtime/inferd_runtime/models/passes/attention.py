"""Attention over page tables with PyTorch's own kernels: the sequences of a step in groups of one width.

What the layers share (page indices, masks) is laid out once per step on the host. It serves the CPU, because
:mod:`inferd_runtime.kernels.attention`, which asks nothing on the host, reads every page table to its end; and on any device
what kernels do not do: adapters, and programs' own masks that are no trees.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, pairwise

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad, rms_norm, scaled_dot_product_attention, silu

from inferd_runtime.kernels.attention_rule import AttentionRule
from inferd_runtime.kernels.cache import FP8, narrowed
from inferd_runtime.models.batch import Batch, Ids, Placement, Span
from inferd_runtime.models.passes.step_layout import Angles, ProjectedHeads

SHORT = 64
FEW = 8
# On the CPU the last bit of a row's attention depends on how its keys and queries are tiled, unless the keys are filled up so
# and the queries are a multiple of four, of heads wider than these at least eight (measured, docs/exactness.md).
FINE_KEYS, FINE_UP_TO, COARSE_KEYS = 64, 256, 256
NARROW_HEAD, QUERY_MULTIPLE = 80, 4
# Masked reads see what a page held before: zero times infinity would carry it into the sequence that holds the page next.
# No trained model comes near, and it fits float16.
BOUND = 3e4


@dataclass(slots=True)
class Group:
    """Sequences that attend together, padded to one width.

    ``rows`` int64[B, q] are the batch rows of their queries (padding repeats the last row); ``positions`` int64[B, q]
    the absolute positions; ``pages`` int64[B, P] the pages read (padding repeats page 0, masked). ``inplace`` is the slot
    range of a lone sequence whose pages are contiguous. ``length`` is the widest key length. ``in_order``: the rows are
    those from ``first`` on, without padding.
    """

    rows: Tensor
    positions: Tensor
    pages: Tensor
    length: int
    causal_only: bool
    in_order: bool
    first: int
    inplace: tuple[int, int] | None
    placement: tuple[Tensor, Tensor] | None = None
    masks: dict[tuple[int | None, int | None, int], Tensor | None] = field(default_factory=dict)

    def mask(self, rule: AttentionRule, repeat: int, dtype: torch.dtype) -> Tensor | None:
        """Return [B, 1, repeat * q, L], or [B, 1, 1, L] for one query each: 0 for the keys that a query sees, else -inf.

        None where every query sees all. Computed once per step for the layers of a kind.
        """
        key = rule.window, rule.chunk, repeat
        if key not in self.masks:
            seen = self._build_mask(rule.window, rule.chunk)
            if seen is not None and seen.shape[2] > 1:
                seen = seen.repeat(1, 1, repeat, 1)
            self.masks[key] = None if seen is None else torch.where(seen, 0.0, float("-inf")).to(dtype)
        return self.masks[key]

    def _build_mask(self, window: int | None, chunk: int | None) -> Tensor | None:
        queries = self.positions[:, None, :, None]
        if self.placement is not None:
            keys, seen = self.placement
        elif self.causal_only and window is None and chunk is None:
            return None
        else:
            keys = torch.arange(self.length, device=self.positions.device)
            seen = keys <= queries
        if window is not None:
            seen = seen & (keys > queries - window)
        if chunk is not None:
            seen = seen & (keys // chunk == queries // chunk)
        return seen


class Scratch:
    """Memory for gathered keys and values that stays between layers and steps; it grows to the largest batch.

    Fresh memory costs a page fault per 4 KiB, which is ten times what gathering into warm memory costs (measured).
    """

    def __init__(self) -> None:
        self._flat: dict[str, Tensor] = {}

    def take(self, name: str, like: Tensor, rows: int) -> Tensor:
        """Return uninitialised memory [rows, ...], other sizes, dtype and device as ``like``. Valid until taken again."""
        size = rows * like[0].numel()
        flat = self._flat.get(name)
        if flat is None or len(flat) < size or flat.dtype != like.dtype:
            flat = self._flat[name] = torch.empty(size + size // 4, dtype=like.dtype, device=like.device)
        return flat[:size].view(rows, *like.shape[1:])


@dataclass(slots=True)
class GroupedLayout:
    """See :class:`~inferd_runtime.models.passes.step_layout.StepLayout`; for any device, through PyTorch's own attention.

    ``keys`` and ``values``: one cache [pages, page_size, heads, width] per layer; ``slots`` int64[T]: where each row's K and V
    are written; ``order``: see :func:`_row_order`. ``bounded``: K and V are brought within BOUND before they are written,
    because weights of a tenant's made them.
    """

    keys: Sequence[Tensor]
    values: Sequence[Tensor]
    slots: Tensor
    groups: Sequence[Group]
    order: Tensor | None
    scratch: Scratch
    hidden_rows: Tensor | None = None
    hidden: Tensor | None = None
    bounded: bool = False

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, rule: AttentionRule) -> Tensor:
        """See :class:`~inferd_runtime.models.passes.step_layout.StepLayout`."""
        keys, values = self.keys[layer], self.values[layer]
        if self.bounded:
            key, value = (states.nan_to_num(0.0).clamp_(-BOUND, BOUND) for states in (key, value))
        _write(keys, self.slots, key)
        _write(values, self.slots, value)
        parts = [_attend(group, query, keys, values, rule, self.scratch) for group in self.groups]
        if self.order is None:
            return parts[0].reshape(1, -1, *parts[0].shape[2:])
        flat = torch.cat([part.reshape(-1, *part.shape[2:]) for part in parts])
        return flat.index_select(0, self.order)[None]

    def attend_projected(self, layer: int, qkv: Tensor, angles: Angles, heads: ProjectedHeads) -> Tensor:
        """See :class:`~inferd_runtime.models.passes.step_layout.StepLayout`."""
        (cos, sin), turned = angles, heads.queries + heads.keys
        states = qkv.view(len(qkv), -1, heads.width)
        qk = states[:, :turned]
        if heads.norm is not None:
            qk = rms_norm(qk, (heads.width,), None, heads.eps) * heads.norm
        qk = torch.addcmul(qk * cos, qk.roll(heads.width // 2, -1), sin)
        query = qk[:, : heads.queries].transpose(0, 1)[None]
        return self.attend(layer, query, qk[:, heads.queries :], states[:, turned:], heads.rule)[0]

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        """See :class:`~inferd_runtime.models.passes.step_layout.StepLayout`."""
        gate, up = gate_up.chunk(2, dim=-1)
        return silu(gate).mul_(up)

    def rms_norm(self, rows: Tensor, weight: Tensor, eps: float) -> Tensor:
        """See :class:`~inferd_runtime.models.passes.step_layout.StepLayout`."""
        return rms_norm(rows, weight.shape, weight, eps)


def lay_out(
    batch: Batch,
    keys: Sequence[Tensor],
    values: Sequence[Tensor],
    page_size: int,
    scratch: Scratch | None = None,
    key_multiple: int = 0,
) -> GroupedLayout:
    """Group the batch's sequences and index their pages. Keys are filled up to ``key_multiple``; 0: as the device needs it."""
    device = keys[0].device
    positions = torch.from_numpy(batch.positions)
    groups = [_group(spans, positions, page_size, device) for spans in _grouped(batch)]
    if key_multiple or device.type == "cpu":
        room = keys[0].shape[0] * page_size
        groups = [
            group
            if group.first in batch.placements
            else filled_up(group, key_multiple or steady_multiple(group.length), page_size, room)
            for group in groups
        ]
    for group in groups:
        if group.first in batch.placements:
            group.placement = _placed(batch.placements[group.first], device)
    hidden_rows = torch.from_numpy(batch.hidden_rows).to(device) if len(batch.hidden_rows) else None
    slots = torch.from_numpy(batch.slots).to(device)
    order = _row_order(groups, batch)
    return GroupedLayout(keys, values, slots, groups, order, scratch or Scratch(), hidden_rows)


def steady_multiple(length: int) -> int:
    """Return the multiple to which keys are filled up, so that no bit of a row depends on how many others see."""
    return FINE_KEYS if length <= FINE_UP_TO else COARSE_KEYS


def filled_up(group: Group, multiple: int, page_size: int, slots: int) -> Group:
    """Return the group with masked keys behind its own up to a multiple; the cache has ``slots`` of them in all.

    Sums over them are then added up in the same order whatever their number.
    """
    length = -(-group.length // multiple) * multiple
    if length == group.length:
        return group
    start = group.inplace[0] if group.inplace is not None else slots
    more = group.pages.new_zeros(len(group.pages), -(-length // page_size) - group.pages.shape[1])
    return replace(
        group,
        pages=torch.cat([group.pages, more], 1),
        length=length,
        causal_only=False,
        inplace=(start, start + length) if start + length <= slots else None,
        masks={},
    )


def _placed(placement: Placement, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return key positions int64[L] and visibility bool[1, 1, q, L] of a sequence that stands alone."""
    return torch.from_numpy(placement.positions).to(device), torch.from_numpy(placement.visible).to(device)[None, None]


def _grouped(batch: Batch) -> list[list[Span]]:
    """Return the spans in groups: long chunks and explicit placements alone, short ones together.

    Spans share a group if their counts and their key lengths are alike: the longest is less than four times the shortest.
    """
    groups: dict[object, list[Span]] = {}
    longest = max(span.start + span.count for span in batch.spans)
    for span in batch.spans:
        alone = span.count > SHORT or span.first in batch.placements
        ratio = longest // (span.start + span.count)
        key: object = span.first if alone else (span.count > 1, span.count > FEW, ratio.bit_length() - 1 >> 1)
        groups.setdefault(key, []).append(span)
    return list(groups.values())


def _lone_group(span: Span, positions: Tensor, page_size: int, device: torch.device) -> Group:
    length = span.start + span.count
    pages = span.pages[: -(-length // page_size)]
    return Group(
        rows=torch.arange(span.first, span.first + span.count, device=device)[None],
        positions=positions[None, span.first : span.first + span.count].to(device),
        pages=torch.tensor([pages], device=device),
        length=length,
        causal_only=span.count == 1,
        in_order=True,
        first=span.first,
        inplace=_contiguous(pages, length, page_size),
    )


def _group(spans: Sequence[Span], positions: Tensor, page_size: int, device: torch.device) -> Group:
    if len(spans) == 1:
        return _lone_group(spans[0], positions, page_size, device)
    counts = np.array([span.count for span in spans])
    firsts = np.array([span.first for span in spans])
    lengths = counts + [span.start for span in spans]
    width, length = int(counts.max()), int(lengths.max())
    rows = torch.from_numpy(firsts[:, None] + np.minimum(np.arange(width), counts[:, None] - 1))
    return Group(
        rows=rows.to(device),
        positions=positions[rows].to(device),
        pages=torch.from_numpy(_page_rows(spans, -(-lengths // page_size))).to(device),
        length=length,
        causal_only=width == 1 and int(lengths.min()) == length,
        in_order=bool((counts == width).all() and (np.diff(firsts) == width).all()),
        first=spans[0].first,
        inplace=None,
    )


def _page_rows(spans: Sequence[Span], counts: Ids) -> Ids:
    """Return the first ``counts[i]`` pages of each span, filled up with page 0: int64[B, P]."""
    used = np.arange(counts.max()) < counts[:, None]
    rows = np.zeros(used.shape, np.int64)
    flat = chain.from_iterable(span.pages[:count] for span, count in zip(spans, counts.tolist(), strict=True))
    rows[used] = np.fromiter(flat, np.int64, int(counts.sum()))
    return rows


def _contiguous(pages: Sequence[int], length: int, page_size: int) -> tuple[int, int] | None:
    """Return the slot range of pages that follow each other."""
    if pages[-1] - pages[0] != len(pages) - 1 or any(b - a != 1 for a, b in pairwise(pages)):
        return None
    return pages[0] * page_size, pages[0] * page_size + length


def _row_order(groups: Sequence[Group], batch: Batch) -> Tensor | None:
    """Return where each batch row stands in the groups' concatenated outputs; None when it is the identity."""
    if len(groups) == 1 and groups[0].in_order:
        return None
    flat = torch.cat([group.rows.reshape(-1) for group in groups])
    order = torch.empty(len(batch.tokens), dtype=torch.int64, device=flat.device)
    # Padding repeats a row's last query and stands behind it, with the same result.
    order[flat] = torch.arange(len(flat), device=flat.device)
    return order


def _write(cache: Tensor, slots: Tensor, states: Tensor) -> None:
    """Write rows [T, Hkv, D] to a cache, which may be narrower than they are."""
    rows = cache.view(-1, *cache.shape[2:])
    if cache.dtype == FP8:
        # As bytes: float8 has few operations of its own.
        rows, states = rows.view(torch.uint8), narrowed(states, FP8).view(torch.uint8)
    rows.index_copy_(0, slots, states)


def _attend(group: Group, query: Tensor, keys: Tensor, values: Tensor, rule: AttentionRule, scratch: Scratch) -> Tensor:
    """Return one group's attention: [B, q, H, Dv]. Grouped query heads become more queries of their key head."""
    k, v = (_read(group, cache, scratch, name) for cache, name in ((keys, "keys"), (values, "values")))
    if k.dtype == FP8:
        k, v = k.to(query.dtype), v.to(query.dtype)
    batch, width = group.rows.shape
    heads, shared = query.shape[1], k.shape[1]
    if group.in_order:
        q = query[0, :, group.first : group.first + batch * width]
    else:
        q = query[0].index_select(1, group.rows.reshape(-1))
    q = q.view(heads, batch, width, -1).transpose(0, 1).reshape(batch, shared, heads // shared * width, -1)
    mask = group.mask(rule, heads // shared, query.dtype)
    out = _softmax_attention(q, k, v, mask, rule)
    return out.reshape(batch, heads, width, -1).transpose(1, 2)


def _read(group: Group, cache: Tensor, scratch: Scratch, name: str) -> Tensor:
    """Return the group's keys or values as [B, Hkv, L, D]: a view when the pages are contiguous, else a gathered copy."""
    if group.inplace is not None:
        start, end = group.inplace
        return cache.view(-1, *cache.shape[2:])[start:end].transpose(0, 1)[None]
    if cache.dtype == FP8:
        gathered = cache.view(torch.uint8).index_select(0, group.pages.reshape(-1)).view(FP8)
    else:
        gathered = scratch.take(name, cache, group.pages.numel())
        torch.index_select(cache, 0, group.pages.reshape(-1), out=gathered)
    flat = gathered.view(group.pages.shape[0], -1, *cache.shape[2:])
    return flat[:, : group.length].transpose(1, 2)


def _softmax_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, rule: AttentionRule) -> Tensor:
    if rule.softcap is None and rule.sinks is None:
        return _fused_attention(q, k, v, mask, rule.scaling)
    scores = torch.matmul(q, k.transpose(2, 3)) * (q.shape[-1] ** -0.5 if rule.scaling is None else rule.scaling)
    if rule.softcap is not None:
        scores = torch.tanh(scores / rule.softcap) * rule.softcap
    if mask is not None:
        scores = scores + mask
    if rule.sinks is not None:
        scores = torch.cat([scores, _sink_column(rule.sinks, scores)], dim=-1)
    weights = torch.softmax(scores, dim=-1, dtype=torch.float32)[..., : k.shape[2]]
    return torch.matmul(weights.to(v.dtype), v)


def _fused_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scaling: float | None) -> Tensor:
    """Attend by PyTorch's own, on the CPU with as many queries as its results need to be the same for one row and for many."""
    rows = q.shape[2]
    least = QUERY_MULTIPLE if q.shape[3] <= NARROW_HEAD else 2 * QUERY_MULTIPLE
    more = -(-max(rows, least) // QUERY_MULTIPLE) * QUERY_MULTIPLE - rows
    if more and q.device.type == "cpu":
        q = pad(q, (0, 0, 0, more))
        mask = pad(mask, (0, 0, 0, more)) if mask is not None and mask.shape[2] > 1 else mask
    return scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scaling)[:, :, :rows]


def _sink_column(sinks: Tensor, scores: Tensor) -> Tensor:
    """Return sinks [H] as one more column of scores [B, Hkv, H / Hkv * q, L], whose rows run over the head's group, then q."""
    batch, shared, rows, _ = scores.shape
    group = len(sinks) // shared
    column = sinks.to(scores.dtype).view(1, shared, group, 1).expand(batch, -1, -1, rows // group)
    return column.reshape(batch, shared, rows, 1)
