"""Attention over page tables in Triton: one kernel for decoding, draft chains and trees, and chunks of prompts, and one that
combines the splits of long sequences. Reference: :mod:`inferd_runtime.kernels.attention`.

Everything that a launch is made of follows from shapes and from the rule, so that it can be captured in a graph and holds for
any values. Block sizes are not searched for: that would break a capture, and every start would pay for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, lru_cache
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from inferd_runtime.kernels.attention import LOWEST, check_attention
from inferd_runtime.kernels.attention_rule import AttentionRule
from inferd_runtime.kernels.rows import FEW_ROWS, SPLIT_KEYS, KeySplits, PagedRows, Tiles, prompt_tile_rows
from inferd_runtime.kernels.triton.attention_kernel import LOOSE, attend, combine
from inferd_runtime.kernels.triton.early import early_from, launched
from inferd_runtime.kernels.triton.interpreted import INTERPRETED
from inferd_runtime.kernels.triton.variant import Variant

POINTERS = {
    torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32", torch.uint8: "u8", torch.int32: "i32",
    torch.int64: "i64",
}  # fmt: skip
MOST_SUMS = 128 * 128
LEAST_CAPABILITY = 80
CLEARED = 16
"""Rows that one program sets to zero where they are padding."""
WORKERS = 4
"""Programs of a launch for each processor (SM), at most: two or three of them fit on one at a time."""
COMBINING = 8
"""The same for the programs that combine splits, which are small."""
CHUNK = 16
COMBINED_SUMS = 2048
"""Splits that are combined at a time, at most, and numbers of them: more would not stay in registers."""
UNKNOWN_PROCESSORS = 2
"""Where there is no device: so few that programs have several things to do."""
STEP_TABLES = ("pages", "slots", "positions", "first", "counts", "lengths", "tails", "seen")
TYPES = {torch.bfloat16: tl.bfloat16, torch.float16: tl.float16, torch.float32: tl.float32}


class AttentionBlocks(NamedTuple):
    """What one program takes: ``rows`` of a tile, which are ``queries`` of one product, and ``keys`` at a time."""

    rows: int
    queries: int
    keys: int
    warps: int
    stages: int


def choose_blocks(dtype: torch.dtype, width: int, group: int, tile_rows: int, capability: int) -> AttentionBlocks:
    """Return block sizes for products of ``dtype`` over heads of that width, ``group`` query heads per key head.

    ``capability`` is the device's compute capability times ten.

    The accumulator, queries x width in float32, stays in registers: at most 128 x 128. Shared memory is kept under 99 KiB, the
    least that a block gets from capability 8.0 on (8.6, 8.9). A block of K, or of V, is 16 KiB in half precision. Few queries
    are bound by memory and want bytes under way, some 32 KiB per processor at 4.8 TB/s and 900 ns: five stages are two
    blocks each of K and V ahead (the other stages hold page numbers), and up to three programs share a processor. Many
    queries are bound by arithmetic: three stages leave shared memory to the queries. Before capability 9.0 a product takes its
    operands from registers, so that a large one is shared by eight warps, and 128 queries meet half as many keys.

    Raises ValueError where the query heads of one key head do not fit a program: 71 of width 256, say.
    """
    padded = _padded(width)
    if triton.next_power_of_2(group) * padded > MOST_SUMS:
        raise ValueError(f"attention of {group} query heads of width {width} per key head")
    if dtype == torch.float32:
        # Exact products have no tensor cores: both operands pass through registers.
        rows = max(1, min(tile_rows, 16 // triton.next_power_of_2(group)))
        queries = max(16, triton.next_power_of_2(rows * group))
        return AttentionBlocks(rows, queries, 16, 4 if queries * padded <= 16 * 128 else 8, 2)
    most = max(16, min(128, MOST_SUMS // padded))
    rows = max(1, min(tile_rows, most // triton.next_power_of_2(group)))
    queries = max(16, triton.next_power_of_2(rows * group))
    keys = max(16, min(64, 8192 // padded))
    fewer = max(16, keys // 2)
    # The places of uneven groups of heads leave fewer registers to the scores.
    uneven = group & (group - 1) > 0
    if queries * padded < 64 * 128 and queries <= 64:
        # For narrow heads the assembler of 8.0 spills, to make room for a third program.
        cramped = capability < 90 and padded == 64 and (queries == 32 or (queries == 64 and uneven))
        return AttentionBlocks(rows, queries, fewer if cramped else keys, 4, 5)
    large = queries > 64 or padded > 128
    if capability >= 90:
        cramped = uneven and capability >= 100 and padded >= 128
        return AttentionBlocks(rows, queries, fewer if cramped else keys, 8 if large else 4, 3)
    return AttentionBlocks(rows, queries, fewer if large or uneven else keys, 8, 3)


def fits_loop(queries: int, capability: int) -> bool:
    """True if programs of so many queries share out the entries in a loop. Where that would take more registers than there are,
    as compiled, each entry has a program.
    """
    if 90 <= capability < 100:
        return True
    return queries < 64 or (queries == 64 and capability < 90)


class AttentionLaunch(NamedTuple):
    """A kernel with everything that it is launched with. All of it follows from shapes, so that it can be captured."""

    kernel: Any
    grid: tuple[int]
    arguments: dict[str, Any]
    warps: int
    stages: int

    def run(self) -> None:
        """Launch it on the current device."""
        options = {"num_warps": self.warps, "num_stages": self.stages, **launched(self.arguments["early"])}
        self.kernel[self.grid](**self.arguments, **options)


class Device(NamedTuple):
    """What launches depend on: the compute capability times ten, and the number of processors (SMs)."""

    capability: int
    processors: int


def paged_attention(query: Tensor, keys: Tensor, values: Tensor, rows: PagedRows, rule: AttentionRule) -> Tensor:
    """See :func:`inferd_runtime.kernels.attention.paged_attention`. Allocates its result and, where there may be splits, scratch.

    Raises ValueError for float64 too, and for heads whose numbers do not stand side by side.
    """
    check_attention(query, keys, values, rows, rule)
    for states in (query, keys, values):
        known = states.dtype in TYPES or (states.dtype == torch.float8_e4m3fn and states is not query)
        if not known or states.stride(-1) != 1:
            raise ValueError(f"attention of {states.dtype} with strides {states.stride()}")
    out = query.new_empty(*query.shape[:2], values.shape[3])
    for launch in launches(query, keys, values, rows, rule, out, device_of(query.device)):
        launch.run()
    return out


@cache
def device_of(device: torch.device) -> Device:
    """Return what a device is; in the interpreter the least that is served."""
    if device.type != "cuda":
        return Device(LEAST_CAPABILITY, UNKNOWN_PROCESSORS)
    major, minor = torch.cuda.get_device_capability(device)
    return Device(major * 10 + minor, torch.cuda.get_device_properties(device).multi_processor_count)


def launches(
    query: Tensor, keys: Tensor, values: Tensor, rows: PagedRows, rule: AttentionRule, out: Tensor, device: Device
) -> list[AttentionLaunch]:
    """Return a launch for each of the step's tiles, and where rows may have splits one that combines them."""
    scratch = _scratch(out, rows.splits.lines)
    tensors = {"query": query, "keys": keys, "values": values, "sinks": rule.sinks, "out": out, **scratch}
    if keys.dtype == torch.float8_e4m3fn:
        tensors |= {"keys": keys.view(torch.uint8), "values": values.view(torch.uint8)}
    found = [
        _attend_launch(tensors, keys.dtype, rows, tiles, rule, device, clears=number == 0)
        for number, tiles in enumerate(rows.tiles)
    ]
    if rows.splits.lines:
        found.append(_combine_launch(out, scratch, rows.splits, rule, device))
    return found


