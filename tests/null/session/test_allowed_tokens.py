"""``allowed_tokens``: the only tokens of a text, beside a constraint and whatever is drafted."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from tiers import examples

from inferd import Sampler, protocol as p
from inferd_runtime.testing.byte_tokenizer import END, VOCAB_SIZE
from inferd_runtime.testing.direct import DirectSession, Generated

LETTERS = tuple(b"abc ")
JSON = p.ConstraintSpec("json_schema", value='{"type": "string", "maxLength": 4}')


def generated(caller: DirectSession, allowed: tuple[int, ...], seed: int = 1, **fields: Any) -> Generated:
    sampling = p.Sampling(temperature=0.9, seed=seed, allowed_tokens=allowed)
    context = caller.text("tick tock tick tock ")
    try:
        return caller.generate(context, **{"sampling": sampling, "max_tokens": 24, **fields})
    finally:
        caller.call(p.ReleaseContext(context))


def test_no_other_token_comes_the_end_of_the_text_included(caller: DirectSession) -> None:
    for seed in range(5):
        result = generated(caller, LETTERS, seed)
        assert set(result.tokens) <= set(LETTERS)
        assert (result.finish, len(result.tokens)) == ("length", 24)


def test_the_end_of_the_text_may_be_among_them(caller: DirectSession) -> None:
    result = generated(caller, (END,))
    assert (result.finish, result.tokens) == ("stop", [])


def test_a_stop_token_that_is_not_among_them_never_comes(caller: DirectSession) -> None:
    result = generated(caller, LETTERS[:2], stop_token_ids=[LETTERS[2]])
    assert (result.finish, len(result.tokens)) == ("length", 24)


def test_tokens_that_end_wait_for_the_least_number(caller: DirectSession) -> None:
    result = generated(caller, (97, END), min_tokens=7)
    assert result.text.startswith("a" * 7)


def outcome(caller: DirectSession, allowed: set[int], seed: int, **fields: Any) -> tuple[list[int], str]:
    """The tokens and how they ended; the tokens that led to an end in an error are not told."""
    try:
        result = generated(caller, tuple(allowed), seed, **fields)
    except p.ConstraintError as error:
        return [], error.message
    return result.tokens, result.finish


@settings(max_examples=examples(40), deadline=None)
@given(
    seed=st.integers(0, 50),
    allowed=st.sets(st.sampled_from([*LETTERS, *b"xyz\xc3\xa9", END]), min_size=1),
    bound=st.booleans(),
)
def test_drafts_change_nothing(caller: DirectSession, seed: int, allowed: set[int], bound: bool) -> None:
    fields = {"constraint": p.ConstraintSpec("regex", value="[a-zé ]*") if bound else None}
    plain = outcome(caller, allowed, seed, **fields)
    for guess in (plain[0], [*plain[0][:3], 7, *plain[0]], [120] * 9, [0xC3, 0xA9] * 4):
        drafts = {"system_speculation": True, "predicted": guess}
        assert outcome(caller, allowed, seed, **fields, **drafts) == plain


def test_a_constraint_holds_beside_them_and_says_where_the_text_ends(caller: DirectSession) -> None:
    for seed in range(5):
        result = generated(caller, tuple(b'"ab'), seed, constraint=JSON)
        assert result.finish == "stop"
        assert set(result.text) <= set('"ab')
        assert result.text[0] == result.text[-1] == '"'


@pytest.mark.parametrize("drafts", [{}, {"system_speculation": True, "predicted": list(b'"abab"')}])
def test_a_constraint_that_leaves_none_of_them_ends_the_generation(
    caller: DirectSession, drafts: dict[str, Any]
) -> None:
    with pytest.raises(p.ConstraintError, match="none of the allowed tokens"):
        generated(caller, tuple(b"ab"), constraint=JSON, **drafts)
    with pytest.raises(p.ConstraintError, match="none of the allowed tokens"):
        generated(caller, tuple(b'"ab'), constraint=p.ConstraintSpec("regex", value='"abc"'), **drafts)
    assert generated(caller, tuple(b"ab")).tokens, "only that generation"


@pytest.mark.parametrize("on_length", ["try_complete", "complete_or_cut"])
def test_a_text_is_not_steered_to_an_end_of_other_tokens(caller: DirectSession, on_length: str) -> None:
    many = p.ConstraintSpec("regex", value="a{40}b")
    assert generated(caller, tuple(b"ab"), constraint=many, on_length=on_length).text == "a" * 24


@pytest.mark.parametrize(
    ("fields", "allowed"),
    [
        ({"heal": True}, LETTERS),
        ({"on_length": "complete", "constraint": JSON}, LETTERS),
        ({}, (VOCAB_SIZE,)),
        ({}, (-1,)),
    ],
)
def test_what_cannot_be_is_refused_by_the_field(
    caller: DirectSession, fields: dict[str, Any], allowed: tuple[int, ...]
) -> None:
    with pytest.raises(p.InvalidRequest, match="allowed_tokens"):
        generated(caller, allowed, **fields)


def test_passes_and_verification_have_masks_of_their_own(caller: DirectSession) -> None:
    sampling = Sampler.argmax().only(LETTERS).sampling
    for request in (
        p.Forward(caller.text("a"), [1], sampling=sampling),
        p.VerifyDraft(caller.text("a"), sampling=sampling),
    ):
        with pytest.raises(p.InvalidRequest, match="allowed_tokens"):
            caller.call(request)


def test_too_many_are_refused(caller: DirectSession) -> None:
    with pytest.raises(p.LimitExceeded, match="allowed_tokens"):
        Sampler.argmax().only(range(20_000))
    with pytest.raises(p.LimitExceeded, match="allowed_tokens"):
        generated(caller, tuple(range(20_000)))
