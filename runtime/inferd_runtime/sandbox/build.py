"""Builds the sandbox's runner ahead of its first use: ``python -m inferd_runtime.sandbox.build``."""

from __future__ import annotations

import sys
import time

from inferd.protocol import InferdError
from inferd_runtime.sandbox.component import Progress, ensure_runner


def main() -> None:
    """Build the runner unless it is in the cache, and print where it is."""
    started = time.monotonic()
    last = ""

    def show(progress: Progress) -> None:
        nonlocal last
        line = f"{progress.stage} {progress.fraction:4.0%}"
        if line != last and (sys.stderr.isatty() or progress.fraction in (0.0, 1.0)):
            last = line
            end = "\n" if progress.fraction == 1.0 or not sys.stderr.isatty() else "\r"
            print(line, end=end, file=sys.stderr, flush=True)

    try:
        path = ensure_runner(show)
    except InferdError as error:
        sys.exit(error.message)
    print(f"{path} ({time.monotonic() - started:.1f} s)")


if __name__ == "__main__":
    main()
