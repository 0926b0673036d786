"""Rank 1 of the tests' pair: follows rank 0 with one model after another. ``parallel_rank.py CHANNEL STORE FOLDER...``"""

from __future__ import annotations

import sys
from multiprocessing.connection import Connection
from pathlib import Path

import torch

from inferd_runtime.engine.drivers.parallel import follow_with
from inferd_runtime.models.loading import load
from inferd_runtime.models.parallel import join, leave


def main() -> None:
    _, channel, store, *folders = sys.argv
    torch.set_num_threads(1)
    with Connection(int(channel)) as link:
        join(1, 2, "cpu", Path(store), timeout_s=60.0)
        for folder in folders:
            follow_with(load(folder, ranks=2), link, 0)
        leave()


if __name__ == "__main__":
    main()
