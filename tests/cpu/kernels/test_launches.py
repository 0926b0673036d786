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
from inferd_runtime.models.passes.fused import FusedLayer
from inferd_runtime.models.passes.kernel_layout import KernelLayout
from inferd_runtime.models.passes.products import DenseProduct, FewRowsProduct
from inferd_runtime.models.passes.step_layout import ProjectedHeads

META = torch.device("meta")
WORK = {"rms_norm", "linear", "addmm_"}
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


def layer(product):
    heads = ProjectedHeads(AttentionRule(None, None, None), 32, 8, 128, None, 1e-5)
    qkv, out, gate_up, down = (
        product(half(*shape)) for shape in ((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336))
    )
    return FusedLayer(heads, 1e-5, half(4096), qkv, out, half(4096), gate_up, down)


def launches(product, rows, splits):
    kernels = triton_kernels()
    wide, narrow = of(torch.int64, rows), of(torch.int32, rows)
    per = [narrow] * 4
    tiles = Tiles(narrow, narrow, narrow, narrow, 1 if rows == 1 else 16, rows)
    cut = KeySplits(narrow, narrow, narrow, narrow, splits if splits > 1 else 0, 1024)
    where = PagedRows(wide, wide, of(torch.int32, rows, 8), *per, wide, (tiles,), cut)
    block = CacheBlock([(8, 128)], [(8, 128)], torch.bfloat16, 32, 16, META)
    layout = KernelLayout(where, block.keys, block.values, kernels)
    angles = (of(torch.float32, rows, 1, 128), of(torch.float32, rows, 1, 128))
    launched.clear()
    with torch.inference_mode(), Noted():
        layer(lambda weight: product(kernels, weight)).run(0, half(rows, 4096), angles, layout)
    return list(launched)


def dense(kernels, weight):
    return DenseProduct(weight)


def few(kernels, weight):
    return FewRowsProduct(weight, None, kernels.few_rows_product)


print(json.dumps([launches(*which) for which in ((dense, 1, 4), (few, 1, 4), (few, 16, 1), (few, 17, 1))]))
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
    *_, few, more = counted
    assert few == ["_multiply", "_rotate_and_write", "attend", "_multiply", "_multiply", "_multiply"]
    assert more == ["rms_norm", *APART, "addmm_", *MLP]
