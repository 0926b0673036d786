"""Tensors where their file lies: what the package reads is read alike, and a file that does not add up is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from hypothesis import example, given, strategies as st
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from inferd.protocol import InvalidRequest
from inferd_runtime.models.lora.tensor_file import tensors_of

MOST = 4096
TENSORS = {
    "a": torch.arange(6.0).reshape(2, 3),
    "b": torch.ones(3, dtype=torch.bfloat16),
    "c": torch.ones(1, 4, dtype=torch.float16),
    "d": torch.tensor(2.0, dtype=torch.float64),
}
FILE = save(TENSORS, {"format": "pt"})


def read(file: bytes) -> dict[str, Tensor]:
    return tensors_of(bytearray(file), "it", MOST)


def file_of(header: Any, data: bytes) -> bytes:
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def entry(begin: int, end: int, shape: list[int] | None = None, dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": [1] if shape is None else shape, "data_offsets": [begin, end]}


def test_a_file_is_read_as_the_package_reads_it() -> None:
    found = read(FILE)
    assert found.keys() == TENSORS.keys()
    assert all(torch.equal(found[key], part) and found[key].dtype == part.dtype for key, part in TENSORS.items())


def test_a_large_file_is_not_copied() -> None:
    """Copying it held the interpreter's lock, and with it the step loop, for as long as 200 MiB take."""
    file = bytearray(save({"a": torch.zeros(4)}))
    tensor = tensors_of(file, "it", MOST)["a"]
    file[-16:-12] = b"\0\0\x80\x3f"
    assert tensor.tolist() == [1, 0, 0, 0]


def test_data_at_odd_places_is_read() -> None:
    for pad in range(4):
        header = {"__metadata__": {"x": " " * pad}, "a": entry(0, 8, [2])}
        assert read(file_of(header, torch.tensor([1.0, 2.0]).numpy().tobytes()))["a"].tolist() == [1, 2]


@pytest.mark.parametrize(
    ("header", "size"),
    [
        ({"a": entry(0, 4), "b": entry(0, 4)}, 4),
        ({"a": entry(0, 4), "b": entry(2, 6)}, 6),
        ({"a": entry(0, 4), "b": entry(8, 12)}, 12),
        ({"a": entry(4, 8)}, 8),
        ({"a": entry(0, 4)}, 3),
        ({"a": entry(0, 4)}, 5),
        ({"a": entry(4, 0)}, 4),
        ({"a": entry(-4, 0)}, 4),
        ({"a": entry(0, 4, [-1])}, 4),
        ({"a": entry(0, 4, [1 << 40, 1 << 40])}, 4),
        ({"a": entry(0, 0, [1 << 62, 4, 0])}, 0),
        ({"a": entry(0, 4, [1] * 9)}, 4),
        ({"a": entry(0, 4, dtype="I32")}, 4),
        ({"a": entry(0, 4, dtype="f32")}, 4),
        ({"a": {**entry(0, 4), "more": 1}}, 4),
        ({"a": {"dtype": "F32", "shape": [1]}}, 4),
        ({"a": [0, 4]}, 4),
        ([entry(0, 4)], 4),
        ({}, 4),
    ],
)
def test_a_file_that_does_not_add_up_is_refused(header: Any, size: int) -> None:
    with pytest.raises(InvalidRequest, match=r"^it: "):
        read(file_of(header, bytes(size)))


@example(at=26, byte=128, cut=0)  # no UTF-8, where nothing is read of it
@given(at=st.integers(0, len(FILE) - 1), byte=st.integers(0, 255), cut=st.integers(0, len(FILE)))
def test_a_damaged_file_is_refused_or_read_as_the_package_reads_it(at: int, byte: int, cut: int) -> None:
    for damaged in (FILE[:at] + bytes([byte]) + FILE[at + 1 :], FILE[:cut]):
        try:
            found = read(damaged)
        except InvalidRequest:
            continue
        try:
            wanted = load(damaged)
        except SafetensorError as error:
            pytest.fail(f"read, and the package refuses it: {error}")
        assert {key: part.tolist().__repr__() for key, part in found.items()} == {
            key: part.tolist().__repr__() for key, part in wanted.items()
        }
