"""How many kernels a decoder layer is: each launch costs a microsecond or more in a recorded step, and ten of that otherwise.

Counted at the launches as they are served, over tensors without memory, in a process where Triton does not interpret and where
nothing is run.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

COUNT = """
import json

import torch
from torch.overrides import TorchFunctionMode
from triton.runtime.jit import JITFunction

from inferd_runtime.kernels.attention_rule import AttentionRule
from inferd_runtime.kernels.cache import CacheBlock
from inferd_runtime.kernels.rows import KeySplits, PagedRows, Tiles
from inferd_runtime.kernels.suite import triton_kernels
from inferd_runtime.models.passes.divided import SummedProduct
from inferd_runtime.models.passes.fused import FusedLayer
from inferd_runtime.models.passes.kernel_layout import KernelLayout
from inferd_runtime.models.passes.products import DenseProduct, FewRowsProduct
from inferd_runtime.models.passes.step_layout import ProjectedHeads

META = torch.device("meta")
WORK = {"rms_norm", "linear", "addmm_", "add_", "add", "copy_"}
launched = []
JITFunction.run = lambda kernel, *given, grid, warmup, **options: launched.append(kernel.__name__)


class Noted(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func.__name__ in WORK:
            launched.append(func.__name__)
        return func(*args, **(kwargs or {}))


def of(dtype, *shape):
    return torch.empty(*shape, dtype=dtype, device=META)


def half(*shape):
    return of(torch.bfloat16, *shape)


class Ranks:
    def __init__(self, rank):
        self.rank = rank

    def add(self, rows):
        launched.append("sum")
        return rows


def layer(product, rank, ranks):
    heads = ProjectedHeads(AttentionRule(None, None, None), 32 // ranks, 8 // ranks, 128, None, 1e-5)
    whole = ((6144, 4096), (28672, 4096), (4096, 4096), (4096, 14336))
    qkv, gate_up = (product(half(outs // ranks, size)) for outs, size in whole[:2])
    out, down = (product(half(outs, size // ranks)) for outs, size in whole[2:])
    if ranks > 1:
        out, down = (SummedProduct(part, Ranks(rank)) for part in (out, down))
    return FusedLayer(heads, 1e-5, half(4096), qkv, out, half(4096), gate_up, down)


def launches(product, rows, splits, rank=0, ranks=1):
    kernels = triton_kernels()
    wide, narrow = of(torch.int64, rows), of(torch.int32, rows)
    per = [narrow] * 4
    tiles = Tiles(narrow, narrow, narrow, narrow, 1 if rows == 1 else 16, rows)
    cut = KeySplits(narrow, narrow, narrow, narrow, splits if splits > 1 else 0, 1024)
    where = PagedRows(wide, wide, of(torch.int32, rows, 8), *per, wide, (tiles,), cut)
    block = CacheBlock([(8 // ranks, 128)], [(8 // ranks, 128)], torch.bfloat16, 32, 16, META)
    layout = KernelLayout(where, block.keys, block.values, kernels)
    angles = (of(torch.float32, rows, 1, 128), of(torch.float32, rows, 1, 128))
    launched.clear()
    with torch.inference_mode(), Noted():
        layer(lambda weight: product(kernels, weight), rank, ranks).run(0, half(rows, 4096), angles, layout)
    return list(launched)


def dense(kernels, weight):
    return DenseProduct(weight)


def few(kernels, weight):
    return FewRowsProduct(weight, None, kernels.few_rows_product)


counted = ((dense, 1, 4), (few, 1, 4), (few, 16, 1), (few, 17, 1), (few, 1, 4, 0, 2), (few, 1, 4, 1, 2))
print(json.dumps([launches(*which) for which in counted]))
"""
APART = ["linear", "_rotate_and_write", "attend"]
MLP = ["rms_norm", "linear", "_silu_mul", "addmm_"]


@pytest.fixture(scope="module")
def counted() -> list[list[str]]:
    settings = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run([sys.executable, "-c", COUNT], capture_output=True, text=True, env=settings, timeout=240)
    assert done.returncode == 0, done.stderr
    found: list[list[str]] = json.loads(done.stdout)
    return found


def test_a_layer_of_one_row_is_seven_launches(counted: list[list[str]]) -> None:
    """The norms and silu(gate) * up are part of the products. Ten, where cuBLAS multiplies."""
    plain, fused, *_ = counted
    assert plain == ["rms_norm", *APART, "combine", "addmm_", *MLP]
    assert fused == ["_multiply", "_rotate_and_write", "attend", "combine", "_multiply", "_multiply", "_multiply"]


def test_a_layer_of_sixteen_rows_as_well_and_one_of_more_goes_through_torch(counted: list[list[str]]) -> None:
    few, more = counted[2:4]
    assert few == ["_multiply", "_rotate_and_write", "attend", "_multiply", "_multiply", "_multiply"]
    assert more == ["rms_norm", *APART, "addmm_", *MLP]


def test_a_layer_of_a_divided_model_is_two_sums_more(counted: list[list[str]]) -> None:
    """The residual rides on rank 0's products, the norm behind a sum is part of the next one. Half of the outputs for q, k and v
    are too few programs: their inputs are cut, too, so that a norm before and a sum of parts behind stand apart.
    """
    first, second = counted[4:]
    qkv = ["rms_norm", "_multiply", "_add"]
    assert first == [
        *qkv,
        "_rotate_and_write",
        "attend",
        "combine",
        "_multiply",
        "sum",
        "_multiply",
        "_multiply",
        "sum",
    ]
    assert second == first
