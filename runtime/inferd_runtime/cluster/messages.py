"""What a cluster's front and its replicas tell each other, beside the requests of clients."""

from __future__ import annotations

import re

import msgspec

from inferd_runtime.cluster.quota_shares import QuotaShare, QuotaUse
from inferd_runtime.server.tenancy.kept_counts import Kept

REPORT_PATH, TAKE_OVER_PATH = "/cluster/report", "/cluster/take-over"
RESOLVE_PATH, SOURCE_PATH, ENTRIES_PATH = "/cluster/programs/resolve", "/cluster/programs/source", "/cluster/programs"
JOIN_PATH = "/cluster/join"
RUNS, KV_PAGES, FETCHES, FETCH_RATE = "runs", "kv_pages", "fetches", "fetches_per_minute"
"""The quotas that are divided between replicas by use."""
KEPT_RUNS, KEPT_RESPONSES = "runs", "responses"
"""The stores whose contents are held to quotas over all replicas."""
NAME_DIGITS = 8
REPLICA_NAME = re.compile(f"[0-9a-f]{{{NAME_DIGITS}}}")
RUN_ID = re.compile(f"run-([0-9a-f]{{{NAME_DIGITS}}})[0-9a-f]{{16}}")
REPLICAS_FOLDER = "replicas"
"""In the cluster's data folder: a folder for each replica, named by it."""


class FrontOrder(msgspec.Struct, frozen=True, kw_only=True):
    """What the front tells a replica, several times a second.

    Fields:
        front: the front's private address.
        drained: the front has seen that the replica is to end, and starts nothing more on it.
        in_flight: requests that the replica is answering, except streams of runs' events.
        parts: into how many even parts the quotas of tenants are divided that stand in no ``shares``; 0: the replica has none.
        shares: what tenants may hold here of what they may hold in all, by tenant and quota.
        elsewhere: seconds of service that tenants have received on other replicas since the front started.
        forget: of the finished runs and responses that were ever kept here, how many the replica should have forgotten, by
            store and tenant.
        held: bytes that runs hold that are not over, on other replicas, by tenant.
    """

    front: str
    drained: bool = False
    in_flight: int = 0
    parts: int = 0
    shares: dict[str, dict[str, QuotaShare]] = {}
    elsewhere: dict[str, float] = {}
    forget: dict[str, dict[str, int]] = {}
    held: dict[str, int] = {}


class ReplicaReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a replica answers.

    Fields:
        name: the replica's.
        ready: launches work.
        draining: it is to end.
        runs: those that are not over, by id their tenant.
        waiting: how many of them wait for a worker.
        jobs: what its engines work on.
        pages, pages_free: of its KV caches.
        heir_of: replicas whose runs it has taken over.
        produced: tokens that were generated here since it started, by tenant.
        served: seconds of the engine's time that tenants received since it started.
        uses: what tenants use of what is divided between replicas, by tenant and quota.
        waiting_of: how many runs of each tenant wait for a worker though the tenant's share has room for them.
        models: the names of the models that are served.
        parts: the order's, as it holds now.
        kept: what is kept of tenants' finished runs and responses, by store and tenant.
        held: bytes that runs hold that are not over, by tenant.
        now: monotonic seconds of the replica.
    """

    name: str
    ready: bool = True
    draining: bool = False
    runs: dict[str, str] = {}
    waiting: int = 0
    jobs: int = 0
    pages: int = 0
    pages_free: int = 0
    heir_of: list[str] = []
    produced: dict[str, int] = {}
    served: dict[str, float] = {}
    uses: dict[str, dict[str, QuotaUse]] = {}
    waiting_of: dict[str, int] = {}
    models: list[str] = []
    parts: int = 0
    kept: dict[str, dict[str, Kept]] = {}
    held: dict[str, int] = {}
    now: float = 0.0

    @property
    def kv_use(self) -> float:
        """The part of all KV pages that is held, 0 to 1."""
        return 1 - self.pages_free / self.pages if self.pages else 0.0


class JoinCluster(msgspec.Struct, frozen=True):
    """What tells the front that a replica is there, and where it listens."""

    name: str
    url: str


class TakeOver(msgspec.Struct, frozen=True):
    """Asks a replica to take over what one that has ended left behind."""

    name: str


class ProgramQuery(msgspec.Struct, frozen=True):
    """Asks the front for a tenant's programs, or what a reference of the tenant stands for."""

    tenant: str
    reference: str = ""


class ProgramKey(msgspec.Struct, frozen=True):
    """A program's hash, name and version."""

    hash: str
    name: str
    version: str


class ProgramEntry(msgspec.Struct, frozen=True):
    """A line of a tenant's list of programs."""

    id: str
    name: str
    version: str
    created_at: float
    serves: str
