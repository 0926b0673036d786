"""The embedded model through the whole engine: transformers' own tokens, whatever speculation and batching do."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from inferd import protocol as p
from inferd_runtime.models.store.pull import resolve
from inferd_runtime.server.engine_process.serving import serve_model
from inferd_runtime.settings.settings import EngineSettings
from inferd_runtime.testing.direct import DirectSession

PEOPLE = json.dumps(
    {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 40}, "age": {"type": "integer", "maximum": 999}},
        "required": ["name", "age"],
        "additionalProperties": False,
    }
)
PROMPTS = (
    ("Extract the person.", "Zelda Quimby, 51"),
    ("Repeat the text.", "A small green boat left the harbour at 5:45 with 17 goats."),
    ("Replace x by y.", "def add(x, z):\n    return x + z\n"),
)
SAMPLERS = {
    "argmax": p.Sampling(),
    "multinomial": p.Sampling(temperature=1.0),
    "top_p": p.Sampling(temperature=0.7, top_p=0.9),
    "top_k": p.Sampling(temperature=0.8, top_k=8),
    "min_p": p.Sampling(temperature=1.0, min_p=0.1),
    "top_k_top_p": p.Sampling(temperature=0.9, top_k=20, top_p=0.9),
}


@pytest.fixture(scope="module")
def model() -> Any:
    return serve_model(EngineSettings(threads=1))


@pytest.fixture
def session(model: Any) -> Any:
    session = DirectSession(model)
    yield session
    session.close()


@pytest.mark.parametrize("system_speculation", [False, True])
def test_greedy_tokens_are_those_of_transformers_generate(session: DirectSession, system_speculation: bool) -> None:
    plain: Any = AutoModelForCausalLM.from_pretrained(resolve("tiny"), dtype=torch.float32).eval()
    for system, user in PROMPTS:
        context = session.chat(system, user)
        prompt = session.tokens(context)
        ids = torch.tensor([prompt])
        out = plain.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=48, do_sample=False)
        session.generate(context, max_tokens=48, system_speculation=system_speculation)
        assert session.tokens(context) == out[0].tolist()


@pytest.mark.parametrize("seeds", [3, pytest.param(60, marks=pytest.mark.long)])
@pytest.mark.parametrize("grammar", [False, True], ids=["free", "grammar"])
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_a_seed_gives_the_same_tokens_with_speculation_on_and_off(
    session: DirectSession, sampler: str, grammar: bool, seeds: int
) -> None:
    constraint = p.ConstraintSpec("json_schema", PEOPLE) if grammar else None
    accepted = 0
    for seed in range(seeds):
        sampling = p.Sampling(**{**vars(SAMPLERS[sampler]), "seed": seed})
        for system, user in PROMPTS:
            fields: dict[str, Any] = {"sampling": sampling, "constraint": constraint, "max_tokens": 32}
            off = session.generate(session.chat(system, user), **fields)
            on = session.generate(session.chat(system, user), system_speculation=True, **fields)
            assert on.tokens == off.tokens, (seed, user)
            assert on.text == off.text
            accepted += on.accepted
    assert accepted > 0


def test_thirty_two_streams_give_what_each_gives_alone(session: DirectSession) -> None:
    prompts = [(system, f"{user} {n}") for n, (system, user) in enumerate(PROMPTS * 11)][:32]
    alone = [session.generate(session.chat(*prompt), max_tokens=16).tokens for prompt in prompts]
    before = session.engine.steps
    together = session.together([session.chat(*prompt) for prompt in prompts], max_tokens=16, system_speculation=True)
    assert together == alone
    assert session.engine.steps - before < 32 * 8


def test_text_is_whole_characters(session: DirectSession) -> None:
    generated = session.generate(session.text("naïve café – 東京 🐢 "), max_tokens=40)
    assert session.call(p.Detokenize(generated.tokens)).text.startswith(generated.text)
    assert "\ufffd" not in generated.text
