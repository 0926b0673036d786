"""Chat requests over HTTP, beside our own WebSocket, the same program in the sandbox, and ``transformers serve``.

    python benchmarks/http.py [--quick] [--model tiny] [--rounds 5] [--peers batched,plain] [--clients 1,8,32]
                              [--only load,leaving]

Prints what bounds each figure first, then the figures (medians of the rounds with their range), and one JSON line last. All arms
stream the same questions from the same weights, greedy, with as many tokens, one thread, and no speculation; what an arm computed
is not found again by another. The ways to our server have to bring the same texts. The peer needs fastapi (extra dev).

ttft_overhead_ms_p50              to the first text over HTTP, less that of a connected script (one client; questions take turns)
throughput_vs_sdk_32              tokens per second of 32 HTTP clients over those of 32 scripts, round by round
throughput_vs_transformers_serve_8   the same of 8 over `transformers serve`, the faster of its two ways; ..._processor: by what
                                  the servers' processes used, all rounds together
program_vs_direct_N               the built-in program, uploaded, in the sandbox, over itself in the gateway
disconnect_ms_p99                 from a client's close to an answer of the server that its engine has no generation
cpu_ROLE_N                        which part of the server's processor time N HTTP clients cost there
"""

from __future__ import annotations

import sys
import sysconfig
from importlib.machinery import PathFinder
from importlib.util import module_from_spec


def become_the_library() -> None:
    """Put the standard library's package into this module's place."""
    spec = PathFinder.find_spec("http", [sysconfig.get_path("stdlib")])
    if spec is None or spec.loader is None:
        raise ImportError("the standard library's http")
    sys.modules["http"] = module_from_spec(spec)
    spec.loader.exec_module(sys.modules["http"])


if __name__ == "http":  # imported from beside this file, where it comes before the package that is meant
    become_the_library()
else:
    from http_report import main

    main()
