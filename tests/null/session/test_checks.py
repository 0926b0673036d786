"""A request is refused in the same words by the SDK, before anything is sent, and by the session that gets it from elsewhere."""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from inferd import (
    Context,
    Distribution,
    Entropy,
    InferdError,
    JsonSchema,
    LimitExceeded,
    Logprobs,
    Model,
    Regex,
    Sampler,
    SpecConfig,
    protocol as p,
)
from inferd.model import Tokenizer
from inferd_runtime.testing.direct import DirectSession
from inferd_runtime.testing.served import null_model

GREEDY = Sampler.argmax()
NOTHING_IS_SENT: Any = None
MODEL: Any = Model(p.ModelInfo("null", 258, 512, 16, [0], ""), Tokenizer("null", NOTHING_IS_SENT))


class Free:
    """A constraint of the program's own."""

    def step(self, accepted: list[int]) -> None:
        return None


def generate(**arguments: Any) -> Any:
    return Context().generate(GREEDY, **arguments)


def drafts(*arguments: Any, **named: Any) -> dict[str, Any]:
    return {"system_speculation": True, "speculation": p.SpeculationSettings(*arguments, **named)}


def sampled(**fields: Any) -> dict[str, Any]:
    return {"sampling": p.Sampling(**fields)}


REGEX = p.ConstraintSpec("regex", value="a")
LOOSE = p.ConstraintSpec("json_schema", "{}", mode="best_effort")
MANY = dict.fromkeys(range(p.MAX_BIASES + 1), 1.0)

GENERATE: list[tuple[Callable[[], Any], dict[str, Any]]] = [
    (lambda: generate(max_tokens=0), {"max_tokens": 0}),
    (lambda: generate(stop=["a", ""]), {"stop": ["a", ""]}),
    (lambda: generate(priority=4), {"priority": 4}),
    (lambda: generate(priority=-4), {"priority": -4}),
    (lambda: generate(logprobs=-1), {"logprobs": -1}),
    (lambda: generate(constrain=Free(), predict="x"), {"program_constraint": True, "predicted_text": "x"}),
    (lambda: generate(constrain=Free(), predict=[1]), {"program_constraint": True, "predicted": [1]}),
    (
        lambda: generate(constrain=Free(), system_speculation=True),
        {"program_constraint": True, "system_speculation": True},
    ),
    (lambda: generate(constrain=Free(), heal=True), {"program_constraint": True, "heal": True}),
    (lambda: generate(constrain=JsonSchema({}, mode="best_effort"), heal=True), {"constraint": LOOSE, "heal": True}),
    (lambda: SpecConfig(["program"]), drafts(["program"])),
    (lambda: SpecConfig(["oracle"]), drafts(["oracle"])),
    (lambda: SpecConfig(["ngram", "corpus", "ngram"]), drafts(["ngram", "corpus", "ngram"])),
    (lambda: SpecConfig(max_draft=0), drafts(max_draft=0)),
    (lambda: SpecConfig(max_draft=65), drafts(max_draft=65)),
    (lambda: SpecConfig(verifier="luck"), drafts(verifier="luck")),
    (lambda: SpecConfig(verifier="rejection"), drafts(verifier="rejection")),
    (
        lambda: SpecConfig(["draft_model", "ngram"], verifier="rejection"),
        drafts(["draft_model", "ngram"], verifier="rejection"),
    ),
    (lambda: SpecConfig(["ngram"], draft_model="x"), drafts(["ngram"], draft_model="x")),
    (lambda: generate(system_speculation=SpecConfig(["predicted"])), drafts(["predicted"])),
    (
        lambda: generate(system_speculation=SpecConfig(["ngram"]), predict="x"),
        {**drafts(["ngram"]), "predicted_text": "x"},
    ),
    (lambda: generate(system_speculation=SpecConfig(["grammar"])), drafts(["grammar"])),
    (lambda: Sampler.multinomial(-1), sampled(temperature=-1)),
    (lambda: Sampler.multinomial(math.inf), sampled(temperature=math.inf)),
    (lambda: Sampler.multinomial(1.0, seed=-1), sampled(temperature=1.0, seed=-1)),
    (lambda: Sampler.multinomial(1.0, seed=2**63), sampled(temperature=1.0, seed=2**63)),
    (lambda: Sampler.top_p(1.0, 0), sampled(temperature=1.0, top_p=0)),
    (lambda: Sampler.top_p(1.0, 1.5), sampled(temperature=1.0, top_p=1.5)),
    (lambda: Sampler.min_p(1.0, math.nan), sampled(temperature=1.0, min_p=math.nan)),
    (lambda: Sampler.top_k(1.0, -1), sampled(temperature=1.0, top_k=-1)),
    (lambda: GREEDY.penalized(repetition=101), sampled(repetition_penalty=101)),
    (lambda: GREEDY.penalized(presence=-2.5), sampled(presence_penalty=-2.5)),
    (lambda: GREEDY.penalized(frequency=math.nan), sampled(frequency_penalty=math.nan)),
    (lambda: GREEDY.biased({5: 100.5}), sampled(bias_tokens=(5,), bias_values=(100.5,))),
    (lambda: GREEDY.biased(MANY), sampled(bias_tokens=tuple(MANY), bias_values=tuple(MANY.values()))),
]

