"""``POST /v1/runs``: a launch is sent to one replica, and to no other one unless that has what the first one left.

Each launch has a key. One whose replica ended before it answered is asked for again at the heir, which knows by the key whether
the run was begun.
"""

from __future__ import annotations

import secrets
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, replace

import anyio.lowlevel
import msgspec
from starlette.requests import Request
from starlette.responses import Response

from inferd.protocol import Unavailable
from inferd_runtime.cluster.front.admission import Admission, AdmittedLaunch
from inferd_runtime.cluster.front.hop_client import (
    Headers,
    HopClient,
    HopRequest,
    ReplicaGone,
    answer_of,
    hop_request,
    whole_body,
)
from inferd_runtime.cluster.front.launch_homes import LaunchHomes
from inferd_runtime.cluster.front.members import Launching, Members
from inferd_runtime.cluster.front.proxied import OF_A_CONNECTION
from inferd_runtime.cluster.front.start_keys import Beginning, launch_beginning
from inferd_runtime.cluster.hop import pinned
from inferd_runtime.server.gateway.audit import SUBJECT_KEY
from inferd_runtime.server.gateway.auth import TENANT_KEY
from inferd_runtime.server.gateway.chat_routes import SESSION_HEADER
from inferd_runtime.server.gateway.requests import LaunchBody, launch_key
from inferd_runtime.server.programs.library import ProgramLibrary

KEY_HEADER = b"idempotency-key"
MOST_TRIES = 8
_Fields = msgspec.defstruct(
    "_Fields", [(name, msgspec.Raw, msgspec.Raw()) for name in LaunchBody.__struct_fields__], forbid_unknown_fields=True
)


class LaunchedRun(msgspec.Struct, frozen=True):
    """What of a launch's answer the front needs."""

    id: str


@dataclass
class ClusterLaunches:
    """Starts runs on replicas. Belongs to the front's event loop."""

    hop: HopClient
    members: Members
    programs: ProgramLibrary
    key: str
    admission: Admission
    homes: LaunchHomes

    async def launch(self, request: Request, body: bytes) -> Response:
        """Answer a launch."""
        tenant, key = request.scope[TENANT_KEY], launch_key(request)
        fields = _fields(body)
        program = await self._program(fields, tenant)
        sent = hop_request(request, self.key, body if program is None else self._pinned(fields, tenant, program))
        if not key:
            sent = replace(sent, headers=[*sent.headers, (KEY_HEADER, f"front-{secrets.token_hex(12)}".encode())])
        arguments = bytes(fields.get("arguments", b""))
        session = request.headers.get(SESSION_HEADER)
        beginning = launch_beginning("" if program is None else program[0], arguments, session)
        async with self.homes.turn(tenant, key) if key else nullcontext():
            home = await self.homes.find(tenant, key) if key else None
            if home is not None:
                return await self._placed(request, sent, home, key, beginning)
            with self.admission.launch(tenant, len(arguments)) as admitted:
                answer = await self._placed(request, sent, None, key, beginning, admitted)
            if key and 400 <= answer.status_code < 500:
                # Or the next launch with it would start a run that nobody has admitted.
                await self.homes.drop(tenant, key)
            return answer

    async def _placed(
        self,
        request: Request,
        sent: HopRequest,
        home: str | None,
        key: str,
        beginning: Beginning,
        admitted: AdmittedLaunch | None = None,
    ) -> Response:
        tenant = request.scope[TENANT_KEY]
        for _ in range(MOST_TRIES):
            async with self._at(home, tenant, beginning) as launching:
                if key:
                    await self.homes.keep(tenant, key, launching.member.name)
                try:
                    answer = await self._send(request, sent, launching)
                    if launching.run and admitted is not None:
                        admitted.placed(launching.member.name)
                    return answer
                except ReplicaGone as gone:
                    home = launching.member.name if gone.reached else None
            await anyio.lowlevel.checkpoint()
        raise Unavailable("no replica could be asked to start this run", retry_after_s=1.0)

    async def _send(self, request: Request, sent: HopRequest, launching: Launching) -> Response:
        """Send a launch to a replica, and note the run that it became. Raises ReplicaGone."""
        member = launching.member
        with self.members.watched(member):
            async with self.hop.stream(member.url, sent) as answer:
                data = await whole_body(answer)
        headers: Headers = [(name, value) for name, value in answer.headers if name.lower() not in OF_A_CONNECTION]
        if answer.status in (200, 201):
            launching.run = request.scope[SUBJECT_KEY] = answer_of(data, LaunchedRun).id
        response = Response(data, answer.status)
        response.raw_headers = headers
        return response

    def _at(self, home: str | None, tenant: str, beginning: Beginning) -> AbstractAsyncContextManager[Launching]:
        if home is None:
            return self.members.launching(tenant, beginning)
        return self.members.launching_at(home, tenant, beginning)

    async def _program(self, fields: dict[str, msgspec.Raw], tenant: str) -> tuple[str, str, str] | None:
        """Return the program that a launch names; None where it names none, which the replica says. Raises NotFound."""
        try:
            reference = msgspec.json.decode(fields.get("program", b""), type=str)
        except msgspec.MsgspecError:
            return None
        return await self.programs.resolve(reference, tenant)

    def _pinned(self, fields: dict[str, msgspec.Raw], tenant: str, program: tuple[str, str, str]) -> bytes:
        reference = msgspec.json.encode(pinned(self.key, tenant, program))
        return msgspec.json.encode({**fields, "program": msgspec.Raw(reference)})


def _fields(body: bytes) -> dict[str, msgspec.Raw]:
    """Return the fields of a launch's body as they are; none of a body with others, or that is no object: the replica refuses it.

    Only a launch's own: 400,000 others took a quarter of a second of the front's loop.
    """
    try:
        fields = msgspec.json.decode(body, type=_Fields)
    except (msgspec.MsgspecError, RecursionError):
        return {}
    return {name: raw for name in LaunchBody.__struct_fields__ if bytes(raw := getattr(fields, name))}
