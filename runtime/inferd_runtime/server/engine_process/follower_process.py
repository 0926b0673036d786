"""One of the other ranks of a model that is divided: loads its part, then does what rank 0's engine process says.

It knows no program, tenant or token's meaning; it hears of batches over a channel that only its engine process holds.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path

import msgspec

from inferd.protocol import InferdError


def serve(options: argparse.Namespace, channel: Connection) -> None:
    """Join, load, follow until rank 0 says stop or has ended. Raises InferdError."""
    from transformers.utils.logging import disable_progress_bar

    from inferd_runtime.engine.drivers.parallel import follow_with
    from inferd_runtime.models.fitting.inspection import available_bytes
    from inferd_runtime.models.loading import load
    from inferd_runtime.models.parallel import join, leave, rank_device, use_threads

    disable_progress_bar()  # type: ignore[no-untyped-call]
    use_threads(options.threads)
    join(options.rank, options.ranks, options.device, options.store)
    loaded = load(options.model, device=options.device, dtype=options.dtype, ranks=options.ranks)
    use_threads(options.threads, loaded.module, options.ranks)
    follow_with(loaded, channel, available_bytes(rank_device(options.device, options.rank)))
    leave()


def main(argv: Sequence[str] | None = None) -> int:
    """``python -m inferd_runtime.server.engine_process.follower_process --rank 1 --ranks 2 --channel FD --store FILE
    --model tiny``.

    An error ends it with exit code 2, and is the last line that it prints, as JSON. It does not hear signals that end a whole
    process group: rank 0 says when.
    """
    parser = argparse.ArgumentParser(description=main.__doc__)
    for name in ("rank", "ranks", "channel"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--store", type=Path, required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="")
    parser.add_argument("--threads", type=int, default=0)
    options = parser.parse_args(argv)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    try:
        with Connection(options.channel) as channel:
            serve(options, channel)
    except InferdError as error:
        print(msgspec.json.encode(error.to_wire()).decode(), file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
