"""What a replica and the front know of each other. Belongs to the replica's event loop."""

from __future__ import annotations

from pathlib import Path

import anyio

from inferd_runtime.cluster.messages import FrontOrder

HEIR_FILE = "heir-of"


class ReplicaState:
    """``name`` is also that of the replica's folder, whose neighbours are the other replicas' folders."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self.folder = folder
        self.draining = False
        self.front = ""
        self.heir_of = _read_names(folder)
        self._order = FrontOrder(front="")
        self._changed = anyio.Event()

    def ordered(self, order: FrontOrder) -> None:
        """Take in what the front says."""
        self.front, self._order = order.front, order
        changed, self._changed = self._changed, anyio.Event()
        changed.set()

    def inherit(self, name: str) -> list[str]:
        """Note in a file that this replica has what another left. Return that one, and those that it had taken over before.

        They are in ``heir_of`` from when the caller adds them: requests about their runs come here then.
        """
        names = [name, *_read_names(self.folder.parent / name)]
        (self.folder / HEIR_FILE).write_text("\n".join([*self.heir_of, *names]), encoding="utf-8")
        return names

    async def drained(self) -> None:
        """Wait until the front starts nothing more here."""
        while not self._order.drained:
            await self._changed.wait()

    async def idle(self) -> None:
        """Wait until nothing that the front has sent here is being answered."""
        while self._order.in_flight:
            await self._changed.wait()


def _read_names(folder: Path) -> list[str]:
    path = folder / HEIR_FILE
    return path.read_text(encoding="utf-8").split() if path.exists() else []