def _scratch(out: Tensor, lines: int) -> dict[str, Tensor]:
    """Return accumulators float32[lines, H, Dv], maxima and sums float32[lines, H]."""
    tops, sums = (out.new_empty(lines, out.shape[1], dtype=torch.float32) for _ in range(2))
    return {"totals": out.new_empty(lines, *out.shape[1:], dtype=torch.float32), "tops": tops, "sums": sums}


def product_dtype(query: torch.dtype, cache: torch.dtype) -> torch.dtype:
    """Return what the products are computed in: the dtype of both; float32 where they differ.

    Of float8, which float16 holds and an instruction converts to, float16 or the query's float32.
    """
    if cache == torch.float8_e4m3fn:
        return torch.float32 if query == torch.float32 else torch.float16
    return query if cache == query else torch.float32


class _Layer(NamedTuple):
    """What the compile-time arguments of a layer's attention follow from; the same in every step."""

    query: torch.dtype
    cache: torch.dtype
    heads: int
    shared: int
    width: int
    value_width: int
    page_size: int
    tile_rows: int
    split_keys: int
    scaling: float | None
    window: int | None
    softcap: float | None
    chunk: int | None
    capability: int


@lru_cache(maxsize=256)
def _constants(layer: _Layer) -> tuple[AttentionBlocks, dict[str, Any]]:
    """Return block sizes and compile-time arguments. Raises ValueError for tiles that programs do not divide."""
    group, width, value_width = layer.heads // layer.shared, layer.width, layer.value_width
    dtype = product_dtype(layer.query, layer.cache)
    blocks = choose_blocks(dtype, max(width, value_width), group, layer.tile_rows, layer.capability)
    parts, rest = divmod(layer.tile_rows, blocks.rows)
    if rest or layer.tile_rows & (layer.tile_rows - 1):
        raise ValueError(f"tiles of {layer.tile_rows} rows in programs of {blocks.rows}: some would stay unwritten")
    if layer.split_keys % blocks.keys:
        raise ValueError(f"splits of {layer.split_keys} keys in blocks of {blocks.keys}")
    return blocks, {
        "page_size": layer.page_size, "heads": layer.heads, "group": group, "width": width, "padded": _padded(width),
        "value_width": value_width, "value_padded": _padded(value_width),
        "group_columns": triton.next_power_of_2(group * value_width),
        "parts": parts, "part_rows": blocks.rows, "queries": blocks.queries, "block": blocks.keys,
        "split_keys": layer.split_keys, "scaling": width**-0.5 if layer.scaling is None else layer.scaling,
        "softcap": layer.softcap, "window": layer.window, "chunk": layer.chunk, "dtype": TYPES[dtype],
        "scaled": (dtype, layer.query) == (torch.float16, torch.bfloat16),
        "bytewise": layer.cache == torch.float8_e4m3fn,
        "native": layer.capability >= 89,
        "looped": fits_loop(blocks.queries, layer.capability),
        "twice": blocks.queries >= 64 and layer.window is None and layer.chunk is None,
        "lowest": LOWEST, "cleared": CLEARED, "early": early_from(layer.capability), "interpreted": INTERPRETED,
    }  # fmt: skip


