"""How many kernels are compiled over everything that is served: a number that a step brings must never cost one.

Triton compiles a kernel anew for every compile-time argument, and for every number that is 1 or a multiple of 16, unless it is
told not to. What counts here is the key under which Triton looks a compiled kernel up, at the launches as they are served, over
tensors without memory: in a process where Triton does not interpret, and where nothing is run.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

COUNT = """
import json
import sys
from collections import defaultdict

import torch
from triton.backends.compiler import GPUTarget
from triton.compiler.compiler import make_backend
from triton.runtime.jit import JITFunction, create_function_from_signature

from inferd_runtime.engine.drivers.buckets import StepShapes
from inferd_runtime.kernels.attention_rule import AttentionRule
from inferd_runtime.kernels.cache import CacheBlock
from inferd_runtime.kernels.rows import KeySplits, PagedRows, Tiles
from inferd_runtime.kernels.sampling import Adjustments, SampleRows
from inferd_runtime.kernels.quantized import Grouped, RowScaled
from inferd_runtime.kernels.triton import attention, cache, elementwise, quantized, rejection, sampling, verify
from inferd_runtime.kernels.verify import DraftRows, Drafts, Noise

META = torch.device("meta")
BACKEND = make_backend(GPUTarget("cuda", 90, 32))
CAPTURED = sorted({rows for shape in StepShapes(2048, 4096).recorded() for rows in (shape.rows, shape.logits)})
ROWS = sorted({*range(1, 81), *CAPTURED, 127, 129, 300, 513, 1000, 2000})
found, binders = defaultdict(set), {}


def looked_up(kernel, *given, grid, warmup, **options):
    bind = binders.get(kernel)
    if bind is None:
        bind = binders[kernel] = create_function_from_signature(kernel.signature, kernel.params, BACKEND)
    _, key, options = bind(*given, **options)
    found[kernel.__name__].add(str(key) + str(sorted(options.items())))


JITFunction.run = looked_up


def of(dtype, *shape):
    return torch.empty(*shape, dtype=dtype, device=META)


def wide(*shape):
    return of(torch.int64, *shape)


def narrow(*shape):
    return of(torch.int32, *shape)


