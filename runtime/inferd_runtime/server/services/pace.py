"""How fast tenants' operations are handled: together they take a part of the event loop's time, each an even share of it."""

from __future__ import annotations

from inferd_runtime.server.connections.loop_shares import LoopShares

LOOP_SHARE = 0.5
"""The part of the gateway's thread that all these operations may take together; another may be given."""
OPERATION_SECONDS = 0.00005
"""What an operation costs beside its handler: reading its frame, and answering."""
BYTE_SECONDS = 20e-9
"""What a byte of a request costs: reading and checking a MiB of JSON takes about 20 ms."""
PRESENT_SECONDS = 1.0
"""For so long after its last operation a tenant counts as one that shares."""


def expected_seconds(size: int) -> float:
    """Return what an operation with a request of so many bytes is expected to take."""
    return OPERATION_SECONDS + size * BYTE_SECONDS


class ServicePace:
    """Says when a tenant's next operation may begin. Times are monotonic seconds. Pure state."""

    def __init__(self, loop_share: float = LOOP_SHARE) -> None:
        self._loop_share = loop_share
        self._shares = LoopShares()
        self._seen: dict[str, float] = {}

    def wait(self, tenant: str, now: float) -> float:
        """Return the seconds until an operation of the tenant may begin."""
        return self._shares.wait(tenant, now)

    def used(self, tenant: str, seconds: float, now: float) -> None:
        """Note that a tenant's operations took so much of the thread's time."""
        self._seen.pop(tenant, None)
        self._seen[tenant] = now  # as the last one
        while (oldest := next(iter(self._seen.items())))[1] < now - PRESENT_SECONDS:
            del self._seen[oldest[0]]
        self._shares.charge(tenant, seconds, now, self._loop_share / len(self._seen))

    def forget_old(self, now: float) -> None:
        """Drop the accounts that are even."""
        self._shares.forget_old(now)