def _attend_launch(
    tensors: dict[str, Any], cache: torch.dtype, rows: PagedRows, tiles: Tiles, rule: AttentionRule, device: Device, *,
    clears: bool,
) -> AttentionLaunch:  # fmt: skip
    """``cache``: its dtype, which its bytes do not show. ``clears``: the launch also sets padding to zero."""
    query, keys, values = (tensors[name] for name in ("query", "keys", "values"))
    (count, heads, width), (shared, value_width) = query.shape, values.shape[2:]
    layer = _Layer(
        query.dtype, cache, heads, shared, width, value_width, keys.shape[1], tiles.rows, rows.splits.keys,
        rule.scaling, rule.window, rule.softcap, rule.chunk, device.capability,
    )  # fmt: skip
    blocks, constants = _constants(layer)
    each = len(tiles.sequences) * shared * constants["parts"]
    workers = min(WORKERS * device.processors, each) if constants["looped"] else each
    cleared = triton.cdiv(count, CLEARED) * shared if clears else 0
    arguments: dict[str, Any] = {name: getattr(rows, name) for name in STEP_TABLES}
    arguments |= tensors | {
        "split_first": rows.splits.first, "split_counts": rows.splits.counts, "tile_sequences": tiles.sequences,
        "tile_starts": tiles.starts, "tile_splits": tiles.splits, "tile_live": tiles.live, "workers": workers,
        "rows": count, "table_stride": rows.pages.stride(0), "query_row": query.stride(0), "query_head": query.stride(1),
    }  # fmt: skip
    for name, states in (("key", keys), ("value", values)):
        arguments |= zip((f"{name}_page", f"{name}_slot", f"{name}_head"), states.stride()[:3], strict=True)
    return AttentionLaunch(attend, (workers + cleared,), arguments | constants, blocks.warps, blocks.stages)


