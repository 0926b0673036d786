"""How a front and its replicas know each other, and what tells where a request starts."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import given, settings, strategies as st
from tiers import examples

from inferd.protocol import Unauthorized
from inferd_runtime.cluster.front.start_keys import beginning_of, launch_beginning
from inferd_runtime.cluster.hop import HopTokens, hop_authorization, pinned, unpinned
from inferd_runtime.cluster.prefixes import MOST_BYTES, prefix_blocks
from inferd_runtime.server.tenancy.quotas import Role
from inferd_runtime.server.tenancy.tokens import TokenRights

KEY = "key-0123456789"
NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


@given(tenant=NAMES, token=NAMES, role=st.sampled_from(Role))
@settings(max_examples=examples(200), deadline=None)
def test_a_replica_reads_whose_a_request_is_whatever_the_tenant_is_called(tenant: str, token: str, role: Role) -> None:
    rights = TokenRights(tenant, role, token)
    assert HopTokens(KEY).rights_of(hop_authorization(KEY, rights)) == rights
    with pytest.raises(Unauthorized):
        HopTokens("another-key").rights_of(hop_authorization(KEY, rights))


@pytest.mark.parametrize(
    "header", [None, "", "Bearer", f"Bearer {KEY}", f"Bearer {KEY}:admin", "Bearer ::::", "Bearer é:a:b:c"]
)
def test_what_shows_no_key_is_refused(header: str | None) -> None:
    with pytest.raises(Unauthorized):
        HopTokens(KEY).rights_of(header)


@given(tenant=NAMES, other=NAMES, program=st.tuples(NAMES, NAMES, NAMES))
@settings(max_examples=examples(200), deadline=None)
def test_a_pinned_program_is_its_tenants_alone(tenant: str, other: str, program: tuple[str, str, str]) -> None:
    program = (program[0].replace("=", ""), *program[1:])
    reference = pinned(KEY, tenant, program)
    assert unpinned(KEY, tenant, reference) == program
    assert unpinned(KEY, other, reference) is None or other == tenant
    assert unpinned("another", tenant, reference) is None
    assert unpinned(KEY, tenant, reference[:-1] + "x") is None
    assert unpinned(KEY, tenant, "p@1") is None


def _blocks(body: object) -> tuple[bytes, ...]:
    found = beginning_of(json.dumps(body).encode(), None)
    return prefix_blocks(("ann", *found.owner), found.texts)


def test_requests_that_begin_alike_begin_with_the_same_blocks_and_others_do_not() -> None:
    system = {"role": "system", "content": "rules " * 400}
    first = _blocks({"model": "m", "temperature": 1, "messages": [system, {"role": "user", "content": "a"}]})
    second = _blocks({"messages": [system, {"content": "b", "role": "user"}], "model": "m"})
    assert first[:4] == second[:4]
    assert len(first) > 4
    other = _blocks({"model": "n", "messages": [system]})
    assert not set(first) & set(other)


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b"\xff", b"[" * 100_000, b'{"messages": 3}'])
def test_a_body_that_is_no_request_begins_with_nothing(body: bytes) -> None:
    assert beginning_of(body, "s" * 1000).session == "s" * 256
    assert launch_beginning("p", b"\xff", None).session is None


@pytest.mark.parametrize(
    "body",
    [
        b'{"messages":[' + b"[]," * 1_000_000 + b"1]}",
        b'{"messages":[' + b"1e308," * 500_000 + b"1]}",
        b'{"messages":[' + b'"",' * 1_000_000 + b"1]}",
    ],
)
def test_a_body_that_takes_long_to_read_is_not_looked_into(body: bytes) -> None:
    """The front looked at all of it: for 8 s in the second case, while it answered nobody."""
    began = time.process_time()
    assert beginning_of(body, "s").texts == ()
    assert time.process_time() - began < 0.5


def test_no_more_of_a_beginning_is_kept_than_is_looked_at() -> None:
    found = beginning_of(json.dumps({"prompt": ["x" * 100] * 20_000, "model": "m" * 9000}).encode(), None)
    assert MOST_BYTES <= sum(len(text) + 1 for text in found.texts) <= MOST_BYTES + 101
    assert len(found.owner[0]) == 256
