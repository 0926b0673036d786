"""A model that thinks first: the constraint holds what comes behind, the budget ends the reasoning, drafts change nothing."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from tiers import examples

from inferd import protocol as p
from inferd_runtime.testing.byte_tokenizer import END, TURN
from inferd_runtime.testing.direct import DirectSession, Generated

PROMPT = "tick tock tick tock tick "
ANSWER = p.ConstraintSpec("regex", value="(yes|no)!")
SPECIAL, TEXT = "<turn>", "/t"
"""An end mark that is one special token, and one that is two tokens of text."""


def sampling(seed: int) -> p.Sampling:
    """A sampler that ends its reasoning now and then, and would end its text much too early."""
    biases = {TURN: 3.0, END: 3.0, ord("/"): 6.0, ord("t"): 5.0}
    return p.Sampling(temperature=0.7, seed=seed, bias_tokens=tuple(biases), bias_values=tuple(biases.values()))


def thought(caller: DirectSession, seed: int, end: str, **fields: Any) -> Generated:
    reasoning = {"opened": True, **fields.pop("reasoning", {})}
    spec = p.ReasoningSpec("<turn>", end, **reasoning)
    context = caller.text(PROMPT)
    asked: dict[str, Any] = {
        "sampling": sampling(seed),
        "max_tokens": 200,
        "shown": ["<turn>"],
        "constraint": ANSWER,
        **fields,
    }
    result = caller.generate(context, reasoning=spec, **asked)
    caller.call(p.ReleaseContext(context))
    return result


def tokens_of(text: str) -> list[int]:
    parts = re.split("(<turn>)", text)
    return [token for part in parts for token in ([TURN] if part == "<turn>" else part.encode())]


@pytest.mark.parametrize("end", [SPECIAL, TEXT])
def test_a_constraint_begins_behind_the_reasoning(caller: DirectSession, end: str) -> None:
    for seed in range(10):
        result = thought(caller, seed, end)
        _, found, answer = result.text.partition(end)
        assert (found, result.finish) == (end, "stop")
        assert answer in ("yes!", "no!")


@pytest.mark.parametrize("end", [SPECIAL, TEXT])
def test_the_end_of_text_is_no_way_around_a_constraint(caller: DirectSession, end: str) -> None:
    for seed in range(10):
        assert END not in thought(caller, seed, end).tokens
    whole = thought(caller, 1, end, constraint=None, reasoning={"budget": 150})
    assert whole.finish == "stop"  # without one it is the end


@pytest.mark.parametrize("end", [SPECIAL, TEXT])
@pytest.mark.parametrize("constraint", [ANSWER, None])
@pytest.mark.parametrize("budget", [0, 1, 5])
def test_a_budget_ends_the_reasoning(
    caller: DirectSession, end: str, constraint: p.ConstraintSpec | None, budget: int
) -> None:
    for seed in range(6):
        sampler = p.Sampling(temperature=0.7, seed=seed, bias_tokens=(TURN, END), bias_values=(-100.0, -100.0))
        result = thought(
            caller, seed, end, constraint=constraint, sampling=sampler, max_tokens=40, reasoning={"budget": budget}
        )
        place = result.tokens.index(tokens_of(end)[0], budget)
        assert place == budget
        assert result.tokens[budget : budget + len(tokens_of(end))] == tokens_of(end)


def test_a_model_that_opens_its_reasoning_may_think_and_one_that_does_not_answers(caller: DirectSession) -> None:
    found = set()
    for seed in range(30):
        biases = {TURN: 4.0 + seed % 5, ord("/"): 8.0, ord("t"): 8.0}
        sampler = p.Sampling(temperature=1.0, seed=seed, bias_tokens=tuple(biases), bias_values=tuple(biases.values()))
        text = thought(caller, seed, TEXT, sampling=sampler, reasoning={"opened": False}).text
        found.add(text.startswith("<turn>"))
        answer = text.partition(TEXT)[2] if text.startswith("<turn>") else text
        assert answer in ("yes!", "no!")
    assert found == {True, False}


def test_a_mark_that_could_be_the_answers_own_beginning_is_that(caller: DirectSession) -> None:
    angled = p.ConstraintSpec("regex", value="<a>|<b>")
    spec = p.ReasoningSpec("<think>", "/t")
    for seed in range(10):
        context = caller.text(PROMPT)
        result = caller.generate(context, reasoning=spec, sampling=sampling(seed), max_tokens=50, constraint=angled)
        assert result.text in ("<a>", "<b>")
        caller.call(p.ReleaseContext(context))


@pytest.mark.parametrize("room", [8, 9, 12, 30])
def test_an_answer_that_is_to_be_complete_has_its_tokens_kept_back(caller: DirectSession, room: int) -> None:
    for seed in range(10):
        sampler = p.Sampling(temperature=0.7, seed=seed, bias_tokens=(TURN,), bias_values=(-100.0,))
        result = thought(caller, seed, TEXT, sampling=sampler, max_tokens=room, on_length="complete_or_cut")
        assert len(result.tokens) <= room
        assert (result.text[-3:] in ("es!", "no!"), result.finish) == (True, "stop")


@pytest.mark.parametrize("room", range(4, 10))
def test_an_answer_that_has_to_be_complete_is_refused_where_the_marks_leave_it_no_room(
    caller: DirectSession, room: int
) -> None:
    biases = {TURN: 50.0, ord("/"): 50.0}
    sampler = p.Sampling(temperature=0.7, seed=1, bias_tokens=tuple(biases), bias_values=tuple(biases.values()))
    try:
        result = thought(caller, 1, TEXT, sampling=sampler, max_tokens=room, on_length="complete")
    except p.Truncated:
        assert room < 3 + len(tokens_of(SPECIAL)) + len(tokens_of(TEXT))
    else:
        assert (result.text[-3:] in ("es!", "no!"), result.finish) == (True, "stop")


def test_reasoning_that_leaves_no_room_for_an_answer_is_cut(caller: DirectSession) -> None:
    sampler = p.Sampling(temperature=0.7, seed=1, bias_tokens=(TURN, ord("/")), bias_values=(-100.0, -100.0))
    result = thought(caller, 1, TEXT, sampling=sampler, max_tokens=4, on_length="complete_or_cut")
    assert (len(result.tokens), result.finish) == (4, "length")


@settings(max_examples=examples(60), deadline=None)
@given(
    st.integers(0, 50),
    st.sampled_from([SPECIAL, TEXT]),
    st.booleans(),
    st.sampled_from([None, 0, 3, 20]),
    st.sampled_from([ANSWER, None, p.ConstraintSpec("json_schema", value='{"enum": ["ab", 1]}')]),
    st.booleans(),
)
def test_drafts_change_nothing(
    caller: DirectSession,
    seed: int,
    end: str,
    opened: bool,
    budget: int | None,
    constraint: p.ConstraintSpec | None,
    tree: bool,
) -> None:
    fields: dict[str, Any] = {
        "reasoning": {"opened": opened, "budget": budget},
        "constraint": constraint,
        "max_tokens": 60,
    }
    plain = thought(caller, seed, end, **fields)
    settings_ = p.SpeculationSettings(sources=[], tree=tree)
    drafted = thought(
        caller, seed, end, system_speculation=True, speculation=settings_, predicted=[*plain.tokens, 1, 2], **fields
    )
    assert (drafted.tokens, drafted.text, drafted.finish) == (plain.tokens, plain.text, plain.finish)
    assert sum(step.accepted for step in drafted.steps) > 0 or len(plain.tokens) < 4


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"reasoning": p.ReasoningSpec("", "x")}, "begin must have 1 to"),
        ({"reasoning": p.ReasoningSpec("x", "y" * 65)}, "end must have 1 to"),
        ({"reasoning": p.ReasoningSpec("x", "y", budget=-1)}, "budget"),
        ({"reasoning": p.ReasoningSpec("x", "y"), "heal": True}, "exclude each other"),
        ({"reasoning": p.ReasoningSpec("x", "y"), "program_constraint": True}, "exclude each other"),
        (
            {
                "reasoning": p.ReasoningSpec("x", "y"),
                "constraint": p.ConstraintSpec("json_schema", value="{}", mode="best_effort"),
            },
            "best_effort",
        ),
        ({"shown": ["x"] * 65}, "shown: 65"),
    ],
)
def test_reasoning_that_cannot_be_had_is_refused_by_name(
    caller: DirectSession, fields: dict[str, Any], reason: str
) -> None:
    with pytest.raises(p.InferdError, match=reason):
        caller.call(p.StartGenerate(caller.text(PROMPT), **fields))


def test_special_tokens_show_where_they_are_asked_for(caller: DirectSession) -> None:
    asked: dict[str, Any] = {"sampling": sampling(3), "max_tokens": 60, "ignore_eos": True}
    plain = caller.generate(caller.text(PROMPT), **asked)
    shown = caller.generate(caller.text(PROMPT), shown=["a<turn>b", "<end>", "<none>"], **asked)
    assert plain.tokens == shown.tokens
    assert shown.text.count("<turn>") == plain.tokens.count(TURN) > 0
    assert shown.text.replace("<turn>", "").replace("\ufffd", "") == plain.text.replace("\ufffd", "")
    every = caller.generate(caller.text(PROMPT), shown=["*"], **asked)
    assert every.text.count("<turn>") + every.text.count("<end>") == sum(token in (TURN, END) for token in plain.tokens)


def test_the_stop_string_is_a_part_of_the_text_where_that_is_asked_for(caller: DirectSession) -> None:
    asked: dict[str, Any] = {"sampling": p.Sampling(temperature=0.7, seed=5), "max_tokens": 60, "ignore_eos": True}
    whole = caller.generate(caller.text(PROMPT), **asked)
    stop = whole.text[7:9]
    without = caller.generate(caller.text(PROMPT), stop=[stop], **asked)
    with_it = caller.generate(caller.text(PROMPT), stop=[stop], include_stop=True, **asked)
    assert with_it.text == without.text + stop
    token = next(token for token in whole.tokens[5:] if 32 < token < 127)
    ended = caller.generate(caller.text(PROMPT), stop_token_ids=[token], include_stop=True, **asked)
    assert ended.text.endswith(chr(token))
    assert ended.text[:-1] == caller.generate(caller.text(PROMPT), stop_token_ids=[token], **asked).text
