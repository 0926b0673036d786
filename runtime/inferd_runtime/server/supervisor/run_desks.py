"""The operations that runs ask the gateway for: from the reports of their workers to the table of services, and back."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from inferd_runtime.sandbox.messages import Answered, Asked, Received, ServiceReport, Withdrawn
from inferd_runtime.server.services.caller import Caller
from inferd_runtime.server.services.table import Answer, ServiceDesk, ServiceTable
from inferd_runtime.server.services.wires import JSON_WIRE
from inferd_runtime.server.supervisor.runs import Run
from inferd_runtime.server.tenancy.quotas import Role

Send = Callable[[str, Answered], None]
"""Sends to the worker of that name."""


class RunDesks:
    """A desk for each attempt of a run that has asked for something."""

    def __init__(self, table: ServiceTable, send: Send) -> None:
        self.role_of: Callable[[str], Role] = lambda tenant: Role.ADMIN
        """The role of a tenant: without tokens there is the operator alone."""
        self._table = table
        self._send = send
        self._desks: dict[str, ServiceDesk] = {}

    def take(self, run: Run, worker: str, report: ServiceReport) -> None:
        """Take a worker's report about a run that it holds. Raises InvalidRequest for one that no worker of ours makes."""
        desk = self._desks.get(run.id)
        match report:
            case Asked():
                (desk or self._open(run, worker)).ask(report.ticket, report.op, report.json.encode())
            case Withdrawn() if desk is not None:
                desk.withdraw(report.ticket)
            case Received() if desk is not None:
                desk.received(report.ticket)

    def close(self, run: Run) -> None:
        """Note that an attempt of a run is over."""
        desk = self._desks.pop(run.id, None)
        if desk is not None:
            desk.close()

    def _open(self, run: Run, worker: str) -> ServiceDesk:
        manifest = run.program.interface.manifest
        caller = Caller(run.tenant, run.id, self.role_of(run.tenant), run, manifest, run.limits)
        self._desks[run.id] = desk = self._table.open_desk(caller, JSON_WIRE, partial(self._answer, run.id, worker))
        return desk

    def _answer(self, run: str, worker: str, answer: Answer) -> None:
        self._send(worker, Answered(run, answer.ticket, answer.ok, answer.payload.decode(), answer.receipt))
        desk = self._desks.get(run)
        if desk is not None:
            desk.sent(answer.ticket)  # from here on its worker holds it, and charges it to the program
