"""A draft model over the network: the same tokens whatever happens on the way, and it comes back by itself."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from draft_engines import Engine
from waiting import wait_until

from inferd.protocol import InvalidRequest
from inferd_runtime.draft_models.draft_host import DraftHost
from inferd_runtime.engine.sampling.host_sampling import RowSampler

from .conftest import Stand

Sampler = Callable[..., RowSampler]
MakeHost = Callable[..., DraftHost]


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_the_next_draft_is_made_while_one_is_verified_and_the_tokens_are_the_same(
    stand: Stand, sampler: Sampler, temperature: float
) -> None:
    drawn = sampler(temperature, 7)
    stand.while_verifying = lambda: wait_until(stand.answered)
    assert stand.drafted(drawn) == stand.plain(drawn)
    assert stand.counters.hits > 5
    assert stand.counters.failures == 0
    assert stand.counters.connections == 1
    assert stand.counters.round_trip > 0.0


def test_only_what_is_new_is_computed_and_a_generation_that_ends_leaves_nothing(stand: Stand, sampler: Sampler) -> None:
    driver = stand.engine.host.engine.driver
    tokens = stand.drafted(sampler(), max_tokens=60)
    fed = driver.tokens_fed  # type: ignore[attr-defined]
    assert fed < 3 * (len(tokens) + 5), "keys and values are kept from one request to the next"
    wait_until(lambda: not len(stand.engine.host), "it is not dropped")


def test_the_session_ends_when_the_target_does(stand: Stand, sampler: Sampler) -> None:
    drafter = stand.models.open(tenant="tenant", sampler=sampler())
    drafter.observe([1, 2, 3])
    wait_until(lambda: len(stand.engine.host) == 1)
    assert stand.engine.service.sessions == 1
    stand.models.close()
    wait_until(lambda: stand.engine.service.sessions == 0 and not len(stand.engine.host), "it is not ended")
    stand.models = type("Closed", (), {"close": lambda self: None})()


def test_a_draft_engine_that_is_cut_off_at_any_point_changes_no_token(stand: Stand, sampler: Sampler) -> None:
    source = random.Random(3)

    def poll() -> None:
        if source.random() < 0.03:
            stand.proxy.cut()

    for seed in range(2):
        drawn = sampler(0.8, seed)
        assert stand.drafted(drawn, 200, poll) == stand.plain(drawn, 200)
    assert stand.counters.failures > 0
    assert stand.counters.connections > 1, "it connects again by itself"


def test_it_drafts_again_when_it_comes_back(stand: Stand, sampler: Sampler, make_host: MakeHost) -> None:
    assert stand.drafted(sampler()) == stand.plain(sampler())
    stand.engine.close()
    assert stand.drafted(sampler()) == stand.plain(sampler()), "without it"
    stand.engine = Engine(make_host(0), port=stand.engine.port)
    connections = stand.counters.connections

    def back() -> bool:
        stand.models.poll()
        return stand.counters.connections > connections

    wait_until(back, "it does not come back")
    stand.while_verifying = lambda: wait_until(stand.answered)
    hits = stand.counters.hits
    assert stand.drafted(sampler()) == stand.plain(sampler())
    assert stand.counters.hits > hits


def test_delays_of_up_to_200_ms_change_no_token_and_waiting_for_them_is_soon_given_up(
    stand: Stand, sampler: Sampler
) -> None:
    source = random.Random(5)
    stand.proxy.delay = lambda: source.uniform(0.0, 0.1)  # one way
    expected = [stand.plain(sampler(temperature, 3), 120) for temperature in (0.0, 0.8)]
    stand.while_verifying = lambda: stand.transport.wait(0.005)
    assert [stand.drafted(sampler(temperature, 3), 120) for temperature in (0.0, 0.8)] == expected
    counters = stand.counters
    assert counters.late + counters.hits + counters.misses > 0, "some answers came while it ran"
    assert counters.waited < 3.0, "of 240 steps, each of which could have waited for 50 ms"


def test_frames_that_are_corrupted_change_no_token_and_are_never_believed(stand: Stand, sampler: Sampler) -> None:
    stand.proxy.corrupt = 0.08
    for seed in range(2):
        drawn = sampler(0.8, seed)
        assert stand.drafted(drawn, 200) == stand.plain(drawn, 200)
    assert stand.counters.connections > 1
    assert stand.counters.failures > 0


def test_a_draft_model_of_another_mind_changes_no_token(stand: Stand, sampler: Sampler, make_host: MakeHost) -> None:
    stand.engine.close()
    stand.engine = Engine(make_host(99), port=stand.engine.port)
    drawn = sampler(0.8, 1)
    assert stand.drafted(drawn) == stand.plain(drawn)


def test_its_distributions_are_not_believed(stand: Stand, sampler: Sampler) -> None:
    with pytest.raises(InvalidRequest, match="is on another machine"):
        stand.models.open(tenant="tenant", sampler=sampler(0.8), verifier="rejection")
