"""``ignore_eos``, ``min_tokens``, ``stop_token_ids``: which token ends a text and when, the same with any drafts."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from tiers import examples

from inferd import protocol as p
from inferd_runtime.testing.byte_tokenizer import END, VOCAB_SIZE
from inferd_runtime.testing.direct import DirectSession, Generated

PROMPT = "tick tock tick tock tick "
STEERED = {"bias_tokens": (END,), "bias_values": (4.0,)}
"""A sampler that writes the end of the text often."""


def sampling(seed: int) -> p.Sampling:
    return p.Sampling(temperature=0.7, seed=seed, **STEERED)


def generated(caller: DirectSession, seed: int = 1, **fields: Any) -> tuple[Generated, list[int]]:
    """A generation, and the tokens that it added to its context."""
    context = caller.text(PROMPT)
    result = caller.generate(context, **{"sampling": sampling(seed), "max_tokens": 40, **fields})
    added = caller.tokens(context)[len(PROMPT) :]
    caller.call(p.ReleaseContext(context))
    return result, added


def free(caller: DirectSession, seed: int) -> list[int]:
    """What comes if nothing ends the text."""
    return generated(caller, seed, ignore_eos=True)[1]


def test_end_of_text_is_an_ordinary_token_where_it_is_ignored(caller: DirectSession) -> None:
    for seed in range(5):
        plain, added = generated(caller, seed)
        whole, all_added = generated(caller, seed, ignore_eos=True)
        assert (plain.finish, added[-1]) == ("stop", END)
        assert (whole.finish, len(whole.tokens)) == ("length", 40)
        assert whole.tokens == all_added
        assert all_added[: len(added)] == added


def test_a_stop_token_ends_the_text_as_end_of_text_does(caller: DirectSession) -> None:
    for seed in range(5):
        whole = free(caller, seed)
        stop = next(token for token in whole[3:] if token != END and token not in whole[:3])
        result, added = generated(caller, seed, ignore_eos=True, stop_token_ids=[stop])
        assert result.finish == "stop"
        assert added == whole[: whole.index(stop) + 1]
        assert result.tokens == added[:-1]


def test_no_text_ends_before_it_has_so_many_tokens(caller: DirectSession) -> None:
    for seed in range(5):
        short, _ = generated(caller, seed)
        least = len(short.tokens) + 5
        result, added = generated(caller, seed, min_tokens=least)
        assert len(added) > least or result.finish == "length"
        assert END not in added[:least]
        assert result.tokens[: len(short.tokens)] == short.tokens


def test_a_stopped_by_does_not_count_before_either(caller: DirectSession) -> None:
    context = caller.text(PROMPT)
    whole = caller.generate(context, max_tokens=30, ignore_eos=True)
    piece = whole.text[2:4]
    result = caller.generate(caller.text(PROMPT), max_tokens=30, ignore_eos=True, stop=[piece])
    assert (result.finish, result.text) == ("stop", whole.text[: whole.text.index(piece)])
    later = caller.generate(caller.text(PROMPT), max_tokens=30, ignore_eos=True, stop=[piece], min_tokens=12)
    assert len(later.tokens) > 12 or later.finish == "length"
    assert later.text.startswith(result.text + piece)


@settings(max_examples=examples(60), deadline=None)
@given(
    seed=st.integers(0, 50), least=st.integers(0, 30), ignore=st.booleans(),
    stops=st.lists(st.sampled_from([*b"abcxyz ", 3, 99, 200])), where=st.integers(0, 12), wrong=st.booleans(),
)  # fmt: skip
def test_drafts_change_neither_the_tokens_nor_the_end(
    caller: DirectSession, seed: int, least: int, ignore: bool, stops: list[int], where: int, wrong: bool
) -> None:
    """A draft that runs over an end, with the very tokens that come, or with others."""
    fields: dict[str, Any] = {"ignore_eos": ignore, "min_tokens": least, "stop_token_ids": stops}
    expected, added = generated(caller, seed, **fields)
    guess = free(caller, seed)
    guess[where : where + wrong] = [7] * wrong
    drafted, with_drafts = generated(caller, seed, **fields, system_speculation=True, predicted=guess)
    assert (drafted.tokens, drafted.text, drafted.finish) == (expected.tokens, expected.text, expected.finish)
    assert with_drafts == added


def test_a_constraint_that_is_complete_ends_the_text_all_the_same(caller: DirectSession) -> None:
    yes = p.ConstraintSpec("regex", value="yes|no")
    result, _ = generated(caller, constraint=yes, min_tokens=20)
    assert result.text in ("yes", "no")
    assert result.finish == "stop"


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"min_tokens": -1}, "min_tokens"),
        ({"min_tokens": 41}, "min_tokens"),
        ({"stop_token_ids": [-1]}, "stop_token_ids"),
        ({"stop_token_ids": [VOCAB_SIZE]}, "stop_token_ids"),
        ({"ignore_eos": True, "constraint": p.ConstraintSpec("regex", value="a")}, "ignore_eos"),
        ({"ignore_eos": True, "heal": True}, "ignore_eos"),
    ],
)
def test_what_cannot_be_is_refused_by_the_field(caller: DirectSession, fields: dict[str, Any], name: str) -> None:
    with pytest.raises(p.InvalidRequest, match=name):
        generated(caller, **fields)


def test_what_ended_the_text_is_told(caller: DirectSession) -> None:
    whole = free(caller, 1)

    def end(**fields: Any) -> p.Steps:
        generation = caller.call(
            p.StartGenerate(caller.text(PROMPT), sampling=sampling(1), max_tokens=40, **fields)
        ).generation
        reply = caller.call(p.NextSteps(generation, least=32))
        while not reply.finish:
            reply = caller.call(p.NextSteps(generation, least=32))
        caller.call(p.CloseGenerate(generation))
        return reply  # type: ignore[no-any-return]

    ended = end()
    assert (ended.stopped_by, ended.stop_token) == ("", END)
    ended = end(stop_token_ids=[whole[0]])
    assert (ended.stopped_by, ended.stop_token) == ("", whole[0])
    ended = end(ignore_eos=True)
    assert (ended.finish, ended.stopped_by, ended.stop_token) == ("length", "", None)
