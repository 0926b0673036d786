"""Models from a local folder by the real code path, and refusals that name the reason."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from families import make
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig

from inferd.protocol import InvalidRequest, NotFound
from inferd_runtime.models.checkpoint import read_config, read_tokenizer
from inferd_runtime.models.checks.probe import attach
from inferd_runtime.models.loading import load
from inferd_runtime.models.options import ModelOptions
from inferd_runtime.models.store.pull import resolve
from inferd_runtime.server.engine_process.serving import serve_model
from inferd_runtime.settings.settings import EngineSettings
from inferd_runtime.testing.direct import DirectSession


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A GPT-2 of random weights with the embedded tokenizer, without a chat template."""
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(Path(resolve("tiny")) / name, tmp_path)
    torch.manual_seed(0)
    config = AutoConfig.for_model(
        "gpt2", n_embd=32, n_layer=2, n_head=4, n_positions=64, vocab_size=4096, eos_token_id=2
    )
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    return tmp_path


def test_a_local_folder_is_served(folder: Path) -> None:
    session = DirectSession(serve_model(EngineSettings(model=(ModelOptions(str(folder)),), threads=1)))
    generated = session.generate(session.text("hello"), max_tokens=12, system_speculation=True)
    assert 1 <= len(generated.tokens) <= 12
    with pytest.raises(InvalidRequest, match="no chat template"):
        session.chat("be brief", "hello")
    session.close()


@pytest.mark.parametrize("plain", [False, True])
def test_both_passes_serve_the_embedded_model(plain: bool) -> None:
    session = DirectSession(serve_model(EngineSettings(model=(ModelOptions("tiny-draft"),), threads=1, plain=plain)))
    assert session.generate(session.chat("Repeat the text.", "one two"), max_tokens=8).tokens
    session.close()


def test_products_of_float32_are_float32_whatever_the_environment_says() -> None:
    """Images of PyTorch's vendors set TORCH_ALLOW_TF32_CUBLAS_OVERRIDE."""
    torch.set_float32_matmul_precision("high")
    try:
        load("tiny")
        assert torch.get_float32_matmul_precision() == "highest"
    finally:
        torch.set_float32_matmul_precision("highest")


def test_a_missing_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="no-such-folder"):
        load(str(tmp_path / "no-such-folder"))


def test_a_slip_in_a_models_name_is_not_told_of_as_a_trouble_of_the_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*arguments: object, **options: object) -> None:
        raise OSError("no connection")

    monkeypatch.setattr(PreTrainedConfig, "get_config_dict", unreachable)
    with pytest.raises(NotFound, match=r"no connection\n`inferd models` lists .* brings smollm2-135m"):
        read_config("smolm2-135m", "smolm2-135m")
    with pytest.raises(NotFound, match=r"no connection$"):
        read_config("owner/name", "owner/name")


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    """A copy of the embedded draft model, to be damaged."""
    return Path(shutil.copytree(resolve("tiny-draft"), tmp_path / "tiny"))


def edit_config(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def edit_weights(folder: Path, edit: Callable[[dict[str, torch.Tensor]], object]) -> None:
    weights = load_file(folder / "model.safetensors")
    edit(weights)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


@pytest.mark.parametrize(
    ("removed", "reason"),
    [("config.json", "no config.json"), ("model.safetensors", "model.safetensors"), ("tokenizer*", "no tokenizer")],
)
def test_a_missing_part_is_named(tiny: Path, removed: str, reason: str) -> None:
    """Without its files transformers makes up an empty tokenizer, which would serve nonsense."""
    for path in tiny.glob(removed):
        path.unlink()
    with pytest.raises(NotFound, match=reason):
        load(str(tiny))


CODE = {"AutoConfig": "configuration_martian.MartianConfig", "AutoModelForCausalLM": "modeling_martian.Martian"}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"model_type": "martian"}, "'martian' is not known to transformers"),
        ({"model_type": ""}, "names no model_type"),
        ({"model_type": "martian", "auto_map": CODE}, "code from its own repository, which is never run"),
        ({"model_type": "bart", "is_encoder_decoder": True}, "encoder-decoder"),
        ({"model_type": "vit"}, "vit is not a text decoder"),
        ({"hidden_size": "wide"}, "not valid.*hidden_size"),
        ({"quantization_config": {"quant_method": "gptq", "bits": 4}}, "quantized by gptq.*: none of its weights is"),
        ({"hidden_size": 64}, "do not fit"),
        (
            {"num_hidden_layers": 3, "layer_types": ["full_attention"] * 3},
            r"lacks 11 weights: model\.layers\.2.*, \.\.\.",
        ),
    ],
)
def test_a_configuration_that_cannot_be_served_is_refused(tiny: Path, changes: dict[str, Any], reason: str) -> None:
    for name in ("configuration_martian.py", "modeling_martian.py"):
        (tiny / name).write_text("raise SystemExit('code of the checkpoint was run')")
    edit_config(tiny, **changes)
    with pytest.raises(InvalidRequest, match=reason):
        load(str(tiny))


