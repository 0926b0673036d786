"""Adapters on the embedded model, through sessions and the real engine, against merged weights."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from lora_files import make_adapter, merged, write_adapter
from torch import nn
from transformers import AutoModelForCausalLM

from inferd import protocol as p
from inferd_runtime.models.adapter_options import AdapterOptions
from inferd_runtime.models.lora.files import AdapterFiles
from inferd_runtime.models.store.pull import resolve
from inferd_runtime.server.engine_process.serving import load_adapters, serve_model
from inferd_runtime.session.served_model import ServedModel
from inferd_runtime.settings.settings import EngineSettings
from inferd_runtime.testing.direct import DirectSession

TARGETS = ("q_proj", "v_proj", "o_proj", "gate_proj", "down_proj")
PROMPT = "Extract the person. Ada Lovelace, 36. Ada Lovelace, 36. Ada"


@pytest.fixture(scope="module")
def untouched() -> nn.Module:
    module: nn.Module = AutoModelForCausalLM.from_pretrained(resolve("tiny"), dtype=torch.float32).eval()
    return module


@pytest.fixture(scope="module")
def files(untouched: nn.Module) -> dict[str, AdapterFiles]:
    return {name: make_adapter(untouched, TARGETS, seed=seed, lora_alpha=2) for seed, name in enumerate("ab")}


@pytest.fixture(scope="module")
def served() -> ServedModel:
    return serve_model(EngineSettings(threads=1))


@pytest.fixture
def caller(served: ServedModel, files: dict[str, AdapterFiles]) -> Iterator[DirectSession]:
    session = DirectSession(served)
    for name, each in files.items():
        load(session, name, each)
    yield session
    session.close()


def load(caller: DirectSession, name: str, files: AdapterFiles) -> None:
    upload = caller.call(p.UploadAdapter(files.weights)).upload
    caller.call(p.LoadAdapter(name, files.config.decode(), upload))


@torch.inference_mode()
def greedy(model: nn.Module, prompt: list[int], count: int) -> list[int]:
    """What transformers generates."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(int(model(input_ids=torch.tensor([tokens])).logits[0, -1].argmax()))
    return tokens[len(prompt) :]


def until_end(tokens: list[int], caller: DirectSession) -> list[int]:
    ends = caller.call(p.ListModels()).models[0].eos_tokens
    return tokens[: next((i for i, token in enumerate(tokens) if token in ends), len(tokens))]


def test_several_in_one_batch_generate_what_the_merged_models_do(
    caller: DirectSession, untouched: nn.Module, files: dict[str, AdapterFiles]
) -> None:
    prompt = caller.tokens(caller.text(PROMPT))
    handles = {
        name: caller.call(p.StartGenerate(caller.text(PROMPT), adapter=name, max_tokens=24)).generation
        for name in ("", "a", "b")
    }
    texts = []
    for name, handle in handles.items():
        got: list[int] = []
        finish = ""
        while not finish:
            reply = caller.call(p.NextSteps(handle))
            finish, got = reply.finish, got + [token for step in reply.steps for token in step.tokens]
        model = merged(untouched, files[name]) if name else untouched
        assert got == until_end(greedy(model, prompt, 24), caller), name
        texts.append(tuple(got))
    assert len(set(texts)) == 3


def test_a_context_that_switches_is_computed_again(
    caller: DirectSession, untouched: nn.Module, files: dict[str, AdapterFiles]
) -> None:
    context = caller.text(PROMPT)
    for name in ("a", "b", "", "a"):
        prompt = caller.tokens(context)
        model = merged(untouched, files[name]) if name else untouched
        got = caller.generate(context, adapter=name, max_tokens=8).tokens
        assert got == until_end(greedy(model, prompt, 8), caller), name


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_speculation_changes_no_token_under_an_adapter(caller: DirectSession, temperature: float) -> None:
    drafted = 0
    for seed in range(6):
        fields: dict[str, Any] = {"adapter": "a", "max_tokens": 40}
        fields["sampling"] = p.Sampling(temperature=temperature, top_p=0.95, seed=seed)
        plain = caller.generate(caller.text(PROMPT), **fields)
        # A guess that is mostly right, so that it is verified however busy the machine is.
        guess = [token if at % 7 else token ^ 1 for at, token in enumerate(plain.tokens, 1)]
        again = caller.generate(caller.text(PROMPT), predicted=guess, system_speculation=True, **fields)
        assert plain.tokens == again.tokens
        drafted += sum(step.drafted for step in again.steps)
    assert drafted > 0


def test_a_constraint_holds_under_an_adapter(caller: DirectSession) -> None:
    done = caller.generate(
        caller.text(PROMPT), adapter="b", constraint=p.ConstraintSpec("regex", "[a-f]{5,9}!"), max_tokens=40
    )
    assert done.finish == "stop"
    assert done.text.endswith("!")


def test_the_operators_adapter_comes_from_a_folder(
    served: ServedModel, caller: DirectSession, files: dict[str, AdapterFiles], tmp_path: Path
) -> None:
    write_adapter(tmp_path / "good", files["a"])
    load_adapters([AdapterOptions("house", tmp_path / "good")], [served])
    listed = caller.call(p.ListAdapters()).adapters
    assert [(info.name, info.shared) for info in listed] == [("house", True), ("a", False), ("b", False)]
    outputs = [caller.generate(caller.text(PROMPT), adapter=name, max_tokens=9).tokens for name in ("house", "a")]
    assert outputs[0] == outputs[1]
    with pytest.raises(p.NotFound, match="adapter 'x': no model 'other' is served"):
        load_adapters([AdapterOptions("x", tmp_path / "good", "other")], [served])
    (tmp_path / "good" / "adapter_config.json").write_text('{"peft_type": "IA3"}')
    with pytest.raises(p.InvalidRequest, match=r"adapter 'x': .*IA3"):
        load_adapters([AdapterOptions("x", tmp_path / "good")], [served])
