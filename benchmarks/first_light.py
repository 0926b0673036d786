"""The first figures: our engine against transformers' ``generate``, speculation on against off, and program latency.

    python benchmarks/first_light.py [--quick] [--model tiny] [--threads 1]

Prints the machine's ceiling, a table, and one JSON line last. Arms are interleaved and compared round by round; every
figure is the median of at least five rounds with its range. Tokens per second include the prompt's time. Greedy; the three
arms must bring the same tokens, or the benchmark fails.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
import transformers
from generation_arms import EngineArm, TransformersArm
from measure import figure, interleaved, percentile, ratios, read_bandwidth
from prompts import Prompt, prompts
from sandbox_latency import latencies
from sandbox_runtime import open_place

from inferd_runtime.models.options import read_models
from inferd_runtime.sandbox.runner_build.component import ensure_runner
from inferd_runtime.settings.settings import EngineSettings

ROUNDS = 5


def main() -> None:
    """Run everything and print."""
    options = parse()
    torch.set_num_threads(options.threads)
    transformers.logging.set_verbosity_error()
    engine, plain = EngineArm(options.model, options.threads), TransformersArm(options.model)
    print_ceiling(plain, options.threads)
    figures: dict[str, float] = {}
    singles: list[float] = []
    for prompt in prompts():
        singles += compare(engine, plain, prompt, options, figures)
    figures["single_vs_transformers"] = round(statistics.median(singles), 3)
    figures |= latency(options.model, options.quick)
    print(json.dumps({"benchmark": "first_light", "model": options.model, "threads": options.threads, **figures}))


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="First-light figures.")
    parser.add_argument("--quick", action="store_true", help="end within 50 s")
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    options.rounds = ROUNDS if options.quick else 2 * ROUNDS
    options.single_tokens = 32 if options.quick else 256
    return options


def print_ceiling(plain: TransformersArm, threads: int) -> None:
    """At batch 1 every weight is read once a token: memory bandwidth over weight bytes bounds tokens per second."""
    size, bandwidth = plain.weight_bytes, read_bandwidth()
    print(f"ceiling: {size / 1e6:.1f} MB of weights at {bandwidth / 1e9:.1f} GB/s = {bandwidth / size:.0f} tokens/s")
    print(f"         without speculation, {threads} thread(s) of {os.cpu_count()}; tok/s: median [lowest .. highest]")


def compare(
    engine: EngineArm, plain: TransformersArm, prompt: Prompt, options: argparse.Namespace, figures: dict[str, float]
) -> list[float]:
    """One prompt through all arms; returns ours over transformers', round by round.

    ``transformers`` and ``ours`` generate ``options.single_tokens`` at most, ``off`` and ``on`` the prompt's whole length.
    """
    grammar = bool(prompt.schema)
    check_same_tokens(engine, plain, prompt)
    off = partial(engine.run, prompt, grammar=grammar, speculation=False)
    on = partial(engine.run, prompt, grammar=grammar, speculation=True)
    short = replace(prompt, max_tokens=min(options.single_tokens, prompt.max_tokens))
    arms: dict[str, Callable[[], float]] = {
        "transformers": lambda: plain.run(engine.tokens(short), short.max_tokens)[1],
        "ours": lambda: engine.run(short, grammar=grammar, speculation=False)[1],
        "off": lambda: off()[1],
        "on": lambda: on()[1],
    }
    samples = interleaved(arms, options.rounds)
    gain = ratios(samples["on"], samples["off"])
    single = ratios(samples["ours"], samples["transformers"])
    tokens, _, generated = on()
    accepted, drafted = generated.accepted, sum(step.drafted for step in generated.steps)
    print(
        f"\n{prompt.kind}: {len(tokens)} tokens in {len(generated.steps)} steps, {accepted} of {drafted} drafts accepted"
    )
    for name, values in samples.items():
        print(f"  {name:<14}{figure(values)} tok/s")
    print(f"  ours / transformers {figure(single)}     on / off {figure(gain)}")
    figures[f"{prompt.kind}_on_vs_off"] = round(statistics.median(gain), 3)
    figures |= {f"{prompt.kind}_{name}_tok_s": round(figure(values).median, 1) for name, values in samples.items()}
    return single


def check_same_tokens(engine: EngineArm, plain: TransformersArm, prompt: Prompt) -> None:
    """Fail when speculation changes tokens, or when ours are not transformers' own (without a grammar)."""
    grammar = bool(prompt.schema)
    off = engine.run(prompt, speculation=False, grammar=grammar)[0]
    if engine.run(prompt, speculation=True, grammar=grammar)[0] != off:
        raise SystemExit(f"{prompt.kind}: speculation changed the output")
    if not grammar and plain.run(engine.tokens(prompt), 32)[0] != off[:32]:
        raise SystemExit(f"{prompt.kind}: the output is not that of transformers")


async def _latencies(engine: EngineSettings, known: int, trips: int) -> tuple[list[float], list[float]]:
    async with open_place(engine) as place:
        starts, _, trips_us = await latencies(place, known, 0, trips)
        return starts, trips_us


def latency(model: str, quick: bool) -> dict[str, float]:
    """Start of a program and round trip of a guest's call."""
    ensure_runner()
    known, trips = (60, 300) if quick else (300, 2000)
    starts, trips_us = asyncio.run(_latencies(EngineSettings(model=read_models(model)), known, trips))
    figures = {
        "start_p50_ms": round(percentile(starts, 0.5), 2),
        "start_p99_ms": round(percentile(starts, 0.99), 2),
        "round_trip_p50_us": round(percentile(trips_us, 0.5), 1),
    }
    print(f"\nprogram start, launch to first line: p50 {figures['start_p50_ms']} ms, p99 {figures['start_p99_ms']} ms")
    print(
        f"guest await to reply, no model work: p50 {figures['round_trip_p50_us']} us, p99 {percentile(trips_us, 0.99):.0f} us"
    )
    return figures


if __name__ == "__main__":
    main()
