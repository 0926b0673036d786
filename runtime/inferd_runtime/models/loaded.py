"""A model that is ready to be driven, with its tokenizer."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from inferd_runtime.kernels.quantized import StoredWeight
from inferd_runtime.models import options
from inferd_runtime.models.parallel import first_numbers
from inferd_runtime.models.passes.fused import FusedPass
from inferd_runtime.models.shape import Probed
from inferd_runtime.models.tokenizer import HubTokenizer

DTYPES: Mapping[str, torch.dtype] = {name: getattr(torch, name) for name in options.DTYPES}


@dataclass(frozen=True)
class LoadedModel:
    """``module``: transformers' own, or for a model that was proved before its weights alone, which only the fused pass can run.

    ``keep_proof`` is to be called once the fused pass has given the module's logits: the next start then goes without
    transformers. ``source``: the folder of the checkpoint's files, "" where there is none. ``held``: the fused pass over weights
    that are in 8 or 4 bits on a device already, which the module has not any more. ``stored``: of a quantized checkpoint what its
    weights were stored as, by their modules' names; None of any other.
    ``part``: the fused pass over this rank's part of a divided model, whose modules cannot run any more then; None: these run.
    """

    name: str
    module: nn.Module
    tokenizer: HubTokenizer
    probe: Probed
    vocab_size: int
    max_context: int
    fingerprint: str
    keep_proof: Callable[[], None] = lambda: None
    source: str = ""
    held: FusedPass | None = None
    stored: Mapping[str, StoredWeight] | None = None
    part: FusedPass | None = None


def fingerprint(config: dict[str, Any], module: nn.Module) -> str:
    """Return a short hash of the configuration and of a sample of the weights.

    Rank 0 of a divided model gives the whole model's fingerprint.
    """
    own = {key: value for key, value in config.items() if key != "distributed_config"}
    digest = hashlib.sha256(json.dumps(own, sort_keys=True, default=str).encode())
    for name, tensor in sorted(module.state_dict().items()):
        digest.update(name.encode())
        digest.update(first_numbers(tensor, 16).float().cpu().numpy().tobytes())
    return digest.hexdigest()[:16]
