"""The GGUF files of a model: one, or several parts that are named by their numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFReader, ReaderTensor, quants
from torch import Tensor, from_numpy

from inferd.protocol import InvalidRequest
from inferd_runtime.models.names import gguf_parts


class GgufModel:
    """What all parts of a model hold. Raises InvalidRequest where parts are of different models."""

    def __init__(self, file: Path) -> None:
        self._readers = [GGUFReader(part) for part in gguf_parts(file)]
        tensors = [tensor for reader in self._readers for tensor in reader.tensors]
        self.tensors: Mapping[str, ReaderTensor] = {tensor.name: tensor for tensor in tensors}
        wanted = self.metadata.get("split.tensors.count", len(tensors))
        if len(self.tensors) != len(tensors) or len(tensors) != wanted:
            raise InvalidRequest(
                f"its parts have {len(tensors)} tensors, and it says {wanted}: is a part missing, or of another?"
            )

    @cached_property
    def metadata(self) -> Mapping[str, Any]:
        """The settings of the first part, by their keys."""
        fields = self._readers[0].fields
        return {key: field.contents() for key, field in fields.items() if not key.startswith("GGUF.")}

    @property
    def shapes(self) -> Mapping[str, Sequence[int]]:
        """The shape of each tensor as torch says it."""
        return {name: tuple(int(size) for size in reversed(tensor.shape)) for name, tensor in self.tensors.items()}

    def numbers(self, name: str) -> Tensor:
        """Return a tensor as float32."""
        tensor = self.tensors[name]
        found = np.array(quants.dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)
        return from_numpy(found).reshape(self.shapes[name])

    def blocks(self, name: str) -> tuple[str, Tensor]:
        """Return a tensor's kind, and its rows as the file has them."""
        tensor = self.tensors[name]
        return tensor.tensor_type.name, from_numpy(np.array(tensor.data))
