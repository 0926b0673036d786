"""``grammar.*`` over the protocol, masks that a program sends with its steps, and texts that are checked at their end."""

from __future__ import annotations

import base64
import itertools
import random
import re
from typing import Any

import numpy as np
import pytest

from inferd import protocol as p
from inferd.masks import TokenMask, pack_bits
from inferd.protocol.grammar import MAX_NESTING
from inferd_grammar import Compiled, GrammarMatcher, JsonSchemaGrammar, RegexGrammar
from inferd_runtime.session.constraints.held_grammars import MAX_GRAMMARS, MAX_MATCHERS, HeldMatcher
from inferd_runtime.session.served_model import ServedModel
from inferd_runtime.testing.byte_tokenizer import END, VOCAB_SIZE
from inferd_runtime.testing.direct import DirectSession
from inferd_runtime.testing.null_driver import NullDriver
from inferd_runtime.testing.served import null_model

HOT = p.Sampling(temperature=1.0, seed=5)
SCHEMA = (
    '{"type":"object","properties":{"name":{"type":"string","maxLength":6},"tags":{"type":"array","items":'
    '{"enum":["x","yy"]},"maxItems":3}},"required":["name","tags"],"additionalProperties":false}'
)
LETTERS = '{"type":"array","items":{"type":"string","pattern":"^[a-d]$"},"minItems":3,"maxItems":3,"uniqueItems":true}'
BEST_EFFORT = p.ConstraintSpec("json_schema", LETTERS, mode="best_effort")


def test_tokens_that_take_a_matcher_too_long_are_not_taken(model: ServedModel) -> None:
    """Each of a text of an ambiguous grammar takes longer than the one before: a few hundred held the step loop for seconds."""
    matcher = model.grammars.compile(RegexGrammar("[ab]*")).matcher()
    held, ticks = HeldMatcher(matcher, model), itertools.count()
    letters = list(b"abababab")
    assert held.accept(letters[:3], lambda: 0.0) == 3
    with pytest.raises(p.LimitExceeded) as error:
        held.accept(letters, lambda: 0.1 * next(ticks))
    assert error.value.detail["limit"] == "mask_seconds"
    assert matcher.depth == 3
    assert held.accept([*letters[:2], 1], lambda: 0.0) == 2


