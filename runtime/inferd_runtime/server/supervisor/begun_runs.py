"""Runs as they begin: from what a launch asks for, or from what is stored of one that the last server left. Pure state."""

from __future__ import annotations

import secrets
import time

from inferd.program.interface import Interface
from inferd.program.manifest import Manifest
from inferd_runtime.server.programs.bundles import Program
from inferd_runtime.server.run_store.records import UnfinishedRun
from inferd_runtime.server.supervisor.held_runs import RunRequest
from inferd_runtime.server.supervisor.run_events import EVENT_OVERHEAD, EventBuffer
from inferd_runtime.server.supervisor.runs import NO_MORE, Run
from inferd_runtime.server.supervisor.transcript import RunReplay

SEED_BITS = 53
"""Of a run's seed, so that every reader of JSON has it exactly."""


def launched_run(asked: RunRequest, tenant: str, run_id: str, capacity: int) -> Run:
    """Return a new run, with at most ``capacity`` bytes of its events. One that may be started again has a seed in any case."""
    return Run(
        asked.program, asked.arguments, tenant, asked.limits, EventBuffer(capacity), id=run_id, retry_safe=asked.retry_safe,
        seed=secrets.randbits(SEED_BITS) if asked.retry_safe and asked.seed is None else asked.seed,
        parent=asked.parent, mcp=asked.mcp,
    )  # fmt: skip


def resumed_run(unfinished: UnfinishedRun, capacity: int) -> Run:
    """Return the run as it was, with at most ``capacity`` bytes of its events; it has to be started again."""
    record, relaunch = unfinished.record, unfinished.relaunch
    name = record.program
    # The interface is for launches, which check arguments: these have been checked.
    program = Program(name.id, name.name, name.version, relaunch.bundle, Interface(Manifest(name.name), []), {})
    buffer = EventBuffer(capacity)
    buffer.restore(unfinished.events)
    started = next((event.time for event in unfinished.events if event.kind == "started"), None)
    return Run(
        program, relaunch.arguments, unfinished.tenant, record.limits, buffer,
        id=record.id, created_at=record.created_at, started_at=started,
        started_mono=None if started is None else time.monotonic(),
        retry_safe=True, seed=relaunch.seed, mcp=relaunch.mcp, attempts=unfinished.attempts,
        inputs=list(unfinished.inputs), input_bytes=sum(len(text) + EVENT_OVERHEAD for text in unfinished.inputs),
        messages_ended=NO_MORE in unfinished.inputs, replay=RunReplay(unfinished.said), stored_index=buffer.next_index,
    )  # fmt: skip
