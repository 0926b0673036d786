"""``forward``, ``prompt_logprobs`` and ``model.embed`` on an engine without maths: sharing, refusals, no page left behind."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from tiers import examples

from inferd import protocol as p
from inferd.calls.forward_arguments import attention_runs
from inferd.protocol.floats import unpack_floats
from inferd_runtime.engine.engine import Engine, EngineOptions
from inferd_runtime.engine.jobs.forward_pass import ROWS_PER_STEP
from inferd_runtime.engine.sampling import probes
from inferd_runtime.engine.scheduling.tenants import Tenancy, TenantLimits
from inferd_runtime.session.operations import embeddings, passes
from inferd_runtime.testing.byte_tokenizer import VOCAB_SIZE
from inferd_runtime.testing.direct import DirectSession
from inferd_runtime.testing.null_driver import HIDDEN, NullDriver
from inferd_runtime.testing.served import null_model

ENTROPY = p.Probe("entropy")
BRANCHES = [[True, False, False], [False, True, False], [True, False, True]]


def connect(*, token_budget: int = 64, **settings: Any) -> DirectSession:
    driver = NullDriver(vocab_size=VOCAB_SIZE, **settings)
    return DirectSession(null_model(driver=driver, options=EngineOptions(token_budget)))


@pytest.fixture
def caller() -> Iterator[DirectSession]:
    caller = connect()
    yield caller
    caller.engine.check_integrity()
    caller.close()


def driver_of(caller: DirectSession) -> NullDriver:
    driver = caller.engine.driver
    assert isinstance(driver, NullDriver)
    return driver


def log_softmax(logits: np.ndarray) -> np.ndarray:
    scores = logits.astype(np.float64)
    return np.asarray(scores - scores.max() - np.log(np.exp(scores - scores.max()).sum()))


def tree(base: int, rows: Sequence[Sequence[bool]] = BRANCHES) -> list[list[int]]:
    return attention_runs([[*[True] * base, *row] for row in rows], len(rows))


def logits_of(row: p.RowResult) -> list[float]:
    return row.probes[0].values


# -- What rows bring --------------------------------------------------------------------------------------------------


def test_probes_read_the_rows_logits(caller: DirectSession) -> None:
    asked = [p.Probe("logits"), p.Probe("distribution", 0.5, 3), p.Probe("logprobs", tokens=[9, 0]), ENTROPY]
    row = caller.call(p.Forward(caller.text("a"), [*b"bc"], at=[0], top=2, probes=asked)).rows[0]
    raw = driver_of(caller).logits([*b"ab"])
    logits, distribution, logprobs, entropy = row.probes
    assert logits.values == raw.tolist()
    expected = log_softmax(raw)
    assert logprobs.tokens == [9, 0]
    assert logprobs.values == pytest.approx(expected[[9, 0]].tolist())
    assert entropy.value == pytest.approx(-float((np.exp(expected) * expected).sum()))
    cold = np.exp(log_softmax(raw / 0.5))
    assert distribution.tokens == np.argsort(-cold)[:3].tolist()
    assert distribution.values == pytest.approx(np.sort(cold)[:-4:-1].tolist())
    assert row.top_tokens == distribution.tokens[:2]


def test_a_distribution_without_k_is_everything_that_is_possible(caller: DirectSession) -> None:
    request = p.Forward(
        caller.text("a"), [5], mask=[3, 1, 2], probes=[p.Probe("distribution"), p.Probe("distribution", k=9)]
    )
    found, nine = caller.call(request).rows[0].probes
    assert found == nine
    assert sorted(found.tokens) == [1, 2, 3]
    assert sum(found.values) == pytest.approx(1)
    assert found.values == sorted(found.values, reverse=True)


def test_a_vanishing_temperature_is_certain(caller: DirectSession) -> None:
    request = p.Forward(caller.text("a"), [5], probes=[p.Probe("distribution", 5e-324)])
    row = caller.call(request).rows[0]
    assert (row.probes[0].tokens, row.probes[0].values) == ([row.token], [1.0])


def test_mask_and_bias_hold_for_every_draw(caller: DirectSession) -> None:
    for seed in range(12):
        context = caller.text("draw")
        sampling = p.Sampling(temperature=2.0, seed=seed)
        rows = caller.call(p.Forward(context, [1, 2], at=[0, 1], sampling=sampling, mask=[3, 4, 5], top=9)).rows
        assert {row.token for row in rows} <= {3, 4, 5}
        assert all(sorted(row.top_tokens) == [3, 4, 5] for row in rows)
        forced = p.Forward(context, [1], sampling=sampling, bias_tokens=[7], bias_values=[99.0])
        assert caller.call(forced).rows[0].token == 7
        caller.call(p.ReleaseContext(context))


def test_replies_survive_json(caller: DirectSession) -> None:
    request = p.Forward(caller.text("a"), [5], mask=[3], top=1, probes=[p.Probe("logits"), ENTROPY], at=[0])
    decoded = msgspec.json.decode(json.dumps(p.to_plain(request)), type=p.Forward)
    assert decoded == request
    reply = caller.call(decoded)
    assert p.reply_from_plain(p.ForwardResult, json.loads(msgspec.json.encode(reply))) == reply
    values = logits_of(reply.rows[0])
    assert (min(values), values[3]) == (-math.inf, max(values))
    assert reply.rows[0].probes[1].value == 0


def test_rows_far_apart_cost_few_rows_of_logits() -> None:
    """Only chunks with wanted rows bring logits, and few at a time."""
    caller = connect(token_budget=500)
    widest = 0
    forward = driver_of(caller).forward

    def watch(batch: Any) -> Any:
        nonlocal widest
        widest = max(widest, len(batch.logit_rows))
        return forward(batch)

    driver_of(caller).forward = watch  # type: ignore[method-assign]
    tokens = [at % 11 for at in range(300)]
    rows = caller.call(p.Forward(caller.text("a"), tokens, at=[299, 5], probes=[p.Probe("logits")])).rows
    for row, end in zip(rows, (300, 6), strict=True):
        assert logits_of(row) == driver_of(caller).logits(tokens[:end]).tolist()
    assert widest == ROWS_PER_STEP
    caller.close()


def test_rows_are_computed_even_where_another_context_has_computed_the_tokens(caller: DirectSession) -> None:
    text = [*b"a prompt that two contexts share"]
    first = caller.call(p.Forward(caller.context(), text, at=[0, 9, 31]))
    caller.call(p.FlushContext(caller.context(p.Part("tokens", tokens=text))))
    assert caller.call(p.Forward(caller.context(), text, at=[0, 9, 31])) == first
    scores = [caller.call(p.PromptLogprobs(caller.context(), text)) for _ in range(2)]
    assert scores[0] == scores[1]
    embedded = [caller.call(p.Embed(tokens=[text])) for _ in range(2)]
    assert embedded[0] == embedded[1]


def test_a_context_shares_prompts_again_after_a_pass(caller: DirectSession) -> None:
    text = [*b"a prompt that two contexts share"]
    caller.call(p.FlushContext(caller.context(p.Part("tokens", tokens=text))))
    context = caller.context()
    caller.call(p.Forward(context, [1, 2, 3], at=[0]))
    caller.call(p.TruncateContext(context, 0))
    caller.call(p.AppendContext(context, [p.Part("tokens", tokens=text)]))
    before = driver_of(caller).tokens_fed
    caller.call(p.FlushContext(context))
    assert driver_of(caller).tokens_fed - before < len(text) / 2


# -- Where tokens stand and what they see -----------------------------------------------------------------------------


def test_a_tree_equals_its_branches(caller: DirectSession) -> None:
    context = caller.text("prompt")
    request = p.Forward(
        context, [*b"xyz"], at=[0, 1, 2], probes=[p.Probe("logits")], attention_mask=tree(6), positions=[6, 6, 7]
    )
    rows = caller.call(request).rows
    for row, chain in zip(rows, ("promptx", "prompty", "promptxz"), strict=True):
        assert logits_of(row) == driver_of(caller).logits([*chain.encode()]).tolist()


def generated_after_a_tree(caller: DirectSession, recompute: bool) -> list[int]:
    context = caller.text("prompt")
    caller.call(p.Forward(context, [*b"xyz"], attention_mask=tree(6), positions=[6, 6, 7]))
    if recompute:
        caller.session._state.contexts[context].context.uncompute(0)
    return caller.generate(context, max_tokens=9).tokens


def test_a_tree_can_be_computed_again(caller: DirectSession) -> None:
    tokens = generated_after_a_tree(caller, recompute=True)
    assert tokens == generated_after_a_tree(caller, recompute=False)
    assert tokens != caller.generate(caller.text("promptxyz"), max_tokens=9).tokens


def test_drafts_behind_a_tree_change_nothing(caller: DirectSession) -> None:
    def generated(**fields: Any) -> tuple[list[int], int]:
        context = caller.text("abcabcabc")
        caller.call(p.Forward(context, [*b"bab"], attention_mask=tree(9), positions=[9, 9, 10]))
        hot = p.Sampling(temperature=1.0, seed=5)
        answer = caller.generate(context, max_tokens=60, sampling=hot, **fields)
        return answer.tokens, sum(step.drafted for step in answer.steps)

    plain, drafted = generated()
    assert drafted == 0
    ahead, drafted = generated(system_speculation=True)
    assert ahead == plain
    assert drafted > 0


def test_a_tree_survives_pressure() -> None:
    """Others need its pages in between; it comes back from the host."""
    straight = connect(pages=64, token_budget=5)
    expected = generated_after_a_tree(straight, recompute=False)
    straight.close()
    caller = connect(pages=10, token_budget=5)
    context = caller.text("prompt")
    caller.call(p.Forward(context, [*b"xyz"], attention_mask=tree(6), positions=[6, 6, 7]))
    for text in ("another long text, longer than most", "and one more long text"):
        caller.call(p.ReleaseContext(filled(caller, text)))
    assert caller.engine.parking.swapped > 0
    assert caller.generate(context, max_tokens=9).tokens == expected
    caller.engine.check_integrity()
    caller.close()


def filled(caller: DirectSession, text: str) -> int:
    context = caller.text(text)
    caller.generate(context, max_tokens=3)
    return context


def test_cutting_a_tree_off_leaves_no_trace(caller: DirectSession) -> None:
    context = caller.text("prompt")
    caller.call(p.Forward(context, [*b"xyz"], attention_mask=tree(6), positions=[6, 6, 7]))
    fork = caller.call(p.ForkContext(context)).context
    caller.call(p.TruncateContext(context, 6))
    plain = caller.generate(caller.text("prompt"), max_tokens=9).tokens
    assert caller.generate(context, max_tokens=9).tokens == plain
    assert caller.tokens(fork) == [*b"promptxyz"]
    assert caller.generate(fork, max_tokens=9).tokens == generated_after_a_tree(caller, recompute=False)


def test_what_follows_stands_behind_the_last_position(caller: DirectSession) -> None:
    one, other = caller.text("ab"), caller.text("ab")
    caller.call(p.Forward(one, [*b"cd"], positions=[10, 11]))
    rows = caller.call(p.Forward(one, [*b"ef"], at=[0, 1])).rows
    same = caller.call(p.Forward(other, [*b"cdef"], at=[2, 3], positions=[10, 11, 12, 13])).rows
    assert [row.entropy for row in rows] == [row.entropy for row in same]
    unmoved = caller.call(p.Forward(caller.text("ab"), [*b"cdef"], at=[2, 3])).rows
    assert [row.entropy for row in rows] != [row.entropy for row in unmoved]


def test_no_position_goes_beyond_the_models(caller: DirectSession) -> None:
    context = caller.text("ab")
    caller.call(p.Forward(context, [5], positions=[508]))
    generated = caller.generate(context, max_tokens=50)
    assert (len(generated.tokens), generated.finish) == (3, "length")
    with pytest.raises(p.LimitExceeded, match="context"):
        caller.call(p.AppendContext(context, [p.Part("text", text="x")]))
    caller.call(p.TruncateContext(context, 2))
    assert caller.generate(context, max_tokens=50) == caller.generate(caller.text("ab"), max_tokens=50)


# -- Sharing the batch ------------------------------------------------------------------------------------------------


def test_passes_share_the_batch_and_change_no_generation() -> None:
    caller = connect(token_budget=40, pages=512)
    texts = [f"stream {at}" for at in range(5)]
    sampling = p.Sampling(temperature=1.0, seed=3)
    alone = [caller.generate(caller.text(text), max_tokens=30, sampling=sampling).tokens for text in texts]
    contexts = [caller.text(text) for text in texts]
    handles = [caller.call(p.StartGenerate(context, sampling, 30)).generation for context in contexts]
    before = caller.engine.steps
    tickets = [caller.submit(request)[1] for request in mixed_requests(caller)]
    while not all(tickets):
        assert caller.engine.step()
    assert caller.engine.steps - before < 25
    assert not any(isinstance(reply, p.InferdError) for replies in tickets for reply in replies)
    tokens: list[list[int]] = [[] for _ in handles]
    for at, handle in enumerate(handles):
        while not (reply := caller.call(p.NextSteps(handle))).finish:
            tokens[at] += [token for step in reply.steps for token in step.tokens]
        tokens[at] += [token for step in reply.steps for token in step.tokens]
    assert tokens == alone
    caller.engine.check_integrity()
    caller.close()


def mixed_requests(caller: DirectSession) -> Iterator[Any]:
    for at in range(3):
        yield p.Forward(caller.text(f"tree {at}"), [*b"xyz"], attention_mask=tree(6), positions=[6, 6, 7 + at])
        yield p.Forward(caller.text("masked"), [*b"abcdefgh"], at=[1, 7], mask=[1, 2, 3], probes=[ENTROPY])
        yield p.PromptLogprobs(caller.text("score"), [at] * 60, top=2)
        yield p.Embed(texts=[f"embed me {at}", "and me"])


# -- Prompt log-probabilities -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("budget", "pages"), [(64, 256), (5, 256), (64, 8)])
def test_prompt_logprobs_are_those_of_forward(budget: int, pages: int) -> None:
    caller = connect(token_budget=budget, pages=pages)
    tokens = [at % 7 for at in range(26)]
    reply = caller.call(p.PromptLogprobs(caller.context(), tokens, top=2))
    assert reply.tokens[0] == p.TokenLogprob(tokens[0])
    for at, score in enumerate(reply.tokens[1:], start=1):
        expected = log_softmax(driver_of(caller).logits(tokens[:at]))
        assert score.logprob == pytest.approx(expected[tokens[at]])
        assert score.rank == 1 + int((expected > expected[tokens[at]]).sum())
        assert score.top_tokens == np.argsort(-expected)[:2].tolist()
    caller.close()


def test_prompt_logprobs_continue_a_context_and_leave_it_ready(caller: DirectSession) -> None:
    context = caller.text("ab")
    caller.call(p.Forward(context, [*b"c"]))
    reply = caller.call(p.PromptLogprobs(context, [*b"de"]))
    assert reply.length == 5
    for score, history in zip(reply.tokens, ("abc", "abcd"), strict=True):
        expected = log_softmax(driver_of(caller).logits([*history.encode()]))
        assert score.logprob == pytest.approx(expected[score.token])
    assert caller.generate(context, max_tokens=5) == caller.generate(caller.text("abcde"), max_tokens=5)
    single = caller.call(p.PromptLogprobs(caller.context(), [9]))
    assert (single.tokens, single.length) == ([p.TokenLogprob(9)], 1)


def test_a_cancelled_scoring_frees_the_context(caller: DirectSession) -> None:
    context = caller.context()
    ticket, replies = caller.submit(p.PromptLogprobs(context, [3] * 200))
    caller.engine.step()
    caller.session.cancel(ticket)
    assert isinstance(replies[0], p.Cancelled)
    assert caller.call(p.FlushContext(context)).length == 0


# -- Embeddings -------------------------------------------------------------------------------------------------------


def vectors(reply: p.Embeddings) -> list[np.ndarray]:
    return [np.array(unpack_floats(packed)).reshape(-1, reply.size) for packed in reply.packed]


def states_of(caller: DirectSession, tokens: list[int]) -> np.ndarray:
    return np.stack([driver_of(caller).hidden(tokens[: at + 1]) for at in range(len(tokens))]).astype(np.float64)


@pytest.mark.parametrize("budget", [64, 3])
def test_embeddings_are_pooled_states(budget: int) -> None:
    caller = connect(token_budget=budget, pages=24)
    texts = ["a", "a longer text", "words"]
    for pooling, pool in {
        "mean": lambda states: states.mean(0, keepdims=True),
        "last": lambda states: states[-1:],
        "cls": lambda states: states[:1],
        "none": lambda states: states,
    }.items():
        raw = caller.call(p.Embed(texts=texts, pooling=pooling, normalize=False))
        unit = caller.call(p.Embed(tokens=[[*text.encode()] for text in texts], pooling=pooling))
        assert raw.size == HIDDEN
        for text, got, scaled in zip(texts, vectors(raw), vectors(unit), strict=True):
            expected = pool(states_of(caller, [*text.encode()]))
            assert got == pytest.approx(expected, abs=1e-6)
            assert scaled == pytest.approx(expected / np.linalg.norm(expected, axis=1, keepdims=True), abs=1e-6)
    assert caller.call(p.GetUsage()).prompt_tokens == 8 * sum(map(len, texts))
    caller.engine.check_integrity()
    caller.close()


@pytest.mark.parametrize("pooling", ["mean", "last", "cls", "none"])
def test_what_has_to_be_computed_again_counts_once(caller: DirectSession, pooling: str) -> None:
    tokens = [at % 9 for at in range(200)]
    straight = (
        caller.call(p.Embed(tokens=[tokens], pooling=pooling)),
        caller.call(p.PromptLogprobs(caller.context(), tokens)),
    )
    for request, expected in zip(
        (p.Embed(tokens=[tokens], pooling=pooling), p.PromptLogprobs(caller.context(), tokens)), straight, strict=True
    ):
        _, replies = caller.submit(request)
        caller.engine.step()
        for context in caller.engine.contexts:
            context.uncompute(0)
        while not replies:
            assert caller.engine.step()
        assert replies == [expected]


def test_passes_with_an_adapter_give_it_back(caller: DirectSession) -> None:
    weights = caller.call(p.UploadAdapter(b"weights")).upload
    caller.call(p.LoadAdapter("mine", json.dumps({"peft_type": "LORA", "r": 8, "target_modules": ["q_proj"]}), weights))
    for adapted, plain in (
        (p.Embed(texts=["text"], adapter="mine"), p.Embed(texts=["text"])),
        (p.PromptLogprobs(caller.context(), [1, 2, 3], adapter="mine"), p.PromptLogprobs(caller.context(), [1, 2, 3])),
    ):
        assert caller.call(adapted) != caller.call(plain)
    with pytest.raises(p.InvalidRequest):
        caller.call(p.Embed(tokens=[[]], adapter="mine"))
    caller.call(p.DropAdapter("mine"))
    assert driver_of(caller).adapters == {}


def test_a_failing_or_cancelled_embedding_gives_everything_back(caller: DirectSession) -> None:
    with pytest.raises(p.LimitExceeded, match="512"):
        caller.call(p.Embed(texts=["short", "x" * 600]))
    with pytest.raises(p.InvalidRequest, match="no token"):
        caller.call(p.Embed(tokens=[[1], []]))
    ticket, replies = caller.submit(p.Embed(texts=["x" * 300, "y" * 300]))
    caller.engine.step()
    caller.engine.check_integrity()
    caller.session.cancel(ticket)
    assert isinstance(replies[0], p.Cancelled)
    assert not caller.engine.step()
    _, replies = caller.submit(p.Embed(texts=["z" * 300]))
    caller.engine.step()
    caller.session.close()
    assert isinstance(replies[0], p.Cancelled)
    assert list(caller.engine.contexts) == []


def test_many_embeddings_stay_inside_a_small_quota(monkeypatch: pytest.MonkeyPatch) -> None:
    """One after the other where all at once would not fit."""
    driver = NullDriver(vocab_size=VOCAB_SIZE)
    engine = Engine(driver, EngineOptions(64, tenancy=Tenancy(named={"direct": TenantLimits(kv_pages=12)})))
    caller = DirectSession(dataclasses.replace(null_model(driver=driver), engine=engine))
    texts = [f"{at} " * 12 for at in range(9)]
    held = []
    _, replies = caller.submit(p.Embed(texts=texts))
    while not replies:
        assert engine.step()
        held.append(sum(len(context.table.pages) for context in engine.contexts))
    assert max(held) <= 12
    roomy = connect()
    assert replies == [roomy.call(p.Embed(texts=texts))]
    engine.check_integrity()
    monkeypatch.setattr(embeddings, "IN_FLIGHT_TOKENS", 30)
    _, replies = roomy.submit(p.Embed(texts=texts))
    assert len(list(roomy.engine.contexts)) == 1
    while not replies:
        assert roomy.engine.step()
    assert replies == [caller.call(p.Embed(texts=texts))]
    assert engine.steps > 0


def test_an_embedding_that_cannot_fit_names_the_limit() -> None:
    caller = connect(pages=6)
    with pytest.raises(p.LimitExceeded, match="KV cache is full"):
        caller.call(p.Embed(texts=["x" * 200, "y"]))
    assert list(caller.engine.contexts) == []
    caller.close()


# -- The end of a context ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("computed", ["nothing", "all but the last", "all"])
def test_a_pass_without_tokens_looks_at_the_end_and_appends_nothing(caller: DirectSession, computed: str) -> None:
    context = caller.text("hello")
    if computed == "all but the last":
        caller.call(p.FlushContext(context))
    if computed == "all":
        caller.call(p.Forward(context, [*b"!"]))
        caller.call(p.AppendContext(context, [p.Part("tokens", tokens=[1])]))
        caller.call(p.Forward(context, [2]))
    held = caller.tokens(context)
    hot = p.Sampling(temperature=1.0, seed=4)
    for _ in range(2):
        result = caller.call(p.Forward(context, [], sampling=hot, probes=[p.Probe("logits")]))
        assert logits_of(result.rows[0]) == driver_of(caller).logits(held).tolist()
        assert (result.rows[0].index, result.length) == (-1, len(held))
    assert caller.tokens(context) == held
    assert caller.generate(context, sampling=hot, max_tokens=1).tokens == [result.rows[0].token]


def test_looking_at_a_shared_end_changes_nothing_for_who_shares_it(caller: DirectSession) -> None:
    context = caller.text("a prompt of some pages, all of them shared")
    caller.call(p.FlushContext(context))
    fork = caller.call(p.ForkContext(context)).context
    fed = driver_of(caller).tokens_fed
    rows = [caller.call(p.Forward(which, [], probes=[p.Probe("logits")])).rows[0] for which in (context, fork, fork)]
    assert len({tuple(logits_of(row)) for row in rows}) == 1
    assert driver_of(caller).tokens_fed == fed + 3
    tokens = [caller.generate(which, max_tokens=8).tokens for which in (context, fork)]
    assert tokens[0] == tokens[1]
    caller.engine.check_integrity()


def test_an_empty_context_has_no_end_to_look_at(caller: DirectSession) -> None:
    context = caller.context()
    with pytest.raises(p.InvalidRequest, match="the context is empty and no token is given"):
        caller.call(p.Forward(context, []))
    assert caller.call(p.Forward(context, [*b"ab"])).rows[0].index == 1


# -- Refusals ---------------------------------------------------------------------------------------------------------

BAD: list[tuple[Any, type[Exception], str]] = [
    (p.Forward(1, [1], mask=[VOCAB_SIZE]), p.InvalidRequest, f"mask: token id {VOCAB_SIZE}"),
    (p.Forward(1, [1], mask=[-1]), p.InvalidRequest, r"mask\[0\] must be a whole number"),
    (p.Forward(1, [1], mask=[]), p.InvalidRequest, "mask must allow"),
    (p.Forward(1, [1], bias_tokens=[VOCAB_SIZE], bias_values=[1.0]), p.InvalidRequest, "bias: token id"),
    (p.Forward(1, [1], bias_tokens=[1], bias_values=[]), p.InvalidRequest, "bias: 1 tokens but 0"),
    (
        p.Forward(1, [1], bias_tokens=[1], bias_values=[math.nan]),
        p.InvalidRequest,
        r"bias\[1\] must be a finite float32 .*, not nan",
    ),
    (p.Forward(1, [1], bias_tokens=[1, 1], bias_values=[1.0, 2.0]), p.InvalidRequest, "twice"),
    (p.Forward(1, [1], top=-1), p.InvalidRequest, "top must be a whole number of at least 0, not -1"),
    (p.Forward(1, [1], probes=[p.Probe("attention")]), p.InvalidRequest, "attention"),
    (
        p.Forward(1, [1], probes=[p.Probe("distribution", 0.0)]),
        p.InvalidRequest,
        "temperature must be finite and above 0, not 0.0",
    ),
    (
        p.Forward(1, [1], probes=[p.Probe("distribution", math.inf)]),
        p.InvalidRequest,
        "temperature must be finite and above 0, not inf",
    ),
    (p.Forward(1, [1], probes=[p.Probe("distribution", k=VOCAB_SIZE + 1)]), p.InvalidRequest, "k = "),
    (
        p.Forward(1, [1], probes=[p.Probe("distribution", k=-1)]),
        p.InvalidRequest,
        "k must be a whole number of at least 0, not -1",
    ),
    (p.Forward(1, [1], probes=[p.Probe("logprobs", tokens=[VOCAB_SIZE])]), p.InvalidRequest, "logprobs: token id"),
    (p.Forward(1, [1], probes=[p.Probe("logprobs")]), p.InvalidRequest, "name at least one token"),
    (p.Forward(1, [1], probes=[ENTROPY] * 33), p.LimitExceeded, "33 probes"),
    (p.Forward(1, [1, 2], attention_mask=[[0, 5], [0, 7]]), p.InvalidRequest, "speaks of 5 tokens"),
    (p.Forward(1, [1, 2], attention_mask=[[0, 7]]), p.InvalidRequest, "one row for each of the 2 tokens, not 1"),
    (p.Forward(1, [1], attention_mask=[[0, 7, -1]]), p.InvalidRequest, "speaks of 6 tokens"),
    (p.Forward(1, [1, 2], attention_mask=[[0, 7], [0, 7]]), p.InvalidRequest, "behind it"),
    (p.Forward(1, [], attention_mask=[[0, 5]]), p.InvalidRequest, "one row for each of the 0 tokens, not 1"),
    (p.Forward(1, [], positions=[5]), p.InvalidRequest, "one number for each of the 0 tokens, not 1"),
    (p.Forward(1, [1], attention_mask=[[0, 5, 1]]), p.InvalidRequest, "see itself"),
    (p.Forward(1, [1], attention_mask=[[6]]), p.InvalidRequest, "see itself"),
    (
        p.Forward(1, [1], positions=[-1]),
        p.InvalidRequest,
        r"positions\[0\] must be a whole number of at least 0, not -1",
    ),
    (p.Forward(1, [1], positions=[512]), p.InvalidRequest, "0 to 511"),
    (p.Forward(1, [1], positions=[5, 6]), p.InvalidRequest, "one number for each of the 1 tokens, not 2"),
    (p.PromptLogprobs(1, []), p.InvalidRequest, "at least one token"),
    (p.PromptLogprobs(1, [1], top=-1), p.InvalidRequest, "top must be a whole number of at least 0, not -1"),
    (p.PromptLogprobs(1, [VOCAB_SIZE]), p.InvalidRequest, str(VOCAB_SIZE)),
    (p.PromptLogprobs(1, [1] * 600), p.LimitExceeded, "512"),
    (p.Embed(), p.InvalidRequest, "texts or tokens"),
    (p.Embed(["a"], [[1]]), p.InvalidRequest, "not both"),
    (p.Embed(["a"], pooling="max"), p.InvalidRequest, "max"),
    (p.Embed(["a"], model="gpt-9"), p.NotFound, "gpt-9"),
    (p.Embed(["a"], adapter="nobody"), p.NotFound, "nobody"),
    (p.Embed(tokens=[[VOCAB_SIZE]]), p.InvalidRequest, str(VOCAB_SIZE)),
]


@pytest.mark.parametrize(("request_", "error", "says"), BAD, ids=[f"{each[0].op}: {each[2]}" for each in BAD])
def test_bad_requests_name_what_is_wrong_and_change_nothing(
    caller: DirectSession, request_: Any, error: type[Exception], says: str
) -> None:
    context = caller.text("hello")
    with pytest.raises(error, match=says):
        caller.call(request_)
    assert caller.tokens(context) == [*b"hello"]
    assert caller.session._state.contexts[context].context.irregular_from is None
    assert len(list(caller.engine.contexts)) == 1
    assert caller.generate(context, max_tokens=2).tokens


def test_replies_are_bounded(caller: DirectSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "MAX_NUMBERS", 3 * VOCAB_SIZE)
    context = caller.text("hello")
    three = p.Forward(context, [1, 2, 3], at=[0, 1, 2], probes=[p.Probe("logits")])
    assert len(caller.call(three).rows) == 3
    too_much = [
        p.Forward(context, [1, 2, 3], at=[0, 1, 2], probes=[p.Probe("logits"), ENTROPY]),
        p.Forward(context, [1, 2], at=[0, 1], probes=[p.Probe("distribution")]),
        p.Forward(context, [1, 2, 3], at=[0, 1, 2], top=VOCAB_SIZE),
        p.PromptLogprobs(context, [1] * 10, top=100),
        p.Embed(texts=["x" * 200], pooling="none"),
        p.Embed(texts=["x"] * 100),
    ]
    for request in too_much:
        with pytest.raises(p.LimitExceeded, match="numbers") as caught:
            caller.call(request)
        assert caught.value.detail["limit"] == "reply_numbers"
    assert caller.call(p.ContextTokens(context)).tokens == [*b"hello", 1, 2, 3]
    caller.engine.check_integrity()


def test_masks_and_inputs_are_bounded(caller: DirectSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passes, "MAX_RUNS", 4)
    with pytest.raises(p.LimitExceeded, match="attention_mask: 5 runs"):
        caller.call(p.Forward(caller.text("hello"), [1, 2], attention_mask=[[0, 6, 1], [0, 7]]))
    monkeypatch.setattr(p.passes, "MAX_INPUTS", 2)
    with pytest.raises(p.LimitExceeded, match="3 inputs"):
        caller.call(p.Embed(texts=["a", "b", "c"]))


RUN = st.integers(-2, 12) | st.sampled_from([0, 1 << 31, 1 << 32, (1 << 63) - 1])


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(st.lists(RUN, max_size=8), min_size=1, max_size=4), st.integers(0, 3))
def test_any_runs_are_a_mask_or_refused(rows: list[list[int]], held: int) -> None:
    caller = connect()
    context = caller.context(p.Part("tokens", tokens=[7] * held))
    tokens = list(range(len(rows)))
    _, replies = caller.submit(p.Forward(context, tokens, attention_mask=rows, probes=[p.Probe("logits")]))
    while not replies:
        caller.engine.step()
    done = replies[0]
    if isinstance(done, p.InferdError):
        assert "attention_mask[" in done.message
        assert caller.tokens(context) == [7] * held
    else:
        spread = [[at % 2 == 1 for at, run in enumerate(row) for _ in range(run)] for row in rows]
        plain = attention_runs([[*row, *[False] * (held + len(rows) - len(row))] for row in spread], len(rows))
        other = caller.context(p.Part("tokens", tokens=[7] * held))
        twin = caller.call(p.Forward(other, tokens, attention_mask=plain, probes=[p.Probe("logits")]))
        assert twin.rows == done.rows
    caller.engine.check_integrity()
    caller.close()


def test_a_release_ends_the_pass_that_runs_on_the_context(caller: DirectSession) -> None:
    for request in (lambda context: p.Forward(context, [1, 2]), p.FlushContext):
        context = caller.text("hello")
        _, replies = caller.submit(request(context))
        caller.call(p.ReleaseContext(context))
        assert [type(reply) for reply in replies] == [p.InvalidRequest]
        assert "released" in replies[0].message
    while caller.engine.step():
        pass
    caller.engine.check_integrity()


def test_another_operation_on_the_context_waits_for_its_turn(caller: DirectSession) -> None:
    context = caller.text("hello")
    _, replies = caller.submit(p.Forward(context, [1, 2]))
    for request in (p.PromptLogprobs(context, [1]), p.Forward(context, [1]), p.StartGenerate(context)):
        with pytest.raises(p.InvalidRequest, match="in use"):
            caller.call(request)
    while not replies:
        caller.engine.step()
    assert caller.call(p.PromptLogprobs(context, [1])).length == 8
