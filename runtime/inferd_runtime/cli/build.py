"""``inferd build-runner``: what the first run would have to wait for."""

from __future__ import annotations

import time

from inferd_runtime.cli.output import print_json
from inferd_runtime.cli.parsing import Parser, add_json
from inferd_runtime.cli.progress import prepare_runner


def build_runner(argv: list[str]) -> int:
    """Build the runner, unless it is cached."""
    parser = Parser("build-runner", "Build the sandbox's Python component (about a minute) unless it is cached.")
    add_json(parser, "print {path, seconds}")
    parsed = parser.parse_args(argv)
    started = time.monotonic()
    path = prepare_runner()
    seconds = time.monotonic() - started
    if parsed.as_json:
        print_json({"path": path, "seconds": seconds})
    else:
        print(f"{path} ({seconds:.1f} s)")
    return 0
