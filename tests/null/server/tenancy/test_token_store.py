"""Tokens that are made, listed, rotated and revoked while others read the file; nothing in it opens anything."""

from __future__ import annotations

import contextlib
import math
import sqlite3
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hand_clock import HandClock

from inferd.protocol import InvalidRequest, NotFound, Unauthorized, Unavailable
from inferd_runtime.server.gateway.auth import AccessTokens, TenantQuotas
from inferd_runtime.server.tenancy.quotas import ADMIN_QUOTAS, Quotas, QuotaTable, Role
from inferd_runtime.server.tenancy.token_store import COLUMNS, TokenStore
from inferd_runtime.server.tenancy.tokens import TokenRights, check_strength, new_token


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data" / "tokens.sqlite3"


def test_what_one_process_makes_and_revokes_another_one_sees_at_once(path: Path) -> None:
    server, command = TokenStore(path), TokenStore(path)
    tokens = AccessTokens({}, server)
    made = command.create("ann", Role.ADMIN, note="for the dashboard")
    rights = tokens.rights_of(f"Bearer {made.token}")
    assert rights == TokenRights("ann", Role.ADMIN, made.entry.id, math.inf)
    assert tokens.is_valid(rights)
    command.revoke(made.entry.id)
    with pytest.raises(Unauthorized, match="wrong"):
        tokens.rights_of(f"Bearer {made.token}")
    assert not tokens.is_valid(rights)
    server.close()
    command.close()


def test_no_token_can_be_read_from_the_file_and_only_its_owner_reads_that(path: Path) -> None:
    store = TokenStore(path)
    made = store.create("ann", Role.USER)
    store.close()
    assert made.token.encode() not in b"".join(file.read_bytes() for file in path.parent.iterdir())
    assert path.stat().st_mode & 0o777 == 0o600
    check_strength(made.token, "a new token")
    assert new_token() != new_token()


def test_a_token_expires(path: Path) -> None:
    calendar = HandClock()
    store = TokenStore(path, calendar)
    tokens = AccessTokens({}, store, calendar)
    made = store.create("ann", Role.USER, lifetime_s=60)
    rights = tokens.rights_of(f"Bearer {made.token}")
    calendar.now += 60
    with pytest.raises(Unauthorized, match="expired"):
        tokens.rights_of(f"Bearer {made.token}")
    assert not tokens.is_valid(rights)
    store.close()


def test_a_token_that_several_rotate_at_once_has_one_successor(path: Path) -> None:
    """Each had one, in 37 of 40 trials: whoever had lost one of them could not know that it opens the server."""
    stores = [TokenStore(path) for _ in range(4)]
    together = threading.Barrier(len(stores))

    def rotate(store: TokenStore, token: str) -> bool:
        together.wait(10)
        with contextlib.suppress(InvalidRequest):
            return bool(store.rotate(token))
        return False

    with ThreadPoolExecutor(len(stores)) as pool:
        for number in range(5):
            token = stores[0].create(f"tenant-{number}", Role.USER).entry.id
            assert sum(pool.map(rotate, stores, [token] * len(stores))) == 1
    assert sum(entry.is_valid(time.time()) for entry in stores[0].entries()) == 5
    for store in stores:
        store.close()


def test_a_rotated_token_has_the_same_rights_and_the_old_one_ends(path: Path) -> None:
    calendar = HandClock()
    store = TokenStore(path, calendar)
    tokens = AccessTokens({}, store, calendar)
    old = store.create("ann", Role.ADMIN, lifetime_s=100, note="n")
    calendar.now += 50
    before = tokens.rights_of(f"Bearer {old.token}")
    new = store.rotate(old.entry.id, overlap_s=10)
    assert tokens.is_valid(before), "what was opened with it stays open for that long"
    assert (new.entry.tenant, new.entry.role, new.entry.note) == ("ann", "admin", "n")
    assert new.entry.expires_at == calendar.now + 100
    assert tokens.rights_of(f"Bearer {old.token}").tenant == tokens.rights_of(f"Bearer {new.token}").tenant
    calendar.now += 10
    assert not tokens.is_valid(before)
    with pytest.raises(Unauthorized):
        tokens.rights_of(f"Bearer {old.token}")
    with pytest.raises(InvalidRequest, match="revoked or expired"):
        store.rotate(old.entry.id)
    assert [entry.is_valid(calendar.now) for entry in store.entries()] == [True, False]
    store.close()


def test_what_is_not_there_cannot_be_revoked(path: Path) -> None:
    store = TokenStore(path)
    with pytest.raises(NotFound, match="tok-x"):
        store.revoke("tok-x")
    store.close()


def test_a_damaged_file_is_unavailable_and_names_itself(path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(b"no database at all" * 100)
    with pytest.raises(Unavailable, match=r"tokens\.sqlite3"):
        TokenStore(path)


def test_strangers_are_not_told_in_which_folder_a_broken_file_is(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path.mkdir(parents=True)
    with pytest.raises(Unavailable) as caught:
        TokenStore(path)
    assert str(path.parent) not in caught.value.message
    assert str(path.parent) in caplog.text


def test_a_role_that_is_none_makes_the_file_unavailable_and_is_no_bug(path: Path) -> None:
    store = TokenStore(path)
    store.create("ann", Role.USER)
    with sqlite3.connect(path) as other:
        other.execute("UPDATE tokens SET role = 'root'")
    other.close()
    with pytest.raises(Unavailable, match="root"):
        AccessTokens({}, store).rights_of("Bearer x")
    store.close()


def test_a_row_that_somebody_else_wrote_is_no_bug(path: Path) -> None:
    path.parent.mkdir()
    with sqlite3.connect(path) as other:
        other.execute(f"CREATE TABLE tokens (digest, {COLUMNS})")
        other.execute("INSERT INTO tokens VALUES (x'ff', 'tok-x', 'ann', 'user', '', 'long ago', 'never', NULL)")
        other.execute("PRAGMA user_version=1")
    other.close()
    store = TokenStore(path)
    for read in (store.entries, store.rights):
        with pytest.raises(Unavailable, match="created_at"):
            read()
    store.close()


def test_a_tenant_has_the_quotas_of_its_highest_role(path: Path) -> None:
    store = TokenStore(path)
    tokens = AccessTokens({}, store)
    quotas = TenantQuotas(tokens, QuotaTable(tenants={"ann": {"runs": 3}}))
    assert quotas("bob") == Quotas()
    made = store.create("bob", Role.ADMIN)
    tokens.rights_of(f"Bearer {made.token}")
    assert quotas("bob") == ADMIN_QUOTAS
    assert quotas("ann").runs == 3
    assert tokens.tenants == {"bob": Role.ADMIN}
    store.close()


@pytest.mark.parametrize("asked", [True, False], ids=["a request comes", "no request comes"])
def test_a_tenant_is_no_admin_any_more_once_the_token_of_one_has_expired(path: Path, asked: bool) -> None:
    clock = HandClock()
    store = TokenStore(path, clock)
    tokens = AccessTokens({}, store, clock)
    store.create("ann", Role.ADMIN, 10.0)
    user = store.create("ann", Role.USER).token
    tokens.rights_of(f"Bearer {user}")
    assert tokens.role_of("ann") is Role.ADMIN
    clock.now += 10.0
    if asked:
        tokens.rights_of(f"Bearer {user}")
    assert tokens.role_of("ann") is Role.USER
    assert tokens.tenants == {"ann": Role.USER}
    store.close()
