"""A GGUF file is served as what transformers makes of it, to the bit, and is converted once."""

from __future__ import annotations

import json
import re
import struct
from pathlib import Path

import pytest
import torch
from gguf_files import CONTEXT, TOKENS, SmallFile
from gguf_models import MODELS
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from inferd.protocol import InvalidRequest, NotFound
from inferd_runtime.models.loading import load
from inferd_runtime.models.store.gguf import convert, license_of
from inferd_runtime.models.store.pull import Pull, resolve
from inferd_runtime.models.store.store import NOTE, ModelStore


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModelStore:
    monkeypatch.setenv("INFERD_CACHE_DIR", str(tmp_path / "cache"))
    return ModelStore()


@pytest.mark.parametrize("kind", ["F16", "Q8_0"])
def test_logits_are_those_of_the_file(store: ModelStore, tmp_path: Path, kind: str) -> None:
    file = tmp_path / "small.gguf"
    SmallFile(kind).write(file)
    expected = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file=file.name, dtype=torch.float32)
    loaded = load(str(file))
    ids = torch.arange(20)[None] % len(TOKENS)
    with torch.no_grad():
        got, wanted = loaded.module.state_dict(), expected.state_dict()
        assert all(torch.equal(got[name], wanted[name]) for name in wanted)
        assert torch.isfinite(expected(ids).logits).all()
    assert loaded.vocab_size == len(TOKENS)
    assert loaded.max_context == CONTEXT
    assert loaded.tokenizer.eos_tokens == (93, 92), "the tokenizer's own comes first"


def test_a_file_is_converted_once_and_again_when_it_changed(store: ModelStore, tmp_path: Path) -> None:
    file = tmp_path / "small.gguf"
    SmallFile("F16").write(file)
    folder = Path(resolve(str(file)))
    made = (folder / "config.json").stat().st_mtime_ns
    assert license_of(file) == "mit"
    assert store.models()[0].note.license == "mit"
    assert "quantization_config" not in json.loads((folder / "config.json").read_text())
    assert Path(resolve(str(file))) == folder
    assert (folder / "config.json").stat().st_mtime_ns == made
    assert Path(resolve("small")) == folder
    SmallFile("Q8_0").write(file)
    assert (Path(resolve(str(file))) / "config.json").stat().st_mtime_ns > made


def test_a_file_that_is_no_gguf_is_refused(store: ModelStore, tmp_path: Path) -> None:
    file = tmp_path / "wrong.gguf"
    file.write_bytes(b"GGUF" + bytes(100))
    with pytest.raises(InvalidRequest, match=r"wrong\.gguf"):
        Pull(store, str(file)).run()
    assert store.models() == []


def listed(kind: int, count: int, values: bytes = b"") -> bytes:
    """Return a file without tensors whose one setting is a list."""
    return b"GGUF" + struct.pack("<IQQQ1sIIQ", 3, 0, 1, 1, b"a", 9, kind, count) + values


STRANGERS = {
    "a list that never ends": (listed(0, 1 << 60), "its lists have more than"),
    "a list of many": (listed(0, 5_000_000, bytes(5_000_000)), "its lists have more than"),
    "a list that is cut": (listed(0, 1000, bytes(999)), "it ends before"),
    "lists in lists": (listed(9, 1, struct.pack("<IQ", 9, 1) * 20_000), "a list of lists"),
    "settings without end": (b"GGUF" + struct.pack("<IQQQ1sIB", 3, 0, 1 << 60, 1, b"a", 0, 1), "it ends before"),
    "tensors that share their bytes": (
        b"GGUF" + struct.pack("<IQQ", 3, 2, 0)
        + b"".join(struct.pack("<Q1sIQIQ", 1, name, 1, 16, 0, 0) for name in (b"a", b"b")) + bytes(96),
        "larger than the file",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("data", "why"), STRANGERS.values(), ids=STRANGERS)
def test_a_strangers_file_neither_hangs_a_pull_nor_fills_memory_or_disk(
    store: ModelStore, tmp_path: Path, data: bytes, why: str
) -> None:
    """One of 53 bytes was read without end, and took more and more memory; lists in lists were shown as a bug."""
    file = tmp_path / "strange.gguf"
    file.write_bytes(data)
    with pytest.raises(InvalidRequest, match=f"strange.gguf cannot be read as a GGUF file: .*{why}"):
        Pull(store, str(file)).run()
    assert not store.models()


@pytest.mark.parametrize(
    ("value", "dtype"), [(1.0, torch.bfloat16), (1.0 + 2**-10, torch.float16), (1.0 + 2**-20, torch.float32)]
)
def test_weights_are_kept_in_the_smallest_dtype_that_loses_nothing(
    tmp_path: Path, value: float, dtype: torch.dtype
) -> None:
    module = MODELS["llama"].module()
    for weight in module.parameters():
        torch.nn.init.constant_(weight, value)
    MODELS["llama"].write(tmp_path / "small.gguf", module)
    convert(tmp_path / "small.gguf", tmp_path)
    kept = load_file(tmp_path / "model.safetensors")
    assert {weight.dtype for weight in kept.values()} == {dtype}
    assert all((weight.float() == value).all() for weight in kept.values())


def test_a_model_in_parts_is_one_model_by_any_of_its_parts(store: ModelStore, tmp_path: Path) -> None:
    small, module = MODELS["qwen2"], MODELS["qwen2"].module()
    small.write(tmp_path / "whole.gguf", module)
    parts = small.write_parts(tmp_path, module, 3)
    folders = {resolve(str(part)) for part in parts}
    assert [model.note.name for model in store.models()] == ["small"]
    got = load_file(Path(folders.pop(), "model.safetensors"))
    wanted = load_file(Path(resolve(str(tmp_path / "whole.gguf")), "model.safetensors"))
    assert not folders
    assert got.keys() == wanted.keys()
    assert all(torch.equal(got[name], wanted[name]) for name in wanted)


def test_a_model_with_a_part_missing_or_of_another_is_refused(store: ModelStore, tmp_path: Path) -> None:
    small, module = MODELS["qwen2"], MODELS["qwen2"].module()
    first, second, third = small.write_parts(tmp_path, module, 3)
    third.write_bytes(second.read_bytes())
    with pytest.raises(InvalidRequest, match="parts have"):
        resolve(str(first))
    third.unlink()
    with pytest.raises(InvalidRequest, match=third.name):
        resolve(str(first))


def test_what_an_earlier_version_converted_is_not_used(store: ModelStore, tmp_path: Path) -> None:
    file = tmp_path / "small.gguf"
    SmallFile("F16").write(file)
    folder = Path(resolve(str(file)))
    note = json.loads((folder / NOTE).read_text())
    (folder / NOTE).write_text(json.dumps({**note, "conversion": 0}))
    (folder / "tokenizer.json").unlink()
    with pytest.raises(NotFound, match=f"earlier version.*inferd pull {re.escape(str(file))}"):
        resolve("small")
    assert (Path(resolve(str(file))) / "tokenizer.json").exists()
    assert Path(resolve("small")) == folder