OUTSIDE = pack_bits((1 << VOCAB_SIZE + 3).to_bytes(VOCAB_SIZE // 8 + 1, "little"))


@pytest.fixture
def model() -> ServedModel:
    return null_model(driver=NullDriver(vocab_size=VOCAB_SIZE))


@pytest.fixture
def caller(model: ServedModel) -> Any:
    caller = DirectSession(model)
    yield caller
    caller.close()


def opened(caller: DirectSession, kind: str = "json_schema", value: str = SCHEMA) -> int:
    grammar = caller.call(p.CompileGrammar(p.ConstraintSpec(kind, value)))
    return int(caller.call(p.OpenMatcher(grammar.grammar)).matcher)


def allowed(caller: DirectSession, matcher: int) -> list[int]:
    reply = caller.call(p.GetMask(matcher))
    return list(TokenMask.from_wire(reply.tokens, reply.bits))


def direct_mask(matcher: GrammarMatcher) -> list[int]:
    row = np.empty(-(-VOCAB_SIZE // 32), np.int32)
    matcher.fill(row)
    return [token for token in range(VOCAB_SIZE) if int(row[token >> 5]) >> (token & 31) & 1]


@pytest.mark.parametrize("seed", range(4))
def test_a_matcher_over_the_protocol_is_the_matcher(caller: DirectSession, model: ServedModel, seed: int) -> None:
    """Random walks with illegal tokens, rollbacks and forks: every answer equals that of the grammar package."""
    rng = random.Random(seed)
    twin = model.grammars.compile(JsonSchemaGrammar(SCHEMA)).matcher()
    matcher, forks = opened(caller), 0
    for _ in range(60):
        legal = allowed(caller, matcher)
        assert legal == direct_mask(twin)
        given = [rng.choice(legal), *rng.choices(range(VOCAB_SIZE), k=rng.randint(0, 2))]
        state = caller.call(p.AcceptTokens(matcher, given))
        assert state.accepted == twin.accept(given)
        if rng.random() < 0.2:
            count = rng.randint(0, twin.depth)
            twin.rollback(count)
            state = caller.call(p.RollbackMatcher(matcher, count))
        if rng.random() < 0.2:
            state = caller.call(p.ForkMatcher(matcher))
            caller.call(p.AcceptTokens(matcher, [allowed(caller, matcher)[0]]))  # the fork does not see this
            matcher, forks = state.matcher, forks + 1
        assert (state.depth, state.may_end, state.ended) == (twin.depth, twin.may_end(), twin.ended())
        forced = caller.call(p.GetForced(matcher))
        assert (base64.b64decode(forced.data), forced.tokens) == (twin.forced(), twin.forced_tokens())
        if twin.ended():
            twin.rollback(twin.depth)
            caller.call(p.RollbackMatcher(matcher, state.depth))
    assert forks


def test_an_own_decode_loop_gives_what_generate_gives(caller: DirectSession) -> None:
    plain = caller.generate(caller.text("prompt"), constraint=p.ConstraintSpec("json_schema", SCHEMA), max_tokens=60)
    context, matcher, feed, tokens = caller.context(), opened(caller), [*b"prompt"], list[int]()
    while len(tokens) < 60:
        mask = caller.call(p.GetMask(matcher))
        row = caller.call(p.Forward(context, feed, mask=mask.tokens, mask_bits=mask.bits)).rows[0]
        assert caller.call(p.AcceptTokens(matcher, [row.token])).accepted == 1
        if row.token == END:
            break
        tokens, feed = [*tokens, row.token], [row.token]
    assert tokens == plain.tokens
    assert tokens[:1] == [ord("{")]


def test_handles_are_bounded_and_are_given_back(caller: DirectSession) -> None:
    grammars = [caller.call(p.CompileGrammar(p.ConstraintSpec("any_json"))).grammar for _ in range(MAX_GRAMMARS)]
    with pytest.raises(p.LimitExceeded, match=str(MAX_GRAMMARS)):
        caller.call(p.CompileGrammar(p.ConstraintSpec("any_json")))
    matchers = [caller.call(p.OpenMatcher(grammars[0])).matcher for _ in range(MAX_MATCHERS)]
    for request in (p.OpenMatcher(grammars[0]), p.ForkMatcher(matchers[0])):
        with pytest.raises(p.LimitExceeded, match=str(MAX_MATCHERS)):
            caller.call(request)
    caller.call(p.ReleaseGrammar(grammars[0]))
    assert caller.call(p.AcceptTokens(matchers[0], [ord("1")])).accepted == 1  # it goes on without its grammar
    caller.call(p.ReleaseGrammar(matchers[0]))
    caller.call(p.OpenMatcher(grammars[1]))
    caller.call(p.CompileGrammar(p.ConstraintSpec("any_json")))
    for gone in (grammars[0], matchers[0]):
        with pytest.raises(p.NotFound):
            caller.call(p.ReleaseGrammar(gone))


def test_a_compile_tells_whether_the_text_may_be_empty_and_what_is_only_checked(caller: DirectSession) -> None:
    empty = caller.call(p.CompileGrammar(p.ConstraintSpec("choice", options=["", "a"])))
    assert (empty.may_end, empty.checked) == (True, [])
    checked = caller.call(p.CompileGrammar(BEST_EFFORT))
    assert (checked.may_end, checked.checked) == (False, [p.CheckedKeyword("uniqueItems", "/uniqueItems")])


BAD_REQUESTS: list[tuple[Any, type[p.InferdError], str]] = [
    (p.CompileGrammar(p.ConstraintSpec("regex", "(")), p.ConstraintError, "constraint"),
    (p.CompileGrammar(p.ConstraintSpec("any_json"), "nobody"), p.NotFound, "nobody"),
    (p.CompileGrammar(p.ConstraintSpec("yaml")), p.InvalidRequest, "yaml"),
    (p.CompileGrammar(p.ConstraintSpec("json_schema", "{}", mode="loose")), p.InvalidRequest, "loose"),
    (p.CompileGrammar(p.ConstraintSpec("regex", "a", mode="best_effort")), p.InvalidRequest, "regex has no mode"),
    (p.CompileGrammar(p.ConstraintSpec("any_json", "x")), p.InvalidRequest, "any_json has no value"),
    (p.CompileGrammar(p.ConstraintSpec("exact")), p.InvalidRequest, "one member"),
    (p.CompileGrammar(p.ConstraintSpec("all_of", members=[BEST_EFFORT])), p.ConstraintError, "best_effort"),
    (
        p.CompileGrammar(p.ConstraintSpec("tagged", tags=[p.TagConstraint("<", BEST_EFFORT, ">")])),
        p.ConstraintError, "best_effort",
    ),
    (p.OpenMatcher(99), p.NotFound, "grammar 99"),
    (p.GetMask(99), p.NotFound, "matcher 99"),
    (p.AcceptTokens(2, [1] * (p.MAX_ACCEPT + 1)), p.LimitExceeded, "accept"),
    (p.RollbackMatcher(2, 1), p.InvalidRequest, "rollback of 1"),
    (p.RollbackMatcher(2, -1), p.InvalidRequest, "n must be a whole number"),
    (p.ReleaseGrammar(0), p.NotFound, "0"),
]  # fmt: skip


@pytest.mark.parametrize(("request_", "error", "words"), BAD_REQUESTS)
def test_bad_requests_name_what_is_wrong(
    caller: DirectSession, request_: Any, error: type[p.InferdError], words: str
) -> None:
    assert opened(caller, "regex", "a*") == 2
    with pytest.raises(error, match=words):
        caller.call(request_)
    assert caller.call(p.GetMask(2)).tokens == [ord("a"), END]


def test_nesting_is_bounded(caller: DirectSession) -> None:
    constraint = p.ConstraintSpec("regex", "a")
    for _ in range(MAX_NESTING):
        constraint = p.ConstraintSpec("exact", members=[constraint])
    caller.call(p.CompileGrammar(constraint))
    with pytest.raises(p.InvalidRequest, match="nested"):
        caller.call(p.CompileGrammar(p.ConstraintSpec("exact", members=[constraint])))


def test_a_matcher_without_a_legal_token_is_an_error_and_no_mask(caller: DirectSession) -> None:
    """Two kinds that run side by side contradict each other behind their first token."""
    members = [p.ConstraintSpec("lark", 'start: "ab"'), p.ConstraintSpec("gbnf", 'root ::= "ac"')]
    constraint = p.ConstraintSpec("all_of", members=members)
    matcher = caller.call(p.OpenMatcher(caller.call(p.CompileGrammar(constraint)).grammar)).matcher
    caller.call(p.AcceptTokens(matcher, [*b"a"]))
    with pytest.raises(p.ConstraintError, match="no token"):
        caller.call(p.GetMask(matcher))
    assert caller.call(p.RollbackMatcher(matcher, 1)).depth == 0
    assert allowed(caller, matcher) == [*b"a"]
    with pytest.raises(p.ConstraintError, match="no token"):
        caller.generate(caller.text("p"), constraint=constraint)


# ---------------------------------------------------------------------------------------------------------------------
# Masks that a program sends with its steps.
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sampling", [p.Sampling(), HOT])
def test_a_programs_masks_give_what_the_grammar_gives(caller: DirectSession, sampling: p.Sampling) -> None:
    constraint = p.ConstraintSpec("json_schema", SCHEMA)
    plain = caller.generate(caller.text("prompt"), constraint=constraint, sampling=sampling, max_tokens=60)
    matcher, tokens, finish = opened(caller), list[int](), ""
    start = p.StartGenerate(caller.text("prompt"), program_constraint=True, sampling=sampling, max_tokens=60)
    generation = caller.call(start).generation
    while not finish:
        mask = caller.call(p.GetMask(matcher))
        reply = caller.call(p.NextSteps(generation, mask=mask.tokens, mask_bits=mask.bits))
        assert len(reply.steps) == 1
        caller.call(p.AcceptTokens(matcher, reply.steps[0].tokens))
        tokens, finish = tokens + reply.steps[0].tokens, reply.finish
    assert (tokens, finish) == (plain.tokens, plain.finish)


def test_no_mask_is_no_constraint(caller: DirectSession) -> None:
    plain = caller.generate(caller.text("prompt"), sampling=HOT, max_tokens=20)
    masked = caller.generate(caller.text("prompt"), sampling=HOT, max_tokens=20, program_constraint=True)
    assert masked.tokens == plain.tokens
    assert len(masked.steps) == 20


def test_a_step_waits_for_its_mask(caller: DirectSession) -> None:
    context = caller.text("a prompt of more tokens than one step takes: " + "x" * 200)
    generation = caller.call(p.StartGenerate(context, program_constraint=True)).generation
    while caller.engine.step():
        pass
    assert caller.call(p.NextSteps(generation, mask=[7])).steps[0].tokens == [7]
    assert not caller.engine.step()
    assert caller.call(p.CloseGenerate(generation)).length == len(caller.tokens(context))


@pytest.mark.parametrize(
    ("fields", "error", "words"),
    [
        ({"mask": []}, p.ConstraintError, "no token"),
        ({"mask_bits": "AAAA"}, p.ConstraintError, "no token"),
        ({"mask_bits": "?"}, p.InvalidRequest, "base64"),
        ({"mask": [VOCAB_SIZE]}, p.InvalidRequest, f"token id {VOCAB_SIZE}"),
        ({"mask_bits": OUTSIDE}, p.InvalidRequest, f"token id {VOCAB_SIZE + 3}"),
        ({"draft": [1], "positions": [1]}, p.InvalidRequest, "program_speculation"),
    ],
)
def test_a_mask_that_cannot_be_used_is_refused_and_the_generation_goes_on(
    caller: DirectSession, fields: dict[str, Any], error: type[p.InferdError], words: str
) -> None:
    generation = caller.call(p.StartGenerate(caller.text("p"), program_constraint=True)).generation
    with pytest.raises(error, match=words):
        caller.call(p.NextSteps(generation, **fields))
    assert caller.call(p.NextSteps(generation, mask=[7])).steps[0].tokens == [7]


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"constraint": p.ConstraintSpec("any_json")}, "constraint"),
        ({"system_speculation": True}, "system_speculation"),
        ({"program_speculation": True}, r"program_speculation \(speculator=\)"),
    ],
)
def test_a_programs_masks_go_with_nothing_else(caller: DirectSession, fields: dict[str, Any], name: str) -> None:
    with pytest.raises(p.InvalidRequest, match=f"and {name} exclude"):
        caller.call(p.StartGenerate(caller.text("p"), program_constraint=True, **fields))


