"""Ragged batches for attention over pages, what they should give by a loop over rows, and the check of every implementation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from inferd_runtime.kernels.attention_rule import AttentionRule
from inferd_runtime.kernels.rows import FEW_ROWS, SPLIT_KEYS, KeySplits, PagedRows, Tiles

PLAIN = AttentionRule(None, None, None)
POISON = (float("nan"), float("inf"), float("-inf"))
BOUNDS = {torch.float32: 1e-5, torch.float16: 8e-4, torch.bfloat16: 6e-3}
"""Of ||out - exact|| / ||exact||. In half precision the weights and the result are rounded: a unit in the last place or two."""
Attention = Callable[[Tensor, Tensor, Tensor, PagedRows, AttentionRule], Tensor]


@dataclass(frozen=True)
class Sequenced:
    """``before`` keys, ``count`` rows behind them; the last ``tree`` of these are nodes, with ``parents`` among themselves (-1:
    the row before them).
    """

    before: int
    count: int
    parents: tuple[int, ...] = ()


@dataclass(frozen=True)
class Shape:
    """What a batch looks like apart from its sequences. ``spare``: padding sequences, tiles and rows. ``prompt_rows``: tiles of
    their own for sequences of more rows than FEW_ROWS, if any.
    """

    heads: int = 4
    shared: int = 2
    width: int = 16
    value_width: int = 16
    page_size: int = 4
    tile_rows: int = 1
    split_keys: int = SPLIT_KEYS
    spare: int = 0
    dtype: torch.dtype = torch.float32
    cache: torch.dtype = torch.float32
    prompt_rows: int = 0


@dataclass(frozen=True)
class Case:
    """A batch, and in ``exact`` the numbers of its cache without the poison."""

    query: Tensor
    keys: Tensor
    values: Tensor
    rows: PagedRows
    sequences: Sequence[Sequenced]


def chain(before: int, count: int) -> Sequenced:
    """Rows in a row."""
    return Sequenced(before, count)


def tree(before: int, count: int, parents: Sequence[int]) -> Sequenced:
    """The last rows are a tree; there is one before them."""
    assert len(parents) < count
    return Sequenced(before, count, tuple(parents))


def build(shape: Shape, sequences: Sequence[Sequenced], seed: int = 0, device: str = "cpu") -> Case:
    """Random numbers in random pages; everything that no row may read is NaN or infinite."""
    torch.manual_seed(seed)
    rows, used = _rows(shape, sequences)
    total = len(rows.slots)
    pages = len(used) // shape.page_size
    query = torch.randn(total, shape.heads, shape.width)
    caches = []
    for width in (shape.width, shape.value_width):
        cache = torch.randn(pages * shape.page_size, shape.shared, width)
        poison = torch.tensor(POISON)[torch.randint(0, 3, cache.shape)]
        cache = torch.where(used[:, None, None], cache, poison)
        caches.append(_cast(cache, shape.cache).view(pages, shape.page_size, shape.shared, width).to(device))
    return Case(query.to(shape.dtype).to(device), *caches, on(rows, device), sequences)


def _cast(cache: Tensor, dtype: torch.dtype) -> Tensor:
    return cache.to(dtype)


def on(rows: PagedRows, device: str) -> PagedRows:
    """The rows on a device."""
    fields = {name: getattr(rows, name) for name in PagedRows.__slots__}
    moved = tree_map(lambda one: one.to(device) if isinstance(one, Tensor) else one, fields)
    return PagedRows(**moved)


def one_split(rows: PagedRows) -> PagedRows:
    """The same rows, each sequence's keys attended to by one program."""
    splits = rows.splits
    whole = splits._replace(counts=torch.ones_like(splits.counts), live=torch.zeros_like(splits.live), lines=0)
    tiles = []
    for each in rows.tiles:
        first = each.splits == 0
        kept = each._replace(sequences=each.sequences[first], starts=each.starts[first], splits=each.splits[first])
        tiles.append(kept._replace(live=(kept.sequences >= 0).sum(dtype=torch.int32)[None]))
    return replace(rows, tiles=tuple(tiles), splits=whole)


