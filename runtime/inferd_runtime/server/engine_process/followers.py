"""The other ranks of a model that is divided (``--tensor-parallel``): started by rank 0's engine process, watched, and ended."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from socket import socketpair
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, NoReturn

import msgspec

from inferd.protocol import InferdError, InvalidRequest, Unavailable
from inferd_runtime.models.fitting.fit import Placed
from inferd_runtime.models.options import ModelOptions
from inferd_runtime.server.processes.rundir import run_directory
from inferd_runtime.server.supervisor.engine_supervisor import told_error

if TYPE_CHECKING:
    from inferd_runtime.engine.drivers.parallel import LeadingDriver
    from inferd_runtime.models.loading import LoadedModel

STOP_SECONDS = 5.0
START_SECONDS = 600.0
CAUSE_SECONDS = 2.0
TAIL_BYTES = 1 << 14
STORE = "store"


def end_engine(error: InferdError) -> NoReturn:
    """End this process at once, whatever its threads wait for: the supervisor starts another. See ``engine_process.main``."""
    sys.stderr.write(msgspec.json.encode(error.to_wire()).decode() + "\n")
    sys.stderr.flush()
    os._exit(2)


class Follower:
    """One rank's process, and rank 0's end of its channel. It ends with this process. What it prints is kept for errors."""

    def __init__(self, rank: int, flags: Sequence[str]) -> None:
        self.rank = rank
        self._printed = TemporaryFile()  # noqa: SIM115 - closed with the process
        ours, theirs = socketpair()
        self.channel = Connection(ours.detach())
        with theirs:
            self._process = subprocess.Popen(
                [
                    sys.executable, "-m", "inferd_runtime.server.processes.tether", str(os.getpid()),
                    "inferd_runtime.server.engine_process.follower_process",
                    *("--rank", str(rank), "--channel", str(theirs.fileno())), *flags,
                ],
                stdin=subprocess.DEVNULL, stdout=self._printed, stderr=self._printed, pass_fds=[theirs.fileno()],
            )  # fmt: skip

    def ends(self, seconds: float | None = None) -> bool:
        """Wait until the process has ended; False when the time is up."""
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def error(self) -> InferdError:
        """Why it ended."""
        end = self._printed.seek(0, os.SEEK_END)
        self._printed.seek(max(0, end - TAIL_BYTES))
        printed = self._printed.read().decode(errors="replace").strip()
        ended = f"rank {self.rank} of the model ended with code {self._process.poll()}"
        return told_error(printed) or Unavailable(f"{ended}\n{printed}".strip(), process="follower", rank=self.rank)

    def close(self) -> None:
        """Wait for its end, which it was asked for; kill it if that does not come."""
        if not self.ends(STOP_SECONDS):
            self._process.kill()
            self._process.wait()
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

    def check(self, models: Sequence[ModelOptions], *, adapters: bool, fixed_rows: bool, fp8: bool) -> None:
        """Raise InvalidRequest for what does not go together with several ranks, or for devices that are not there."""
        from inferd_runtime.models.parallel import check_devices

        if self.ranks == 1:
            return
        refused = (
            (len(models) > 1, "several models"),
            (adapters, "adapters"),
            (fixed_rows, "--fixed-rows: that sums over ranks stay equal to the bit is not proven"),
            (fp8, "--kv-dtype fp8"),
        )
        for given, what in refused:
            if given:
                raise InvalidRequest(f"--tensor-parallel does not go together with {what}")
        check_devices(models[0].device, self.ranks)

    def placed(self, whole: Placed) -> Placed:
        """What one device gets of the model: on the CPU all ranks share the memory, elsewhere each has its own."""
        from inferd_runtime.models.parallel import share

        return whole if whole.device == "cpu" else replace(whole, size=share(whole.size, self.ranks))

    def each(self, threads: int) -> int:
        """One rank's part of so many threads."""
        return max(1, threads // self.ranks)

    def loaded(self, own: Placed) -> Placed:
        """The same, from what rank 0's part takes."""
        return own.with_kv(own.size.kv_token_bytes * self.ranks) if own.device == "cpu" else own

    def available(self, device: str) -> int:
        """Bytes that every rank has for pages, where ``device`` is rank 0's."""
        from inferd_runtime.models.fitting.inspection import available_bytes

        others = self._free if device.startswith(self._kind) else ()
        return min([available_bytes(device), *others])

    def load(self, model: ModelOptions, threads: int) -> LoadedModel:
        """Start the ranks, and load the model in all of them; with ``threads`` threads each (0: as the runtime chooses).

        Raises InferdError, a follower's own if it has ended.
        """
        from inferd_runtime.models.loading import load
        from inferd_runtime.models.parallel import join

        self._kind = model.device
        if self.ranks == 1:
            return load(model.name, device=model.device, dtype=model.dtype)
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

    def lead(self, loaded: LoadedModel, pages: int, page_size: int) -> LeadingDriver:
        """The driver over all ranks."""
        from inferd_runtime.engine.drivers.parallel import lead

        channels = [follower.channel for follower in self._followers]
        self._driver = lead(loaded, pages, page_size, channels, end_engine)
        return self._driver

    def close(self) -> None:
        """End them."""
        self._closing.set()
        if self._driver is not None:
            self._driver.close()
        for follower in self._followers:
            follower.close()

    def _start(self, model: ModelOptions, threads: int, store: Path) -> None:
        flags = ["--ranks", str(self.ranks), "--store", str(store), "--model", model.name]
        flags += ["--device", model.device, "--dtype", model.dtype, "--threads", str(threads)]
        for rank in range(1, self.ranks):
            self._followers.append(Follower(rank, flags))
        for follower in self._followers:
            threading.Thread(target=self._watch, args=(follower,), name=f"rank-{follower.rank}", daemon=True).start()

    def _watch(self, follower: Follower) -> None:
        follower.ends()
        if not self._closing.is_set():
            end_engine(follower.error())

    def _raise_cause(self) -> None:
        """Loading failed here, perhaps because a follower had ended: then its error is the one to tell."""
        for follower in self._followers:
            if follower.ends(CAUSE_SECONDS):
                raise follower.error()

    def _wait_loaded(self, follower: Follower) -> int:
        from inferd_runtime.engine.drivers.parallel_commands import Loaded, decode_reply

        try:
            reply = decode_reply(follower.channel.recv_bytes()) if follower.channel.poll(START_SECONDS) else None
        except (EOFError, OSError) as error:
            raise Unavailable(f"rank {follower.rank} has ended: {error!r}", process="follower") from error
        if not isinstance(reply, Loaded):
            raise Unavailable(f"rank {follower.rank} did not load its part of the model: {reply}", process="follower")
        return reply.free