def test_a_mask_for_a_generation_that_wants_none_is_refused(caller: DirectSession) -> None:
    generation = caller.call(p.StartGenerate(caller.text("p"))).generation
    with pytest.raises(p.InvalidRequest, match="program_constraint"):
        caller.call(p.NextSteps(generation, mask=[1]))


# ---------------------------------------------------------------------------------------------------------------------
# best_effort.
# ---------------------------------------------------------------------------------------------------------------------


def all_steps(caller: DirectSession, **fields: Any) -> tuple[str, p.Steps | p.ConstraintViolated, int]:
    """The text, how it ended, and the generation."""
    generation, text = caller.call(p.StartGenerate(caller.text("prompt"), **fields)).generation, ""
    while True:
        _, replies = caller.submit(p.NextSteps(generation))
        while not replies:
            assert caller.engine.step()
        if isinstance(replies[0], p.ConstraintViolated):
            return text, replies[0], generation
        text += "".join(step.text for step in replies[0].steps)
        if replies[0].finish:
            return text, replies[0], generation


@pytest.mark.parametrize("speculation", [False, True])
def test_a_finished_text_is_checked_for_what_masks_do_not_hold(caller: DirectSession, speculation: bool) -> None:
    seen = set()
    for seed in range(12):
        sampling = p.Sampling(temperature=1.0, seed=seed)
        text, end, generation = all_steps(
            caller, constraint=BEST_EFFORT, sampling=sampling, system_speculation=speculation
        )
        values = text.strip("[]").split(",")
        assert len(values) == 3
        seen.add(type(end))
        if len(set(values)) == 3:
            assert isinstance(end, p.Steps)
            assert (end.finish, end.checked) == ("stop", [p.CheckedKeyword("uniqueItems", "/uniqueItems")])
        else:
            assert isinstance(end, p.ConstraintViolated)
            assert end.detail["keyword"] == "uniqueItems"
            assert (end.detail["pointer"], end.detail["schema_pointer"]) == ("", "/uniqueItems")
            with pytest.raises(p.ConstraintViolated):
                caller.call(p.NextSteps(generation))
        assert caller.call(p.CloseGenerate(generation, keep=2)).length == len("prompt") + 2
    assert seen == {p.Steps, p.ConstraintViolated}