def _rows(shape: Shape, sequences: Sequence[Sequenced]) -> tuple[PagedRows, Tensor]:
    """The rows, and bool[slots] of a cache: which hold a key."""
    size, spare = shape.page_size, shape.spare
    lengths = [each.before + each.count for each in sequences]
    needed = [-(-length // size) for length in lengths]
    free = (torch.randperm(sum(needed) + 2) + 1).tolist()
    tables = torch.full((len(sequences) + spare, max(needed) + spare), 10**6 if spare else 0, dtype=torch.int32)
    tables[:, :] = 0
    counts = [each.count for each in sequences]
    total = sum(counts) + 2 * spare
    first = torch.zeros(len(tables), dtype=torch.int32)
    slots = torch.full((total,), -1)
    positions = torch.zeros(total, dtype=torch.int64)
    seen = torch.zeros(total, dtype=torch.int64)
    tails = torch.zeros(len(tables), dtype=torch.int32)
    used = torch.zeros((max(free) + 2) * size, dtype=torch.bool)
    cuts = [-(-length // shape.split_keys) for length in lengths]
    split_counts = torch.ones(total, dtype=torch.int32)
    split_first = torch.zeros(total, dtype=torch.int32)
    lines = 0
    at = 0
    for index, each in enumerate(sequences):
        mine = [free.pop() for _ in range(needed[index])]
        tables[index, : len(mine)] = torch.tensor(mine, dtype=torch.int32)
        places = torch.arange(lengths[index])
        taken = torch.tensor(mine)[places // size] * size + places % size
        used[taken] = True
        at += spare if index == 1 else 0  # padding rows also stand between sequences
        here = slice(at, at + each.count)
        first[index], slots[here] = at, taken[each.before :]
        positions[here] = each.before + torch.arange(each.count)
        tails[index] = lengths[index] - len(each.parents)
        ancestors: list[int] = []
        depths: list[int] = []
        for node, parent in enumerate(each.parents):
            ancestors.append((ancestors[parent] if parent >= 0 else 0) | 1 << node)
            depths.append(depths[parent] + 1 if parent >= 0 else 0)
            row = at + each.count - len(each.parents) + node
            seen[row] = ancestors[node] - (2**64 if ancestors[node] >= 2**63 else 0)
            positions[row] = int(tails[index]) + depths[node]
        if cuts[index] > 1:
            split_counts[here] = cuts[index]
            for row in torch.arange(here.start, here.stop)[torch.randperm(each.count)].tolist():
                split_first[row] = lines
                lines += cuts[index]
        at += each.count
    padded = [0] * (len(tables) - len(sequences))
    several = torch.nonzero(split_counts > 1)[:, 0].to(torch.int32)
    several = several[torch.randperm(len(several))]
    splits = KeySplits(
        split_counts, split_first, torch.nn.functional.pad(several, (0, spare), value=-1),
        torch.tensor([len(several)], dtype=torch.int32), lines + (spare if lines else 0), shape.split_keys,
    )  # fmt: skip
    return PagedRows(
        slots=slots,
        positions=positions,
        pages=tables,
        first=first,
        counts=torch.tensor(counts + padded, dtype=torch.int32),
        lengths=torch.tensor(lengths + padded, dtype=torch.int32),
        tails=tails,
        seen=seen,
        tiles=_tiles(shape, sequences, cuts),
        splits=splits,
    ), used


def _tiles(shape: Shape, sequences: Sequence[Sequenced], cuts: Sequence[int]) -> tuple[Tiles, ...]:
    """In any order; behind them what is not in use."""
    found = []
    for size, chosen in ((shape.tile_rows, False), (shape.prompt_rows, True)):
        if not size:
            continue
        entries = [
            (index, start, split)
            for index, each in enumerate(sequences) if not shape.prompt_rows or (each.count > FEW_ROWS) == chosen
            for start in range(0, each.count, size)
            for split in range(cuts[index])
        ]  # fmt: skip
        order = torch.randperm(len(entries)).tolist()
        columns = torch.tensor([entries[at] for at in order] + [(-1, 0, 0)] * shape.spare, dtype=torch.int32)
        live = torch.tensor([len(entries)], dtype=torch.int32)
        found.append(Tiles(*columns.view(-1, 3).t().contiguous(), live, size, len(entries) + shape.spare))
    return tuple(found)


def expected(case: Case, rule: AttentionRule) -> Tensor:
    """float64 [T, H, Dv], row by row, key by key, from the contract's words alone."""
    rows, dtype = on(case.rows, "cpu"), torch.float64
    query, keys, values = (states.cpu().to(dtype) for states in (case.query, case.keys, case.values))
    out = torch.zeros(*query.shape[:2], values.shape[3], dtype=dtype)
    sinks = None if rule.sinks is None else rule.sinks.cpu().to(dtype)
    group = query.shape[1] // keys.shape[2]
    for index, each in enumerate(case.sequences):
        for number in range(each.count):
            row = int(rows.first[index]) + number
            places = torch.tensor(_visible_keys(rows, index, each, number, rule), dtype=torch.int64)
            page = rows.pages[index].long()[places // keys.shape[1]]
            k, v = (c[page, places % keys.shape[1]].repeat_interleave(group, dim=1) for c in (keys, values))
            scores = torch.einsum("hd,lhd->hl", query[row], k)
            scores = scores * (query.shape[2] ** -0.5 if rule.scaling is None else rule.scaling)
            if rule.softcap is not None:
                scores = rule.softcap * torch.tanh(scores / rule.softcap)
            if sinks is not None:
                scores = torch.cat([scores, sinks[:, None]], dim=1)
            weights = torch.softmax(scores, dim=1)[:, : len(places)]
            out[row] = torch.einsum("hl,lhd->hd", weights, v)
    return out


def _visible_keys(rows: PagedRows, index: int, each: Sequenced, number: int, rule: AttentionRule) -> list[int]:
    tail = each.before + each.count - len(each.parents)
    node = each.before + number - tail
    line = set(range(min(tail, each.before + number + 1)))
    while node >= 0:
        line.add(tail + node)
        node = each.parents[node]
    own = int(rows.positions[int(rows.first[index]) + number])
    visible = []
    for key in sorted(line):
        place = key if key < tail else int(rows.positions[int(rows.first[index]) + key - each.before])
        inside = rule.window is None or place > own - rule.window
        if inside and (rule.chunk is None or place // rule.chunk == own // rule.chunk):
            visible.append(key)
    return visible


def error(out: Tensor, exact: Tensor) -> float:
    """||out - exact|| / ||exact||; not finite where ``out`` is not."""
    out = out.to("cpu", torch.float64)
    return float((out - exact).norm() / exact.norm())


def check_attention(attend: Attention, case: Case, rule: AttentionRule, exact: Tensor | None = None) -> None:
    """An implementation gives what the contract says, and zero for padding."""
    exact = expected(case, rule) if exact is None else exact
    out = attend(case.query, case.keys, case.values, case.rows, rule)
    assert out.shape == exact.shape
    assert out.dtype == case.query.dtype
    padding = (case.rows.slots < 0).cpu()
    assert not out.cpu()[padding].any()
    assert error(out, exact) < BOUNDS[case.query.dtype]
