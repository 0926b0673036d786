"""A decoder's weights straight from the files of its checkpoint, under transformers' names, without transformers.

The module has no code: :class:`~inferd_runtime.models.passes.fused.FusedPass` runs it, as it runs transformers' own.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from inferd_runtime.models.proved.store import KeptDecoder

ONE_FILE = "model.safetensors"
INDEX = ONE_FILE + ".index.json"
EMBEDDING = "model.embed_tokens"
HEAD = "lm_head"


class ProvedDecoder(nn.Module):
    """The weights of a model that was proved, in transformers' tree: ``model.layers[i].self_attn.q_proj`` and so on.

    A model without a head of its own shares the embedding's weight.
    """

    def __init__(self, facts: KeptDecoder, weights: dict[str, Tensor]) -> None:
        super().__init__()
        self.config = SimpleNamespace(model_type=facts.model_type, hidden_act="silu", num_attention_heads=facts.heads)
        for name in sorted(weights, key=_order):
            path, _, kind = name.rpartition(".")
            leaf = self._leaf(path, weights[name], facts.eps)
            leaf.register_parameter(kind, nn.Parameter(weights[name], requires_grad=False))
        if HEAD not in self._modules:
            shared = self.get_submodule(EMBEDDING).weight
            self._leaf(HEAD, shared, facts.eps).weight = shared  # type: ignore[arg-type]
        for layer in self.get_submodule("model.layers").children():
            layer.get_submodule("self_attn").head_dim = facts.head_dim  # type: ignore[assignment]
        rotary = RotaryEmbedding(facts.rope_type, torch.tensor(facts.frequencies), facts.rope_scaling)
        self.get_submodule("model").add_module("rotary_emb", rotary)

    def _leaf(self, path: str, weight: Tensor, eps: float) -> nn.Module:
        """Return the module that owns a weight, made where it is not there yet."""
        above: nn.Module = self
        *names, last = path.split(".")
        for name in names:
            if name not in above._modules:
                above.add_module(name, nn.ModuleList() if name == "layers" else nn.Module())
            above = above.get_submodule(name)
        if last not in above._modules:
            above.add_module(last, _empty(path, weight, eps))
        return above.get_submodule(last)


class RotaryEmbedding(nn.Module):
    """Rotary positions of a type whose frequencies float32[D / 2] never change, as transformers' modules compute them."""

    def __init__(self, rope_type: str, frequencies: Tensor, scaling: float) -> None:
        super().__init__()
        self.rope_type = rope_type
        self._frequencies = frequencies
        self._scaling = scaling

    def forward(self, like: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """positions int64[1, T] -> cos and sin [1, T, D] in the dtype of ``like``."""
        half = positions[..., None].float() * self._frequencies
        angles = torch.cat((half, half), dim=-1)
        cos, sin = angles.cos() * self._scaling, angles.sin() * self._scaling
        return cos.to(like.dtype), sin.to(like.dtype)


def _order(name: str) -> tuple[bool, int, str]:
    """Sort weights before biases, which find their module made, and layers by number."""
    layer = next((int(part) for part in name.split(".") if part.isdigit()), -1)
    return not name.endswith(".weight"), layer, name


def _empty(path: str, weight: Tensor, eps: float) -> nn.Module:
    """Return a module without weights of the kind that owns this one: the embedding, a projection, or a norm."""
    if path == EMBEDDING:
        # One on the meta device would import torch's compiler, which takes two seconds.
        return nn.Embedding(weight.shape[0], weight.shape[1], _weight=weight)
    if weight.dim() == 2:
        return nn.Linear(weight.shape[1], weight.shape[0], bias=False, device="meta")
    norm = nn.Module()
    norm.variance_epsilon = eps  # type: ignore[assignment]
    return norm


def read_weights(folder: Path, dtype: torch.dtype) -> dict[str, Tensor]:
    """Return the checkpoint's tensors by name, mapped into memory where they are of that dtype already.

    Raises OSError or ValueError for files that are not there or are damaged.
    """
    found: dict[str, Tensor] = {}
    for file in _weight_files(folder):
        try:
            with safe_open(file, framework="pt") as tensors:
                found |= {name: tensors.get_tensor(name).to(dtype) for name in tensors.keys()}  # noqa: SIM118 - no mapping
        except SafetensorError as error:
            raise ValueError(f"{file}: {error}") from error
    return found


def _weight_files(folder: Path) -> Iterator[Path]:
    if (folder / ONE_FILE).is_file():
        yield folder / ONE_FILE
        return
    index = json.loads((folder / INDEX).read_text())
    yield from (folder / name for name in sorted(set(index["weight_map"].values())))
