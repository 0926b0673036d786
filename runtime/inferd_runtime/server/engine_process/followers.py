"""The other ranks of a model that is divided (``--tensor-parallel``): started by rank 0's engine process, watched, and ended."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from socket import socketpair
from typing import NoReturn

from inferd.protocol import InferdError, InvalidRequest
from inferd_runtime.engine.drivers.build import DriverOptions, step_bytes
from inferd_runtime.engine.drivers.parallel import LeadingDriver, take_reply
from inferd_runtime.engine.drivers.parallel_commands import Loaded
from inferd_runtime.engine.drivers.parallel_parts import lead, measure_steps
from inferd_runtime.file_cache import cache_folder
from inferd_runtime.isolation.kinds import ChildKind
from inferd_runtime.isolation.model_files import model_access
from inferd_runtime.isolation.order import Launch
from inferd_runtime.models.devices import available_bytes
from inferd_runtime.models.fitting.fit import Placed
from inferd_runtime.models.loaded import LoadedModel
from inferd_runtime.models.loading import load
from inferd_runtime.models.options import ModelOptions
from inferd_runtime.models.parallel import check_devices, join, share
from inferd_runtime.models.proved.store import ProofStore
from inferd_runtime.server.engine_process.follower_process import FollowerSettings
from inferd_runtime.server.processes.blocking_child import BlockingChild
from inferd_runtime.server.processes.child_protocol import FAILED, print_error
from inferd_runtime.server.processes.rundir import run_directory
from inferd_runtime.settings.settings import EngineSettings

FOLLOWER_MODULE = "inferd_runtime.server.engine_process.follower_process"
START_SECONDS = 600.0
CAUSE_SECONDS = 2.0
STORE = "store"


def end_engine(error: InferdError) -> NoReturn:
    """Report an error and end this process at once, whatever its threads wait for: the supervisor starts another."""
    print_error(error)
    os._exit(FAILED)


class Follower:
    """One rank's process, and rank 0's end of its channel."""

    def __init__(self, settings: FollowerSettings) -> None:
        self.rank = settings.rank
        ours, theirs = socketpair()
        self.channel = Connection(ours.detach())
        with theirs:
            own = replace(settings, channel=theirs.fileno())
            access = model_access([Path(settings.model.name).expanduser()], [cache_folder(), settings.store.parent])
            access = replace(access, abstract_sockets=True)
            launch = Launch(FOLLOWER_MODULE, ChildKind.MODEL, settings=own, access=access)
            self.child = BlockingChild(launch, pass_fds=[theirs.fileno()])

    def error(self) -> InferdError:
        """Return the error that its process ended with."""
        return self.child.error(f"rank {self.rank} of the model", process="follower", rank=self.rank)

    def close(self) -> None:
        """Wait for its end, which it was asked for; kill it if that does not come."""
        self.child.wait_or_kill()
        self.channel.close()


class Followers:
    """Ranks 1 to ``ranks - 1`` of one model; of a model that is whole there are none.

    A rank that ends before it is asked to ends this process, too: the others may wait in a reduction that never ends then, and
    the pages that it held are gone. A thread for each watches it, because this process may be one of those that wait.
    """

    def __init__(self, ranks: int) -> None:
        self.ranks = ranks
        self._kind = ""
        self._free: Sequence[int] = ()
        self._followers: list[Follower] = []
        self._driver: LeadingDriver | None = None
        self._closing = threading.Event()

    def check(self, settings: EngineSettings) -> None:
        """Raise InvalidRequest for settings that several ranks do not support, or for devices that are not there."""
        if self.ranks == 1:
            return
        refused = (
            (len(settings.model) > 1, "several models"),
            (settings.adapter, "adapters"),
            (settings.fixed_rows, "--fixed-rows: that sums over ranks stay equal to the bit is not proven"),
            (settings.kv_dtype == "fp8", "--kv-dtype fp8"),
            (settings.models[0].weights, f"--weights {settings.models[0].weights}"),
            (settings.models[0].activations, "--activations int8"),
        )
        for given, what in refused:
            if given:
                raise InvalidRequest(f"--tensor-parallel does not go together with {what}")
        check_devices(settings.models[0].device, self.ranks)

    def placed(self, whole: Placed) -> Placed:
        """Return what one device gets of the model: on the CPU all ranks share the memory, elsewhere each has its own."""
        return whole if whole.device == "cpu" else replace(whole, size=share(whole.size, self.ranks))

    def loaded(self, own: Placed) -> Placed:
        """Return what the model takes on a device, from what rank 0's part takes."""
        return own.with_kv(own.size.kv_token_bytes * self.ranks) if own.device == "cpu" else own

    def available(self, device: str) -> int:
        """Return the bytes that every rank has for pages, where ``device`` is rank 0's."""
        others = self._free if device.startswith(self._kind) else ()
        return min([available_bytes(device), *others])

    def load(self, model: ModelOptions, threads: int, proofs: ProofStore | None) -> LoadedModel:
        """Start the ranks and load the model in all of them, with ``threads`` threads each (0: as the runtime chooses).

        Raises InferdError, a follower's own if it has ended.
        """
        self._kind = model.device
        if self.ranks == 1:
            return load(model.name, device=model.device, dtype=model.dtype, proofs=proofs, weights=model.weights)
        with run_directory() as folder:
            store = folder / STORE
            self._start(model, threads, store)
            join(0, self.ranks, model.device, store)
            try:
                loaded = load(model.name, device=model.device, dtype=model.dtype, ranks=self.ranks)
            except InferdError:
                self._raise_cause()
                raise
            self._free = [self._wait_loaded(follower) for follower in self._followers]
        return loaded

    def step_bytes(self, loaded: LoadedModel, options: DriverOptions) -> int:
        """Return the device memory of the largest steps, in the rank that needs the most; 0 on the CPU."""
        channels = self._channels()
        return measure_steps(loaded, options, channels) if channels else step_bytes(loaded, options)

    def lead(self, loaded: LoadedModel, options: DriverOptions) -> LeadingDriver:
        """Build the driver over all ranks."""
        self._driver = lead(loaded, options, self._channels(), end_engine)
        return self._driver

    def _channels(self) -> list[Connection]:
        return [follower.channel for follower in self._followers]

    def close(self) -> None:
        """End all ranks."""
        self._closing.set()
        if self._driver is not None:
            self._driver.close()
        for follower in self._followers:
            follower.close()

    def _start(self, model: ModelOptions, threads: int, store: Path) -> None:
        for rank in range(1, self.ranks):
            self._followers.append(Follower(FollowerSettings(rank, self.ranks, -1, store, model, threads)))
        for follower in self._followers:
            threading.Thread(target=self._watch, args=(follower,), name=f"rank-{follower.rank}", daemon=True).start()

    def _watch(self, follower: Follower) -> None:
        follower.child.wait()
        if not self._closing.is_set():
            end_engine(follower.error())

    def _raise_cause(self) -> None:
        """Loading failed here, perhaps because a follower had ended: then its error is the one to tell."""
        for follower in self._followers:
            if follower.child.wait(CAUSE_SECONDS):
                raise follower.error()

    def _wait_loaded(self, follower: Follower) -> int:
        return take_reply(follower.channel, Loaded, follower.rank, START_SECONDS).free