def _combine_launch(
    out: Tensor, scratch: dict[str, Tensor], splits: KeySplits, rule: AttentionRule, device: Device
) -> AttentionLaunch:
    workers = min(COMBINING * device.processors, len(splits.rows) * out.shape[1])
    chunk = min(CHUNK, COMBINED_SUMS // _padded(out.shape[2]))
    arguments = {
        **scratch, "sinks": rule.sinks, "out": out, "split_rows": splits.rows, "split_live": splits.live,
        "split_first": splits.first, "split_counts": splits.counts, "workers": workers, "heads": out.shape[1],
        "width": out.shape[2], "padded": _padded(out.shape[2]), "chunk": chunk, "lowest": LOWEST,
        "early": early_from(device.capability),
    }  # fmt: skip
    return AttentionLaunch(combine, (workers,), arguments, 4, 1)


def _padded(width: int) -> int:
    """Return the side of a product that holds the width: a power of two, 16 at least."""
    return max(16, int(triton.next_power_of_2(width)))


class AttentionCase(NamedTuple):
    """What a model asks of the kernel, for :func:`variants`."""

    heads: int = 32
    shared: int = 8
    width: int = 128
    dtype: torch.dtype = torch.bfloat16
    cache: torch.dtype = torch.bfloat16
    window: int | None = None
    softcap: float | None = None
    chunk: int | None = None
    sinks: bool = False

    def launches(self, tile_rows: int, device: Device) -> list[AttentionLaunch]:
        """Return the launches over pages of 16 tokens, with tensors that have no memory."""
        meta = torch.device("meta")
        query = torch.empty(64, self.heads, self.width, dtype=self.dtype, device=meta)
        cache = torch.empty(64, 16, self.shared, self.width, dtype=self.cache, device=meta)
        wide, narrow = (torch.empty(64, dtype=dtype, device=meta) for dtype in (torch.int64, torch.int32))
        rows = PagedRows(
            slots=wide, positions=wide, pages=narrow.view(8, 8), first=narrow, counts=narrow, lengths=narrow, tails=narrow,
            seen=wide, tiles=(Tiles(narrow, narrow, narrow, narrow, tile_rows, 64),),
            splits=KeySplits(narrow, narrow, narrow, narrow, 64, SPLIT_KEYS),
        )  # fmt: skip
        sinks = query[0, :, 0] if self.sinks else None
        rule = AttentionRule(None, self.window, self.softcap, self.chunk, sinks)
        return launches(query, cache, cache, rows, rule, query, device)


def variants(capability: int = 90) -> Iterator[Variant]:
    """Yield what is compiled for decoding, drafts and prompts: for 32 query heads and 8 key heads of width 128, and for what else
    models ask for. Block sizes are those of that compute capability, times ten. How long sequences are makes no difference.
    """
    half, fp8 = torch.float16, torch.float8_e4m3fn
    others = {
        "bf16": AttentionCase(),
        "fp16": AttentionCase(dtype=half, cache=half),
        "fp8": AttentionCase(cache=fp8),
        "width 64, window, sinks": AttentionCase(heads=64, width=64, window=128, sinks=True),
        "width 256, softcap": AttentionCase(heads=8, shared=4, width=256, softcap=50.0),
        "width 96": AttentionCase(shared=32, width=96),
        "chunk, 5 to 1": AttentionCase(heads=40, chunk=8192),
        "7 to 1": AttentionCase(heads=28, shared=4),
        "8 to 1": AttentionCase(heads=64),
        "3 to 1": AttentionCase(heads=24),
        "width 64, 7 to 1": AttentionCase(heads=14, shared=2, width=64),
        "width 64, 2 to 1": AttentionCase(heads=16, width=64),
        "width 64, 3 to 1": AttentionCase(heads=9, shared=3, width=64),
        "fp32": AttentionCase(dtype=torch.float32, cache=torch.float32),
    }
    for name, served in others.items():
        for tile_rows in (1, FEW_ROWS, prompt_tile_rows(served.heads // served.shared)):
            yield from _variants(name, served, tile_rows, capability)


def _variants(name: str, served: AttentionCase, tile_rows: int, capability: int) -> Iterator[Variant]:
    for launch in served.launches(tile_rows, Device(capability, UNKNOWN_PROCESSORS)):
        if launch.kernel is combine and tile_rows > 1:
            continue
        constants = {param.name for param in launch.kernel.params if param.is_constexpr}
        constants |= {name for name, value in launch.arguments.items() if value is None}
        given = {name: value for name, value in launch.arguments.items() if name not in constants}
        rows = "" if launch.kernel is combine else f", {tile_rows} rows"
        yield Variant(
            f"{launch.kernel.__name__} {name}{rows}",
            launch.kernel,
            {name: _signature(name, value) for name, value in given.items()},
            {name: launch.arguments[name] for name in constants},
            launch.warps,
            launch.stages,
        )


def _signature(name: str, value: Tensor | int) -> str:
    if isinstance(value, Tensor):
        return f"*{POINTERS[value.dtype]}"
    return "i32" if value % 16 or name in LOOSE else "i32:16"
