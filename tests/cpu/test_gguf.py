"""A GGUF file is served as what transformers makes of it, to the bit, and is converted once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from gguf_files import CONTEXT, TOKENS, SmallFile
from transformers import AutoModelForCausalLM

from inferd.protocol import InvalidRequest
from inferd_runtime.models.loading import load, resolve
from inferd_runtime.models.store.gguf import license_of, smallest_dtype
from inferd_runtime.models.store.pull import Pull
from inferd_runtime.models.store.store import ModelStore


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
    assert loaded.tokenizer.eos_tokens == (93,)


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


@pytest.mark.parametrize(
    ("value", "dtype"), [(1.0, torch.bfloat16), (1.0 + 2**-10, torch.float16), (1.0 + 2**-20, torch.float32)]
)
def test_weights_are_kept_in_the_smallest_dtype_that_loses_nothing(value: float, dtype: torch.dtype) -> None:
    module = torch.nn.Linear(2, 2)
    torch.nn.init.constant_(module.weight, value)
    torch.nn.init.zeros_(module.bias)
    assert smallest_dtype(module) == dtype