OTHERS: list[tuple[Callable[[], Any], Any]] = [
    (lambda: Context().verify([1] * 65), p.VerifyDraft(1, [1] * 65)),
    (lambda: Context().verify([1, 2], [-1]), p.VerifyDraft(1, [1, 2], [-1])),
    (lambda: Context().verify([1, 2], [-1, 1]), p.VerifyDraft(1, [1, 2], [-1, 1])),
    (lambda: Context().forward([]), p.Forward(1, [])),
    (lambda: Context().forward([1], at=[1]), p.Forward(1, [1], at=[1])),
    (lambda: Context().forward([1], top=-1), p.Forward(1, [1], top=-1)),
    (lambda: Context().forward([1], bias={1: math.inf}), p.Forward(1, [1], bias_tokens=[1], bias_values=[math.inf])),
    (lambda: Context().forward([1], mask=[]), p.Forward(1, [1], mask=[])),
    (lambda: Context().forward([1], positions=[5, 6]), p.Forward(1, [1], positions=[5, 6])),
    (
        lambda: Context().forward([1, 2], attention_mask=[[True] * 7]),
        p.Forward(1, [1, 2], attention_mask=[[0, 7]]),
    ),
    (
        lambda: Context().forward([1], sampler=GREEDY.penalized(repetition=1.1)),
        p.Forward(1, [1], sampling=p.Sampling(repetition_penalty=1.1)),
    ),
    (lambda: Context().forward([1], probes=[Entropy()] * 33), p.Forward(1, [1], probes=[p.Probe("entropy")] * 33)),
    (lambda: Distribution(math.inf), p.Forward(1, [1], probes=[p.Probe("distribution", math.inf)])),
    (lambda: Distribution(k=-1), p.Forward(1, [1], probes=[p.Probe("distribution", k=-1)])),
    (lambda: Logprobs([]), p.Forward(1, [1], probes=[p.Probe("logprobs")])),
    (lambda: Context().prompt_logprobs([]), p.PromptLogprobs(1, [])),
    (lambda: Context().prompt_logprobs([1], top=-1), p.PromptLogprobs(1, [1], top=-1)),
    (lambda: MODEL.embed(["a"], pooling="max"), p.Embed(["a"], pooling="max")),
]


@pytest.fixture
def caller() -> Iterator[DirectSession]:
    caller = DirectSession(null_model())
    assert caller.text("hello") == 1
    yield caller
    caller.close()


def refusal(use: Callable[[], Any]) -> tuple[type[InferdError], str]:
    async def call() -> None:
        done = use()
        if inspect.isawaitable(done):
            await done

    with pytest.raises(InferdError) as refused:
        asyncio.run(call())
    return refused.type, refused.value.message


@pytest.mark.parametrize(
    ("use", "request_"),
    [*((use, p.StartGenerate(1, **fields)) for use, fields in GENERATE), *OTHERS],
    ids=lambda each: None if callable(each) else each.op,
)
def test_sdk_and_session_refuse_alike(caller: DirectSession, use: Callable[[], Any], request_: Any) -> None:
    assert refusal(use) == refusal(lambda: caller.call(request_))
    assert caller.generate(1, max_tokens=2).tokens


def test_too_many_log_probabilities_are_an_argument_there_and_a_limit_here(caller: DirectSession) -> None:
    kind, said = refusal(lambda: generate(logprobs=21))
    assert (kind, said) == (p.InvalidRequest, "logprobs must be a whole number from 0 to 20, not 21")
    with pytest.raises(LimitExceeded, match="logprobs = 21; 20 are allowed"):
        caller.call(p.StartGenerate(1, logprobs=21))


def test_a_constraint_goes_with_its_source(caller: DirectSession) -> None:
    """What the table refuses without a constraint is fine with one, on both sides."""
    assert generate(system_speculation=SpecConfig(["grammar"]), constrain=Regex("a")).finish == ""
    assert caller.call(p.StartGenerate(1, constraint=REGEX, **drafts(["grammar"]))).position == 5
