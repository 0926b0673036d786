"""Models from a local folder by the real code path, and refusals that name the reason."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from families import make
from transformers import AutoConfig, AutoModelForCausalLM

from inferd.protocol import InvalidRequest, NotFound
from inferd_runtime.models.loading import attach, load, resolve
from inferd_runtime.server.engine_process import EngineSettings, serve_model
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
    session = DirectSession(serve_model(EngineSettings(endpoint="", model=str(folder), threads=1)))
    generated = session.generate(session.text("hello"), max_tokens=12, system_speculation=True)
    assert 1 <= len(generated.tokens) <= 12
    with pytest.raises(InvalidRequest, match="no chat template"):
        session.chat("be brief", "hello")
    session.close()


@pytest.mark.parametrize("plain", [False, True])
def test_both_passes_serve_the_embedded_model(plain: bool) -> None:
    session = DirectSession(serve_model(EngineSettings(endpoint="", model="tiny-draft", threads=1, plain=plain)))
    assert session.generate(session.chat("Repeat the text.", "one two"), max_tokens=8).tokens
    session.close()


def test_a_missing_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="no-such-folder"):
        load(str(tmp_path / "no-such-folder"))


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
    session = DirectSession(serve_model(EngineSettings(endpoint="", model=str(folder), threads=1)))
    with pytest.raises(InvalidRequest, match="no system messages"):
        session.chat("be brief", "hello")
    session.close()
