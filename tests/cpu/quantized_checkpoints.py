"""Tiny checkpoints in the layouts of AWQ, GPTQ, compressed-tensors and fp8, written from the formats' documentation.

Each module's weight is made of random numbers, scales and zeros; the dense model of exactly those is written beside it.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from families import make
from safetensors.torch import save_file
from torch import Tensor, nn

from inferd_runtime.models.store.pull import resolve

GROUP = 64
FP8 = torch.float8_e4m3fn
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
Written = tuple[dict[str, Tensor], Tensor]
"""The tensors of a module, and the dense weight float32[out, in]."""


def chance(out: int, size: int) -> torch.Generator:
    return torch.Generator().manual_seed(out * 1000 + size)


def whole_numbers(out: int, size: int, bits: int) -> tuple[Tensor, Tensor, Tensor]:
    """Numbers [out, in], scales and zeros [out, groups]."""
    seed, groups = chance(out, size), size // GROUP
    numbers = torch.randint(0, 1 << bits, (out, size), generator=seed)
    scales = (torch.rand(out, groups, generator=seed) + 0.5).mul(0.5 / (1 << bits)).half()
    return numbers, scales, torch.randint(1, 1 << bits, (out, groups), generator=seed)


def dense(numbers: Tensor, scales: Tensor, zeros: Tensor, groups: Tensor | None = None) -> Tensor:
    groups = torch.arange(numbers.shape[1]) // GROUP if groups is None else groups
    return (numbers - zeros[:, groups]).float() * scales[:, groups].float()


def packed(numbers: Tensor, bits: int, order: tuple[int, ...] = ()) -> Tensor:
    """Along the last dimension, 32 / bits numbers in an int32; ``order``: which number stands in which place of a word."""
    each = 32 // bits
    words = numbers.long().unflatten(-1, (-1, each))
    found = sum(words[..., order[place] if order else place] << bits * place for place in range(each))
    return torch.where(found >= 1 << 31, found - (1 << 32), found).to(torch.int32).contiguous()


def awq(out: int, size: int) -> Written:
    numbers, scales, zeros = whole_numbers(out, size, 4)
    tensors = {
        "qweight": packed(numbers.t(), 4, AWQ_ORDER), "qzeros": packed(zeros.t(), 4, AWQ_ORDER),
        "scales": scales.t().contiguous(),
    }  # fmt: skip
    return tensors, dense(numbers, scales, zeros)


def gptq(bits: int, less: int, shuffled: bool = False) -> Callable[[int, int], Written]:
    def write(out: int, size: int) -> Written:
        numbers, scales, zeros = whole_numbers(out, size, bits)
        groups = torch.arange(size) // GROUP
        if shuffled:
            groups = groups[torch.randperm(size, generator=chance(out, size))]
        tensors = {
            "qweight": packed(numbers, bits).t().contiguous(), "qzeros": packed((zeros - less).t(), bits),
            "scales": scales.t().contiguous(), "g_idx": groups.int(),
        }  # fmt: skip
        return tensors, dense(numbers, scales, zeros, groups)

    return write


def compressed(symmetric: bool) -> Callable[[int, int], Written]:
    def write(out: int, size: int) -> Written:
        numbers, scales, zeros = whole_numbers(out, size, 4)
        zeros = torch.full_like(zeros, 8) if symmetric else zeros
        scales = scales.bfloat16()
        tensors = {
            "weight_packed": packed(numbers, 4), "weight_scale": scales.contiguous(),
            "weight_shape": torch.tensor([out, size]),
        }  # fmt: skip
        tensors |= {} if symmetric else {"weight_zero_point": packed(zeros.t(), 4).t().contiguous()}
        return tensors, dense(numbers, scales, zeros)

    return write


def float8(end: str, scales_of: Callable[[int, int], tuple[int, ...]]) -> Callable[[int, int], Written]:
    def write(out: int, size: int) -> Written:
        seed = chance(out, size)
        numbers = (torch.randn(out, size, generator=seed) * 100).clamp(-448, 448).to(FP8)
        scales = torch.rand(scales_of(out, size), generator=seed) * 2e-3 + 1e-3
        wide = scales.reshape(-1, scales.shape[-1] if scales.dim() == 2 else 1)
        rows, columns = (out // wide.shape[0], size // wide.shape[1])
        spread = wide.repeat_interleave(rows, 0).repeat_interleave(columns, 1)
        return {"weight": numbers, end: scales}, numbers.float() * spread

    return write


def int8(out: int, size: int) -> Written:
    seed = chance(out, size)
    numbers = torch.randint(-128, 128, (out, size), generator=seed).to(torch.int8)
    scales = torch.rand(out, 1, generator=seed) * 2e-3 + 1e-3
    return {"weight": numbers, "weight_scale": scales}, numbers.float() * scales


def ct(format: str, **weights: Any) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": weights, "input_activations": None, "output_activations": None}
    return {
        "quant_method": "compressed-tensors", "format": format, "config_groups": {"group_0": group}, "ignore": ["lm_head"],
        "quantization_status": "compressed", "kv_cache_scheme": None,
    }  # fmt: skip


def rows(out: int, size: int) -> tuple[int, int]:
    """One scale for each output."""
    return out, 1


@dataclass(frozen=True)
class Layout:
    """``config``: its quantization_config. ``held``: what a device holds it as, "" if dense."""

    config: dict[str, Any]
    write: Callable[[int, int], Written]
    held: str


GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "sym": False, "desc_act": False}
LAYOUTS = {
    "awq": Layout({"quant_method": "awq", "bits": 4, "group_size": GROUP, "zero_point": True, "version": "gemm"}, awq, "int4"),
    "gptq": Layout(GPTQ, gptq(4, less=1), "int4"),
    "gptq v2": Layout({**GPTQ, "checkpoint_format": "gptq_v2"}, gptq(4, less=0), "int4"),
    "gptq by activation": Layout({**GPTQ, "desc_act": True}, gptq(4, less=1, shuffled=True), ""),
    "gptq 8 bits": Layout({**GPTQ, "bits": 8}, gptq(8, less=1), ""),
    "compressed int4": Layout(ct("pack-quantized", num_bits=4, type="int", group_size=GROUP), compressed(True), "int4"),
    "compressed int4, zeros": Layout(ct("pack-quantized", num_bits=4, group_size=GROUP), compressed(False), "int4"),
    "compressed fp8": Layout(ct("float-quantized", num_bits=8, strategy="channel"), float8("weight_scale", rows), "fp8"),
    "compressed fp8, one scale": Layout(ct("float-quantized"), float8("weight_scale", lambda *_: (1,)), "fp8"),
    "compressed int8": Layout(ct("int-quantized", num_bits=8), int8, "int8"),
    "fp8 in blocks": Layout(
        {"quant_method": "fp8", "weight_block_size": [32, 32]},
        float8("weight_scale_inv", lambda out, size: (out // 32, size // 32)), "",
    ),
}  # fmt: skip


def model_of(layers: int = 2) -> nn.Module:
    vocabulary = json.loads((Path(resolve("tiny")) / "config.json").read_text())["vocab_size"]
    return make(
        "llama", vocab_size=vocabulary, hidden_size=128, intermediate_size=256, head_dim=32, num_hidden_layers=layers
    )


def write_checkpoint(folder: Path, layout: Layout, dtype: torch.dtype = torch.float16) -> nn.Module:
    """Write a checkpoint; returns the dense float32 model that it stands for."""
    model = model_of().to(dtype).float()
    tensors = {name: tensor.to(dtype) for name, tensor in model.state_dict().items()}
    for path, module in model.named_modules():
        if isinstance(module, nn.Linear) and path != "lm_head":
            del tensors[f"{path}.weight"]
            own, weight = layout.write(*module.weight.shape)
            module.weight.data = weight
            tensors |= {f"{path}.{end}": tensor for end, tensor in own.items()}
    model.config.save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    config |= {"quantization_config": layout.config, "dtype": str(dtype).removeprefix("torch.")}
    (folder / "config.json").write_text(json.dumps(config))
    for file in Path(resolve("tiny")).glob("tokenizer*"):
        shutil.copy(file, folder)
    # Two files, as large checkpoints have: a module's tensors may lie in either.
    names = sorted(tensors)
    parts = {f"model-{at}.safetensors": names[at::2] for at in (0, 1)}
    for file, own_names in parts.items():
        save_file({name: tensors[name] for name in own_names}, folder / file, metadata={"format": "pt"})
    where = {name: file for file, own_names in parts.items() for name in own_names}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
    return model
