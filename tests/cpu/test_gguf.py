"""A GGUF file is served as what transformers makes of it, to the bit, and is converted once."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, GGUFWriter, quants
from transformers import AutoModelForCausalLM

from inferd.protocol import InvalidRequest
from inferd_runtime.models.loading import load, resolve
from inferd_runtime.models.store.gguf import license_of, smallest_dtype
from inferd_runtime.models.store.pull import Pull
from inferd_runtime.models.store.store import ModelStore

LAYERS, WIDTH, HEADS, INNER, CONTEXT = 2, 64, 2, 96, 128
TOKENS = [*(chr(33 + i) for i in range(91)), "ab", "<|endoftext|>", "<|end|>"]


def write_gguf(path: Path, kind: GGMLQuantizationType) -> None:
    """Write a random Llama with a byte-level vocabulary of ASCII."""
    writer, random = GGUFWriter(path, "llama"), np.random.default_rng(7)
    writer.add_string("general.name", "small")
    writer.add_string("general.license", "mit")
    writer.add_block_count(LAYERS)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(len(TOKENS))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(TOKENS)
    writer.add_token_types([1] * 92 + [3, 3])
    writer.add_token_merges(["a b"])
    writer.add_eos_token_id(93)
    writer.add_bos_token_id(93)
    shapes = {"token_embd.weight": (len(TOKENS), WIDTH), "output_norm.weight": (WIDTH,)}
    for layer in range(LAYERS):
        shapes |= {f"blk.{layer}.{name}.weight": shape for name, shape in LAYER_SHAPES.items()}
    for name, shape in shapes.items():
        numbers = random.normal(0, 0.1, shape).astype(np.float32)
        if len(shape) == 1:
            writer.add_tensor(name, numbers)
        else:
            writer.add_tensor(name, quants.quantize(numbers, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


LAYER_SHAPES = {
    "attn_norm": (WIDTH,), "ffn_norm": (WIDTH,), "attn_q": (WIDTH, WIDTH), "attn_k": (WIDTH, WIDTH),
    "attn_v": (WIDTH, WIDTH), "attn_output": (WIDTH, WIDTH), "ffn_gate": (INNER, WIDTH), "ffn_up": (INNER, WIDTH),
    "ffn_down": (WIDTH, INNER),
}  # fmt: skip


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModelStore:
    monkeypatch.setenv("INFERD_CACHE_DIR", str(tmp_path / "cache"))
    return ModelStore()


@pytest.mark.parametrize("kind", [GGMLQuantizationType.F16, GGMLQuantizationType.Q8_0], ids=str)
def test_logits_are_those_of_the_file(store: ModelStore, tmp_path: Path, kind: GGMLQuantizationType) -> None:
    file = tmp_path / "small.gguf"
    write_gguf(file, kind)
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
    write_gguf(file, GGMLQuantizationType.F16)
    folder = Path(resolve(str(file)))
    made = (folder / "config.json").stat().st_mtime_ns
    assert license_of(file) == "mit"
    assert store.models()[0].note.license == "mit"
    assert "quantization_config" not in json.loads((folder / "config.json").read_text())
    assert Path(resolve(str(file))) == folder
    assert (folder / "config.json").stat().st_mtime_ns == made
    assert Path(resolve("small")) == folder
    write_gguf(file, GGMLQuantizationType.Q8_0)
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
