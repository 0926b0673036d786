"""The HTTP routes: each reads a request, calls the runtime or the registry, and answers."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field

import anyio
import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.websockets import WebSocket

from inferd.protocol import InvalidRequest
from inferd_runtime.server.gateway.audit import SUBJECT_KEY
from inferd_runtime.server.gateway.auth import ROLE_KEY, TENANT_KEY, AccessTokens, require_admin
from inferd_runtime.server.gateway.common_routes import CommonRoutes
from inferd_runtime.server.gateway.cycle_stream import Watchers, cycle_events
from inferd_runtime.server.gateway.event_stream import SSE, EventResponse, stream_events
from inferd_runtime.server.gateway.metrics import metrics_response
from inferd_runtime.server.gateway.replies import reply, run_reply, run_summary, tenant_json
from inferd_runtime.server.gateway.requests import LaunchBody, MessageBody, launch_key, number_of, read_body
from inferd_runtime.server.gateway.script_session import script_session
from inferd_runtime.server.programs.bundles import Program
from inferd_runtime.server.programs.launch_checks import check_arguments, check_limits
from inferd_runtime.server.programs.library import ProgramLibrary
from inferd_runtime.server.response_store.background import BackgroundResponses
from inferd_runtime.server.supervisor.held_runs import RunRequest
from inferd_runtime.server.supervisor.run_keeper import AnyRun
from inferd_runtime.server.supervisor.runtime import Runtime
from inferd_runtime.server.tenancy.quotas import Role
from inferd_runtime.session.wire import CyclePage, FoundSlowStep, GetCycles, GetSlowStep

MOST_PROFILED_SECONDS = 60.0
PROFILE_POLL_SECONDS = 0.2
CANCEL_SECONDS = 2.0
"""How long who cancels a run waits to be told how it ended."""


@dataclass(frozen=True)
class Api:
    """All routes of one gateway."""

    runtime: Runtime
    programs: ProgramLibrary
    tokens: AccessTokens
    background: BackgroundResponses
    watchers: Watchers = field(default_factory=Watchers)

    def routes(self) -> list[BaseRoute]:
        """Return the routing table."""
        return [
            *CommonRoutes(self.runtime.settings, self.programs, self.runtime.use).routes(),
            Route("/readyz", self.readyz),
            Route("/health", self.readyz),
            Route("/metrics", self.metrics),
            Route("/v1/tenants", self.tenants),
            Route("/v1/tenants/{tenant:path}/stop", self.stop_tenant, methods=["POST"]),
            Route("/v1/slow-step", self.slow_step),
            Route("/v1/speculation/cycles", self.cycles),
            Route("/v1/runs", self.list_runs, methods=["GET"]),
            Route("/v1/runs", self.launch, methods=["POST"]),
            Route("/v1/runs/{run}", self.get_run),
            Route("/v1/runs/{run}/events", self.events),
            Route("/v1/runs/{run}/cancel", self.cancel, methods=["POST"]),
            Route("/v1/runs/{run}/messages", self.deliver, methods=["POST"]),
            WebSocketRoute("/v1/session", self.session),
        ]

    async def readyz(self, request: Request) -> Response:
        """Answer 200 if launches would work now, else 503, with the state of the engine and the workers."""
        engine = self.runtime.engine
        workers = self.runtime.fleet
        ready = engine.answers and workers.pool.any_ready and not self.runtime.closing
        failure = self.runtime.keeper.failure
        status = {
            "ready": ready,
            "engine": {"up": engine.answers, "restarts": engine.restarts},
            "draining": self.runtime.closing,
            "store": {"works": failure is None, "error": failure},
            "workers": {"up": len(workers.pids), "restarts": workers.restarts},
        }
        return reply(status, 200 if ready else 503)

    async def tenants(self, request: Request) -> Response:
        """Answer quotas and use: of all tenants for an admin, also of those without a token whose runs go on, else of its own."""
        names = {request.scope[TENANT_KEY]}
        if request.scope.get(ROLE_KEY) is Role.ADMIN:
            names |= {*self.tokens.tenants, *(run.tenant for run in self.runtime.runs.active)}
        return reply({"tenants": [tenant_json(self.runtime, name) for name in sorted(names)]})

    async def stop_tenant(self, request: Request) -> Response:
        """Ask all runs of a tenant to end, those that wait too, and its responses in the background: 202 with how many there
        are. For admins alone.
        """
        require_admin(request.scope)
        tenant = request.scope[SUBJECT_KEY] = request.path_params["tenant"]
        runs = [run for run in self.runtime.runs.active if run.tenant == tenant]
        for run in runs:
            run.cancel("an administrator stopped the tenant's runs")
        return reply({"tenant": tenant, "runs": len(runs), "responses": self.background.cancel_all(tenant)}, 202)

    async def metrics(self, request: Request) -> Response:
        """Answer figures for Prometheus, over all tenants: to admins, unless the settings say to all, who see their own beside
        the sums.
        """
        if self.runtime.settings.metrics_for == "admin":
            require_admin(request.scope)
        is_admin = request.scope.get(ROLE_KEY) is Role.ADMIN
        return await metrics_response(self.runtime, None if is_admin else request.scope[TENANT_KEY])

    async def slow_step(self, request: Request) -> Response:
        """Wait for a step of the engine that takes more than ``over_ms``, for ``seconds`` at most, and answer where its time
        went: to admins alone. Steps are slower meanwhile.
        """
        require_admin(request.scope)
        over_ms = number_of(request, "over_ms", 50.0, 1e6)
        found = FoundSlowStep()
        with anyio.move_on_after(number_of(request, "seconds", 10.0, MOST_PROFILED_SECONDS)):
            while found.step is None:
                found = await self.runtime.engine.call(GetSlowStep(over_ms), FoundSlowStep)
                await anyio.sleep(PROFILE_POLL_SECONDS)
        return reply(found)

    async def cycles(self, request: Request) -> Response:
        """Stream what speculation does for the tenant from now on; see
        :func:`~inferd_runtime.server.gateway.cycle_stream.cycle_events`."""
        runtime, tenant = self.runtime, request.scope[TENANT_KEY]

        async def read(after: int) -> CyclePage:
            return await runtime.engine.call(GetCycles(tenant, after), CyclePage)

        as_sse = SSE in request.headers.get("accept", "")
        with ExitStack() as counted:
            counted.enter_context(self.watchers.count(tenant))
            events = cycle_events(read, await read(-1), as_sse=as_sse, ended=lambda: runtime.closing)
            return EventResponse(events, as_sse=as_sse, held=counted.pop_all())

    async def launch(self, request: Request) -> Response:
        """Start a run: 201 with the run as it is now; 200 with the run of an earlier launch that had the same Idempotency-Key."""
        body = await read_body(request, LaunchBody, self.runtime.settings.max_body_bytes, self.runtime.use.bodies)
        program = await self._program(body.program, request)
        tenant, key = request.scope[TENANT_KEY], launch_key(request)
        arguments = check_arguments(program, body.arguments)
        limits = check_limits(program, body.limits, self.runtime.settings)
        self.runtime.use.check_limits(tenant, limits.cpu_s, limits.memory_mb)
        retry_safe = program.retry_safe if body.retry_safe is None else body.retry_safe
        asked = RunRequest(program, arguments, limits, key, retry_safe, body.seed, mcp=body.mcp)
        earlier = await self.runtime.keeper.launched(tenant, key, asked.fingerprint) if key else None
        if earlier is not None:
            request.scope[SUBJECT_KEY] = earlier.id
            return await run_reply(earlier)
        run = self.runtime.launch_request(asked, tenant)
        request.scope[SUBJECT_KEY] = run.id
        await self.runtime.keeper.settled(run)
        return await run_reply(run, 201)

    async def list_runs(self, request: Request) -> Response:
        """Answer the tenant's runs without their results, newest first."""
        records = await self.runtime.keeper.records(request.scope[TENANT_KEY])
        return reply({"runs": [run_summary(record) for record in records]})

    async def get_run(self, request: Request) -> Response:
        """Answer one run."""
        return await run_reply(await self._run(request))

    async def events(self, request: Request) -> Response:
        """Stream a run's events, past and to come; see :func:`~inferd_runtime.server.gateway.event_stream.stream_events`."""
        return stream_events(await self._run(request), request)

    async def cancel(self, request: Request) -> Response:
        """End a run: 202 with the run when it is over, or as it is after CANCEL_SECONDS. One that is over stays as it is.

        A server that drains is gone as soon as its last run is over: who asked is told how it ended while it can be.
        """
        run = await self._run(request)
        run.cancel()
        with anyio.move_on_after(CANCEL_SECONDS):
            await run.wait()
        return await run_reply(run, 202)

    async def deliver(self, request: Request) -> Response:
        """Hand a message to a run, or tell it that there are no more: 202."""
        run = await self._run(request)
        body = await read_body(request, MessageBody, self.runtime.settings.max_body_bytes, self.runtime.use.bodies)
        if body.end is (body.message is not msgspec.UNSET):
            raise InvalidRequest("the body must hold a message, or end: true")
        if body.end:
            run.end_messages()
        else:
            run.deliver(body.message)
        await self.runtime.keeper.settled(run)
        return reply({"delivered": True}, 202)

    async def session(self, websocket: WebSocket) -> None:
        """Serve a script's session."""
        await script_session(websocket, self.runtime)

    async def _program(self, reference: str, request: Request) -> Program:
        return await self.programs.find(reference, request.scope[TENANT_KEY])

    async def _run(self, request: Request) -> AnyRun:
        return await self.runtime.keeper.find(request.path_params["run"], request.scope[TENANT_KEY])
