"""A request is refused in the same words by the SDK, before anything is sent, and by the session that gets it from elsewhere."""

from __future__ import annotations

import asyncio
import functools
import inspect
import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from inferd import (
    AllOf,
    Choice,
    Context,
    Distribution,
    DraftTree,
    Entropy,
    Exact,
    Grammar,
    InferdError,
    JsonSchema,
    Logprobs,
    Matcher,
    Model,
    Regex,
    Sampler,
    SpecConfig,
    Speculator,
    Tag,
    Tagged,
    protocol as p,
)
from inferd.model import Tokenizer
from inferd.transport import transport_in_force
from inferd_runtime.testing.direct import DirectSession
from inferd_runtime.testing.served import null_model
from inferd_runtime.testing.transport import DirectTransport, run_program

GREEDY = Sampler.argmax()
NOTHING_IS_SENT: Any = None
TOO_LARGE = bytes(p.MAX_EXPORT_BYTES + 1)
MATCHER = Matcher(NOTHING_IS_SENT, NOTHING_IS_SENT, may_end=False)
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
DEEP = functools.reduce(lambda inside, _: Exact(inside), range(16), Exact(Regex("a")))
MIXED = AllOf([Regex("a"), JsonSchema({}, mode="best_effort")])
LOOSE = p.ConstraintSpec("json_schema", "{}", mode="best_effort")
MANY = dict.fromkeys(range(p.MAX_BIASES + 1), 1.0)

GENERATE: list[tuple[Callable[[], Any], dict[str, Any]]] = [
    (lambda: generate(max_tokens=0), {"max_tokens": 0}),
    (lambda: generate(stop=["a", ""]), {"stop": ["a", ""]}),
    (lambda: generate(priority=4), {"priority": 4}),
    (lambda: generate(priority=-4), {"priority": -4}),
    (lambda: generate(logprobs=-1), {"logprobs": -1}),
    (lambda: generate(logprobs=21), {"logprobs": 21}),
    (lambda: generate(logprob_tokens=[1]), {"logprob_tokens": [1]}),
    (lambda: generate(logprobs=0, logprob_tokens=[1] * 65), {"logprobs": 0, "logprob_tokens": [1] * 65}),
    (lambda: generate(logprobs=0, logprob_tokens=[-1]), {"logprobs": 0, "logprob_tokens": [-1]}),
    (lambda: generate(predict=[1, -1]), {"predicted": [1, -1]}),
    (lambda: generate(constrain=DEEP), {"constraint": DEEP.constraint}),
    (lambda: generate(constrain=MIXED), {"constraint": MIXED.constraint}),
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
    (lambda: GREEDY.biased({-1: 1.0}), sampled(bias_tokens=(-1,), bias_values=(1.0,))),
    (lambda: GREEDY.biased(MANY), sampled(bias_tokens=tuple(MANY), bias_values=tuple(MANY.values()))),
]