def samplers(rows, vocab, entries):
    adjustments = None
    if entries:
        ids, by, shift = (of(dtype, entries) for dtype in (torch.int32, torch.float32, torch.float32))
        adjustments = Adjustments(narrow(rows + 1), ids, by, shift)
    floats = [of(torch.float64, rows) for _ in range(3)]
    numbers = [wide(rows) for _ in range(3)]
    return SampleRows(*floats, *numbers, narrow(rows), narrow(4, -(-vocab // 32)), adjustments)


def draw(vocab):
    for rows in ROWS:
        sampling.sample(of(torch.bfloat16, rows, vocab), samplers(rows, vocab, 0))


def adjust(vocab):
    for rows in ROWS:
        for entries in (1, 7, 16, 300, 4096):
            sampling.adjusted(of(torch.bfloat16, rows, vocab), samplers(rows, vocab, entries).adjustments)


def verdicts(vocab):
    for width in range(65):
        for batch in (1, 3, 16, 64):
            drafts = DraftRows(narrow(batch), narrow(batch), narrow(batch, width), narrow(batch, width))
            verify.agree(wide(batch * (width + 1)), drafts)
            if width:
                likely = of(torch.float32, batch, width, vocab)
                chains = Drafts(wide(batch, width), wide(batch), None, likely)
                noise = Noise(wide(batch), wide(batch))
                rejection.rejection(of(torch.float64, batch, width + 1, vocab), chains, noise)


def caches(vocab):
    block = CacheBlock([(8, 128)] * 2, [(8, 128)] * 2, torch.bfloat16, 32, 16, META)
    for rows in ROWS:
        qkv = of(torch.bfloat16, rows, 48 * 128)
        states = qkv.view(rows, 48, 128)
        cache.write_kv(states[:, 32:40], states[:, 40:], block.keys[0], block.values[0], wide(rows))
        turns = [of(torch.float32, rows, 128) for _ in range(2)]
        ends = (block.keys[0], block.values[0], wide(rows))
        elementwise.rotate_and_write(qkv, *turns, None, 1e-6, (32, 8), *ends)
        elementwise.silu_mul(of(torch.bfloat16, rows, 2 * 14336))
        cache.move_tokens(block, wide(rows), wide(rows))
        cache.scatter_pages(block, wide(rows), cache.gather_pages(block, wide(rows)))


def attend(vocab):
    keys = of(torch.bfloat16, 64, 16, 8, 128)
    for rows in ROWS:
        for tiles, pages in ((1, 1), (rows, 16), (rows, 37)):
            query = of(torch.bfloat16, rows, 32, 128)
            per = [narrow(tiles) for _ in range(4)]
            cut = tuple(Tiles(*(narrow(tiles) for _ in range(3)), narrow(1), size, tiles) for size in (1, 16, 32))
            splits = KeySplits(narrow(rows), narrow(rows), narrow(rows), narrow(1), 2 * rows, 1024)
            where = PagedRows(wide(rows), wide(rows), narrow(tiles, pages), *per, wide(rows), cut, splits)
            attention.paged_attention(query, keys, keys, where, AttentionRule(None, None, None))


def held(vocab):
    fours = Grouped(of(torch.uint8, 128, 128, 32, 16), of(torch.float16, 128, 32, 32), None, 4096)
    eights = RowScaled(of(torch.float8_e4m3fn, 4096, 4096), of(torch.float32, 4096))
    for rows in ROWS:
        states = of(torch.bfloat16, rows, 4096)
        quantized.float8_rows(states)
        if rows <= 64:
            quantized.row_scaled_product(states, eights, None, None)
            quantized.grouped_product(states, fours, None, None)
    quantized.unpacked(fours, torch.bfloat16)


globals()[sys.argv[1]](int(sys.argv[2]))
print(json.dumps({name: len(keys) for name, keys in found.items()}))
"""
WITHOUT = """
sampling._adjust = sampling.triton.jit(sampling._adjust.fn)
"""
SERVED = {
    # Up to 32 rows, and more.
    "draw": {"_scan": 2, "_settle": 2, "_round": 2, "_finish": 2},
    "adjust": {"_adjust": 1},
    # Up to 16 nodes, and up to 128.
    "verdicts": {"_agree": 2, "_normalise": 1, "_accept": 1, "_draw": 1, "_emit": 2},
    # Up to 4, 16 and 64 moves, and more of them; pages go out and come in.
    "caches": {"_write_kv": 1, "_rotate_and_write": 1, "_silu_mul": 1, "_move_rows": 4, "_page_parts": 2},
    # Tiles of one row, of drafts, and of prompts.
    "attend": {"attend": 3, "combine": 1},
    # Of one weight in each form.
    "held": {"_multiply_scaled": 1, "_multiply_grouped": 1, "_quantize_rows": 1, "_unpack": 1},
}
ANY = ("caches", "attend", "held")
"""Where no vocabulary is."""


def counted(source: str, what: str, vocab: int) -> dict[str, int]:
    settings = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-c", source, what, str(vocab)]
    done = subprocess.run(command, capture_output=True, text=True, env=settings, timeout=240)
    assert done.returncode == 0, done.stderr
    counts: dict[str, int] = json.loads(done.stdout)
    return counts


@pytest.mark.parametrize(
    ("what", "vocab"),
    [(what, vocab) for what in SERVED for vocab in (151_936, 50_257) if vocab % 16 or what not in ANY],
)
def test_no_number_of_rows_nodes_or_entries_compiles_a_kernel(what: str, vocab: int) -> None:
    assert counted(COUNT, what, vocab) == SERVED[what]


def test_a_kernel_that_is_compiled_for_a_number_of_rows_is_found() -> None:
    before, last = COUNT.split("globals()")
    careless = before + WITHOUT + "globals()" + last
    assert counted(careless, "adjust", 50_257)["_adjust"] > 3
