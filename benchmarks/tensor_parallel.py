"""Step times of a model in one process and divided between ranks: ``python benchmarks/tensor_parallel.py [MODEL] [--ranks 2]``.

One JSON line for each way: the fused pass, transformers' modules with one thread and with one for each rank, and these divided,
with one thread in each rank. Seconds are the best of many, because a
neighbour can only add to them; ``peak_mb`` and ``private_mb`` are of each rank's process (VmHWM and RssAnon) behind the load.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from inferd_runtime.models.batch import Batch, Span
from inferd_runtime.models.options import ModelOptions
from inferd_runtime.server.engine_process.serving import serve_model
from inferd_runtime.settings.settings import EngineSettings

CONTEXT = 64
WAYS = ("fused", "plain", "threads", "divided")


def batch_of(sequences: int, rows: int, page_size: int) -> Batch:
    """``rows`` tokens for each sequence, behind CONTEXT tokens that nobody wrote, on pages of their own."""
    each = -(-(CONTEXT + rows) // page_size)
    index = np.tile(np.arange(CONTEXT, CONTEXT + rows), sequences)
    pages = np.repeat(np.arange(sequences) * each, rows)
    spans = [Span(at * rows, rows, CONTEXT, range(at * each, (at + 1) * each)) for at in range(sequences)]
    last = np.arange(1, sequences + 1) * rows - 1
    return Batch(np.full(sequences * rows, 3), index, pages * page_size + index, last, spans)


def memory(pid: int) -> dict[str, float]:
    """Peak and private memory of a process in MB."""
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    kib = {name: int(fields[key].split()[0]) for name, key in (("peak_mb", "VmHWM"), ("private_mb", "RssAnon"))}
    return {name: round(value / 1024, 1) for name, value in kib.items()}


def measure(settings: EngineSettings, seconds: float) -> dict[str, object]:
    """The best time of each batch, and every rank's memory."""
    started = time.perf_counter()
    served = serve_model(settings)
    loaded = time.perf_counter() - started
    me = os.getpid()
    pids = [me, *map(int, Path(f"/proc/self/task/{me}/children").read_text().split())]
    driver = served.engine.driver
    found: dict[str, object] = {"load_s": round(loaded, 2), "ranks": [memory(pid) for pid in pids]}
    for name, (sequences, rows) in {"decode_1": (1, 1), "decode_16": (16, 1), "prefill_256": (1, 256)}.items():
        batch, best, until = batch_of(sequences, rows, driver.page_size), float("inf"), time.perf_counter() + seconds
        while time.perf_counter() < until:
            begun = time.perf_counter()
            driver.forward(batch)
            best = min(best, time.perf_counter() - begun)
        found[name + "_ms"] = round(1e3 * best, 2)
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """One process for each way, so that each has its own peak."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", default="tiny")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--way", choices=WAYS)
    options = parser.parse_args(argv)
    if options.way is None:
        for way in WAYS:
            subprocess.run([sys.executable, __file__, *(argv or sys.argv[1:]), "--way", way], check=True)
        return 0
    settings = EngineSettings(
        model=(ModelOptions(options.model),), pages=512, plain=options.way != "fused",
        threads=options.ranks if options.way == "threads" else 1,
        tensor_parallel=options.ranks if options.way == "divided" else 1,
    )  # fmt: skip
    print(json.dumps({"model": options.model, "way": options.way, **measure(settings, options.seconds)}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
