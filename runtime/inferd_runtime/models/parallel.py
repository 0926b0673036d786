"""Tensor parallelism: every rank holds a part of each weight, by transformers' own plan for the family (``tp_plan="auto"``).

transformers reads of each tensor of the checkpoint only the part that the rank keeps, wraps it as a ``DTensor``, and puts the
reductions around the modules: column-wise projections give a rank its own heads and features, row-wise ones are summed over the
ranks, the embedding is divided by the vocabulary and summed, the head's logits are gathered. So every rank ends a pass with the
same logits, and its attention sees the rank's own heads.
"""

from __future__ import annotations

import dataclasses
import os
import socket
import sys
from collections.abc import Iterable
from datetime import timedelta
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from inferd.protocol import InvalidRequest
from inferd_runtime.models.fitting.fit import ModelSize
from inferd_runtime.models.fitting.sizing import default_threads
from inferd_runtime.models.passes.plain import ModelPass
from inferd_runtime.models.passes.step_layout import StepLayout

TIMEOUT_S = 300.0
"""How long a rank waits for another in one collective; ranks that read weights may be far apart."""
LOOPBACK = ("lo", "lo0")
SMALL = 1 << 14


def check_devices(device: str, ranks: int) -> None:
    """Raise InvalidRequest when this machine has no place for every rank.

    transformers puts its ranks on the kind of device that this PyTorch is built for, and rank r on the r-th of them.
    """
    if find_spec("accelerate") is None:
        raise InvalidRequest("tensor parallelism needs the package accelerate: pip install 'inferd[parallel]'")
    built = torch.accelerator.current_accelerator()
    kind = "cpu" if built is None else built.type
    if device != kind:
        raise InvalidRequest(f"tensor parallelism runs on {kind!r} with this PyTorch, not on {device!r}")
    if device == "cuda" and torch.cuda.device_count() < ranks:
        raise InvalidRequest(
            f"tensor parallelism over {ranks} ranks: there are {torch.cuda.device_count()} CUDA devices"
        )


def check_plan(name: str, config: Any, ranks: int) -> None:
    """Raise InvalidRequest when transformers has no plan for the family, or the heads cannot be divided by the ranks."""
    text = config.get_text_config()
    plan: dict[str, str] = getattr(text, "base_model_tp_plan", None) or {}
    if not plan:
        raise InvalidRequest(
            f"model {name!r} cannot be divided between ranks: transformers {version('transformers')} has no "
            f"tensor-parallel plan for {text.model_type!r}"
        )
    if getattr(config, "quantization_config", None):
        raise InvalidRequest(f"model {name!r} cannot be divided between ranks: its checkpoint is quantized")
    if not any(style == "colwise" and "attn" in rule for rule, style in plan.items()):
        return  # every rank keeps all heads
    for kind in ("num_attention_heads", "num_key_value_heads"):
        uneven = [heads for heads in _counts(getattr(text, kind, None)) if heads % ranks]
        if uneven:
            raise InvalidRequest(
                f"model {name!r} cannot be divided between {ranks} ranks: its {kind} is {uneven[0]}, no multiple of that"
            )


def _counts(value: Any) -> Iterable[int]:
    """Return numbers of heads as a list: a configuration has one, or one for each layer."""
    return value if isinstance(value, list | tuple) else [] if value is None else [value]


def rank_device(device: str, rank: int) -> str:
    """Return the device of a rank: the CPU, or the CUDA device of its number."""
    return device if device == "cpu" else f"{device}:{rank}"


def join(rank: int, ranks: int, device: str, store: Path, timeout_s: float = TIMEOUT_S) -> None:
    """Enter the group of all ranks, and wait until they are there. ``store``: a file that nobody else can write.

    The ranks find each other by that file; gloo and NCCL then open ports on the loopback interface, no other. gloo and
    transformers read the interface and the rank's device from the environment alone.
    """
    loopback = next(name for _, name in socket.if_nameindex() if name in LOOPBACK)
    os.environ.update(GLOO_SOCKET_IFNAME=loopback, NCCL_SOCKET_IFNAME=loopback, LOCAL_RANK=str(rank))
    cuda = device != "cpu"
    if cuda:
        torch.cuda.set_device(rank)
    files = dist.FileStore(str(store), ranks)  # type: ignore[attr-defined]
    dist.init_process_group(
        "nccl" if cuda else "gloo", store=files, rank=rank, world_size=ranks,
        timeout=timedelta(seconds=timeout_s), device_id=torch.device(device, rank) if cuda else None,
    )  # fmt: skip


def leave() -> None:
    """Leave the group, if this process is in one."""
    if dist.is_initialized():
        dist.destroy_process_group()


def use_threads(threads: int, module: nn.Module | None = None, ranks: int = 1) -> None:
    """Compute with so many threads in this process; 0: the rank's part of what is right for the model, or one without it."""
    own = 1 if module is None else max(1, default_threads(module) // ranks)
    torch.set_num_threads(threads or own)


def first_numbers(tensor: Tensor, count: int) -> Tensor:
    """Return the first numbers of a weight, of the whole one in rank 0, whose part begins where the whole does.

    Where a part may be narrower than ``count``, that is, of small weights, all ranks put theirs together.
    """
    small = tensor.numel() <= SMALL
    divided: Any = tensor
    part: Tensor = divided.full_tensor() if small and is_part(tensor) else own_part(tensor)
    return part.reshape(-1)[:count]


def own_part(tensor: Tensor) -> Tensor:
    """Return the part of a weight that this rank holds."""
    divided: Any = tensor
    part: Tensor = divided.to_local() if is_part(tensor) else tensor
    return part


def is_part(tensor: Tensor) -> bool:
    """True for a ``DTensor``. Its module takes seconds to import, and is there already if there is one."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def share(size: ModelSize, ranks: int) -> ModelSize:
    """Return the size of a rank's part of a model. Norms are small enough to be counted as divided, too."""
    return dataclasses.replace(
        size, weight_bytes=-(-size.weight_bytes // ranks), kv_token_bytes=-(-size.kv_token_bytes // ranks)
    )


class WatchedPass:
    """A pass that remembers whether it was left by an exception.

    Somewhere inside, other ranks wait in a reduction that this one did not reach: nothing that comes after can be trusted.
    """

    def __init__(self, run: ModelPass) -> None:
        self._run = run
        self.broken = False

    def __call__(self, tokens: Tensor, positions: Tensor, layout: StepLayout, rows: Tensor) -> Tensor:
        """See :class:`~inferd_runtime.models.passes.plain.ModelPass`."""
        self.broken = True
        logits = self._run(tokens, positions, layout, rows)
        self.broken = False
        return logits
