"""What the ways to hold a model's weights on the CPU cost and bring: time of a step, memory, perplexity, agreement with float32.

    python benchmarks/weights.py                    # the pulled smollm2-135m; 5 minutes
    python benchmarks/weights.py --only steps       # or quality

Times are CPU times of one thread, the arms interleaved. Texts are documentation strings of Python's standard library, as the
interpreter that runs this has them.
"""

from __future__ import annotations

import argparse
import gc
import inspect
import json
import logging
import math
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from named_options import listed, one_of

from inferd_runtime.engine.drivers.build import DriverOptions, build_driver
from inferd_runtime.engine.drivers.torch_driver import TorchDriver
from inferd_runtime.models.batch import Batch, Span
from inferd_runtime.models.loaded import LoadedModel
from inferd_runtime.models.loading import load
from inferd_runtime.models.passes.fused import FusedPass
from inferd_runtime.models.weights.held import held_bytes
from inferd_runtime.speculation.bridge import common_prefix

PAGE_SIZE = 16
CONTEXT = 100
"""Tokens before the row of a step."""
ROWS = (1, 4, 8, 17, 32)
ROUNDS = 7
ARMS = {
    "float32": ("float32", "", 32), "rows16": ("float32", "", 16), "rows8": ("float32", "", 8), "bfloat16": ("bfloat16", "", 32),
    "half": ("float32", "half", 32), "int8": ("float32", "int8", 16), "int4": ("float32", "int4", 16),
}  # fmt: skip
"""Of each arm the dtype, the way in which weights are held, and how many bits of a row are enough before weights in blocks."""
MODULES = (
    "asyncio.base_events", "argparse", "decimal", "datetime", "random", "statistics", "string", "heapq", "inspect",
)  # fmt: skip
WINDOW = 256
WINDOWS = 12
PROMPT = 64
PROMPTS = 6
NEW_TOKENS = 32


