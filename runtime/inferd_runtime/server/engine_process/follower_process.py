"""One of the other ranks of a model that is divided.

It loads its part of the model, then runs the batches that rank 0's engine process sends over a channel that nobody else holds.
It knows no program or tenant. Signals that end a whole process group do not end it: rank 0 tells it when.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

from inferd_runtime.isolation.child import Child
from inferd_runtime.models.options import ModelOptions
from inferd_runtime.server.processes.child_protocol import exit_code


@dataclass(frozen=True)
class FollowerSettings:
    """``channel``: the inherited file descriptor of the channel to rank 0. ``store``: the file by which ranks find each other.

    ``threads`` 0: as the runtime chooses.
    """

    rank: int
    ranks: int
    channel: int
    store: Path
    model: ModelOptions
    threads: int


def serve(settings: FollowerSettings) -> None:
    """Join, load, and follow until rank 0 sends the end or has ended. Raises InferdError."""
    from inferd_runtime.engine.drivers.parallel_parts import follow_with
    from inferd_runtime.models.devices import available_bytes
    from inferd_runtime.models.loading import load
    from inferd_runtime.models.parallel import join, leave, rank_device, use_threads

    model, ranks = settings.model, settings.ranks
    with Connection(settings.channel) as channel:
        use_threads(settings.threads)
        join(settings.rank, ranks, model.device, settings.store)
        loaded = load(model.name, device=model.device, dtype=model.dtype, ranks=ranks)
        use_threads(settings.threads, loaded.module, ranks)
        follow_with(loaded, channel, available_bytes(rank_device(model.device, settings.rank)))
    leave()


def child_main(child: Child) -> int:
    """Follow rank 0. Returns the exit code."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)

    def sealed() -> None:
        child.seal()
        serve(child.settings(FollowerSettings))

    return exit_code(sealed)
