"""What is kept for everybody else: no group of tenants up to the stated number can take another one's share."""

from __future__ import annotations

import contextlib
import gc
import weakref

import pytest
from hypothesis import given, strategies as st

from inferd.protocol import LimitExceeded
from inferd_runtime.server.tenancy.shares import SharedPlaces, ShareRule

Deed = tuple[int, int]
"""Which colluder, and how much it takes (gives back, if negative)."""


@st.composite
def rules(draw: st.DrawFn) -> ShareRule:
    share, guarded = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    return ShareRule(draw(st.integers((guarded + 1) * share, 40)), guarded, share)


@given(rules(), st.lists(st.tuples(st.integers(0, 3), st.integers(-5, 8)), max_size=80), st.data())
def test_no_group_up_to_the_guarded_number_can_take_another_tenants_share(
    rule: ShareRule, deeds: list[Deed], data: st.DataObject
) -> None:
    places = SharedPlaces(rule, "places", "more places")
    for who, amount in deeds:
        tenant = f"eve-{who % rule.guarded}"
        if amount < 0:
            places.give_back(tenant, min(-amount, places.held(tenant)))
            continue
        try:
            places.take(tenant, amount)
        except LimitExceeded:
            continue
    assert places.used == sum(places.held(f"eve-{who}") for who in range(rule.guarded)) <= rule.capacity
    places.take("ann", data.draw(st.integers(0, rule.share)))


def test_one_tenant_alone_gets_all_but_what_is_kept() -> None:
    places = SharedPlaces(ShareRule(10, 3), "places", "--places")
    for _ in range(7):
        places.take("eve")
    with pytest.raises(LimitExceeded, match="7 of the server's 10 places") as caught:
        places.take("eve")
    assert caught.value.detail == {"limit": "places", "value": 10, "raise_with": "--places", "retry_after_s": 1.0}
    with places.holding("ann"), places.holding("bob"), places.holding("cy"), pytest.raises(LimitExceeded):
        places.take("dan")
    places.give_back("eve")
    places.take("eve")
    assert places.held("eve") == 7


def test_a_rule_cannot_keep_more_than_there_is() -> None:
    with pytest.raises(AssertionError):
        ShareRule(5, 2, 2)


class Body:
    """What somebody has who takes places."""


def test_a_refusal_keeps_nothing_of_what_its_callers_have() -> None:
    """It was held by a variable of who raised it: with it stayed answers that were refused, until the next collection."""
    places = SharedPlaces(ShareRule(1, 0), "places", "more places")

    def refused() -> weakref.ref[Body]:
        body = Body()
        with contextlib.suppress(LimitExceeded):
            places.take("eve", 2)
        return weakref.ref(body)

    gc.disable()
    try:
        assert refused()() is None
    finally:
        gc.enable()
