"""llama.cpp's server in a process of its own, with the peers' virtual environment: a JSON line in, a JSON line out.

    python llamacpp_child.py FILE.gguf STREAMS CONTEXT

Nothing of inferd is imported here. Each line asks {"prompts": [[token, ...], ...], "tokens": N}; all prompts run at once. The
answer has the number of tokens for each, and wall-clock and processor seconds of this process.
"""

from __future__ import annotations

import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import xllamacpp


def main() -> None:
    """Answer until standard input ends."""
    file, streams, context = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    server = xllamacpp.Server(parameters(file, streams, context))
    print(json.dumps({"ready": xllamacpp.get_system_info()}), flush=True)
    with ThreadPoolExecutor(streams) as threads:
        for line in sys.stdin:
            asked = json.loads(line)
            start, processor = time.perf_counter(), time.process_time()
            counts = list(threads.map(partial(complete, server, asked["tokens"]), asked["prompts"]))
            spent = {"seconds": time.perf_counter() - start, "processor": time.process_time() - processor}
            print(json.dumps({"counts": counts, **spent}), flush=True)


def parameters(file: str, streams: int, context: int) -> Any:
    """One thread, continuous batching, no cache of prompts; each stream has so many tokens at most."""
    made = xllamacpp.CommonParams()
    made.model.path = file
    made.n_parallel, made.n_ctx, made.n_gpu_layers = streams, context * streams, 0
    made.cpuparams.n_threads = made.cpuparams_batch.n_threads = 1
    made.cache_ram_mib, made.verbosity = 0, 0
    return made


def complete(server: Any, tokens: int, prompt: list[int]) -> int:
    """Generate exactly so many tokens, greedy; the number that came."""
    fixed = {"temperature": 0, "ignore_eos": True, "cache_prompt": False}
    reply = server.handle_completions({"prompt": prompt, "n_predict": tokens, **fixed})
    if "usage" not in reply:
        raise SystemExit(str(reply))
    return int(reply["usage"]["completion_tokens"])


if __name__ == "__main__":
    main()
