"""The draft side: what a sequence draws, when it stops, what it takes back, and what becomes of it under pressure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from sampling_driver import SamplingNullDriver
from tiers import examples

from inferd_runtime.draft_models.draft_host import DraftHost
from inferd_runtime.draft_models.draft_sampling import draw_freely, draw_guess
from inferd_runtime.draft_models.messages import AskDraft, DraftAnswer, DraftSpec
from inferd_runtime.engine.engine import Engine, EngineOptions
from inferd_runtime.engine.sampling.host_sampling import RowSampler, draw
from inferd_runtime.engine.sampling.penalties import Penalties
from inferd_runtime.testing.null_driver import NullDriver
from inferd_runtime.testing.speculation import penalised

MakeHost = Callable[..., DraftHost]
Sampler = Callable[..., RowSampler]
PROMPT = [1, 2, 3, 4, 5]


@pytest.fixture(params=[NullDriver, SamplingNullDriver], ids=["host draws", "device draws"])
def draft_driver(request: pytest.FixtureRequest) -> type[NullDriver]:
    """Both ways, the same answers."""
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
def spec(sampler: Sampler) -> DraftSpec:
    return DraftSpec("tenant", sampler(), width=12)


def ask(host: DraftHost, request: AskDraft, *, steps: int = 1 << 20) -> list[DraftAnswer]:
    """The answers after at most so many steps."""
    answers: list[DraftAnswer] = []
    host.ask("client", request, answers.append)
    while steps and not answers and host.step():
        steps -= 1
    host.engine.check_integrity()
    return answers


def continuation(driver: NullDriver, sampler: RowSampler, tokens: list[int], count: int, prompt: int = 0) -> list[int]:
    """What the model writes; to penalties, what stands behind the first ``prompt`` tokens is output."""
    held = list(tokens)
    for _ in range(count):
        row = driver.logits(held)
        if sampler.penalties is not None:
            row = penalised(row, sampler.penalties, held[:prompt], held[prompt:])
        held.append(draw(row, sampler, len(held)))
    return held[len(tokens) :]


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_sequence_draws_what_the_draft_model_would_write_with_the_targets_noise(
    make_host: MakeHost, sampler: Sampler, temperature: float
) -> None:
    host, drawn = make_host(3), sampler(temperature, 7)
    (answer,) = ask(host, AskDraft(1, 0, PROMPT, 6, spec=DraftSpec("tenant", drawn, 12)))
    assert answer.tokens == continuation(NullDriver(vocab_size=12, seed=3), drawn, PROMPT, 6)
    assert (answer.base, len(answer.confidence), answer.ended, answer.probabilities) == (5, 6, False, b"")
    assert all(0 < chance <= 1 for chance in answer.confidence)


def test_what_agrees_stands_and_what_does_not_is_taken_back(make_host: MakeHost, spec: DraftSpec) -> None:
    host = make_host()
    (first,) = ask(host, AskDraft(1, 0, PROMPT, 4, spec=spec))
    before = host.engine.driver.tokens_fed  # type: ignore[attr-defined]
    (same,) = ask(host, AskDraft(1, 5, first.tokens[:2], 2))
    assert (same.base, same.tokens, same.drawn) == (7, first.tokens[2:], 0)
    assert host.engine.driver.tokens_fed == before, "nothing had to be computed"  # type: ignore[attr-defined]
    other = (first.tokens[2] + 1) % 12
    (changed,) = ask(host, AskDraft(1, 7, [other], 3))
    expected = continuation(NullDriver(vocab_size=12), spec.sampler, [*PROMPT, *first.tokens[:2], other], 3)
    assert (changed.base, changed.tokens) == (8, expected)


def test_a_newer_request_supersedes_the_one_before_between_two_steps(make_host: MakeHost, spec: DraftSpec) -> None:
    host = make_host()
    answers = ask(host, AskDraft(1, 0, PROMPT, 9, spec=spec), steps=0)
    for _ in range(3):
        host.step()
    assert not answers
    expected = continuation(NullDriver(vocab_size=12), spec.sampler, PROMPT, 4)
    (second,) = ask(host, AskDraft(1, 5, [], 4))
    assert answers[0].tokens == expected[:3], "the old one is answered with what there was"
    assert second.tokens == expected


def test_end_of_text_ends_a_draft_and_is_not_a_part_of_it(make_host: MakeHost, spec: DraftSpec) -> None:
    path = continuation(NullDriver(vocab_size=12), spec.sampler, PROMPT, 3)
    (answer,) = ask(make_host(eos=[path[2]]), AskDraft(1, 0, PROMPT, 8, spec=spec))
    assert answer.tokens == path[: path.index(path[2])]
    assert answer.ended


def test_an_unlikely_draft_ends_early(make_host: MakeHost, spec: DraftSpec) -> None:
    (answer,) = ask(make_host(), AskDraft(1, 0, PROMPT, 30, least=0.1, spec=spec))
    chances = np.cumprod(answer.confidence)
    assert answer.ended
    assert chances[-1] < 0.1 <= chances[-2]


def test_a_full_context_ends_a_draft(make_host: MakeHost, spec: DraftSpec) -> None:
    host = make_host(max_context=8)
    (answer,) = ask(host, AskDraft(1, 0, PROMPT, 30, spec=spec))
    assert (len(answer.tokens), answer.ended) == (3, True)
    (answer,) = ask(host, AskDraft(1, 0, [1] * 9, 3, spec=spec))
    assert "the model's context holds 8" in answer.error
    assert not len(host)


def test_an_id_that_the_draft_model_does_not_have_is_an_error_of_that_sequence_alone(
    make_host: MakeHost, spec: DraftSpec
) -> None:
    host = make_host()
    (fine,) = ask(host, AskDraft(1, 0, PROMPT, 2, spec=spec))
    (answer,) = ask(host, AskDraft(2, 0, [99], 3, spec=spec))
    assert "outside the vocabulary" in answer.error
    assert len(ask(host, AskDraft(1, 5, fine.tokens, 2))[0].tokens) == 2


def test_what_is_not_known_has_to_be_sent_again(make_host: MakeHost, spec: DraftSpec) -> None:
    host = make_host(most=2)
    assert ask(host, AskDraft(1, 5, [1], 3))[0].lost
    for number in (1, 2, 3):
        ask(host, AskDraft(number, 0, PROMPT, 2, spec=spec))
    assert len(host) == 2
    assert ask(host, AskDraft(1, 5, [1], 3))[0].lost, "asked for longest ago"
    assert ask(host, AskDraft(2, 9, [1], 3))[0].lost, "a gap before the tokens"
    assert not ask(host, AskDraft(2, 5, [1], 3))[0].lost
    assert not ask(host, AskDraft(1, 0, PROMPT, 2, spec=spec))[0].lost


def test_one_tenants_sequences_do_not_push_out_anothers(make_host: MakeHost, spec: DraftSpec) -> None:
    host = make_host(most=8)
    ask(host, AskDraft(1, 0, PROMPT, 2, spec=spec))
    for number in range(2, 40):
        ask(host, AskDraft(number, 0, PROMPT, 2, spec=replace(spec, tenant="greedy")))
    assert len(host) == 8
    before = host.engine.driver.tokens_fed  # type: ignore[attr-defined]
    assert not ask(host, AskDraft(1, 5, [1], 1))[0].lost
    assert host.engine.driver.tokens_fed - before <= 2, "nothing is computed again"  # type: ignore[attr-defined]
    assert ask(host, AskDraft(2, 5, [1], 1))[0].lost, "of the tenant that holds most, the one asked for longest ago"
    assert not ask(host, AskDraft(39, 5, [1], 1))[0].lost


def test_ids_are_drawn_below_the_width_only(make_host: MakeHost, spec: DraftSpec) -> None:
    for seed in range(8):
        (answer,) = ask(make_host(seed), AskDraft(1, 0, PROMPT, 12, spec=replace(spec, width=3)))
        assert set(answer.tokens) <= {0, 1, 2}


def test_sequences_share_a_batch_and_answer_the_same_as_alone(make_host: MakeHost, spec: DraftSpec) -> None:
    prompts = {number: [number % 12, 3, 5, number % 7] for number in range(6)}
    alone = {n: ask(make_host(), AskDraft(n, 0, prompt, 5, spec=spec))[0].tokens for n, prompt in prompts.items()}
    host, together = make_host(), {number: list[DraftAnswer]() for number in prompts}
    for number, prompt in prompts.items():
        host.ask("client", AskDraft(number, 0, prompt, 5, spec=spec), together[number].append)
    while host.step():
        pass
    assert {number: answers[0].tokens for number, answers in together.items()} == alone
    assert host.engine.steps == 5


def test_pages_that_are_short_cost_time_and_no_tokens(spec: DraftSpec) -> None:
    host = DraftHost(Engine(NullDriver(vocab_size=12, pages=8), EngineOptions(swap_bytes=0)), ())
    prompts = {number: [number, 3, 5, number] * 4 for number in range(4)}
    for count in (3, 6, 9):
        for number, prompt in prompts.items():
            (answer,) = ask(host, AskDraft(number, 0, prompt, count, spec=spec if count == 3 else None))
            assert answer.tokens == continuation(NullDriver(vocab_size=12), spec.sampler, prompt, count)
    assert host.engine.parking.dropped > 0
    host.close()
    host.engine.pool.check_integrity([])


def test_a_sequence_that_fits_nowhere_is_answered_with_the_error(spec: DraftSpec) -> None:
    host = DraftHost(Engine(NullDriver(vocab_size=12, pages=2)), ())
    (answer,) = ask(host, AskDraft(1, 0, PROMPT * 4, 3, spec=spec))
    assert "the KV cache is full" in answer.error
    assert not len(host)


def test_tenants_do_not_find_each_others_prefixes(make_host: MakeHost, spec: DraftSpec) -> None:
    host = make_host()
    ask(host, AskDraft(1, 0, PROMPT * 4, 2, spec=spec))
    ask(host, AskDraft(2, 0, PROMPT * 4, 2, spec=replace(spec, tenant="other")))
    assert host.engine.contexts.reused == 0
    ask(host, AskDraft(3, 0, PROMPT * 4, 2, spec=spec))
    assert host.engine.contexts.reused > 0


def test_for_rejection_the_noise_is_its_own_and_the_distribution_comes_along(
    make_host: MakeHost, spec: DraftSpec, sampler: Sampler
) -> None:
    """Also: neither end-of-text nor doubt ends the draft, as the verifier must not see chosen draws."""
    drawn = sampler(1.0, 5)
    wanted = replace(spec, sampler=drawn, probabilities=True)
    (answer,) = ask(make_host(), AskDraft(1, 0, PROMPT, 12, least=0.9, spec=wanted))
    rows = np.frombuffer(answer.probabilities, np.float32).reshape(12, 12)
    held, driver = list(PROMPT), NullDriver(vocab_size=12)
    for token, row in zip(answer.tokens, rows, strict=True):
        guess = draw_freely(driver.logits(held), drawn, len(held))
        assert guess.probabilities is not None
        assert token == guess.token
        np.testing.assert_allclose(row, guess.probabilities, atol=1e-6)
        held.append(token)
    shared = continuation(driver, drawn, PROMPT, 12)
    assert answer.tokens != shared
    (ended,) = ask(make_host(eos=[answer.tokens[1]]), AskDraft(1, 0, PROMPT, 12, spec=wanted))
    assert (ended.tokens, ended.ended) == (answer.tokens, False)


def test_free_draws_follow_their_distribution_and_shared_draws_are_the_targets(sampler: Sampler) -> None:
    """Chi-square with 7 degrees of freedom; 24.3 is its 99.9 % quantile."""
    logits = np.linspace(-1, 1, 8, dtype=np.float32)
    expected = np.exp(logits) / np.exp(logits).sum() * 4000
    counts = np.zeros(8)
    agreed = 0
    for seed in range(4000):
        drawn = sampler(1.0, seed)
        token = draw_freely(logits, drawn, 3).token
        counts[token] += 1
        agreed += token == draw(logits, drawn, 3)
        assert draw_guess(logits, drawn, 3).token == draw(logits, drawn, 3)
    assert ((counts - expected) ** 2 / expected).sum() < 24.3
    assert abs(agreed / 4000 - ((expected / 4000) ** 2).sum()) < 0.03, "independent of the target's noise"


@pytest.mark.parametrize("start", [17, 18], ids=["in place of the last one", "behind it"])
def test_a_token_that_is_committed_while_a_row_is_in_flight_gets_no_draw_of_before_it(start: int) -> None:
    drawn = RowSampler(0.7, 0, 1.0, 0.0, 0)
    prompt, answers = [0] * 18, list[DraftAnswer]()
    for committed in range(5):
        host = DraftHost(Engine(SamplingNullDriver(vocab_size=6, pages=24), EngineOptions(token_budget=8)), [5])
        host.ask("client", AskDraft(1, 0, prompt, 1, 0.0, DraftSpec("t", drawn, 6, prompt=18)), answers.append)
        host.step()
        host.step()
        (answer,) = ask(host, AskDraft(1, start, [committed], 1))
        held = [*prompt[:start], committed]
        assert answer.base == len(held)
        wanted = continuation(NullDriver(vocab_size=6), drawn, held, len(answer.tokens) + 1, 18)
        assert answer.tokens == wanted[:-1]
        host.close()


@settings(max_examples=examples(60), deadline=None)
@given(st.data())
def test_any_course_of_requests_draws_what_the_model_would_write(data: st.DataObject) -> None:
    """The client commits what was drawn or something else, asks again while a request is open, and lets steps pass."""
    seed = data.draw(st.integers(0, 3))
    penalties = Penalties(1.3, 0.5, 0.4, (2, 99), (0.7, 1.0)) if data.draw(st.booleans()) else None
    drawn = RowSampler(0.7, 0, 1.0, 0.0, seed, penalties)
    reference = NullDriver(vocab_size=6, seed=seed)
    kind = data.draw(st.sampled_from([NullDriver, SamplingNullDriver]))
    host = DraftHost(Engine(kind(vocab_size=6, seed=seed, pages=24), EngineOptions(token_budget=8)), [5])
    held: list[int] = data.draw(st.lists(st.integers(0, 4), min_size=1, max_size=20))
    told, given, prompt = 0, 0, len(held)
    answers: list[tuple[int, DraftAnswer]] = []
    for turn in range(data.draw(st.integers(1, 8))):
        spec = DraftSpec("t", drawn, 6, prompt=prompt) if turn == 0 else None
        count, length = data.draw(st.integers(1, 9)), len(held)
        host.ask(0, AskDraft(1, told, held[told:], count, 0.0, spec), lambda a, n=length: answers.append((n, a)))  # type: ignore[misc]
        told, given = len(held), given + 1
        for _ in range(data.draw(st.integers(0, 6))):
            host.step()
            host.engine.check_integrity()
        if data.draw(st.booleans()):
            held += continuation(reference, drawn, held, data.draw(st.integers(1, 4)), prompt)
        else:
            held += data.draw(st.lists(st.integers(0, 4), max_size=3))
    while host.step():
        pass
    assert len(answers) == given, "every request is answered once"
    for length, answer in answers:
        assert answer.base == length
        expected = continuation(reference, drawn, held[:length], len(answer.tokens) + 1, prompt)
        assert answer.tokens == expected[:-1]
        assert not answer.ended or expected[-1] == 5
    host.close()
    host.engine.pool.check_integrity([])


def test_sequences_of_different_salts_share_no_page(make_host: MakeHost, sampler: Sampler) -> None:
    host = make_host()
    for number, salt in enumerate(["", "a", "b"]):
        ask(host, AskDraft(number, 0, PROMPT * 2, 3, spec=DraftSpec("tenant", sampler(), 12, salt=salt)))
    assert host.engine.contexts.reused == 0
    ask(host, AskDraft(3, 0, PROMPT * 2, 3, spec=DraftSpec("tenant", sampler(), 12, salt="a")))
    assert host.engine.contexts.reused > 0