def test_a_text_that_was_cut_is_not_checked_but_a_whole_one_at_the_limit_is(caller: DirectSession) -> None:
    kinds = set()
    for seed in range(12):
        fields = {"constraint": BEST_EFFORT, "sampling": p.Sampling(temperature=1.0, seed=seed)}
        _, cut, _ = all_steps(caller, max_tokens=12, **fields)
        assert isinstance(cut, p.Steps)
        assert cut.finish == "length"
        text, whole, _ = all_steps(caller, max_tokens=13, **fields)
        assert len(text) == 13
        assert isinstance(whole, p.ConstraintViolated) == (len(set(text.strip("[]").split(","))) < 3)
        kinds.add(type(whole))
    assert len(kinds) == 2


def test_strict_generations_tell_nothing_to_check(caller: DirectSession, model: ServedModel) -> None:
    _, end, _ = all_steps(caller, constraint=p.ConstraintSpec("regex", "[ab]{3}"))
    assert isinstance(end, p.Steps)
    assert end.checked == []
    compiled: Compiled = model.grammars.compile(RegexGrammar("[ab]{3}"))
    assert compiled.validate("anything") is None


# ---------------------------------------------------------------------------------------------------------------------
# Every kind.
# ---------------------------------------------------------------------------------------------------------------------

