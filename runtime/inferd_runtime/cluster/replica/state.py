"""What a replica and the front know of each other. Belongs to the replica's event loop."""

from __future__ import annotations

import os
import time
from pathlib import Path

import anyio

from inferd_runtime.change_signal import ChangeSignal
from inferd_runtime.cluster.messages import FrontOrder

HEIR_FILE = "heir-of"
FORGOTTEN_SECONDS = 60.0
"""How long a replica that Ray does not look after any more waits for a front."""
LOOK_SECONDS = 1.0


class ReplicaState:
    """``name`` is also that of the replica's folder, whose neighbours are the other replicas' folders."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self.folder = folder
        self.draining = False
        self.front = ""
        self.heir_of = _read_names(folder)
        self.heard_at = time.monotonic()
        self._order = FrontOrder(front="")
        self._changed = ChangeSignal()

    def ordered(self, order: FrontOrder) -> None:
        """Take in what the front says."""
        self.front, self._order, self.heard_at = order.front, order, time.monotonic()
        self._changed.wake()

    def inherit(self, name: str) -> list[str]:
        """Note in a file that this replica has what another left. Return that one, and those that it had taken over before.

        They are in ``heir_of`` from when the caller adds them: requests about their runs come here then.
        """
        names = [name, *_read_names(self.folder.parent / name)]
        (self.folder / HEIR_FILE).write_text("\n".join([*self.heir_of, *names]), encoding="utf-8")
        return names

    async def forgotten(self, parent: int) -> None:
        """Wait until ``parent``, which started this process, is gone, and no front has said anything for FORGOTTEN_SECONDS."""
        while True:
            await anyio.sleep(LOOK_SECONDS)
            if os.getppid() != parent and time.monotonic() - self.heard_at > FORGOTTEN_SECONDS:
                return

    async def drained(self) -> None:
        """Wait until the front starts nothing more here."""
        while not self._order.drained:
            await self._changed.wait()

    async def idle(self) -> None:
        """Wait until nothing that the front has sent here is being answered, as it says in an order that it sends from now on.

        The next order may be under way already, from before a request that came here first. The one after it is not.
        """
        await self._changed.wait()
        await self._changed.wait()
        while self._order.in_flight:
            await self._changed.wait()


def _read_names(folder: Path) -> list[str]:
    path = folder / HEIR_FILE
    return path.read_text(encoding="utf-8").split() if path.exists() else []
