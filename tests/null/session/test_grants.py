"""A session is opened by the gateway's grant, and by nothing else."""

from __future__ import annotations

import msgspec
import pytest
from hand_clock import HandClock

from inferd.protocol import Unauthorized
from inferd_runtime.session.grants import SIGNATURE_BYTES, VALID_SECONDS, Grant, SessionGrants, new_key


@pytest.fixture
def grants() -> SessionGrants:
    return SessionGrants(new_key(), HandClock())


def test_it_says_whose_the_session_is(grants: SessionGrants) -> None:
    grant = grants.redeem(grants.issue("run/1", "ann"))
    assert (grant.session, grant.tenant, grant.gateway) == ("run/1", "ann", False)
    assert grants.redeem(grants.issue("gateway/1", "inferd", gateway=True)).gateway


@pytest.mark.parametrize("sealed", [b"", b"short", bytes(SIGNATURE_BYTES), bytes(200)])
def test_what_the_gateway_did_not_make_opens_nothing(grants: SessionGrants, sealed: bytes) -> None:
    with pytest.raises(Unauthorized, match="not granted"):
        grants.redeem(sealed)


def test_no_byte_of_it_can_be_changed(grants: SessionGrants) -> None:
    sealed = grants.issue("run/1", "ann")
    for place in range(len(sealed)):
        changed = bytes([*sealed[:place], sealed[place] ^ 1, *sealed[place + 1 :]])
        with pytest.raises(Unauthorized, match="not granted"):
            grants.redeem(changed)
    for other in (sealed[:-1], sealed + b"\0"):
        with pytest.raises(Unauthorized, match="not granted"):
            grants.redeem(other)


def test_another_key_opens_nothing(grants: SessionGrants) -> None:
    body = msgspec.msgpack.encode(Grant("run/1", "ann", True, 1e9))
    with pytest.raises(Unauthorized, match="not granted"):
        grants.redeem(SessionGrants(new_key()).issue("run/1", "ann")[:SIGNATURE_BYTES] + body)


def test_it_opens_one_session_once_and_not_for_long() -> None:
    clock = HandClock()
    grants = SessionGrants(new_key(), clock)
    sealed, late = grants.issue("run/1", "ann"), grants.issue("run/2", "ann")
    grants.redeem(sealed)
    with pytest.raises(Unauthorized, match="used already"):
        grants.redeem(sealed)
    clock.now += VALID_SECONDS + 1
    for old in (sealed, late):
        with pytest.raises(Unauthorized, match="older than"):
            grants.redeem(old)
    grants.redeem(grants.issue("run/3", "ann"))
    assert len(grants._used) == 1, "what is too old is forgotten"
