"""A model family from docs/extending: loaded from its folder, probed, and served with the tokens of transformers' own pass."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM
from transformers.models.auto import CONFIG_MAPPING, MODEL_FOR_CAUSAL_LM_MAPPING

from inferd.protocol import InvalidRequest, ModelInfo
from inferd_grammar import GrammarCompiler, TokenTable
from inferd_runtime.engine.adapters import AdapterSet
from inferd_runtime.engine.drivers.build import DriverOptions, build_driver
from inferd_runtime.engine.engine import Engine, EngineOptions
from inferd_runtime.models.loaded import LoadedModel
from inferd_runtime.models.loading import load
from inferd_runtime.models.store.pull import resolve
from inferd_runtime.session.served_model import ServedModel
from inferd_runtime.testing.direct import DirectSession

PAGE_SIZE = 4
SIZES: dict[str, Any] = {
    "vocab_size": 4096, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 128, "eos_token_id": 2, "tie_word_embeddings": False,
}  # fmt: skip


@pytest.fixture
def families_stay() -> Iterator[None]:
    """Take away from transformers what the test has registered."""
    tables = [CONFIG_MAPPING._extra_content, MODEL_FOR_CAUSAL_LM_MAPPING._extra_content]
    before = [dict(table) for table in tables]
    yield
    for table, kept in zip(tables, before, strict=True):
        table.clear()
        table.update(kept)


@pytest.fixture
def family(families_stay: None, page: dict[str, Any]) -> dict[str, Any]:
    return page


def save(model: Any, folder: Path) -> Path:
    """Write random weights, so large that logits differ, with the embedded tokenizer."""
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.data.normal_(0, 0.2)
    model.save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(Path(resolve("tiny")) / name, folder)
    return folder


@pytest.fixture
def folder(family: dict[str, Any], tmp_path: Path) -> Path:
    torch.manual_seed(0)
    return save(family["DampedForCausalLM"](family["DampedConfig"](**SIZES, damping=0.25)), tmp_path / "damped")


def served(loaded: LoadedModel) -> ServedModel:
    driver = build_driver(loaded, DriverOptions(pages=32, page_size=PAGE_SIZE, most_rows=64))
    eos = loaded.tokenizer.eos_tokens
    table = TokenTable.from_tokenizer_json(loaded.tokenizer.json, vocab_size=loaded.vocab_size, eos_ids=eos)
    info = ModelInfo("damped", loaded.vocab_size, loaded.max_context, PAGE_SIZE, list(eos), loaded.fingerprint)
    engine = Engine(driver, EngineOptions(token_budget=64))
    return ServedModel(info, engine, loaded.tokenizer, GrammarCompiler(table), AdapterSet(driver))


def test_it_writes_what_transformers_writes(folder: Path) -> None:
    own = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager", dtype=torch.float32).eval()
    assert own.model.layers[0].damping == 0.25
    caller = DirectSession(served(load(str(folder))))
    context = caller.text("the ferry came back at night, and the ferry")
    prompt = caller.tokens(context)
    generated = caller.generate(context, max_tokens=24, system_speculation=True).tokens
    caller.close()
    with torch.inference_mode():
        expected = own.generate(torch.tensor([prompt]), max_new_tokens=24, do_sample=False)[0, len(prompt) :].tolist()
    assert len(set(expected)) > 3
    assert generated == expected[: len(generated)]
    assert len(generated) == 24 or expected[len(generated)] == SIZES["eos_token_id"]


def test_one_that_keeps_something_beside_the_cache_is_refused(
    family: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer = family["DampedLayer"]
    forward = layer.forward

    def forgetful(self: Any, hidden_states: torch.Tensor, *arguments: Any, **options: Any) -> torch.Tensor:
        """Adds the token before, which no cache holds when it is computed alone."""
        before = torch.nn.functional.pad(hidden_states, (0, 0, 1, 0))[:, :-1]
        return forward(self, hidden_states + before, *arguments, **options)

    monkeypatch.setattr(layer, "forward", forgetful)
    torch.manual_seed(0)
    folder = save(family["DampedForCausalLM"](family["DampedConfig"](**SIZES)), tmp_path / "damped")
    with pytest.raises(InvalidRequest, match="cannot be served"):
        load(str(folder))