def test_a_checkpoint_that_lacks_a_weight_is_refused(tiny: Path) -> None:
    """transformers fills missing weights with random numbers and says so in a log line."""
    edit_weights(tiny, lambda weights: weights.pop("model.layers.1.mlp.up_proj.weight"))
    with pytest.raises(InvalidRequest, match=r"lacks 1 weights: model.layers.1.mlp.up_proj.weight$"):
        load(str(tiny))


def test_a_damaged_checkpoint_is_refused(tiny: Path) -> None:
    whole = (tiny / "model.safetensors").read_bytes()
    (tiny / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InvalidRequest, match="weights"):
        load(str(tiny))


def test_a_tokenizer_wider_than_the_embedding_is_refused(tiny: Path) -> None:
    def narrow(weights: dict[str, torch.Tensor]) -> None:
        weights["model.embed_tokens.weight"] = weights["model.embed_tokens.weight"][:4095].clone()

    edit_weights(tiny, narrow)
    edit_config(tiny, vocab_size=4095)
    with pytest.raises(InvalidRequest, match="ids up to 4095, its embedding has 4095 rows"):
        load(str(tiny))


def test_the_tokenizer_is_the_one_that_is_written_down(tiny: Path) -> None:
    """transformers gives a Qwen 2 model its family's tokenizer rules, whatever its tokenizer.json says."""
    words = {word: number for number, word in enumerate(("?", "Hello", "world", "it", "x"))}
    tokenizer = Tokenizer(WordLevel(words, "?"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    tokenizer.save(str(tiny / "tokenizer.json"))
    edit_config(tiny, model_type="qwen2", layer_types=["full_attention"] * 2)
    assert read_tokenizer("my-model", str(tiny)).encode("world Hello x world") == [2, 1, 4, 2]


def test_longrope_is_served_up_to_its_original_length(tiny: Path) -> None:
    """Behind that length the rotation of all earlier keys changes, and these are cached."""
    factors = [1.0 + i / 10 for i in range(32)]
    rope = {"rope_type": "longrope", "rope_theta": 10000.0, "short_factor": factors, "long_factor": factors}
    edit_config(tiny, rope_parameters={**rope, "original_max_position_embeddings": 512})
    assert load(str(tiny)).max_context == 512


def test_an_unknown_dtype_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="float12"):
        load("tiny", dtype="float12")


def test_a_family_that_ignores_the_attention_setting_is_refused_by_name() -> None:
    """Served without this probe, such a model would attend to nothing but its own step, without a word."""
    config: Any = AutoConfig.for_model("bloom", hidden_size=32, n_layer=2, n_head=4, vocab_size=97)
    with pytest.raises(InvalidRequest, match=r"my-bloom.*cannot be served"):
        attach(AutoModelForCausalLM.from_config(config).eval(), "my-bloom")


def test_the_probe_sees_every_layers_rule() -> None:
    probed = attach(make("gemma2"), "gemma2")
    assert {rule.window for rule in probed.rules} == {12, None}
    assert {rule.softcap for rule in probed.rules} == {5.0}
    assert probed.kv.keys == ((2, 8),) * 3


def test_a_template_that_refuses_a_message_is_an_invalid_request(folder: Path) -> None:
    """Templates of some families refuse system messages; that must reach the program and nobody else."""
    (folder / "chat_template.jinja").write_text("{{ raise_exception('no system messages') }}")
    session = DirectSession(serve_model(EngineSettings(model=(ModelOptions(str(folder)),), threads=1)))
    with pytest.raises(InvalidRequest, match="no system messages"):
        session.chat("be brief", "hello")
    session.close()
