"""Quotas: whose number counts, and what is refused."""

from __future__ import annotations

from dataclasses import fields

import pytest
from hypothesis import given, strategies as st

from inferd.protocol import InvalidRequest, LimitExceeded
from inferd_runtime.server.tenancy.quotas import (
    ADMIN_QUOTAS,
    QUOTA_FIELDS,
    Quotas,
    QuotaTable,
    Role,
    read_quota,
    read_quotas,
)


def test_a_role_has_defaults_that_the_operator_changes_for_it_and_for_one_tenant() -> None:
    table = read_quotas(["user,runs=5,weight=2.5", "tenant:ann,runs=7", "admin,programs=3"])
    assert table.of("bob", Role.USER) == Quotas(runs=5, weight=2.5)
    assert table.of("ann", Role.USER) == Quotas(runs=7, weight=2.5)
    assert table.of("ann", Role.ADMIN).runs == 7
    assert table.of("root", Role.ADMIN).programs == 3
    assert table.of("root", Role.ADMIN).runs == ADMIN_QUOTAS.runs


def test_the_operators_table_wins_over_a_tokens_file() -> None:
    table = read_quotas(["tenant:ann,runs=7"]).over({"ann": {"runs": 1, "waiting": 2}, "bob": {"runs": 3}})
    assert (table.of("ann", Role.USER).runs, table.of("ann", Role.USER).waiting) == (7, 2)
    assert table.of("bob", Role.USER).runs == 3


def test_a_value_above_a_quota_is_refused_by_name_and_zero_means_no_limit() -> None:
    Quotas(runs=3).check("runs", 3, "runs at a time")
    Quotas(runs=0).check("runs", 10**9, "runs at a time")
    with pytest.raises(LimitExceeded, match="may have 3 runs at a time") as caught:
        Quotas(runs=3).check("runs", 4, "runs at a time")
    assert (caught.value.detail["limit"], caught.value.detail["value"]) == ("runs", 3)
    assert "--quota" in caught.value.detail["raise_with"]


@pytest.mark.parametrize(
    "line",
    [
        "", "ann,runs=3", "user,run=3", "user,runs", "user,runs=", "user,runs=-1", "user,runs=1.5", "user,runs=nan",
        "user,runs=inf", "user,runs=1e30", "user,weight=0", "user,", "tenant:ann,weight=x", "user,runs=0x10",
    ],
)  # fmt: skip
def test_a_wrong_quota_is_refused(line: str) -> None:
    with pytest.raises(InvalidRequest, match="quota"):
        read_quotas([line])


@given(st.sampled_from(sorted(QUOTA_FIELDS)), st.integers(1, 10**12))
def test_every_quota_can_be_set(name: str, value: int) -> None:
    assert read_quota(f"{name}={value}") == (name, value)
    assert getattr(QuotaTable(tenants={"ann": {name: value}}).of("ann", Role.USER), name) == value


@given(st.text())
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        name, value = read_quota(text)
    except InvalidRequest:
        return
    assert name in QUOTA_FIELDS
    assert value >= 0


def test_every_quota_is_a_number_with_its_own_default() -> None:
    assert {one.name for one in fields(Quotas)} == QUOTA_FIELDS.keys()
    assert set(QUOTA_FIELDS.values()) == {int, float}
