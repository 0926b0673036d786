"""The dtype in which a model computes on the CPU where that is left to what was measured. Reads no weights."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers import AutoModelForCausalLM

from inferd_runtime.models.weights.choice import choose_dtype


def cpu_dtype(config: Any) -> torch.dtype:
    """Return float32, or bfloat16 for a checkpoint that is in it where that was measured to be faster.

    The weights' shapes are those of the model on the meta device.
    """
    stored = getattr(config.get_text_config(), "dtype", None)
    if stored != torch.bfloat16:
        return torch.float32
    loader: Any = AutoModelForCausalLM
    with torch.device("meta"):
        module = loader.from_config(config, dtype=stored, trust_remote_code=False)
    shapes = [tuple(part.weight.shape) for part in module.modules() if isinstance(part, nn.Linear)]
    return choose_dtype(shapes, stored)
