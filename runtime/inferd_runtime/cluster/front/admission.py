"""What starts something in a cluster is admitted here, for all replicas: launches, and requests of LLM clients."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import anyio
import msgspec

from inferd.protocol import InferdError, LimitExceeded
from inferd_runtime.cluster.active_runs import ActiveRuns
from inferd_runtime.cluster.front.members import Members
from inferd_runtime.server.dialects.routes import CHAT_ROUTES
from inferd_runtime.server.programs.library import ProgramLibrary
from inferd_runtime.server.tenancy.quotas import quota_exceeded
from inferd_runtime.server.tenancy.tenant_use import RETRY_SECONDS, TenantUse

RESPONSES = "/v1/responses"
ANSWERED_BY_LAUNCH = frozenset({*CHAT_ROUTES, RESPONSES})
"""The paths whose requests count as launches."""
LAUNCH_SECONDS = 0.5
"""How long a run that a chat request starts may take to be in its replica's report."""

HEARD_SECONDS = 0.6
"""In which replicas say which of their runs are over."""


class _Names(msgspec.Struct, frozen=True):
    model: str = ""


@dataclass
class AdmittedLaunch:
    """A launch that counts until :meth:`placed`, and then as long as its run."""

    active: ActiveRuns
    number: int
    has_run: bool = field(default=False)

    def placed(self, replica: str) -> None:
        """Note that a replica has the run now."""
        self.has_run = True
        self.active.placed(self.number, replica, time.monotonic())


@dataclass(frozen=True)
class Admission:
    """Belongs to the front's event loop. ``chat_program``: the setting of that name."""

    use: TenantUse
    active: ActiveRuns
    members: Members
    programs: ProgramLibrary
    chat_program: str = ""

    @contextmanager
    def launch(self, tenant: str, size: int) -> Iterator[AdmittedLaunch]:
        """Count a launch with so many bytes of arguments. Raises LimitExceeded where the tenant has too many runs, or launches
        too often.
        """
        self._check_runs(tenant)
        self.check_room(tenant, size)
        self.use.admit_launch(tenant)
        admitted = AdmittedLaunch(self.active, self.active.begin(tenant, size))
        try:
            yield admitted
        finally:
            if not admitted.has_run:
                self.active.drop(admitted.number)

    async def child(self, tenant: str, replica: str) -> None:
        """Count a launch of a program's or script's own, which starts there now. Raises LimitExceeded.

        Programs launch again right behind a run that is over: where there seem to be too many, replicas first say which go on.
        """
        try:
            self._check_runs(tenant)
        except LimitExceeded:
            await anyio.sleep(HEARD_SECONDS)
            self._check_runs(tenant)
        self.check_room(tenant, 1)
        self.use.admit_launch(tenant)
        self.active.placed(self.active.begin(tenant), replica, time.monotonic())

    async def request(self, tenant: str, path: str, body: bytes) -> bool:
        """Count a request of an LLM client, if it is one that is answered by a launch. Return whether that is a run of a program.

        Raises LimitExceeded.
        """
        if path not in ANSWERED_BY_LAUNCH:
            return False
        is_run = await self._starts_run(tenant, body)
        if is_run:
            self._check_runs(tenant)
        self.use.admit_launch(tenant)
        if is_run:
            self.active.placed(self.active.begin(tenant), "", time.monotonic() + LAUNCH_SECONDS)
        return is_run

    def check_room(self, tenant: str, size: int) -> None:
        """Raise LimitExceeded if so many bytes more are beyond what the tenant's runs that are not over may hold."""
        most, held = self.use.quotas(tenant).kept_bytes, self.active.held(tenant)
        if most and held + size > most:
            message = f"the tenant's runs that are not over hold {held} bytes already"
            raise quota_exceeded("kept_bytes", most, message, RETRY_SECONDS)

    def _check_runs(self, tenant: str) -> None:
        """Raise LimitExceeded where so many runs go on, or wait, that one more would be beyond the quotas."""
        quotas = self.use.quotas(tenant)
        beyond = self.active.count(tenant) - quotas.runs if quotas.runs else 0
        waits = max(self.active.waiting(tenant), beyond)
        if quotas.waiting and waits >= quotas.waiting:
            text = f"{waits} runs of the tenant wait for a worker already"
            raise quota_exceeded("waiting", quotas.waiting, text, RETRY_SECONDS)

    async def _starts_run(self, tenant: str, body: bytes) -> bool:
        """Return whether a request is answered by a run of a program: the one that it names, or the tenant's own for all."""
        try:
            name = msgspec.json.decode(body, type=_Names).model
        except (msgspec.MsgspecError, RecursionError):
            return False
        served = {model for member in self.members.live.values() for model in member.report.models}
        reference = self.chat_program if name in served else name
        if not reference:
            return False
        with contextlib.suppress(InferdError):
            await self.programs.resolve(reference, tenant)
            return True
        return False
