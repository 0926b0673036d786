"""What the sandbox costs: starting a program, asking the engine, waiting, launching many, generating many texts at once.

    python benchmarks/sandbox.py [--quick] [--idle 1000] [--only start,launches,idle,throughput] [--model tiny]

Prints what bounds each figure first, then the figures (medians of at least five rounds with their range), and one JSON line
last. Everything runs through the real processes with the embedded model, unless another one is named.

start_known_*_ms     launch of a program that has run before, to its first line
start_fresh_p50_ms   the same from the upload of a program that was never seen
round_trip_p50_us    a guest's await of an operation without model work, to its reply
idle_*               programs that wait for a message: how many at once, their memory, and that each answers
launches_per_s       programs from launch to end, by one client over HTTP with one connection
sandbox_vs_engine_N  tokens per second of N programs over that of the same N generations in an engine without sandbox,
                     gateway and wire, round by round
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics

import torch
from measure import figure, percentile
from named_options import listed, one_of
from sandbox_fleet import idle_programs, launch_rate
from sandbox_latency import bare_start_ms, echo_us, latencies
from sandbox_runtime import Place, open_place
from sandbox_throughput import STREAMS, throughput

from inferd_runtime.models.options import ModelOptions
from inferd_runtime.sandbox.runner_build.component import ensure_runner
from inferd_runtime.settings.settings import EngineSettings

ROUNDS = 5
Figures = dict[str, float]


def main() -> None:
    """Run the parts and print."""
    options = parse()
    torch.set_num_threads(1)
    ensure_runner()
    figures = launches(options) if "launches" in options.only else {}
    figures |= asyncio.run(in_one_runtime([name for name in options.only if name != "launches"], options))
    print(json.dumps({"benchmark": "sandbox", **figures}))


async def in_one_runtime(names: list[str], options: argparse.Namespace) -> Figures:
    """The parts that need no server: one runtime serves them all."""
    parts = {"start": starts, "idle": idle, "throughput": generations}
    figures: Figures = {}
    if names:
        async with open_place(engine_of(options)) as place:
            for name in names:
                figures |= await parts[name](place, options)
    return figures


def engine_of(options: argparse.Namespace) -> EngineSettings:
    """The engine of every part, and of what it is compared with."""
    return EngineSettings(threads=1, model=(ModelOptions(options.model),))


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="What the sandbox costs.")
    parser.add_argument("--quick", action="store_true", help="end within 50 s, with 100 idle programs")
    parser.add_argument("--idle", type=int, default=0, help="idle programs; default: 1000, or 100 with --quick")
    parts = ("start", "launches", "idle", "throughput")
    parser.add_argument("--only", type=listed(one_of(parts)), default=list(parts), help="parts, separated by commas")
    parser.add_argument("--model", default="tiny", help="a model that is here, by its name")
    options = parser.parse_args()
    options.idle = options.idle or (100 if options.quick else 1000)
    return options


async def starts(place: Place, options: argparse.Namespace) -> Figures:
    """Starting, and asking."""
    print(
        f"bounds: a bare instance {bare_start_ms():.2f} ms; a message there and back between processes {echo_us():.0f} us"
    )
    known, fresh, trips = await latencies(place, *((60, 30, 300) if options.quick else (300, 100, 2000)))
    found = {
        "start_known_p50_ms": round(percentile(known, 0.5), 2),
        "start_known_p99_ms": round(percentile(known, 0.99), 2),
        "start_fresh_p50_ms": round(percentile(fresh, 0.5), 2),
        "round_trip_p50_us": round(percentile(trips, 0.5), 1),
    }
    print(
        f"known program to its first line: p50 {found['start_known_p50_ms']} ms, p99 {found['start_known_p99_ms']} ms"
    )
    print(
        f"fresh program, upload to first line: p50 {found['start_fresh_p50_ms']} ms, p99 {percentile(fresh, 0.99):.2f} ms"
    )
    print(f"guest's await to reply: p50 {found['round_trip_p50_us']} us, p99 {percentile(trips, 0.99):.0f} us")
    return found


def launches(options: argparse.Namespace) -> Figures:
    """Programs per second."""
    answers, rates = launch_rate(ROUNDS, 40 if options.quick else 200)
    print(f"bound: the client gets {answers:.0f} answers of /livez a second over its connection")
    print(f"launches {figure(rates)} a second")
    return {"launches_per_s": round(statistics.median(rates), 1)}


async def idle(place: Place, options: argparse.Namespace) -> Figures:
    """Programs that wait."""
    found = await idle_programs(place, options.idle)
    print(
        f"{found.alive} of {options.idle} idle programs answered, {found.each_mb:.1f} MiB each, {found.seconds:.0f} s to launch"
    )
    return {"idle_programs": found.alive, "idle_mb_each": round(found.each_mb, 2)}


async def generations(place: Place, options: argparse.Namespace) -> Figures:
    """Throughput with and without everything around the engine."""
    print("bound: 1.00, what the engine does with nothing around it")
    found: Figures = {}
    for result in await throughput(place, engine_of(options), ROUNDS):
        print(f"{result.streams:3} programs {figure(result.sandbox)} tokens/s, engine {figure(result.engine)} tokens/s")
        print(f"             over the engine's {figure(result.ratios)}")
        found[f"sandbox_vs_engine_{result.streams}"] = round(statistics.median(result.ratios), 3)
    assert len(found) == len(STREAMS)
    return found


if __name__ == "__main__":
    main()
