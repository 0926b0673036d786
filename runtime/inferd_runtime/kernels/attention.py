"""Attention over page tables in torch, the reference of :mod:`inferd_runtime.kernels.triton.attention`: one signature.

It asks no value of a tensor on the host, so that it also runs inside a recorded step, and lays out every tile's whole page table.
"""

from __future__ import annotations

import torch
from torch import Tensor

from inferd_runtime.kernels.attention_rule import AttentionRule
from inferd_runtime.kernels.rows import PagedRows, Tiles

LOWEST = -1e30
"""A maximum over no scores. Finite, so that the difference of two is a number."""


def paged_attention(query: Tensor, keys: Tensor, values: Tensor, rows: PagedRows, rule: AttentionRule) -> Tensor:
    """Return the attention of query [T, H, D], after RoPE, over the pages of each row's sequence: [T, H, Dv] in query's dtype.

    ``keys`` [pages, page_size, Hkv, D] and ``values`` [pages, page_size, Hkv, Dv], this step's rows already written, in
    float8_e4m3fn (taken as it stands, without a scale), bfloat16, float16 or float32. H is a multiple of Hkv. Sums are in
    float32 (float64 for a float64 query). Rows that belong to no tile, and rows that see no key, are zero. Keys that no row
    of a tile sees may hold anything. Raises ValueError for shapes and dtypes that do not belong together, and for tiles whose
    rows are no power of two.
    """
    check_attention(query, keys, values, rows, rule)
    # What no tile's row is goes to one row more, which is cut off.
    out = query.new_zeros(len(query) + 1, query.shape[1], values.shape[3])
    for tiles in rows.tiles:
        target, part = _attended(query, keys, values, rows, tiles, rule)
        out.index_copy_(0, target, part)
    return out[: len(query)]


def _attended(
    query: Tensor, keys: Tensor, values: Tensor, rows: PagedRows, tiles: Tiles, rule: AttentionRule
) -> tuple[Tensor, Tensor]:
    """Return int64[N R], rows of the step, T where there is none, and their attention [N R, H, Dv]. Splits make no difference."""
    exact = torch.float64 if query.dtype == torch.float64 else torch.float32
    tile, row, used = _tile_rows(rows, tiles)
    at = (rows.first[tile][:, None] + row).long().clamp(0, len(query) - 1)
    visible = _visible(rows, tile, row, at, keys.shape[1], rule) & used[:, :, None]
    seen = visible.any(dim=1)
    k, v = (_gathered(cache, rows, tile, seen, exact) for cache in (keys, values))
    parts, shared, group = len(tile), keys.shape[2], query.shape[1] // keys.shape[2]
    q = query[at].to(exact).view(parts, -1, shared, group, query.shape[2]).permute(0, 2, 3, 1, 4)
    scores = _scores(q, k[:, :, None], rule).masked_fill(~visible[:, None, None], float("-inf"))
    out = _softmax(scores, rule.sinks) @ v[:, :, None]
    out = out.permute(0, 3, 1, 2, 4).reshape(-1, query.shape[1], values.shape[3]).to(query.dtype)
    return torch.where(used, at, len(query)).view(-1), out


def check_attention(query: Tensor, keys: Tensor, values: Tensor, rows: PagedRows, rule: AttentionRule) -> None:
    """Raises ValueError for what no attention over pages can serve, by name. Asks no value of a tensor."""
    for tiles in rows.tiles:
        if tiles.rows < 1 or tiles.rows & (tiles.rows - 1):
            raise ValueError(f"tiles of {tiles.rows} rows: a power of two is needed")
    if query.shape[2] != keys.shape[3] or query.shape[1] % keys.shape[2]:
        raise ValueError(f"queries {tuple(query.shape)} do not go with keys {tuple(keys.shape)}")
    if keys.shape[:3] != values.shape[:3] or keys.dtype != values.dtype:
        raise ValueError(
            f"keys {tuple(keys.shape)} {keys.dtype} and values {tuple(values.shape)} {values.dtype} differ"
        )
    if not query.is_floating_point() or not keys.is_floating_point():
        raise ValueError(f"attention of {query.dtype} over {keys.dtype}")
    if rule.sinks is not None and rule.sinks.shape != query.shape[1:2]:
        raise ValueError(f"{tuple(rule.sinks.shape)} sinks for {query.shape[1]} query heads")


