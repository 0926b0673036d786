"""A quantized checkpoint from its safetensors files: dense weights for transformers' modules, and what they were stored as."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import snapshot_download
from safetensors import safe_open
from torch import Tensor

from inferd_runtime.kernels.quantized import StoredWeight
from inferd_runtime.models.quantized.layout import StoredLayout
from inferd_runtime.models.quantized.unpacking import LEFT_OUT, MARKS, unpack

FILES = ("*.safetensors", "*.safetensors.index.json", "*.json")


@dataclass(frozen=True)
class ReadCheckpoint:
    """``dense``: all parameters by name; ``stored``: by their modules' names those weights that are multiplied as stored."""

    folder: Path
    dense: dict[str, Tensor] = field(default_factory=dict)
    stored: dict[str, StoredWeight] = field(default_factory=dict)


def read_quantized(source: str, layout: StoredLayout, dtype: torch.dtype) -> ReadCheckpoint:
    """Return all weights of a checkpoint in a folder, or on the hub. ``dtype``: of the dense ones.

    Raises OSError for files that are not there, SafetensorError for damaged ones, ValueError that names the weight that does
    not go together.
    """
    folder = Path(source).expanduser()
    if not folder.is_dir():
        folder = Path(snapshot_download(source, allow_patterns=list(FILES)))
    found = ReadCheckpoint(folder)
    with ExitStack() as open_files:
        modules: dict[str, dict[str, Any]] = defaultdict(dict)
        for file in _weight_files(folder):
            tensors = open_files.enter_context(safe_open(file, framework="pt"))
            for name in tensors.keys():  # noqa: SIM118 - no mapping
                path, _, end = name.rpartition(".")
                modules[path][end] = tensors
        if not any(mark in ends for ends in modules.values() for mark in MARKS):
            raise ValueError("none of its weights is")
        for path, ends in modules.items():
            _read_module(path, ends, layout, dtype, found)
    return found


def _read_module(
    path: str, ends: dict[str, Any], layout: StoredLayout, dtype: torch.dtype, found: ReadCheckpoint
) -> None:
    tensors = {end: file.get_tensor(f"{path}.{end}") for end, file in ends.items()}
    quantized = any(mark in tensors for mark in MARKS)
    plain = {
        end: tensor for end, tensor in tensors.items() if end not in LEFT_OUT and (end != "weight" or not quantized)
    }
    found.dense.update({f"{path}.{end}": tensor.to(dtype) for end, tensor in plain.items()})
    if not quantized:
        return
    try:
        weight = unpack(tensors, layout)
    except (KeyError, ValueError, RuntimeError) as error:
        raise ValueError(f"{path}, quantized by {layout.method}: {error}") from error
    found.dense[f"{path}.weight"] = weight.dense().to(dtype)
    stored = weight.stored()
    if stored is not None:
        found.stored[path] = stored


def _weight_files(folder: Path) -> Iterator[Path]:
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        names = sorted(set(json.loads(index.read_text())["weight_map"].values()))
        yield from (folder / name for name in names)
        return
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise OSError(f"{folder} has no safetensors files")
    yield from files
