"""The engine process: owns the models and their devices and serves sessions over ZeroMQ, in one thread."""

from __future__ import annotations

import gc
import logging
import os
from functools import partial
from typing import Any

import zmq

from inferd_grammar.trials.pool import TrialPool
from inferd_runtime.interpreter import share_interpreter
from inferd_runtime.kv.snapshot_folder import SnapshotFolder
from inferd_runtime.kv.snapshot_objects import SnapshotObjects
from inferd_runtime.kv.snapshots import SnapshotStore
from inferd_runtime.lanes import Charge, Lanes
from inferd_runtime.phases import Phases
from inferd_runtime.server.engine_process.command import EngineStart
from inferd_runtime.server.engine_process.compile_process import start_compiler
from inferd_runtime.server.engine_process.followers import Followers
from inferd_runtime.server.engine_process.loop import Beside, EngineLoop
from inferd_runtime.server.engine_process.serving import serve_models, tenants_clock
from inferd_runtime.server.processes.stop_request import StopRequest
from inferd_runtime.session.constraints.compile_queue import CompileQueue
from inferd_runtime.session.grants import SessionGrants
from inferd_runtime.session.hub import SessionHub
from inferd_runtime.session.mailbox import Mailbox
from inferd_runtime.session.wire import send_frames

log = logging.getLogger("inferd.engine")
TEXT_LANES = 1
"""Threads that tokenize long texts."""
QUEUED = 4096
"""Replies to one session that nobody has read: a socket drops more. A program has 1,024 calls open, a script 1,000, and of those
that were read up to half of the queue still count.
"""
STORE_THREADS = 8
"""Requests to a store of saved contexts elsewhere that are under way at a time."""


def serve(start: EngineStart, stop: StopRequest, phases: Phases) -> None:
    """Bind, load, and serve until ``stop`` is received. Raises InferdError while loading."""
    settings = start.settings
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # a text is tokenized by the thread whose time its tenant pays
    context: zmq.Context[Any] = zmq.Context()
    socket = bind(context, start.endpoint)
    trials = TrialPool(partial(start_compiler, start.require_isolation))
    followers = Followers(settings.tensor_parallel)
    clock = tenants_clock(settings.tenancy)
    models = serve_models(settings, trials, followers, clock, phases, start.drafts)
    log.info("engine started: %s", phases)
    store = snapshot_store(start, clock.charge)

    def send(identity: bytes, frames: list[bytes]) -> None:
        send_frames(socket, [identity, *frames])

    beside = Beside(CompileQueue(trials, charge=clock.charge), Lanes(TEXT_LANES, "text", clock.charge), store)
    grants = SessionGrants(bytes.fromhex(start.key))
    served = {model.info.name: model for model in models}
    hub = SessionHub(served, send, grants, store, beside.compiles, beside.texts, clock)
    loop = EngineLoop(socket, hub, models, Mailbox(hub, clock), beside, clock)
    share_interpreter()
    gc.freeze()  # what is loaded stays: collections, which the step loop waits for, do not look at it
    loop.run(stop, check=settings.check)
    loop.close()
    followers.close()
    if store is not None:
        store.close()
    socket.close()
    context.term()


def snapshot_store(start: EngineStart, charge: Charge) -> SnapshotStore | None:
    """Return where contexts are saved; None where none are. Raises InvalidRequest for a store that cannot be used."""
    quota, contexts = start.settings.snapshot_bytes, start.contexts
    if contexts.url:
        elsewhere = SnapshotObjects(*contexts.files(), quota)
        return SnapshotStore(elsewhere, threads=STORE_THREADS, seconds=contexts.seconds, charge=charge)
    folder = start.settings.snapshots
    return None if folder is None else SnapshotStore(SnapshotFolder(folder, quota), charge=charge)


def bind(context: zmq.Context[Any], endpoint: str) -> zmq.Socket[bytes]:
    """Return a ROUTER that listens on an endpoint and drops what is unsent when it is closed, and replies beyond ``QUEUED``."""
    socket: zmq.Socket[bytes] = context.socket(zmq.ROUTER)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.SNDHWM, QUEUED)
    socket.bind(endpoint)
    return socket