def _tile_rows(rows: PagedRows, tiles: Tiles) -> tuple[Tensor, Tensor, Tensor]:
    """Return each tile's sequence int64[N], its rows among that sequence's own int64[N, R], and which of them there are.

    Of the entries of one tile, which differ in their splits, the first one has the rows.
    """
    sequences, starts, splits = (each[: tiles.tiles] for each in tiles[:3])
    tile = sequences.long().clamp(min=0)
    row = starts[:, None].long() + torch.arange(tiles.rows, device=tile.device)
    there = (sequences >= 0) & (splits == 0)
    return tile, row, there[:, None] & (row < rows.counts[tile][:, None])


def _visible(rows: PagedRows, tile: Tensor, row: Tensor, at: Tensor, page_size: int, rule: AttentionRule) -> Tensor:
    """Return bool[N, R, L]: which keys of its page table a row sees."""
    before = (rows.lengths - rows.counts)[tile].long()[:, None]
    tails = rows.tails[tile].long()[:, None]
    key = torch.arange(rows.pages.shape[1] * page_size, device=at.device)[None]
    bit = (key - tails)[:, None]
    linked = (rows.seen[at][:, :, None] >> bit.clamp(0, 63)) & 1
    visible = (key[:, None] <= (before + row)[:, :, None]) & ((bit < 0) | (linked == 1))
    own = rows.positions[at][:, :, None]
    behind = (rows.first[tile].long()[:, None] + key - before).clamp(0, len(rows.positions) - 1)
    place = torch.where(key < tails, key, rows.positions[behind])[:, None]
    if rule.window is not None:
        visible = visible & (place > own - rule.window)
    if rule.chunk is not None:
        visible = visible & (place // rule.chunk == own // rule.chunk)
    return visible


def _gathered(cache: Tensor, rows: PagedRows, tile: Tensor, seen: Tensor, dtype: torch.dtype) -> Tensor:
    """Return keys or values [N, Hkv, L, D]; zero where no row of the tile looks, whatever stands there."""
    page = torch.arange(rows.pages.shape[1], device=tile.device) * cache.shape[1]
    used = page < rows.lengths[tile][:, None]
    flat = cache[torch.where(used, rows.pages[tile], 0).long()].flatten(1, 2).to(dtype)
    return torch.where(seen[:, :, None, None], flat, 0.0).transpose(1, 2)


def _scores(q: Tensor, k: Tensor, rule: AttentionRule) -> Tensor:
    scores = q @ k.transpose(-1, -2) * (q.shape[-1] ** -0.5 if rule.scaling is None else rule.scaling)
    return scores if rule.softcap is None else torch.tanh(scores / rule.softcap) * rule.softcap


def _softmax(scores: Tensor, sinks: Tensor | None) -> Tensor:
    """Return the softmax weights of scores [N, Hkv, H / Hkv, R, L]; zero throughout for rows that see nothing."""
    top = scores.amax(dim=-1, keepdim=True).clamp(min=LOWEST)
    if sinks is None:
        weights = torch.exp(scores - top)
        total = weights.sum(dim=-1, keepdim=True)
        return weights / torch.where(total == 0, 1.0, total)
    column = sinks.to(scores.dtype).view(1, *scores.shape[1:3], 1, 1)
    top = torch.maximum(top, column)
    weights = torch.exp(scores - top)
    return weights / (weights.sum(dim=-1, keepdim=True) + torch.exp(column - top))
