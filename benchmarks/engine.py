"""The engine's figures: against transformers' ``generate`` and ``generate_batch``, stage by stage, and as work grows.

    python benchmarks/engine.py [--quick] [--threads N] [--docs docs]

Prints the ceiling of this machine first and one JSON line last. Arms have the same weights, prompts, number of new tokens
and threads, run interleaved, and are compared round by round; every figure is the median of at least five rounds with its
range. Prompts are random and new in every round, so that no prefix is found again; the prompts' time counts; nobody
decodes text. ``generate_batch`` keeps its manager and cache between rounds, and the first round of all arms is warm-up.
``--quick`` leaves out the model of 100 million parameters and the growth of work, which a full run writes into ``--docs``.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from engine_arms import (
    STAGES,
    EngineArm,
    GenerateArm,
    GenerateBatchArm,
    Run,
    embedded_model,
    median_ms,
    random_model,
    random_prompts,
    same_share,
    weight_elements,
)
from engine_growth import growth_by_context, growth_by_streams, measured, table, warm_steps, write
from measure import Figure, figure, interleaved, matmul_rate, ratios, read_bandwidth

from inferd_runtime.testing.null_driver import NullDriver

ROUNDS = 5
BATCH = 32
LENGTHS = [48 + at for at in range(BATCH)]
MANY = 256
FEW = 8
# More threads have to bring this much: they take cores from the programs beside the engine.
WORTH = 1.15
LEAST_SAME = 0.95


@dataclass(frozen=True)
class Case:
    """A model to measure: ``suffix`` of its keys, new tokens of the single stream and of each of the 32."""

    name: str
    suffix: str
    model: Any
    single: int
    batch: int


def main() -> None:
    """Run everything and print."""
    options = parse()
    transformers.logging.set_verbosity_error()
    tiny = Case("embedded", "", embedded_model(), 64, 32 if options.quick else 64)
    figures: dict[str, float] = measure_case(tiny, options.threads)
    figures |= null_rate() | plan_share(tiny)
    if not options.quick:
        growth(tiny, options.docs)
        figures |= measure_case(Case("100M random", "_100m", random_model(), 64, 64), options.threads)
    else:
        print("\nleft out by --quick: the 100M model, the growth of work")
    print(json.dumps({"benchmark": "engine", "quick": options.quick, **figures}))


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="Figures of the engine.")
    parser.add_argument("--quick", action="store_true", help="end within 50 s")
    parser.add_argument("--threads", type=int, default=0, help="0: as many as the measurement says")
    parser.add_argument("--docs", type=Path, default=Path("docs"), help="folder for the table and plot of a full run")
    return parser.parse_args()


def measure_case(case: Case, threads: int) -> dict[str, float]:
    """Ceiling, both ratios, and the stages of one model."""
    print(f"\n== {case.name}: {weight_elements(case.model) / 1e6:.1f} M parameters, float32 ==")
    ours = EngineArm.over(case.model, streams=MANY, length=LENGTHS[-1] + max(case.single, case.batch))
    chosen = threads or choose_threads(case, ours)
    torch.set_num_threads(chosen)
    print_ceiling(case, chosen)
    figures: dict[str, float] = {"threads": chosen}
    figures |= compare_single(case, ours) | compare_batch(case, ours) | stages(case, ours)
    return {name + case.suffix: value for name, value in figures.items()}


def choose_threads(case: Case, ours: EngineArm) -> int:
    """The fewest threads that none beats by WORTH beside a busy neighbour: an engine never has the machine to itself.

    Threads wait for the slowest of them in every product, so that one that lost its core holds up all.
    """
    counts = sorted({1, max(1, (os.cpu_count() or 1) - 1), os.cpu_count() or 1})

    def rate(count: int) -> float:
        torch.set_num_threads(count)
        prompts = random_prompts(case.model.config.vocab_size, [8] * FEW, seed=time.perf_counter_ns())
        return ours.run(prompts, 4).rate

    arms: dict[str, Callable[[], float]] = {str(count): partial(rate, count) for count in counts}
    alone = interleaved(arms, ROUNDS)
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as neighbour:
        try:
            beside = interleaved(arms, ROUNDS)
        finally:
            neighbour.kill()
    chosen = counts[0]
    for count in counts:
        name = str(count)
        print(
            f"{name} thread(s), {FEW} streams: alone {figure(alone[name])}, beside a busy process {figure(beside[name])} tok/s"
        )
        if statistics.median(beside[name]) > WORTH * statistics.median(beside[str(chosen)]):
            chosen = count
    print(f"chosen: {chosen} of {os.cpu_count()}, by the rate beside a busy process")
    return chosen


def print_ceiling(case: Case, threads: int) -> None:
    """Every weight is read once a step, and multiplied once a row: the slower of the two bounds the step."""
    elements = weight_elements(case.model)
    bandwidth, rate = read_bandwidth(max(8, elements >> 18)), matmul_rate()
    print(
        f"ceiling: {bandwidth / 1e9:.1f} GB/s over {elements * 4 / 1e6:.0f} MB, {rate / 1e9:.0f} GFLOP/s, {threads} thread(s)"
    )
    for rows in (1, BATCH):
        read, multiply = elements * 4 / bandwidth, 2 * elements * rows / rate
        bound = "bandwidth" if read > multiply else "arithmetic"
        best = max(read, multiply)
        print(f"         batch {rows}: {best * 1e3:.2f} ms a step by {bound} = {rows / best:,.0f} tok/s")
    print("         without attention, prompts and sampling; tok/s: median [lowest .. highest]")


def compare_single(case: Case, ours: EngineArm) -> dict[str, float]:
    """One stream without speculation against ``generate``."""
    theirs = GenerateArm(case.model)
    mine, other, same = rounds(case, ours, theirs, [LENGTHS[0]], case.single)
    gain = report("one stream", "generate", mine, other, same)
    return {"single_vs_transformers": gain.median, "single_tok_s": round(figure(mine).median, 1)}


def compare_batch(case: Case, ours: EngineArm) -> dict[str, float]:
    """32 streams against ``generate_batch``, with the faster of its attentions."""
    length = LENGTHS[-1] + case.batch
    prompts = random_prompts(case.model.config.vocab_size, LENGTHS, seed=1)
    speeds: dict[str, float] = {}
    for attention in ("sdpa", "paged|eager"):
        arm = GenerateBatchArm(case.model, streams=BATCH, length=length, attention=attention)
        arm.run(prompts[:2], 2)
        speeds[attention] = arm.run(prompts, 8).rate
        arm.close()
    best = max(speeds, key=lambda name: speeds[name])
    theirs = GenerateBatchArm(case.model, streams=BATCH, length=length, attention=best)
    mine, other, same = rounds(case, ours, theirs, LENGTHS, case.batch)
    theirs.close()
    gain = report(f"{BATCH} streams", f"generate_batch ({best})", mine, other, same)
    return {"streams32_vs_generate_batch": gain.median, "streams32_tok_s": round(figure(mine).median, 1)}


def rounds(
    case: Case, ours: EngineArm, theirs: GenerateArm | GenerateBatchArm, lengths: list[int], new_tokens: int
) -> tuple[list[float], list[float], list[float]]:
    """Tokens per second of both arms, and the share of equal tokens, round by round."""
    runs: list[tuple[Run, Run]] = []
    for seed in range(ROUNDS + 1):
        prompts = random_prompts(case.model.config.vocab_size, lengths, seed=1000 + seed)
        runs.append((ours.run(prompts, new_tokens), theirs.run(prompts, new_tokens)))
    same = [same_share(mine, other) for mine, other in runs]
    if statistics.mean(same) < LEAST_SAME:
        raise SystemExit(f"{case.name}: only {statistics.mean(same):.0%} of the tokens are those of transformers")
    return [mine.rate for mine, _ in runs[1:]], [other.rate for _, other in runs[1:]], same


def report(what: str, against: str, ours: list[float], theirs: list[float], same: list[float]) -> Figure:
    """Print both arms and the ratio; returns the ratio."""
    gain = figure([round(value, 3) for value in ratios(ours, theirs)])
    print(f"\n{what}: {statistics.mean(same):.1%} of the tokens are the same")
    print(f"  ours {figure(ours)} tok/s     {against} {figure(theirs)} tok/s     ratio {gain}")
    return gain


def stages(case: Case, ours: EngineArm) -> dict[str, float]:
    """Time per stage of a decode step with 1 and 32 streams."""
    figures: dict[str, float] = {}
    for streams in (1, BATCH):
        lengths = LENGTHS[:streams]
        prompts = random_prompts(case.model.config.vocab_size, lengths, seed=streams)
        run = ours.run_in_stages(prompts, 16)
        medians = median_ms(run)
        total = measured(streams, run).step
        outside = 1 - medians["forward"] / total
        print(f"\nstages of a step, {streams} stream(s), ms: " + ", ".join(f"{n} {medians[n]:.3f}" for n in STAGES))
        print(f"  {1e3 / total:.0f} steps/s; Python outside the forward pass: {outside:.1%}")
        figures |= {f"stage_{name}_ms_{streams}": round(value, 4) for name, value in medians.items()}
        figures |= {f"steps_per_s_{streams}": round(1e3 / total, 1), f"python_share_{streams}": round(outside, 4)}
    return figures


def plan_share(case: Case) -> dict[str, float]:
    """The share of a step with 256 streams that goes into ``scheduler.plan()`` and ``prepare``."""
    ours, warm = EngineArm.over(case.model, streams=MANY, length=64), warm_steps(MANY, 16)
    points = [
        measured(MANY, ours.run_in_stages(random_prompts(case.model.config.vocab_size, [16] * MANY, seed), 10 + warm))
        for seed in range(ROUNDS)
    ]
    share = figure([point.planning * 100 for point in points])
    print(f"\nplanning at {MANY} streams: {share} % of a step of {figure([point.step for point in points])} ms")
    return {"plan_share_256": round(share.median / 100, 4)}


def null_rate() -> dict[str, float]:
    """Rows that the scheduler alone plans per second, with 256 running generations and no model."""
    samples = []
    for seed in range(ROUNDS):
        arm = EngineArm(NullDriver(vocab_size=64, pages=MANY * 8, page_size=16, max_context=128))
        run = arm.run_in_stages(random_prompts(64, [16] * MANY, seed), 10 + warm_steps(MANY, 16))
        samples.append(MANY / statistics.median(run.stages["plan"]))
    rate = figure(samples)
    print(f"\nscheduler alone, {MANY} decode rows a step: {rate} rows/s")
    return {"null_rowplans_per_s": round(rate.median)}


def growth(case: Case, docs: Path) -> None:
    """Print and write how a step grows."""
    arm = EngineArm.over(case.model, streams=MANY, length=96)
    streams, contexts = growth_by_streams(arm, case.model.config.vocab_size), growth_by_context()
    print("\n" + table(streams, contexts))
    write(
        docs, streams, contexts,
        "Written by `python benchmarks/engine.py`: decode steps (medians) of the embedded model with 32 to 56 tokens of "
        "context per stream, and of random weights of its size behind a long context. Solid: the step; dashed: the forward pass.",
    )  # fmt: skip


if __name__ == "__main__":
    main()