@dataclass
class Arm:
    """One way to hold the weights, behind a driver of its own."""

    name: str
    loaded: LoadedModel
    driver: TorchDriver
    bytes: int

    @classmethod
    def of(cls, model: str, name: str) -> Arm:
        """Load the model and hold its weights so."""
        dtype, weights, row_bits = ARMS[name]
        loaded = load(model, dtype=dtype)
        pages = max(ROWS) * (CONTEXT // PAGE_SIZE + 2)
        options = DriverOptions(pages, PAGE_SIZE, most_rows=512, weights=weights, row_bits=row_bits)
        driver = build_driver(loaded, options)
        assert isinstance(driver, TorchDriver)
        assert isinstance(driver.run, FusedPass)
        gc.collect()
        return cls(name, loaded, driver, held_bytes(driver.run))


def decode_batch(streams: int) -> Batch:
    """One row of each of so many sequences, each behind CONTEXT tokens in pages of its own."""
    each = CONTEXT // PAGE_SIZE + 2
    pages = [tuple(range(first * each, (first + 1) * each)) for first in range(streams)]
    slots = np.array([own[CONTEXT // PAGE_SIZE] * PAGE_SIZE + CONTEXT % PAGE_SIZE for own in pages])
    spans = [Span(index, 1, CONTEXT, own[: CONTEXT // PAGE_SIZE + 1]) for index, own in enumerate(pages)]
    at = np.full(streams, CONTEXT)
    return Batch(np.arange(streams) + 100, at, slots, np.arange(streams), spans)


def steps(arms: Sequence[Arm]) -> dict[str, dict[int, float]]:
    """Return the CPU milliseconds of a step for each arm and number of rows: medians over interleaved rounds."""
    taken: dict[tuple[str, int], list[float]] = {}
    for _ in range(ROUNDS):
        for rows in ROWS:
            batch = decode_batch(rows)
            for arm in arms:
                arm.driver.forward(batch)
                start = time.process_time()
                arm.driver.forward(batch)
                taken.setdefault((arm.name, rows), []).append(1e3 * (time.process_time() - start))
    return {arm.name: {rows: statistics.median(taken[arm.name, rows]) for rows in ROWS} for arm in arms}


def texts() -> Iterator[str]:
    """Yield documentation strings of the standard library."""
    for name in MODULES:
        module = __import__(name, fromlist=["__doc__"])
        members = [module, *(value for _, value in inspect.getmembers(module) if inspect.getmodule(value) is module)]
        yield "\n\n".join(doc for value in members if (doc := inspect.getdoc(value)))


def windows(arm: Arm) -> list[list[int]]:
    """Return the tokens of the texts, WINDOW at a time."""
    tokens = arm.loaded.tokenizer.encode("\n\n".join(texts()))
    found = [tokens[first : first + WINDOW] for first in range(0, len(tokens) - WINDOW, WINDOW)]
    return found[:: max(1, len(found) // WINDOWS)][:WINDOWS]


def window_batch(tokens: Sequence[int], start: int = 0) -> Batch:
    """Return a chunk of one sequence from ``start`` on, all logits wanted, on the first pages."""
    at = np.arange(start, start + len(tokens))
    pages = range(-(-int(at[-1] + 1) // PAGE_SIZE))
    return Batch(np.asarray(tokens), at, at, np.arange(len(at)), [Span(0, len(at), start, pages)])


def log_softmax(rows: np.ndarray) -> torch.Tensor:
    """Return float32 log-probabilities of logits [R, V]."""
    return torch.from_numpy(rows).log_softmax(-1)


@dataclass(frozen=True)
class Reference:
    """What float32 makes of the texts: log-probabilities of each window, and the greedy text behind its beginning."""

    windows: list[list[int]]
    logprobs: list[torch.Tensor]
    texts: list[list[int]]

    @classmethod
    def of(cls, arm: Arm) -> Reference:
        """Run the windows once."""
        found = windows(arm)
        logprobs = [log_softmax(arm.driver.forward(window_batch(tokens)).logits) for tokens in found]
        return cls(found, logprobs, [greedy(arm, tokens[:PROMPT]) for tokens in found[:PROMPTS]])


def quality(arm: Arm, reference: Reference) -> dict[str, float]:
    """Return the perplexity, and how the arm agrees with the reference.

    ``same_token``: share of places with the same likeliest token behind the same text; ``kl``: mean divergence in nats;
    ``same_greedy``: share of tokens of greedy texts before the first one that differs.
    """
    loss, same, kl, count = 0.0, 0, 0.0, 0
    for tokens, other in zip(reference.windows, reference.logprobs, strict=True):
        own = log_softmax(arm.driver.forward(window_batch(tokens)).logits)
        loss -= float(own[torch.arange(len(tokens) - 1), tokens[1:]].sum())
        same += int((own.argmax(-1) == other.argmax(-1)).sum())
        kl += float((other.exp() * (other - own)).sum())
        count += len(tokens)
    prompts = reference.windows[: len(reference.texts)]
    common = [
        common_prefix(greedy(arm, tokens[:PROMPT]), text) for tokens, text in zip(prompts, reference.texts, strict=True)
    ]
    return {
        "perplexity": math.exp(loss / (count - len(reference.windows))),
        "same_token": same / count,
        "kl": kl / count,
        "same_greedy": sum(common) / (NEW_TOKENS * len(common)),
    }


def greedy(arm: Arm, prompt: Sequence[int]) -> list[int]:
    """Return the NEW_TOKENS likeliest tokens behind a prompt."""
    tokens, made = list(prompt), list[int]()
    logits = arm.driver.forward(window_batch(tokens)).logits[-1]
    while len(made) < NEW_TOKENS:
        made.append(int(logits.argmax()))
        logits = arm.driver.forward(window_batch(made[-1:], len(tokens))).logits[-1]
        tokens.append(made[-1])
    return made


def main() -> None:
    """Print tables, and one JSON line last."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--arms", type=listed(one_of(ARMS)), default=list(ARMS))
    parser.add_argument("--only", choices=("steps", "quality"))
    options = parser.parse_args()
    logging.basicConfig(level=logging.WARNING)
    torch.set_num_threads(1)
    arms = [Arm.of(options.model, name) for name in options.arms]
    result: dict[str, object] = {"bytes": {arm.name: arm.bytes for arm in arms}}
    print("bytes of weights:", result["bytes"])
    if options.only != "quality":
        result["steps_ms"] = times = steps(arms)
        print(f"CPU ms of a step behind {CONTEXT} tokens, at {ROWS} rows:")
        for name, each in times.items():
            print(f"  {name:9s}", "  ".join(f"{each[rows]:7.1f}" for rows in ROWS))
    if options.only != "steps":
        reference, each = Reference.of(arms[0]), {}
        result["quality"] = each
        for arm in arms:
            each[arm.name] = found = quality(arm, reference)
            print(f"  {arm.name:9s}", "  ".join(f"{key} {value:.4f}" for key, value in found.items()), flush=True)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
