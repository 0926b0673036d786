"""The kernels of attention over page tables: :mod:`inferd_runtime.kernels.triton.attention` launches them.

A program takes some rows of a tile, the query heads of one key head, and one split of the keys. All its queries are the rows of
one matrix product, so that a draft of eight tokens reads K and V as often as one token does: once. The softmax is
computed online, in base 2 (Milakov and Gimelshein 2018; Dao, FlashAttention-2, 2023), and the splits are combined by a second
kernel (Flash-Decoding, Dao et al. 2023).

Splits have one size, counted from key 0: which keys are summed up in which order depends on their places alone, not on what
else is in the step nor on which of a sequence's rows are computed together. There are as many programs as keep the device
busy; they share out what there is to do, so that what is empty costs nothing, and no size of a step is compiled into a kernel.
"""

from __future__ import annotations

import triton
import triton.language as tl

from inferd_runtime.kernels.triton.early import wait
from inferd_runtime.kernels.triton.interpreted import product

LOOSE = ("workers", "rows", "table_stride")
"""Numbers that differ from step to step: nothing is compiled for what divides them."""
TABLES = (
    "pages", "slots", "positions", "first", "counts", "lengths", "tails", "seen", "split_first", "split_counts",
    "tile_sequences", "tile_starts", "tile_splits", "tile_live",
)  # fmt: skip
"""What :class:`PagedRows` brings: parts of one block of memory, perhaps, wherever they begin."""
COMBINED = ("split_rows", "split_live", "split_first", "split_counts")


@triton.jit
def _cleared(
    out: tl.tensor, slots: tl.tensor, program: tl.tensor, head: tl.tensor, total: tl.tensor, size: tl.constexpr,
    columns: tl.constexpr, shared: tl.constexpr, cleared: tl.constexpr,
):  # fmt: skip
    """Write zeroes to the padding among some rows: their columns of one key head."""
    row = program * cleared + tl.arange(0, cleared)
    slot = tl.load(slots + row, mask=row < total, other=0)
    column = tl.arange(0, columns)
    at = row.to(tl.int64)[:, None] * (shared * size) + head * size + column[None, :]
    tl.store(
        out + at,
        tl.zeros([cleared, columns], out.dtype.element_ty),
        mask=(slot < 0)[:, None] & (column < size)[None, :],
    )


@triton.jit
def _number(x: tl.tensor, like: tl.constexpr, bytewise: tl.constexpr, native: tl.constexpr):
    """Return numbers of the cache in the products' dtype. Bytes are float8_e4m3fn; capability 8.0 cannot convert these itself."""
    if bytewise:
        if native:
            x = x.to(tl.float8e4nv, bitcast=True)
        else:
            # The exponent's bias is 15 in float16 and 7 here: 2 ** 8 apart, also for numbers below 2 ** -6.
            bits = x.to(tl.int16)
            half = ((bits & 0x80) << 8) | ((bits & 0x7F) << 7)
            x = tl.where((bits & 0x7F) == 0x7F, float("nan"), half.to(tl.float16, bitcast=True) * 256.0)
    return x.to(like)


@triton.jit
def _reach(q: tl.tensor):
    """Return a power of two for each query [queries, width], no more than half its largest number away from it: by that the query
    fits float16, and keeps all of bfloat16's places."""
    largest = tl.maximum(tl.max(tl.abs(q.to(tl.float32)), 1), 1e-30)
    return (largest.to(tl.int32, bitcast=True) & 0x7F800000).to(tl.float32, bitcast=True)


@triton.jit
def _read(
    cache: tl.tensor, page: tl.tensor, place: tl.tensor, head: tl.tensor, page_stride: tl.tensor,
    slot_stride: tl.tensor, head_stride: tl.tensor, inside: tl.tensor, width: tl.constexpr, padded: tl.constexpr,
    masked: tl.constexpr,
):  # fmt: skip
    """Return [keys, padded] of one key head; zero, without reading, where ``inside`` is false."""
    column = tl.arange(0, padded)
    at = page.to(tl.int64) * page_stride + place * slot_stride + head * head_stride
    pointers = cache + at[:, None] + column[None, :]
    if masked:
        block = tl.load(pointers, mask=inside[:, None] & (column < width)[None, :], other=0)
    elif width < padded:
        block = tl.load(pointers, mask=(column < width)[None, :], other=0)
    else:
        block = tl.load(pointers)
    return block


