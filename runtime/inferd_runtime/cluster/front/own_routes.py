"""What the front answers itself: programs, which it keeps, and what is the sum of what replicas answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import anyio
import msgspec
from prometheus_client import Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from inferd.protocol import InferdError
from inferd_runtime.cluster.front.hop_client import HopClient, ReplicaGone, answer_of, hop_request
from inferd_runtime.cluster.front.members import Member, Members
from inferd_runtime.server.gateway.audit import SUBJECT_KEY
from inferd_runtime.server.gateway.auth import ROLE_KEY, TENANT_KEY, AccessTokens, require_admin
from inferd_runtime.server.gateway.common_routes import CommonRoutes
from inferd_runtime.server.gateway.metric_families import family
from inferd_runtime.server.gateway.openapi_route import document_route
from inferd_runtime.server.gateway.replies import reply
from inferd_runtime.server.programs.library import ProgramLibrary
from inferd_runtime.server.tenancy.quotas import Role
from inferd_runtime.server.tenancy.tenant_use import TenantUse
from inferd_runtime.settings.settings import Settings

SECONDS = 8.0
"""How long a replica may take to answer: whoever collects figures waits for ten seconds, as a rule."""
T = TypeVar("T")
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True)
class OwnRoutes:
    """The routes."""

    settings: Settings
    programs: ProgramLibrary
    members: Members
    hop: HopClient
    key: str
    use: TenantUse
    tokens: AccessTokens

    def routes(self) -> list[BaseRoute]:
        """Return the routing table."""
        return [
            *CommonRoutes(self.settings, self.programs, self.use).routes(),
            Route("/readyz", self.readyz),
            Route("/health", self.readyz),
            Route("/metrics", self.metrics),
            Route("/v1/cluster", self.cluster),
            Route("/v1/tenants", self.tenants),
            Route("/v1/tenants/{tenant:path}/stop", self.stop_tenant, methods=["POST"]),
            Route("/v1/runs", self.list_runs, methods=["GET"]),
            document_route(),
        ]

    async def readyz(self, request: Request) -> Response:
        """Answer 200 if a replica takes runs, else 503."""
        usable = len(self.members.usable())
        return reply(
            {"ready": usable > 0, "replicas": {"up": len(self.members.live), "usable": usable}}, 200 if usable else 503
        )

    async def cluster(self, request: Request) -> Response:
        """Answer how each replica is: to admins alone."""
        require_admin(request.scope)
        loads = self.members.router.loads
        replicas = [
            {
                "name": one.name, "url": one.url, "ready": one.report.ready, "draining": one.report.draining,
                "starts": loads.get(one.name, 0), "runs": len(one.report.runs), "waiting": one.report.waiting,
                "jobs": one.report.jobs, "kv_use": round(one.report.kv_use, 4), "heir_of": one.report.heir_of,
            }
            for one in self.members.live.values()
        ]  # fmt: skip
        return reply({"replicas": replicas, "without_heir": sorted(self.members.without_heir)})

    async def list_runs(self, request: Request) -> Response:
        """Answer the tenant's runs of all replicas without their results, newest first."""
        with anyio.move_on_after(SECONDS):  # what replicas that ended left is an heir's before long
            while self.members.missing:
                await self.members.changed.wait()
        runs = [run for _, listed in await self._asked(request, _listed) for run in listed]
        return reply({"runs": [run for _, run in sorted(runs, key=lambda run: -run[0])]})

    async def tenants(self, request: Request) -> Response:
        """Answer quotas in the whole cluster and what is used of them: of all tenants for an admin, else the tenant's own."""
        own = request.scope[TENANT_KEY]
        answers = await self._asked(request, lambda data: answer_of(data, _Tenants).tenants)
        used = [one for _, told in answers for one in told]
        names = {own}
        if request.scope.get(ROLE_KEY) is Role.ADMIN:
            names |= {*self.tokens.tenants, *(one.tenant for one in used)}
        return reply({"tenants": [self._tenant(name, used) for name in sorted(names)]})

    async def stop_tenant(self, request: Request) -> Response:
        """As a gateway's, on all replicas that answer."""
        require_admin(request.scope)
        tenant = request.scope[SUBJECT_KEY] = request.path_params["tenant"]
        stopped = [one for _, one in await self._asked(request, lambda data: answer_of(data, _Stopped))]
        runs, responses = sum(one.runs for one in stopped), sum(one.responses for one in stopped)
        return reply({"tenant": tenant, "runs": runs, "responses": responses}, 202)

    def _tenant(self, name: str, used: list[_TenantUse]) -> dict[str, Any]:
        total: dict[str, float] = {"runs": 0, "waiting": 0}
        for one in used:
            if one.tenant == name:
                for what, amount in one.use.items():
                    total[what] = total.get(what, 0) + amount
        here = {"sockets": self.use.sockets.held(name), "connections": self.use.connections.held(name)}
        served = sum(one.report.served.get(name, 0.0) for one in self.members.live.values())
        use = {**total, **here, **self.use.per_minute(name), "served_s": round(served, 3)}
        return {"tenant": name, "quotas": self.use.quotas(name), "use": use}

    async def metrics(self, request: Request) -> Response:
        """Answer the figures of all replicas, each with the label ``replica``; to whom, the replicas decide."""
        if self.settings.metrics_for == "admin":
            require_admin(request.scope)
        families = {one.name: one for one in self._own_figures()}
        for member, told in await self._asked(request, _figures):
            for found in told:
                kept = families.setdefault(found.name, Metric(found.name, found.documentation, found.type))
                kept.samples += [one._replace(labels={**one.labels, "replica": member.name}) for one in found.samples]
        return Response(generate_latest(_Page(families)), headers={"content-type": METRICS_TYPE})

    def _own_figures(self) -> list[Metric]:
        members = self.members
        figures = (
            ("inferd_cluster_replicas", "Replicas that are there.", len(members.live)),
            ("inferd_cluster_replicas_usable", "Replicas that take runs.", len(members.usable())),
            ("inferd_cluster_without_heir", "Replicas that ended, or begin, with a folder.", len(members.without_heir)),
        )
        return [family(name, text, (), [((), value)]) for name, text, value in figures]

    async def _asked(self, request: Request, read: Callable[[bytes], T]) -> list[tuple[Member, T]]:
        """Return what each replica answers; those that do not, or have not for a while, are left out.

        ``read`` raises ReplicaGone for what is no replica's answer.
        """
        answers: list[tuple[Member, T]] = []
        sent = hop_request(request, self.key)

        async def ask(member: Member) -> None:
            try:
                with self.members.watched(member):
                    answers.append((member, read(await self.hop.ask(member.url, sent, SECONDS))))
            except InferdError:
                return

        async with anyio.create_task_group() as tasks:
            for member in list(self.members.live.values()):
                if not member.silent:
                    tasks.start_soon(ask, member)
        return answers


class _Created(msgspec.Struct):
    created_at: float


class _Runs(msgspec.Struct):
    runs: list[msgspec.Raw]


class _TenantUse(msgspec.Struct):
    tenant: str
    use: dict[str, int | float]


class _Tenants(msgspec.Struct):
    tenants: list[_TenantUse]


class _Stopped(msgspec.Struct):
    runs: int
    responses: int


def _listed(data: bytes) -> list[tuple[float, msgspec.Raw]]:
    """Return when each run of a list was launched, and its JSON."""
    return [(answer_of(run, _Created).created_at, run) for run in answer_of(data, _Runs).runs]


def _figures(data: bytes) -> list[Metric]:
    try:
        return list(text_string_to_metric_families(data.decode()))
    except ValueError:
        raise ReplicaGone(reached=True) from None


@dataclass(frozen=True)
class _Page:
    families: dict[str, Metric]

    def collect(self) -> list[Metric]:
        """Return every metric family."""
        return list(self.families.values())
