"""How many tokens are asked for: the most per time, nothing where a draft model does not pay, and what it is measured by."""

from __future__ import annotations

import itertools
import math
import random

import pytest

from inferd_runtime.draft_models.lengths import CONTROL, Calibration, DraftExperience, DraftLength


def settled(
    acceptance: float, cost: float, *, overlaps: bool = False, slowdown: float = 1.0, travel: float = 0.0
) -> DraftLength:
    """A length that has seen so much that it knows these; times are in steps."""
    experience = DraftExperience()
    experience.round_trip = 0.01 * travel
    for _ in range(200):
        experience.count_step(0.01, beside=False)
        experience.count_step(0.01 * slowdown, beside=True)
        experience.count_tokens(1, 0.01 * cost)
    length = DraftLength(experience, most=16, overlaps=overlaps)
    for at in range(400):
        length.learn([0.5], round((at + 1) * acceptance) - round(at * acceptance))
    return length


def speed(count: int, acceptance: float, cost: float) -> float:
    return float(sum(acceptance**at for at in range(count + 1)) / (1 + count * cost))


@pytest.mark.parametrize(("acceptance", "cost"), list(itertools.product((0.3, 0.6, 0.8, 0.95), (0.02, 0.1, 0.3, 0.7))))
def test_the_length_is_as_good_as_the_best_there_is(acceptance: float, cost: float) -> None:
    length = settled(acceptance, cost)
    count, _ = length.choose()
    best = max(speed(n, acceptance, cost) for n in range(17))
    assert length.acceptance == pytest.approx(acceptance, abs=0.07)
    assert speed(count, acceptance, cost) >= 0.97 * best


@pytest.mark.parametrize(("acceptance", "cost", "slowdown"), [(0.02, 0.2, 1.0), (0.5, 1.5, 1.0), (0.7, 0.1, 4.0)])
def test_what_does_not_pay_is_not_asked_but_for_probes(acceptance: float, cost: float, slowdown: float) -> None:
    length = settled(acceptance, cost, slowdown=slowdown)
    asked = [at for at in range(1000) if length.choose()[0]]
    assert 2 <= len(asked) <= 12
    assert asked[-1] - asked[-2] >= 128


def test_a_model_that_is_right_after_all_is_soon_asked_again() -> None:
    length = settled(0.1, 0.3)
    trusted = []
    for _ in range(16):
        count, probe = length.choose()
        trusted.append(count > 0 and not probe)
        length.learn([0.9] * count, count)
    assert not trusted[0]
    assert trusted[-1]


def test_guesses_that_nobody_verifies_are_not_drawn() -> None:
    length = settled(0.8, 0.2)
    assert length.choose()[0]
    for _ in range(60):
        length.count_verified(4, 0)
    assert not length.choose()[0]


def test_an_overlapping_model_is_asked_for_more() -> None:
    """It is waited for after wrong guesses alone, so that a dear draft model pays all the same."""
    assert not settled(0.8, 0.75).choose()[0]
    assert settled(0.8, 0.75, overlaps=True).choose()[0]


def test_one_step_in_so_many_goes_without() -> None:
    length = settled(0.9, 0.1)
    counts = [length.choose()[0] for _ in range(4 * CONTROL)]
    assert 4 <= counts.count(0) <= 5


def test_on_one_machine_there_is_no_deadline_and_no_lead() -> None:
    length = settled(0.8, 0.1, overlaps=True)
    assert length.patience(4) == math.inf
    assert length.lead(5) == 0


@pytest.mark.parametrize("travel", [0.1, 1.0, 5.0, 50.0])
@pytest.mark.parametrize("acceptance", [0.05, 0.5, 0.9])
def test_a_step_never_waits_longer_than_the_draft_is_worth(travel: float, acceptance: float) -> None:
    length = settled(acceptance, 0.05, overlaps=True, travel=travel)
    for count in range(1, 17):
        worth = 0.01 * (sum(length.acceptance**at for at in range(count + 1)) - 1)
        patience = length.patience(count)
        assert 0.0 <= patience <= worth
        assert not patience or patience >= 0.01 * travel, "it would not come in time"


def test_a_draft_that_comes_at_once_is_waited_for_if_that_is_faster() -> None:
    assert settled(0.9, 0.02, overlaps=True, travel=0.1).patience(8) > 0.0


def test_a_draft_that_travels_too_far_is_not_asked_for_but_for_probes() -> None:
    assert settled(0.9, 0.05, overlaps=True, travel=3.0).choose()[0] > 0
    length = settled(0.5, 0.05, overlaps=True, travel=20.0)
    asked = [at for at in range(1000) if length.choose()[0]]
    assert 2 <= len(asked) <= 12


def test_what_the_target_writes_meanwhile_is_drafted_on_top() -> None:
    length = settled(0.8, 0.05, overlaps=True, travel=2.4)
    assert (length.lead(1), length.lead(5)) == (3, 15)
    assert length.least_survival(3) < length.least_survival()


def test_a_stall_of_the_machine_is_forgotten() -> None:
    experience = DraftExperience()
    for _ in range(50):
        experience.count_step(0.01, beside=False)
        experience.count_tokens(4, 0.008)
    experience.count_step(100.0, beside=True)
    experience.count_tokens(1, 100.0)
    assert experience.cost < 1.1
    assert experience.slowdown < 1.8


def test_confidence_becomes_the_chance_that_was_seen() -> None:
    source, general = random.Random(0), Calibration()
    own = Calibration(general)
    assert own.chance(0.35) == pytest.approx(0.35)
    for _ in range(400):
        own.learn(0.35, source.random() < 0.9)
        own.learn(0.95, source.random() < 0.5)
    assert own.chance(0.35) == pytest.approx(0.9, abs=0.12)
    assert own.chance(0.95) == pytest.approx(0.5, abs=0.2)
    assert Calibration(general).chance(0.35) == pytest.approx(0.9, abs=0.25), (
        "a new generation knows it from the others"
    )
    assert own.chance(0.15) == pytest.approx(0.15)
