"""A model that was proved before is built from its files, without transformers, and gives the same logits to the bit."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from families import make
from safetensors.torch import load_file, save_file

from inferd_runtime import kept_results
from inferd_runtime.engine.drivers.build import DriverOptions, build_driver, trial_batch
from inferd_runtime.models.batch import FloatRows
from inferd_runtime.models.first_load import load_first, proof_of
from inferd_runtime.models.jinja_template import RenderBudget
from inferd_runtime.models.loaded import LoadedModel
from inferd_runtime.models.loading import load, size_of
from inferd_runtime.models.options import ModelOptions
from inferd_runtime.models.proved import store as proof_store
from inferd_runtime.models.proved.decoder import ProvedDecoder
from inferd_runtime.models.proved.store import ProofStore
from inferd_runtime.models.store.pull import resolve
from inferd_runtime.models.template_input import TemplateInput

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
OPTIONS = DriverOptions(pages=16, page_size=16, most_rows=64)
MESSAGES = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "<b> é 東京 {{ x }}"}]
CHAT = TemplateInput(MESSAGES, cue=True)
ROPES: list[dict[str, Any]] = [
    {"rope_type": "default", "rope_theta": 10000.0},
    {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0},
    {
        "rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
    {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 2.0, "original_max_position_embeddings": 128},
]  # fmt: skip


def checkpoint(folder: Path, family: str, **changes: Any) -> Path:
    """A random model with the embedded tokenizer."""
    for name in TOKENIZER_FILES:
        shutil.copy(Path(resolve("tiny")) / name, folder)
    make(family, vocab_size=4096, **changes).save_pretrained(folder)  # type: ignore[operator]
    return folder


@pytest.fixture
def proofs(tmp_path: Path) -> ProofStore:
    return ProofStore(tmp_path / "proofs")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "model"
    made.mkdir()
    return checkpoint(made, "llama")


def logits(loaded: LoadedModel) -> FloatRows:
    tokens = np.random.default_rng(1).integers(4096, size=48)
    driver = build_driver(loaded, OPTIONS)
    return np.concatenate([driver.forward(trial_batch(tokens[a:b], a, 16)).logits for a, b in ((0, 40), (40, 48))])


@pytest.mark.parametrize("dtype", ["", "bfloat16"])
@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("llama", {"tie_word_embeddings": True}), ("qwen2", {}), ("qwen3", {}), ("mistral", {}),
        *[("llama", {"rope_parameters": rope, "num_hidden_layers": 12}) for rope in ROPES],
    ],
)  # fmt: skip
def test_the_second_load_is_the_first_to_the_bit(
    tmp_path: Path, proofs: ProofStore, family: str, changes: dict[str, Any], dtype: str
) -> None:
    source = str(checkpoint(tmp_path, family, **changes))
    first = load(source, dtype=dtype, proofs=proofs)
    expected = logits(first)
    second = load(source, dtype=dtype, proofs=ProofStore(tmp_path / "proofs"))
    assert not isinstance(first.module, ProvedDecoder)
    assert isinstance(second.module, ProvedDecoder)
    assert np.array_equal(logits(second), expected)
    assert (second.fingerprint, second.probe, second.vocab_size) == (first.fingerprint, first.probe, first.vocab_size)
    for ours, theirs in ((second.tokenizer, first.tokenizer),):
        assert ours.json == theirs.json
        assert ours.eos_tokens == theirs.eos_tokens
        assert ours.render(CHAT, RenderBudget(10.0, 10_000)) == theirs.render(CHAT, RenderBudget(10.0, 10_000))
    options = ModelOptions(source, dtype, "cpu")
    assert size_of(options, proofs) == size_of(options)


def test_nothing_is_kept_before_the_fused_pass_agrees(folder: Path, proofs: ProofStore) -> None:
    loaded = load(str(folder), proofs=proofs)
    assert proofs.find(str(folder), "") is None
    logits(loaded)
    assert ProofStore(folder.parent / "proofs").find(str(folder), "") is not None


def test_a_family_without_a_fused_pass_is_proved_every_time(tmp_path: Path, proofs: ProofStore) -> None:
    source = str(checkpoint(tmp_path, "gemma2"))
    for _ in range(2):
        loaded = load(source, proofs=proofs)
        logits(loaded)
        assert not isinstance(loaded.module, ProvedDecoder)


def test_frequencies_that_depend_on_the_length_are_proved_every_time(tmp_path: Path, proofs: ProofStore) -> None:
    rope = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0, "original_max_position_embeddings": 64}
    source = str(checkpoint(tmp_path, "llama", rope_parameters=rope))
    logits(load(source, proofs=proofs))
    assert not isinstance(load(source, proofs=proofs).module, ProvedDecoder)


@pytest.mark.parametrize("file", ["model.safetensors", "config.json", "tokenizer.json", "chat_template.jinja"])
def test_a_changed_file_is_proved_again(folder: Path, proofs: ProofStore, file: str) -> None:
    logits(load(str(folder), proofs=proofs))
    about = (folder / file).stat()
    os.utime(folder / file, ns=(about.st_atime_ns, about.st_mtime_ns + 1))
    assert ProofStore(folder.parent / "proofs").find(str(folder), "") is None


def test_changed_code_and_another_package_are_proved_again(
    folder: Path, proofs: ProofStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    logits(load(str(folder), proofs=proofs))
    monkeypatch.setattr(proof_store, "ROOMS", ("models",))
    assert ProofStore(folder.parent / "proofs").find(str(folder), "") is None
    monkeypatch.undo()
    monkeypatch.setattr(kept_results, "PACKAGES", ("torch",))
    assert ProofStore(folder.parent / "proofs").find(str(folder), "") is None


def test_a_damaged_proof_is_none(folder: Path, proofs: ProofStore) -> None:
    logits(load(str(folder), proofs=proofs))
    (kept,) = (folder.parent / "proofs").glob("*.json")
    kept.write_bytes(kept.read_bytes()[:-5])
    assert ProofStore(folder.parent / "proofs").find(str(folder), "") is None


def test_a_folder_that_cannot_be_written_keeps_nothing(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    logits(load(str(folder), proofs=ProofStore(tmp_path / "file" / "proofs")))


def test_files_that_hold_other_weights_are_no_proof(folder: Path, proofs: ProofStore) -> None:
    """As when transformers renames or joins what a checkpoint holds."""
    loaded = load_first(str(folder), str(folder), "cpu", torch.float32, 1)
    assert proof_of(loaded, str(folder), "") is not None
    weights = load_file(folder / "model.safetensors")
    weights["model.norm.weight"][3] += 1
    save_file({name: weight.clone() for name, weight in weights.items()}, folder / "other.safetensors")
    (folder / "other.safetensors").replace(folder / "model.safetensors")
    assert proof_of(loaded, str(folder), "") is None


def test_a_sharded_checkpoint_is_read_whole(tmp_path: Path, proofs: ProofStore) -> None:
    source = checkpoint(tmp_path, "llama")
    make("llama", vocab_size=4096).save_pretrained(source, max_shard_size="200KB")  # type: ignore[operator]
    (source / "model.safetensors").unlink(missing_ok=True)
    expected = logits(load(str(source), proofs=proofs))
    second = load(str(source), proofs=proofs)
    assert len(list(source.glob("*.safetensors"))) > 1
    assert isinstance(second.module, ProvedDecoder)
    assert np.array_equal(logits(second), expected)


def test_a_start_with_a_proof_goes_without_transformers() -> None:
    """It, torch's compiler and torch's distributed tensors take three quarters of the imports' time."""
    heavy = ("transformers", "torch._dynamo", "torch.distributed.tensor")
    assert all(find_spec(name) for name in heavy)
    code = (
        "import sys\n"
        "from inferd_runtime.models.options import ModelOptions\n"
        "from inferd_runtime.server.engine_process.serving import serve_model\n"
        "from inferd_runtime.settings.settings import EngineSettings\n"
        "serve_model(EngineSettings(model=(ModelOptions('tiny'),), threads=1))\n"
        f"print([name for name in {heavy} if name in sys.modules])\n"
    )
    logits(load("tiny", proofs=ProofStore()))  # in this user's cache, where what else a start measures lies, too
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
