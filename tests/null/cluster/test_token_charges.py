"""Tokens that replicas generate count against a tenant's rate at the front."""

from __future__ import annotations

import pytest

from inferd.protocol import LimitExceeded
from inferd_runtime.cluster.front.token_charges import TokenCharges
from inferd_runtime.cluster.messages import ReplicaReport
from inferd_runtime.server.tenancy.quotas import Quotas, same_for_all
from inferd_runtime.server.tenancy.tenant_use import TenantUse


def test_a_rate_of_tokens_holds_over_all_replicas_and_what_was_before_is_not_charged() -> None:
    now = 0.0
    use = TenantUse(same_for_all(Quotas(tokens_per_minute=100)), clock=lambda: now)
    charges = TokenCharges(use)
    for name in ("a", "b"):
        charges.heard(ReplicaReport(name=name, produced={"ann": 1000}))
    use.admit_launch("ann")
    charges.heard(ReplicaReport(name="a", produced={"ann": 1060}))
    use.admit_launch("ann")
    charges.heard(ReplicaReport(name="b", produced={"ann": 1060, "bob": 5}))
    with pytest.raises(LimitExceeded):
        use.admit_launch("ann")
    use.admit_launch("bob")
    charges.heard(ReplicaReport(name="b", produced={"ann": 1060, "bob": 5}))
    now = 20.0
    use.admit_launch("ann")
    assert use.produced == {"ann": 120, "bob": 5}
