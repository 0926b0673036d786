"""A program chooses each token: what it is offered, what it may take, and that the rest of a generation is as ever."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from sampling_driver import SamplingNullDriver
from tiers import examples

from inferd import protocol as p
from inferd.protocol.floats import unpack_floats
from inferd_runtime.testing.byte_tokenizer import END, VOCAB_SIZE
from inferd_runtime.testing.direct import DirectSession, Generated
from inferd_runtime.testing.null_driver import NullDriver
from inferd_runtime.testing.served import null_model

Pick = Callable[[p.CandidateRow], int]
JSON = p.ConstraintSpec(
    "json_schema", '{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}'
)


@pytest.fixture(params=[NullDriver, SamplingNullDriver])
def caller(request: pytest.FixtureRequest) -> Iterator[DirectSession]:
    caller = DirectSession(null_model(driver=request.param(vocab_size=VOCAB_SIZE)))
    yield caller
    caller.engine.check_integrity()
    caller.close()


def tokens_of(row: p.CandidateRow) -> list[int]:
    return [int(token) for token in np.frombuffer(base64.b64decode(row.tokens), "<u4")]


def best(row: p.CandidateRow) -> int:
    return tokens_of(row)[0]


def start(caller: DirectSession, context: int, **fields: Any) -> int:
    return int(caller.call(p.StartGenerate(context, **{"candidates": 8, **fields})).generation)


def chosen(
    caller: DirectSession, context: int, pick: Pick = best, **fields: Any
) -> tuple[Generated, list[p.CandidateRow]]:
    """Run a generation whose tokens ``pick`` chooses, and close it. Returns it, and the rows that were offered."""
    generation = start(caller, context, **fields)
    reply, steps, rows = caller.call(p.NextSteps(generation)), list[p.Step](), list[p.CandidateRow]()
    while True:
        steps += reply.steps
        if reply.finish:
            caller.call(p.CloseGenerate(generation))
            tokens = [token for step in steps for token in step.tokens]
            return Generated(tokens, "".join(step.text for step in steps), steps, reply.finish), rows
        assert len(reply.candidates) == 1
        rows += reply.candidates
        reply = caller.call(p.NextSteps(generation, token=pick(rows[-1])))


# -- What is offered --------------------------------------------------------------------------------------------------


def test_the_row_is_the_models_and_the_best_of_each_is_what_argmax_writes(caller: DirectSession) -> None:
    plain = caller.generate(caller.text("abc"), max_tokens=12).tokens
    made, rows = chosen(caller, caller.text("abc"), max_tokens=12, candidates=0)
    driver = caller.engine.driver
    assert isinstance(driver, NullDriver)
    assert (made.tokens, made.finish, len(made.steps)) == (plain, "length", 12)
    for at, row in enumerate(rows):
        logits = driver.logits([*b"abc", *plain[:at]]).astype(np.float64)
        expected = logits - logits.max() - np.log(np.exp(logits - logits.max()).sum())
        order = np.argsort(-expected, kind="stable")
        assert tokens_of(row) == order.tolist()
        assert unpack_floats(row.logprobs) == pytest.approx(expected[order].tolist(), abs=1e-5)
        assert row.entropy == pytest.approx(-float((np.exp(expected) * expected).sum()))
        assert (row.position, 0 < row.uniform < 1) == (3 + at, True)


def test_penalties_bias_and_masks_come_first(caller: DirectSession) -> None:
    sampling = p.Sampling(repetition_penalty=1.5, presence_penalty=0.7, bias_tokens=(65, 66), bias_values=(30.0, 29.0))
    plain = caller.generate(caller.text("abc"), max_tokens=10, sampling=sampling).tokens
    made, rows = chosen(caller, caller.text("abc"), max_tokens=10, sampling=sampling)
    assert made.tokens == plain
    assert all({65, 66} <= set(tokens_of(row)) for row in rows)
    constraint = p.ConstraintSpec("regex", value="[xy]{3}")
    made, rows = chosen(caller, caller.text("abc"), lambda row: tokens_of(row)[-1], constraint=constraint)
    assert (len(made.text), set(made.text) <= set("xy"), made.finish) == (3, True, "stop")
    assert all(set(tokens_of(row)) <= set(b"xy") for row in rows)
    assert all(np.exp(unpack_floats(row.logprobs)).sum() == pytest.approx(1.0) for row in rows)


def test_numbers_to_draw_by_follow_from_seed_position_and_fork(caller: DirectSession) -> None:
    def numbers(context: int, seed: int) -> list[float]:
        return [row.uniform for row in chosen(caller, context, max_tokens=6, sampling=p.Sampling(seed=seed))[1]]

    first = numbers(caller.text("abc"), 7)
    assert len(set(first)) == 6
    assert numbers(caller.text("abc"), 7) == first
    assert not set(first) & set(numbers(caller.text("abc"), 8))
    fork = caller.call(p.ForkContext(caller.text("abc"))).context
    assert not set(first) & set(numbers(fork, 7))


# -- What it may take -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("token", "says"),
    [
        (VOCAB_SIZE, "outside the vocabulary"),
        (10**15, "outside the vocabulary"),
        (97, "token 97, which the constraint"),
    ],
)
def test_a_token_that_is_not_allowed_is_refused_and_the_row_stays(caller: DirectSession, token: int, says: str) -> None:
    generation = start(caller, caller.text("abc"), constraint=p.ConstraintSpec("regex", value="[xy]{3}"))
    row = caller.call(p.NextSteps(generation)).candidates
    with pytest.raises(p.InvalidRequest, match=says):
        caller.call(p.NextSteps(generation, token=token))
    assert caller.call(p.NextSteps(generation)).candidates == row
    assert caller.call(p.NextSteps(generation, token=120)).steps[0].text == "x"
    caller.call(p.CloseGenerate(generation))


def test_tokens_come_where_a_row_waits_and_nowhere_else(caller: DirectSession) -> None:
    generation = start(caller, caller.text("abc"))
    with pytest.raises(p.InvalidRequest, match="no row waits"):
        caller.call(p.NextSteps(generation, token=1))
    with pytest.raises(p.InvalidRequest, match=r"token\[0\] must be"):
        caller.call(p.NextSteps(generation, token=-1))
    with pytest.raises(p.InvalidRequest, match="neither a draft nor a mask"):
        caller.call(p.NextSteps(generation, mask=[1]))
    plain = caller.call(p.StartGenerate(caller.text("abc"))).generation
    with pytest.raises(p.InvalidRequest, match="started with candidates"):
        caller.call(p.NextSteps(plain, token=1))


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"candidates": -1}, "whole number of at least 0"),
        ({"candidates": p.MAX_CANDIDATES + 1}, "131073 candidates"),
        ({"candidates": 8, "system_speculation": True}, "system_speculation exclude"),
        ({"candidates": 8, "predicted": [1]}, "prediction"),
        ({"candidates": 8, "program_speculation": True}, "program_speculation"),
        ({"candidates": 8, "program_constraint": True}, "a constraint of your own"),
        ({"candidates": 8, "sampling": p.Sampling(0.5)}, "temperature does not go with candidates"),
        ({"candidates": 8, "sampling": p.Sampling(top_k=4)}, "top_k does not go with candidates"),
    ],
)
def test_what_does_not_go_with_it_is_refused(caller: DirectSession, fields: dict[str, Any], says: str) -> None:
    with pytest.raises((p.InvalidRequest, p.LimitExceeded), match=says):
        caller.call(p.StartGenerate(caller.text("abc"), **fields))


AS_EVER: list[dict[str, Any]] = [
    {},
    {"stop": ["a", "e"], "include_stop": True},
    {"min_tokens": 9, "stop_token_ids": list(range(0, 256, 3))},
    {"ignore_eos": True, "max_tokens": 30},
    {"heal": True},
    {"constraint": JSON, "on_length": "complete", "max_tokens": 14},
    {"constraint": JSON, "on_length": "cut", "max_tokens": 4},
    {"constraint": p.ConstraintSpec("choice", options=["yes", "yesterday"]), "logprobs": 2},
    {"reasoning": p.ReasoningSpec("<think>", "</think>", opened=True, budget=3), "constraint": JSON},
    {"sampling": p.Sampling(repetition_penalty=1.4, frequency_penalty=0.3), "probes": [p.Probe("entropy")]},
]


@pytest.mark.parametrize("fields", AS_EVER, ids=[", ".join(fields) or "plain" for fields in AS_EVER])
def test_who_takes_the_best_gets_what_argmax_writes_with_every_argument(
    caller: DirectSession, fields: dict[str, Any]
) -> None:
    contexts = [caller.text("http: tick tock") for _ in range(2)]
    plain, (made, _) = caller.generate(contexts[0], **fields), chosen(caller, contexts[1], **fields)
    assert (made.tokens, made.text, made.finish) == (plain.tokens, plain.text, plain.finish)
    assert [step.logprobs for step in made.steps if step.tokens] == [s.logprobs for s in plain.steps if s.tokens]
    assert [step.probes for step in made.steps if step.tokens] == [s.probes for s in plain.steps if s.tokens]
    assert caller.tokens(contexts[0]) == caller.tokens(contexts[1])


# -- The rest of a generation -----------------------------------------------------------------------------------------


def test_ends_are_as_ever(caller: DirectSession) -> None:
    text = iter("say stop now")
    made, _ = chosen(caller, caller.text("abc"), lambda _: ord(next(text)), stop=["stop"])
    assert (made.text, made.finish) == ("say ", "stop")
    made, _ = chosen(caller, caller.text("abc"), lambda row: END if row.position > 5 else 97, candidates=1)
    assert (made.text, made.finish) == ("aaa", "stop")
    made, _ = chosen(caller, caller.text("abc"), lambda _: 98, stop_token_ids=[98])
    assert (made.tokens, made.finish) == ([], "stop")


def test_a_budget_is_kept_where_the_program_would_overdraw_it(caller: DirectSession) -> None:
    def digits(row: p.CandidateRow) -> int:
        return next((token for token in tokens_of(row) if token in b"123456789"), best(row))

    made, _ = chosen(
        caller, caller.text("abc"), digits, constraint=JSON, max_tokens=12, on_length="complete", candidates=0
    )
    assert (made.text[:5], made.text[-1], made.finish) == ('{"a":', "}", "stop")
    assert len(made.tokens) <= 12
    made, _ = chosen(caller, caller.text("abc"), digits, constraint=JSON, max_tokens=12, candidates=0)
    assert (made.text[-1] == "}", made.finish) == (False, "length")


def test_it_counts_and_tells_logprobs_and_probes(caller: DirectSession) -> None:
    probes = [p.Probe("logprobs", tokens=[1]), p.Probe("entropy")]
    made, rows = chosen(caller, caller.text("abc"), max_tokens=5, logprobs=1, probes=probes)
    assert caller.call(p.GetUsage()) == p.Usage(3, 5, 5)
    assert [step.logprobs[0].rank for step in made.steps] == [1] * 5
    assert [step.probes[0][1].value for step in made.steps] == pytest.approx([row.entropy for row in rows])


def test_who_is_slow_holds_up_nobody(caller: DirectSession) -> None:
    alone = caller.generate(caller.text("other"), max_tokens=30).tokens
    generation = start(caller, caller.text("abc"))
    caller.call(p.NextSteps(generation))
    assert caller.generate(caller.text("other"), max_tokens=30).tokens == alone
    caller.call(p.CloseGenerate(generation))


def test_rows_of_several_programs_share_a_step(caller: DirectSession) -> None:
    generations = [start(caller, caller.text(f"prompt {at}"), max_tokens=10) for at in range(6)]
    rows = [caller.call(p.NextSteps(generation)).candidates[0] for generation in generations]
    before = caller.engine.steps
    for _ in range(5):
        asked = [caller.submit(p.NextSteps(g, token=best(row)))[1] for g, row in zip(generations, rows, strict=True)]
        while not all(asked):
            caller.engine.step()
        rows = [replies[0].candidates[0] for replies in asked]
    assert caller.engine.steps == before + 5


@pytest.mark.parametrize("when", ["before the first row", "at a row", "behind a token"])
def test_leaving_it_keeps_what_was_delivered(caller: DirectSession, when: str) -> None:
    context = caller.text("abc")
    generation = start(caller, context)
    made = b""
    if when != "before the first row":
        reply = caller.call(p.NextSteps(generation))
        for letter in b"xyz" if when == "behind a token" else b"":
            caller.call(p.NextSteps(generation, token=letter))
            made += bytes([letter])
    assert caller.call(p.ForkContext(context)).length == 3 + len(made)
    caller.call(p.CloseGenerate(generation))
    assert caller.tokens(context) == [*b"abc", *made]
    again, other = caller.generate(context, max_tokens=4), caller.text("abc" + made.decode())
    assert again.tokens == caller.generate(other, max_tokens=4).tokens
    assert when == "before the first row" or reply.candidates


def test_waiting_rows_survive_pressure() -> None:
    driver = NullDriver(vocab_size=VOCAB_SIZE, pages=14)
    caller = DirectSession(null_model(driver=driver))
    contexts = [caller.text(f"{at} prompt of more than one page") for at in range(5)]
    generations = [start(caller, context, max_tokens=8, ignore_eos=True) for context in contexts]
    made: list[list[int]] = [[] for _ in generations]
    rows = [caller.call(p.NextSteps(generation)).candidates[0] for generation in generations]
    for _ in range(7):
        for at, generation in enumerate(generations):
            reply = caller.call(p.NextSteps(generation, token=best(rows[at])))
            made[at] += [token for step in reply.steps for token in step.tokens]
            rows[at] = reply.candidates[0]
    roomy = DirectSession(null_model())
    for at in range(5):
        plain = roomy.generate(roomy.text(f"{at} prompt of more than one page"), max_tokens=7, ignore_eos=True)
        assert made[at] == plain.tokens
    caller.engine.check_integrity()
    caller.close()
    roomy.close()


@settings(max_examples=examples(30), deadline=None)
@given(data=st.data())
def test_any_order_of_requests_is_answered_and_leaves_nothing(data: st.DataObject) -> None:
    caller = DirectSession(null_model())
    generation = start(caller, caller.text("abc"), max_tokens=6, constraint=JSON if data.draw(st.booleans()) else None)
    for _ in range(data.draw(st.integers(0, 10))):
        token = data.draw(st.none() | st.integers(-2, VOCAB_SIZE + 2) | st.sampled_from([10**12, END, *b'{"a": 1}']))
        least = data.draw(st.sampled_from([1, 32]))
        try:
            reply = caller.call(p.NextSteps(generation, token=token, least=least))
        except p.InferdError:
            continue
        assert bool(reply.finish) != bool(reply.candidates)
    caller.call(p.CloseGenerate(generation))
    caller.engine.check_integrity()
    caller.close()
