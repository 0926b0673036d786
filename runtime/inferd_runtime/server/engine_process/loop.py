"""The engine process's loop: receive messages, poll what works beside, handle requests, step every model."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import zmq

from inferd_runtime.engine.scheduling.fairness import FairClock
from inferd_runtime.kv.snapshots import SnapshotStore
from inferd_runtime.lanes import Lanes
from inferd_runtime.server.processes.stop_request import StopRequest
from inferd_runtime.session.anticipation import Anticipation
from inferd_runtime.session.constraints.compile_queue import CompileQueue
from inferd_runtime.session.hub import SessionHub
from inferd_runtime.session.mailbox import Mailbox
from inferd_runtime.session.served_model import ServedModel
from inferd_runtime.session.step_profile import StepProfile
from inferd_runtime.session.wire import receive_frames

RECEIVE_SHARE = 0.1
"""Of the time of all else that goes into receiving: who has sent cannot be told before."""
RECEIVE_SECONDS = 3e-4
"""The time that is always given to it between two steps."""
REQUEST_SECONDS = 4e-3
"""Handling requests between two steps ends after so long, so that running streams do not wait for them."""
IDLE_SECONDS = 1.0
GATHER_MS = 1
"""How long a wait for programs goes on at a time."""


class Polled(Protocol):
    """Work beside the loop that tells by its descriptor that it has ended."""

    def fileno(self) -> int:
        """Return a descriptor that is readable when :meth:`poll` has something to do."""

    def poll(self) -> bool:
        """Report what has ended. False when nothing has."""


@dataclass(frozen=True)
class Beside:
    """What works beside the loop: compiles of constraints, texts on their way to tokens, snapshots on disk."""

    compiles: CompileQueue
    texts: Lanes
    store: SnapshotStore | None = None

    @property
    def sources(self) -> list[Polled]:
        """What the loop polls."""
        return [self.compiles, self.texts, *([] if self.store is None else [self.store])]


class EngineLoop:
    """Steps the engines of ``models`` and answers the sessions of ``hub``."""

    def __init__(
        self,
        socket: zmq.Socket[bytes],
        hub: SessionHub,
        models: Sequence[ServedModel],
        mailbox: Mailbox,
        beside: Beside,
        clock: FairClock[str],
    ) -> None:
        self._socket = socket
        self._hub = hub
        self._models = models
        self._mailbox = mailbox
        self._beside = beside
        self._drafts = [model.drafts for model in models if model.drafts is not None]
        self._last = 0.0
        self._anticipation = Anticipation(clock, self._needs_no_wait, time.perf_counter)
        self._poller = zmq.Poller()
        for source in (socket, *beside.sources, *(source for one in self._drafts for source in one.waits_on)):
            self._poller.register(source, zmq.POLLIN)

    def run(self, stop: StopRequest, *, check: bool) -> None:
        """Serve until ``stop``. ``check``: after each idle step, raise AssertionError where a page is leaked."""
        self._poller.register(stop, zmq.POLLIN)
        busy = False
        while not stop.received:
            busy = self.turn(busy)
            if check and not busy:
                self._check_integrity()

    def turn(self, busy: bool) -> bool:
        """Receive, handle requests and step once; wait for something to do unless ``busy``. True if there is more to do."""
        arrived = self._receive(0.0 if busy else self._patience())
        started = time.perf_counter()
        self._poll(arrived or not busy)
        self._mailbox.work(REQUEST_SECONDS)
        self._gather()
        self._anticipate()
        progressed = step(self._models, self._hub.profile)
        self._last = time.perf_counter() - started
        return progressed or self._mailbox.ready

    def close(self) -> None:
        """Close all sessions, then the engines and what works beside them."""
        self._hub.close_all()
        for model in self._models:
            model.engine.close()
        self._beside.compiles.close()
        self._beside.texts.close()
        for drafts in self._drafts:
            drafts.close()

    def _patience(self) -> float:
        """Return the seconds to wait for a message while no engine has work."""
        return min([IDLE_SECONDS, *(drafts.patience(IDLE_SECONDS) for drafts in self._drafts)])

    def _receive(self, seconds: float) -> bool:
        """Wait so long for something to arrive, and receive it; False if nothing has. In a long pause, warm the compilers up."""
        arrived = bool(self._poller.poll(math.ceil(1000 * seconds)))
        if arrived:
            receive(self._socket, self._mailbox, max(RECEIVE_SECONDS, RECEIVE_SHARE * self._last))
        elif seconds == IDLE_SECONDS:
            # At the start others need the processors.
            self._beside.compiles.warm([model.grammars for model in self._models])
        return arrived

    def _gather(self) -> None:
        """Wait a moment for programs whose generations could take part in the next step; their tenants pay for it."""
        for model in self._models:
            while model.turns.begun and (tenants := model.turns.waited_for(model.engine.scheduler.jobs)):
                started = time.perf_counter()
                if self._poller.poll(GATHER_MS):
                    receive(self._socket, self._mailbox, RECEIVE_SECONDS)
                    self._mailbox.work(REQUEST_SECONDS)
                self._mailbox.charge_tenants(tenants, time.perf_counter() - started)

    def _anticipate(self) -> None:
        """Wait a moment for the next request of a tenant that comes before all others; see :class:`Anticipation`."""
        while (tenant := self._anticipation.awaited()) is not None:
            started = now = time.perf_counter()
            while not (back := self._needs_no_wait(tenant)) and now - started < self._anticipation.patience:
                if self._poller.poll(GATHER_MS):
                    receive(self._socket, self._mailbox, RECEIVE_SECONDS)
                    self._poll(True)
                now = time.perf_counter()
            self._anticipation.waited(tenant, now - started, vain=not back)
            self._mailbox.work(REQUEST_SECONDS)

    def _needs_no_wait(self, tenant: str) -> bool:
        """Return True if a tenant has a request or a job that could run now, or would be in others' steps in any case."""
        if self._mailbox.wants(tenant):
            return True
        schedulers = [model.engine.scheduler for model in self._models]
        return any(scheduler.wants(tenant) or scheduler.joins_others(tenant) for scheduler in schedulers)

    def _poll(self, arrived: bool) -> None:
        """Report what has ended beside the loop, which wakes it up, and drafts, which may also be given up."""
        for source in self._beside.sources if arrived else ():
            source.poll()
        for drafts in self._drafts:
            drafts.poll()

    def _check_integrity(self) -> None:
        for model in self._models:
            model.engine.pool.check_integrity(self._hub.held_pages(model))
            model.engine.check_integrity()


def step(models: Sequence[ServedModel], profile: StepProfile) -> bool:
    """Run one step of every model's engine; False if none of them had work."""
    progressed = [_step_one(model, profile) for model in models]
    return any(progressed)


def _step_one(model: ServedModel, profile: StepProfile) -> bool:
    started = time.perf_counter()
    progressed = profile.run(model.info.name, lambda: model.engine.scheduler.jobs, model.engine.step)
    if progressed:
        model.turns.stepped(time.perf_counter() - started)
    return progressed


def receive(socket: zmq.Socket[bytes], mailbox: Mailbox, seconds: float) -> None:
    """Put the messages that have arrived into the mailbox, for so many seconds at most, which their senders pay."""
    started = now = time.perf_counter()
    while now - started < seconds:
        try:
            identity, *frames = receive_frames(socket)
        except zmq.Again:
            return
        now = mailbox.accept(identity, frames, now)