OTHERS: list[tuple[Callable[[], Any], Any]] = [
    (lambda: Context().verify([1] * 65), p.VerifyDraft(1, [1] * 65)),
    (lambda: Context().verify([1, 2], [-1]), p.VerifyDraft(1, [1, 2], [-1])),
    (lambda: Context().verify([1, 2], [-1, 1]), p.VerifyDraft(1, [1, 2], [-1, 1])),
    (lambda: Context().forward([], at=[0]), p.Forward(1, [], at=[0])),
    (lambda: Context().forward([1], at=[1]), p.Forward(1, [1], at=[1])),
    (lambda: Context().forward([1], top=-1), p.Forward(1, [1], top=-1)),
    (lambda: Context().forward([1], bias={1: math.inf}), p.Forward(1, [1], bias_tokens=[1], bias_values=[math.inf])),
    (lambda: Context().forward([1], mask=[]), p.Forward(1, [1], mask=[])),
    (lambda: Context().forward([1], positions=[5, 6]), p.Forward(1, [1], positions=[5, 6])),
    (lambda: Context().forward([1, 2], attention_mask=[[True] * 7]), p.Forward(1, [1, 2], attention_mask=[[0, 7]])),
    (
        lambda: Context().forward([1], sampler=GREEDY.penalized(repetition=1.1)),
        p.Forward(1, [1], sampling=p.Sampling(repetition_penalty=1.1)),
    ),
    (lambda: Context().forward([1], probes=[Entropy()] * 33), p.Forward(1, [1], probes=[p.Probe("entropy")] * 33)),
    (lambda: Distribution(math.inf), p.Forward(1, [1], probes=[p.Probe("distribution", math.inf)])),
    (lambda: Distribution(k=-1), p.Forward(1, [1], probes=[p.Probe("distribution", k=-1)])),
    (lambda: Logprobs([-1]), p.Forward(1, [1], probes=[p.Probe("logprobs", tokens=[-1])])),
    (lambda: Context().forward([1], bias={-1: 1.0}), p.Forward(1, [1], bias_tokens=[-1], bias_values=[1.0])),
    (lambda: Logprobs([]), p.Forward(1, [1], probes=[p.Probe("logprobs")])),
    (lambda: Context().prompt_logprobs([]), p.PromptLogprobs(1, [])),
    (lambda: Context().prompt_logprobs([1], top=-1), p.PromptLogprobs(1, [1], top=-1)),
    (lambda: Context().prompt_logprobs([-1]), p.PromptLogprobs(1, [-1])),
    (lambda: MODEL.embed(["a"], pooling="max"), p.Embed(["a"], pooling="max")),
    (lambda: MODEL.embed([[1], []]), p.Embed(tokens=[[1], []])),
    (lambda: MODEL.embed([[1], [2, -1]]), p.Embed(tokens=[[1], [2, -1]])),
    (lambda: MODEL.embed(["a"] * 1025), p.Embed(["a"] * 1025)),
    (lambda: MODEL.tokenizer.decode([1, -1]), p.Detokenize([1, -1])),
    (lambda: Context().verify([1, -1]), p.VerifyDraft(1, [1, -1])),
    (lambda: Context().verify([1, 2], [-2, -1]), p.VerifyDraft(1, [1, 2], [-2, -1])),
    (lambda: Context().verify(generated=-1), p.VerifyDraft(1, generated=-1)),
    (lambda: Context().forward([1, -1]), p.Forward(1, [1, -1])),
    (lambda: Context().forward([1], at=[-1]), p.Forward(1, [1], at=[-1])),
    (lambda: Context().forward([1], positions=[-1]), p.Forward(1, [1], positions=[-1])),
    (lambda: Context().forward([1], mask=[-1]), p.Forward(1, [1], mask=[-1])),
    (lambda: Context().append([1, -1]), p.AppendContext(1, [p.Part("tokens", tokens=[1, -1])])),
    (lambda: Context().truncate(-1), p.TruncateContext(1, -1)),
    (lambda: Context().tokens(-1), p.ContextTokens(1, -1)),
    (lambda: Context().save("a b"), p.SaveContext(1, "a b")),
    (lambda: Context.open(""), p.OpenSaved("")),
    (lambda: Context.take("a" * 129), p.TakeSaved("a" * 129)),
    (lambda: Context.delete("?"), p.DeleteSaved("?")),
    (lambda: Context.from_bytes(TOO_LARGE), p.ImportContext(TOO_LARGE)),
    (lambda: MATCHER.accept([-1]), p.AcceptTokens(1, [-1])),
    (lambda: MATCHER.rollback(-1), p.RollbackMatcher(1, -1)),
    *(
        (make, p.CompileGrammar(sent))
        for make, sent in [
            (lambda: JsonSchema({}, mode="loose"), p.ConstraintSpec("json_schema", "{}", mode="loose")),  # type: ignore[call-overload]
            (lambda: Choice([]), p.ConstraintSpec("choice")),
            (lambda: AllOf([]), p.ConstraintSpec("all_of")),
            (lambda: Tagged([]), p.ConstraintSpec("tagged")),
            (
                lambda: Tagged([Tag("", Regex("a"), "x")]),
                p.ConstraintSpec("tagged", tags=[p.TagConstraint("", REGEX, "x")]),
            ),
            (lambda: Grammar.compile(DEEP), DEEP.constraint),
            (lambda: Grammar.compile(MIXED), MIXED.constraint),
        ]
    ),
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


class Nothing:
    """A constraint of the program's own that allows no token."""

    def step(self, accepted: list[int]) -> list[int]:
        return []


class Crooked(Speculator):
    """Drafts a tree in which a token follows itself."""

    def draft(self) -> DraftTree:
        return DraftTree([1, 2], [-1, 1])


def test_an_empty_mask_of_a_step_is_refused_alike(caller: DirectSession) -> None:
    runtime = DirectTransport()
    try:
        with transport_in_force(runtime):
            said = refusal(lambda: Context().append("x").generate(GREEDY, constrain=Nothing()).collect_tokens())
    finally:
        runtime.direct.close()
    assert not [request for request in runtime.requests if isinstance(request, p.NextSteps)]
    generation = caller.call(p.StartGenerate(1, program_constraint=True)).generation
    assert said == refusal(lambda: caller.call(p.NextSteps(generation, mask=[])))
    assert said == refusal(lambda: caller.call(p.NextSteps(generation, mask=[], mask_bits="AAAA")))


def test_a_draft_of_a_step_is_refused_alike(caller: DirectSession, capsys: pytest.CaptureFixture[str]) -> None:
    """The SDK goes on without the speculator, and says what the session would have said."""
    tokens = run_program(lambda: Context().append("x").generate(GREEDY, speculator=Crooked()).collect_tokens())
    assert tokens
    generation = caller.call(p.StartGenerate(1, program_speculation=True)).generation
    kind, said = refusal(lambda: caller.call(p.NextSteps(generation, [1, 2], [5, 6], [-1, 1])))
    assert kind is p.InvalidRequest
    assert said in capsys.readouterr().err


def test_a_constraint_goes_with_its_source(caller: DirectSession) -> None:
    """What the table refuses without a constraint is fine with one, on both sides."""
    assert generate(system_speculation=SpecConfig(["grammar"]), constrain=Regex("a")).finish == ""
    assert caller.call(p.StartGenerate(1, constraint=REGEX, **drafts(["grammar"]))).position == 5
