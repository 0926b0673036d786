"""The GGUF files of a model: one, or several parts that are named by their numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFReader, GGUFValueType, ReaderTensor, quants
from torch import Tensor, from_numpy

from inferd.protocol import InvalidRequest
from inferd_runtime.models.names import gguf_parts

MOST_LISTED = 4_000_000
"""Values of all lists of a file, a quarter of a KB each while they are read; the largest vocabulary known has 1.3 million."""


class _Reader(GGUFReader):
    """gguf's, for a file of a stranger: what it says that it has must be there, and lists have no lists and an end."""

    def __init__(self, path: Path) -> None:
        self._listed = 0
        super().__init__(path)
        self._check_data()

    def _get(self, offset: int, dtype: Any, count: Any = 1, override_order: Any = None) -> Any:
        found = super()._get(int(offset), dtype, count, override_order)
        if len(found) != int(count):
            raise ValueError("it ends before all that it says it has")
        return found

    def _get_field_parts(self, orig_offs: int, raw_type: int) -> Any:
        if raw_type == GGUFValueType.ARRAY:
            if self._get(orig_offs, np.uint32)[0] == GGUFValueType.ARRAY:
                raise ValueError("it has a list of lists")
            self._listed += int(self._get(orig_offs + 4, np.uint64)[0])
            if self._listed > MOST_LISTED:
                raise ValueError(f"its lists have more than {MOST_LISTED} values")
        return super()._get_field_parts(orig_offs, raw_type)

    def _check_data(self) -> None:
        """Raise ValueError for tensors that share their bytes: a small file would become one without end."""
        if sum(int(tensor.n_bytes) for tensor in self.tensors) > len(self.data) - self.data_offset:
            raise ValueError("its tensors are larger than the file")


class GgufModel:
    """What all parts of a model hold. Raises InvalidRequest where parts are of different models."""

    def __init__(self, file: Path) -> None:
        self._readers = [_Reader(part) for part in gguf_parts(file)]
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