@triton.jit
def _scored(scores: tl.tensor, scaling: tl.constexpr, softcap: tl.constexpr):
    """Return scores in base 2."""
    if softcap is None:
        scores = scores * (scaling * 1.4426950408889634)
    else:
        # tanh(x) = 1 - 2 / (exp(2 x) + 1), which is right at both infinities.
        power = tl.exp2(scores * (2 * 1.4426950408889634 * scaling / softcap))
        scores = (1.0 - 2.0 / (power + 1.0)) * (softcap * 1.4426950408889634)
    return scores


@triton.jit
def _visible(
    key: tl.tensor, inside: tl.tensor, own: tl.tensor, place: tl.tensor, seen: tl.tensor, tail: tl.tensor,
    before: tl.tensor, first: tl.tensor, positions: tl.tensor, window: tl.constexpr, chunk: tl.constexpr,
):  # fmt: skip
    """Return bool[queries, keys]: causal, the ancestors in a tree, the window and the chunk."""
    bit = key - tail
    # Half a mask at a time: the whole would take twice the registers.
    low, high = seen.to(tl.int32), (seen >> 32).to(tl.int32)
    linked = ((tl.where((bit < 32)[None, :], low[:, None], high[:, None]) >> (bit & 31)[None, :]) & 1) != 0
    visible = inside[None, :] & (key[None, :] <= own[:, None]) & ((bit < 0)[None, :] | linked)
    if (window is not None) or (chunk is not None):
        stands = tl.load(positions + (first + key - before), mask=inside & (bit >= 0), other=0).to(tl.int32)
        stands = tl.where(bit < 0, key, stands)
        if window is not None:
            visible = visible & (stands[None, :] > place[:, None] - window)
        if chunk is not None:
            visible = visible & ((stands // chunk)[None, :] == (place // chunk)[:, None])
    return visible


@triton.jit
def _walk(
    total: tl.tensor, top: tl.tensor, sums: tl.tensor, q: tl.tensor, reach: tl.tensor, keys: tl.tensor,
    values: tl.tensor, table: tl.tensor, start: tl.tensor, stop: tl.tensor, low: tl.tensor, own: tl.tensor,
    place: tl.tensor, seen: tl.tensor, tail: tl.tensor, before: tl.tensor, first: tl.tensor, positions: tl.tensor,
    head: tl.tensor, key_page: tl.tensor, key_slot: tl.tensor, key_head: tl.tensor, value_page: tl.tensor,
    value_slot: tl.tensor, value_head: tl.tensor, page_size: tl.constexpr, width: tl.constexpr, padded: tl.constexpr,
    value_width: tl.constexpr, value_padded: tl.constexpr, block: tl.constexpr,
    scaling: tl.constexpr, softcap: tl.constexpr, window: tl.constexpr, chunk: tl.constexpr, masked: tl.constexpr,
    scaled: tl.constexpr, bytewise: tl.constexpr, native: tl.constexpr, interpreted: tl.constexpr,
):  # fmt: skip
    """Return the accumulator [queries, value_padded], maximum and sum [queries], with the blocks from ``start`` on added."""
    for begin in range(start, stop, block):
        key = begin + tl.arange(0, block)
        inside = (key >= low) & (key < stop)
        page = tl.load(table + key // page_size, mask=inside, other=0) if masked else tl.load(table + key // page_size)
        k = _read(keys, page, key % page_size, head, key_page, key_slot, key_head, inside, width, padded, masked)
        scores = product(q, tl.trans(_number(k, q.dtype, bytewise, native)), interpreted)
        if scaled:
            scores = scores * reach[:, None]
        scores = _scored(scores, scaling, softcap)
        if masked:
            visible = _visible(key, inside, own, place, seen, tail, before, first, positions, window, chunk)
            scores = tl.where(visible, scores, float("-inf"))
        higher = tl.maximum(top, tl.max(scores, 1))
        weights = tl.exp2(scores - higher[:, None])
        fade = tl.exp2(top - higher)
        sums = sums * fade + tl.sum(weights, 1)
        v = _read(
            values, page, key % page_size, head, value_page, value_slot, value_head, inside,
            value_width, value_padded, masked,
        )  # fmt: skip
        total = total * fade[:, None] + product(weights.to(q.dtype), _number(v, q.dtype, bytewise, native), interpreted)
        top = higher
    return total, top, sums


@triton.jit
def _attend_item(
    item: tl.tensor, query: tl.tensor, keys: tl.tensor, values: tl.tensor, sinks: tl.tensor, out: tl.tensor,
    totals: tl.tensor, tops: tl.tensor, sums: tl.tensor, pages: tl.tensor, positions: tl.tensor, first: tl.tensor,
    counts: tl.tensor, lengths: tl.tensor, tails: tl.tensor, seen: tl.tensor, split_first: tl.tensor,
    split_counts: tl.tensor, tile_sequences: tl.tensor, tile_starts: tl.tensor, tile_splits: tl.tensor,
    live: tl.tensor, query_row: tl.tensor, query_head: tl.tensor, key_page: tl.tensor, key_slot: tl.tensor,
    key_head: tl.tensor, value_page: tl.tensor, value_slot: tl.tensor, value_head: tl.tensor,
    table_stride: tl.tensor, page_size: tl.constexpr, heads: tl.constexpr, group: tl.constexpr, width: tl.constexpr,
    padded: tl.constexpr, value_width: tl.constexpr, value_padded: tl.constexpr, parts: tl.constexpr,
    part_rows: tl.constexpr, queries: tl.constexpr, block: tl.constexpr, split_keys: tl.constexpr,
    scaling: tl.constexpr, softcap: tl.constexpr, window: tl.constexpr, chunk: tl.constexpr, dtype: tl.constexpr,
    scaled: tl.constexpr, bytewise: tl.constexpr, native: tl.constexpr, twice: tl.constexpr, lowest: tl.constexpr,
    interpreted: tl.constexpr,
):  # fmt: skip
    """Attend with the rows that one program takes of an entry, and one key head: ``item`` counts both."""
    shared: tl.constexpr = heads // group
    # Of a prompt the last rows see most: they begin first.
    tile = live - 1 - item // (shared * parts)
    head = item % (shared * parts) // parts
    sequence = tl.load(tile_sequences + tile)
    split = tl.load(tile_splits + tile)
    start_row = tl.load(tile_starts + tile) + item % parts * part_rows
    count = tl.load(counts + sequence)
    length = tl.load(lengths + sequence)
    tail = tl.load(tails + sequence)
    begin = tl.load(first + sequence)
    many = tl.load(split_counts + begin)
    before = length - count

    index = tl.arange(0, queries)
    row = start_row + index // group
    used = (index < part_rows * group) & (row < count)
    at = (begin + row).to(tl.int64)
    head_at = head * group + index % group
    column = tl.arange(0, padded)
    pointers = query + at[:, None] * query_row + head_at[:, None] * query_head + column[None, :]
    q = tl.load(pointers, mask=used[:, None] & (column < width)[None, :], other=0)
    reach = tl.full([queries], 1.0, tl.float32)
    if scaled:
        reach = _reach(q)
        q = q.to(tl.float32) / reach[:, None]
    q = q.to(dtype)
    bits = tl.load(seen + at, mask=used, other=0)
    own = before + row

    place = tl.load(positions + at, mask=used, other=0x7FFFFFFF).to(tl.int32)
    low = _lowest_key(place, tail, window, chunk)
    # A program behind the last row of its sequence has nothing to do; the last split goes on to the last key.
    stop = tl.where(start_row < count, before + tl.minimum(start_row + part_rows, count), 0)
    stop = tl.where(split < many - 1, tl.minimum(stop, (split + 1) * split_keys), stop)

    top = tl.full([queries], lowest, tl.float32)
    denominator = tl.zeros([queries], tl.float32)
    total = tl.zeros([queries, value_padded], tl.float32)
    start = tl.maximum(low // block * block, split * split_keys)
    table = pages + sequence.to(tl.int64) * table_stride
    if twice:
        # The blocks that all rows see whole need no mask.
        whole = tl.minimum(tl.minimum(tail, _own_first(before, start_row)), stop) // block * block
        total, top, denominator = _walk(
            total, top, denominator, q, reach, keys, values, table, start, whole, low, own, place, bits, tail,
            before, begin, positions, head, key_page, key_slot, key_head, value_page, value_slot, value_head,
            page_size, width, padded, value_width, value_padded, block, scaling, softcap,
            window, chunk, False, scaled, bytewise, native, interpreted,
        )  # fmt: skip
        start = tl.maximum(start, whole)
    total, top, denominator = _walk(
        total, top, denominator, q, reach, keys, values, table, start, stop, low, own, place, bits, tail, before,
        begin, positions, head, key_page, key_slot, key_head, value_page, value_slot, value_head,
        page_size, width, padded, value_width, value_padded, block, scaling, softcap,
        window, chunk, True, scaled, bytewise, native, interpreted,
    )  # fmt: skip

    if many > 1:
        line = tl.load(split_first + at, mask=used, other=0).to(tl.int64) + split
        _keep_split(
            totals, tops, sums, total, top, denominator, line * heads + head_at, used, value_width, value_padded
        )
    else:
        line = at * heads + head_at
        _deliver(out, sinks, total, top, denominator, line, head_at, used, value_width, value_padded)


@triton.jit(do_not_specialize=LOOSE, do_not_specialize_on_alignment=TABLES)
def attend(
    query: tl.tensor, keys: tl.tensor, values: tl.tensor, sinks: tl.tensor, out: tl.tensor, totals: tl.tensor,
    tops: tl.tensor, sums: tl.tensor, pages: tl.tensor, slots: tl.tensor, positions: tl.tensor, first: tl.tensor,
    counts: tl.tensor, lengths: tl.tensor, tails: tl.tensor, seen: tl.tensor, split_first: tl.tensor,
    split_counts: tl.tensor, tile_sequences: tl.tensor, tile_starts: tl.tensor, tile_splits: tl.tensor,
    tile_live: tl.tensor, workers: tl.tensor, rows: tl.tensor, table_stride: tl.tensor, query_row: tl.tensor,
    query_head: tl.tensor, key_page: tl.tensor, key_slot: tl.tensor, key_head: tl.tensor, value_page: tl.tensor,
    value_slot: tl.tensor, value_head: tl.tensor, page_size: tl.constexpr, heads: tl.constexpr, group: tl.constexpr,
    width: tl.constexpr, padded: tl.constexpr, value_width: tl.constexpr, value_padded: tl.constexpr,
    group_columns: tl.constexpr, parts: tl.constexpr, part_rows: tl.constexpr, queries: tl.constexpr,
    block: tl.constexpr, split_keys: tl.constexpr, scaling: tl.constexpr, softcap: tl.constexpr, window: tl.constexpr,
    chunk: tl.constexpr, dtype: tl.constexpr, scaled: tl.constexpr, bytewise: tl.constexpr, native: tl.constexpr,
    twice: tl.constexpr, looped: tl.constexpr, lowest: tl.constexpr, cleared: tl.constexpr, early: tl.constexpr,
    interpreted: tl.constexpr,
):  # fmt: skip
    """Attend. Grid (the programs that share out the entries of all key heads, and those that clear padding behind them).

    ``looped``: there may be fewer programs than entries.
    """
    wait(early)
    shared: tl.constexpr = heads // group
    program = tl.program_id(0)
    if program >= workers:
        _cleared(
            out, slots, (program - workers) // shared, (program - workers) % shared, rows, group * value_width,
            group_columns, shared, cleared,
        )  # fmt: skip
        return
    live = tl.load(tile_live)
    if looped:
        for item in range(program, live * shared * parts, workers):
            _attend_item(
                item, query, keys, values, sinks, out, totals, tops, sums, pages, positions, first, counts,
                lengths, tails, seen, split_first, split_counts, tile_sequences, tile_starts, tile_splits, live,
                query_row, query_head, key_page, key_slot, key_head, value_page, value_slot, value_head,
                table_stride, page_size, heads, group, width, padded, value_width, value_padded, parts,
                part_rows, queries, block, split_keys, scaling, softcap, window, chunk, dtype, scaled, bytewise,
                native, twice, lowest, interpreted,
            )  # fmt: skip
    elif program < live * shared * parts:
        _attend_item(
            program, query, keys, values, sinks, out, totals, tops, sums, pages, positions, first, counts,
            lengths, tails, seen, split_first, split_counts, tile_sequences, tile_starts, tile_splits, live,
            query_row, query_head, key_page, key_slot, key_head, value_page, value_slot, value_head,
            table_stride, page_size, heads, group, width, padded, value_width, value_padded, parts, part_rows,
            queries, block, split_keys, scaling, softcap, window, chunk, dtype, scaled, bytewise, native, twice,
            lowest, interpreted,
        )  # fmt: skip


@triton.jit
def _deliver(
    out: tl.tensor, sinks: tl.tensor, total: tl.tensor, top: tl.tensor, denominator: tl.tensor, line: tl.tensor,
    head: tl.tensor, used: tl.tensor, width: tl.constexpr, padded: tl.constexpr,
):  # fmt: skip
    """Write the attention of each query [queries] as its row of ``out``: there was one split only."""
    if sinks is not None:
        sink = tl.load(sinks + head).to(tl.float32) * 1.4426950408889634
        higher = tl.maximum(top, sink)
        fade = tl.exp2(top - higher)
        denominator = denominator * fade + tl.exp2(sink - higher)
        total = total * fade[:, None]
    total = total / tl.where(denominator == 0, 1.0, denominator)[:, None]
    column = tl.arange(0, padded)
    kept = used[:, None] & (column < width)[None, :]
    tl.store(out + line[:, None] * width + column[None, :], total.to(out.dtype.element_ty), mask=kept)


@triton.jit
def _keep_split(
    totals: tl.tensor, tops: tl.tensor, sums: tl.tensor, total: tl.tensor, top: tl.tensor, denominator: tl.tensor,
    line: tl.tensor, used: tl.tensor, width: tl.constexpr, padded: tl.constexpr,
):  # fmt: skip
    """Write the sums of one split of the keys for each query [queries], for :func:`combine`."""
    tl.store(tops + line, top, mask=used)
    tl.store(sums + line, denominator, mask=used)
    # Of a split that saw nothing the combination reads no accumulator.
    column = tl.arange(0, padded)
    kept = used[:, None] & (column < width)[None, :] & (denominator != 0)[:, None]
    tl.store(totals + line[:, None] * width + column[None, :], total, mask=kept)


@triton.jit
def _lowest_key(place: tl.tensor, tail: tl.tensor, window: tl.constexpr, chunk: tl.constexpr):
    """Return the first key that any row, at ``place`` [queries], can see. In a tree a row's position is not its key's index."""
    least = tl.min(place, 0)
    low = 0
    if window is not None:
        low = tl.maximum(low, least - window + 1)
    if chunk is not None:
        low = tl.maximum(low, least // chunk * chunk)
    return tl.minimum(low, tail)


@triton.jit
def _own_first(before: tl.tensor, start_row: tl.tensor):
    """Return the index behind the last key that a program's first row sees."""
    return before + start_row + 1


@triton.jit(do_not_specialize=["workers"], do_not_specialize_on_alignment=COMBINED)
def combine(
    totals: tl.tensor, tops: tl.tensor, sums: tl.tensor, sinks: tl.tensor, out: tl.tensor, split_rows: tl.tensor,
    split_live: tl.tensor, split_first: tl.tensor, split_counts: tl.tensor, workers: tl.tensor, heads: tl.constexpr,
    width: tl.constexpr, padded: tl.constexpr, chunk: tl.constexpr, lowest: tl.constexpr, early: tl.constexpr,
):  # fmt: skip
    """Combine the splits of each head of each row that has several, ``chunk`` at a time. Grid (workers)."""
    wait(early)
    live = tl.load(split_live)
    column = tl.arange(0, padded)
    for item in range(tl.program_id(0), live * heads, workers):
        row = tl.load(split_rows + item // heads).to(tl.int64)
        head = item % heads
        begin = tl.load(split_first + row).to(tl.int64)
        many = tl.load(split_counts + row)
        highest = tl.full((), lowest, tl.float32)
        denominator = tl.full((), 0.0, tl.float32)
        result = tl.zeros([padded], tl.float32)
        for part in range(0, many, chunk):
            split = part + tl.arange(0, chunk)
            line = (begin + split) * heads + head
            top = tl.load(tops + line, mask=split < many, other=lowest)
            found = tl.load(sums + line, mask=split < many, other=0.0)
            pointers = totals + line[:, None] * width + column[None, :]
            total = tl.load(pointers, mask=(found != 0)[:, None] & (column < width)[None, :], other=0.0)
            higher = tl.maximum(highest, tl.max(top, 0))
            fade, weights = tl.exp2(highest - higher), tl.exp2(top - higher)
            denominator = denominator * fade + tl.sum(found * weights, 0)
            result = result * fade + tl.sum(total * weights[:, None], 0)
            highest = higher
        if sinks is not None:
            sink = tl.load(sinks + head).to(tl.float32) * 1.4426950408889634
            higher = tl.maximum(highest, sink)
            fade = tl.exp2(highest - higher)
            denominator = denominator * fade + tl.exp2(sink - higher)
            result = result * fade
        result = result / tl.where(denominator == 0, 1.0, denominator)
        tl.store(out + (row * heads + head) * width + column, result.to(out.dtype.element_ty), mask=column < width)
