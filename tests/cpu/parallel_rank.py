"""Rank 1 of the tests' pair: follows rank 0 with one model after another. ``parallel_rank.py CHANNEL STORE``

Before each model comes its folder; an empty name is the end.
"""

from __future__ import annotations

import sys
from multiprocessing.connection import Connection
from pathlib import Path

from inferd.protocol import InferdError
from inferd_runtime.engine.drivers.parallel import follow_with
from inferd_runtime.models.loading import load
from inferd_runtime.models.parallel import join, leave, use_threads


def main() -> None:
    _, channel, store = sys.argv
    use_threads(1)
    with Connection(int(channel)) as link:
        join(1, 2, "cpu", Path(store), timeout_s=60.0)
        while folder := link.recv_bytes().decode():
            try:
                loaded = load(folder, ranks=2)
            except InferdError:
                continue  # rank 0 has the same reason
            follow_with(loaded, link, 0)
        leave()


if __name__ == "__main__":
    main()