KINDS = {
    "lark": (p.ConstraintSpec("lark", 'start: "a" /[0-9]{2}/'), r"a[0-9]{2}"),
    "gbnf": (p.ConstraintSpec("gbnf", 'root ::= "b" [0-9] "c"'), r"b[0-9]c"),
    "all_of": (
        p.ConstraintSpec(
            "all_of", members=[p.ConstraintSpec("regex", "[a-m]{3}"), p.ConstraintSpec("regex", "[k-z]{2,9}")]
        ),
        r"[klm]{3}",
    ),
    "exact": (p.ConstraintSpec("exact", members=[p.ConstraintSpec("regex", "x[0-9]y")]), r"x[0-9]y"),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("speculation", [False, True])
def test_each_kind_holds(caller: DirectSession, kind: str, speculation: bool) -> None:
    constraint, pattern = KINDS[kind]
    done = caller.generate(caller.text("p"), constraint=constraint, sampling=HOT, system_speculation=speculation)
    assert re.fullmatch(pattern, done.text), done.text
    assert done.finish == "stop"


def test_tagged_text_is_free_outside_and_bound_inside(caller: DirectSession) -> None:
    tag = p.TagConstraint("[", p.ConstraintSpec("regex", "[0-9]{2}"), "]")
    grammar = caller.call(p.CompileGrammar(p.ConstraintSpec("tagged", tags=[tag]))).grammar
    matcher = caller.call(p.OpenMatcher(grammar)).matcher
    state = caller.call(p.AcceptTokens(matcher, [*b"free "]))
    assert (state.accepted, state.may_end) == (5, True)
    assert caller.call(p.AcceptTokens(matcher, [*b"[1x"])).accepted == 2
    assert allowed(caller, matcher) == [*b"0123456789"]
    assert caller.call(p.AcceptTokens(matcher, [*b"2] free", END])).accepted == 8


def test_the_tokens_of_a_tenants_matchers_are_bounded_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """A matcher of 100,000 tokens had 44 MiB, and 255 forks of it as much each."""
    monkeypatch.setattr("inferd_runtime.session.constraints.held_grammars.MAX_TOKENS", 64)
    session = DirectSession(null_model(driver=NullDriver(vocab_size=VOCAB_SIZE, max_context=64)))
    grammar = session.call(p.CompileGrammar(p.ConstraintSpec("regex", "a*"))).grammar
    first = session.call(p.OpenMatcher(grammar)).matcher
    session.call(p.AcceptTokens(first, [97] * 32))
    second = session.call(p.ForkMatcher(first)).matcher
    for call in (p.AcceptTokens(first, [97]), p.ForkMatcher(second)):
        with pytest.raises(p.LimitExceeded) as refused:
            session.call(call)
        assert refused.value.detail["limit"] == "matcher_tokens"
    session.call(p.RollbackMatcher(second, 16))
    session.call(p.AcceptTokens(first, [97] * 16))
    session.call(p.ReleaseGrammar(first))
    assert session.call(p.ForkMatcher(second)).depth == 16


def test_the_grammars_of_a_tenant_are_bounded_by_what_they_take(monkeypatch: pytest.MonkeyPatch) -> None:
    """64 of them could take 22 MiB each."""
    session = DirectSession(null_model())
    compile_ = [p.CompileGrammar(p.ConstraintSpec("regex", text)) for text in ("a", "b", "c")]
    first = session.call(compile_[0]).grammar
    held = session.session._state.grammars.grammar(first).compiled.cost
    monkeypatch.setattr("inferd_runtime.session.constraints.held_grammars.MAX_GRAMMAR_BYTES", 2 * held)
    session.call(compile_[1])
    session.call(compile_[0])  # which is there already
    with pytest.raises(p.LimitExceeded) as refused:
        session.call(compile_[2])
    assert refused.value.detail["limit"] == "grammar_bytes"
    session.call(p.ReleaseGrammar(first))
