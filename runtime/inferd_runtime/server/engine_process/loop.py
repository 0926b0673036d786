"""The engine process's loop: receive messages, poll what works beside, step every model."""

from __future__ import annotations

import math
from collections.abc import Sequence

import zmq

from inferd_runtime.kv.snapshots import SnapshotStore
from inferd_runtime.server.processes.stop_request import StopRequest
from inferd_runtime.session.constraints.compile_queue import CompileQueue
from inferd_runtime.session.hub import SessionHub
from inferd_runtime.session.served_model import ServedModel

MESSAGES_PER_STEP = 256
"""Messages that are received between two steps at most, so that the running streams do not wait for them."""
IDLE_SECONDS = 1.0


class EngineLoop:
    """Steps the engines of ``models`` and answers the sessions of ``hub``."""

    def __init__(
        self,
        socket: zmq.Socket[bytes],
        hub: SessionHub,
        models: Sequence[ServedModel],
        compiles: CompileQueue,
        store: SnapshotStore | None,
    ) -> None:
        self._socket = socket
        self._hub = hub
        self._models = models
        self._compiles = compiles
        self._store = store
        self._drafts = [model.drafts for model in models if model.drafts is not None]
        self._poller = zmq.Poller()
        for source in (socket, store, compiles, *(source for one in self._drafts for source in one.waits_on)):
            if source is not None:
                self._poller.register(source, zmq.POLLIN)

    def run(self, stop: StopRequest, *, check: bool) -> None:
        """Serve until ``stop``. ``check``: after each idle step, raise AssertionError where a page is leaked."""
        busy = False
        while not stop.received:
            self._receive(0.0 if busy else self._patience())
            self._poll()
            busy = step(self._models)
            if check and not busy:
                self._check_integrity()

    def close(self) -> None:
        """Close all sessions, then the engines and what works beside them."""
        self._hub.close_all()
        for model in self._models:
            model.engine.close()
        self._compiles.close()
        for drafts in self._drafts:
            drafts.close()

    def _patience(self) -> float:
        """Return the seconds to wait for a message while no engine has work."""
        return min([IDLE_SECONDS, *(drafts.patience(IDLE_SECONDS) for drafts in self._drafts)])

    def _receive(self, seconds: float) -> None:
        """Wait so long for something to arrive, and receive it. In a long pause, warm the grammar compilers up."""
        if self._poller.poll(math.ceil(1000 * seconds)):
            receive(self._socket, self._hub)
        elif seconds == IDLE_SECONDS:
            self._compiles.warm([model.grammars for model in self._models])  # at the start others need the processors

    def _poll(self) -> None:
        if self._store is not None:
            self._store.poll()
        self._compiles.poll()
        for drafts in self._drafts:
            drafts.poll()

    def _check_integrity(self) -> None:
        for model in self._models:
            model.engine.pool.check_integrity(self._hub.held_pages(model))
            model.engine.check_integrity()


def step(models: Sequence[ServedModel]) -> bool:
    """Run one step of every model's engine; False if none of them had work."""
    progressed = [model.engine.step() for model in models]
    return any(progressed)


def receive(socket: zmq.Socket[bytes], hub: SessionHub) -> None:
    """Hand the messages that have arrived, MESSAGES_PER_STEP at most, to the hub."""
    for _ in range(MESSAGES_PER_STEP):
        try:
            identity, *frames = socket.recv_multipart(zmq.NOBLOCK)
        except zmq.Again:
            return
        hub.receive(identity, frames)
