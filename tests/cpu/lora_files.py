"""LoRA adapters made on the spot, as PEFT writes them, and what they come to when they are merged into the weights."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load, save
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from inferd_runtime.models.lora.files import AdapterFiles

PREFIX = "base_model.model."


def widths(module: nn.Module) -> tuple[int, int]:
    """(inputs, outputs)."""
    if isinstance(module, Conv1D):
        return module.weight.shape[0], module.weight.shape[1]
    assert isinstance(module, nn.Linear)
    return module.in_features, module.out_features


def make_tensors(
    model: nn.Module, targets: Sequence[str], *, seed: int, rank: int = 4, ranks: Mapping[str, int] | None = None
) -> dict[str, Tensor]:
    """Random A and B for every module whose path ends like one of the targets; ``ranks`` by such an end."""
    random = torch.Generator().manual_seed(seed)
    tensors: dict[str, Tensor] = {}
    for name, module in model.named_modules():
        if not name.endswith(tuple(f".{target}" for target in targets)):
            continue
        inputs, outputs = widths(module)
        r = next((r for end, r in (ranks or {}).items() if name.endswith(end)), rank)
        tensors[f"{PREFIX}{name}.lora_A.weight"] = torch.randn(r, inputs, generator=random) * 0.3
        tensors[f"{PREFIX}{name}.lora_B.weight"] = torch.randn(outputs, r, generator=random) * 0.3
    assert tensors
    return tensors


def make_config(targets: Sequence[str] | str, **fields: Any) -> dict[str, Any]:
    """A configuration with PEFT's defaults."""
    chosen = targets if isinstance(targets, str) else list(targets)
    plain = {"peft_type": "LORA", "r": 4, "lora_alpha": 6, "target_modules": chosen, "bias": "none", "use_dora": False}
    return {**plain, "modules_to_save": None, "lora_dropout": 0.05, "task_type": "CAUSAL_LM", **fields}


def files_of(config: Mapping[str, Any], tensors: Mapping[str, Tensor], *, trusted: bool = True) -> AdapterFiles:
    """Both files as bytes."""
    return AdapterFiles(json.dumps(config).encode(), bytearray(save(dict(tensors))), trusted)


def make_adapter(model: nn.Module, targets: Sequence[str], seed: int, **fields: Any) -> AdapterFiles:
    """A whole random adapter."""
    tensors = make_tensors(model, targets, seed=seed, rank=fields.get("r", 4), ranks=fields.get("rank_pattern"))
    return files_of(make_config(targets, **fields), tensors)


def merged(model: nn.Module, files: AdapterFiles) -> nn.Module:
    """A copy of the model with W + scaling * B A as weights, in float64 arithmetic."""
    config, tensors, whole = json.loads(files.config), load(bytes(files.weights)), copy.deepcopy(model)
    for key, down in tensors.items():
        if not key.endswith(".lora_A.weight"):
            continue
        name = key.removeprefix(PREFIX).removesuffix(".lora_A.weight")
        up = tensors[key.replace("lora_A", "lora_B")]
        alpha = next(
            (a for end, a in (config.get("alpha_pattern") or {}).items() if name.endswith(end)), config["lora_alpha"]
        )
        scaling = alpha / (math.sqrt(len(down)) if config.get("use_rslora") else len(down))
        change = scaling * up.double() @ down.double()
        module = whole.get_submodule(name)
        weight = module.weight
        assert isinstance(weight, Tensor)
        weight.data += (change.t() if isinstance(module, Conv1D) else change).to(weight.dtype)
    return whole


def write_adapter(folder: Path, files: AdapterFiles) -> None:
    """Write both files."""
    folder.mkdir()
    (folder / "adapter_config.json").write_bytes(files.config)
    (folder / "adapter_model.safetensors").write_bytes(files.weights)
