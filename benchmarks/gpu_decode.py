"""Decode and prefill of the model: through our engine, through the driver alone, and through transformers."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

from gpu_bench import Bench, Budget, Report
from gpu_ceilings import Ceilings
from gpu_model import (
    DriverArm,
    GenerateBatchPeer,
    GeneratePeer,
    Served,
    StreamArm,
    prefill_flops,
    step_batch,
    step_floor,
    weight_bytes,
)  # fmt: skip
from measure import interleaved, ratios

from inferd_runtime.engine.drivers.cuda_driver import CudaDriver
from inferd_runtime.engine.sampling.device_sampling import greedy_inputs

Rates = dict[str, list[float]]
TARGET = 0.8


def measure_decode(bench: Bench, report: Report, budget: Budget, served: Served, ceilings: Ceilings) -> None:
    """Tokens per second by batch, and the share of what reading weights and K and V would allow.

    On an H200 a step is at least 3.5 ms, at 256 streams 5.5 ms. 64 tokens of each stream, three arms of ours and the driver
    twice, six rounds: 1.6 s a batch at the floor, 5 s with the host's share; ``generate`` takes about 25 ms a step, launch
    by launch: 10 s for each of its batches. Together about 60 s.
    """
    sizes = bench.sizes
    context = sizes.prompt + sizes.new_tokens // 2
    print(f"\n== decode: {weight_bytes(served) / 1e9:.2f} GB of weights a step, {served.way}, context {context} ==")
    for batch in sizes.batches:
        if not budget.allows(f"batch {batch}"):
            continue
        floor = batch / step_floor(served, batch, context, ceilings.bandwidth)
        compute = 2 * weight_bytes(served) / sizes.dtype.itemsize * batch / ceilings.rate
        report.value(f"decode_b{batch}_floor_tok_s", floor)
        print(f"\nbatch {batch}: reading allows {floor:,.0f} tok/s; products alone take {compute * 1e3:.2f} ms a step")
        rates = decode_rates(bench, report, served, batch)
        for name, samples in rates.items():
            found = report.add(f"decode_b{batch}_{name}_tok_s", samples)
            share = report.value(f"decode_b{batch}_{name}_of_floor", found.median / floor)
            print(f"  {name:<18}{found} tok/s, {share:.3f} of what reading allows")
        if "generate" in rates:
            gain = report.add(f"decode_b{batch}_vs_generate", ratios(rates["engine"], rates["generate"]))
            print(f"  engine over generate: {gain}")
    if 1 in sizes.batches and "decode_b1_engine_of_floor" in report.figures:
        print(f"\nbatch 1: {report.figures['decode_b1_engine_of_floor']:.3f} of the floor; target {TARGET}")


def decode_rates(bench: Bench, report: Report, served: Served, batch: int) -> Rates:
    """All arms at one batch size."""
    sizes, driver = bench.sizes, served.driver
    arms: dict[str, Callable[[], float]] = {
        "engine": streams(bench, StreamArm(driver), batch),
        "engine_simple": streams(bench, StreamArm(driver, overlap=False), batch),
        "driver": DriverArm(driver, batch, sizes.prompt + sizes.new_tokens // 2, sizes.new_tokens).rate,
        "driver_ahead": DriverArm(
            driver, batch, sizes.prompt + sizes.new_tokens // 2, sizes.new_tokens, ahead=True
        ).rate,
    }
    if served.own is not None and batch in sizes.generate_batches:
        peer = GeneratePeer(bench, served.own)
        add_peer(report, arms, "generate", batch, partial(peer.decode_rate, batch, sizes.prompt, sizes.new_tokens // 2))
    return interleaved(arms, bench.rounds)


def add_peer(
    report: Report, arms: dict[str, Callable[[], float]], name: str, batch: int, call: Callable[[], float]
) -> None:
    """Let a peer take part that runs at all."""
    if report.attempt(f"{name}, batch {batch}", call) is not None:
        arms[name] = call


def streams(bench: Bench, arm: StreamArm, batch: int) -> Callable[[], float]:
    """An engine's decode rate."""
    sizes = bench.sizes
    return partial(arm.decode_rate, sizes.model.vocab, batch, sizes.prompt, sizes.new_tokens)


def measure_continuous(bench: Bench, report: Report, budget: Budget, served: Served, ceilings: Ceilings) -> None:
    """Our engine beside ``generate_batch``. Its manager keeps a thread of this process for as long as it is there, so that it
    comes last, and only the engine that is compared with it runs beside it.

    On an H200: 30 ms a step, 34 steps a run: 7 s and the engine's 4 s for each of three batches, and as much for starting.
    """
    del ceilings
    print("\n== continuous batching: our engine beside generate_batch ==")
    for batch in bench.sizes.generate_batch_batches:
        if served.own is not None and budget.allows(f"batch {batch}"):
            one_continuous(bench, report, served, batch)


def one_continuous(bench: Bench, report: Report, served: Served, batch: int) -> None:
    """Both at one batch size."""
    sizes, prefix = bench.sizes, f"continuous_b{batch}"
    peer = GenerateBatchPeer(bench, served.own, batch, sizes.prompt + sizes.new_tokens)
    arms: dict[str, Callable[[], float]] = {"engine": streams(bench, StreamArm(served.driver), batch)}
    call = partial(peer.decode_rate, batch, sizes.prompt, sizes.new_tokens // 2)
    add_peer(report, arms, "generate_batch", batch, call)
    try:
        rates = interleaved(arms, bench.rounds)
    finally:
        report.attempt("close generate_batch", peer.close)
    for name, samples in rates.items():
        print(f"  batch {batch}, {name:<16}{report.add(f'{prefix}_{name}_tok_s', samples)} tok/s")
    if "generate_batch" in rates:
        gain = report.add(f"{prefix}_vs_generate_batch", ratios(rates["engine"], rates["generate_batch"]))
        print(f"  engine over generate_batch: {gain}")


def measure_prefill(bench: Bench, report: Report, budget: Budget, served: Served, ceilings: Ceilings) -> None:
    """Tokens of one prompt per second, in one step.

    On an H200 4,096 tokens are 66 TFLOP: 85 ms at 790 TFLOP/s. Three arms, six rounds, three lengths: 3 s.
    """
    sizes = bench.sizes
    print("\n== prefill: one prompt in one step ==")
    for tokens in sizes.prefills:
        if not budget.allows(f"{tokens} tokens"):
            continue
        floor = tokens * ceilings.rate / prefill_flops(sizes.model, tokens)
        arms: dict[str, Callable[[], float]] = {
            "driver": partial(prompt_rate, served.driver, tokens),
            "engine": partial(StreamArm(served.driver).prompt_rate, sizes.model.vocab, tokens),
        }
        if served.own is not None:
            peer = GeneratePeer(bench, served.own)
            call = partial(peer.prompt_rate, tokens)
            if report.attempt(f"transformers' forward pass, {tokens} tokens", call) is not None:
                arms["transformers"] = call
        rates = interleaved(arms, bench.rounds)
        for name, samples in rates.items():
            found = report.add(f"prefill_{tokens}_{name}_tok_s", samples)
            share = report.value(f"prefill_{tokens}_{name}_of_matmul", found.median / floor)
            print(f"  {tokens} tokens, {name:<14}{found} tok/s, {share:.3f} of the matrix product's rate")
        if "transformers" in rates:
            report.add(f"prefill_{tokens}_vs_transformers", ratios(rates["driver"], rates["transformers"]))


def prompt_rate(driver: CudaDriver, tokens: int) -> float:
    """Tokens per second of a step that holds one prompt and draws behind its last token."""
    batch = step_batch(driver, [tokens], 0, [tokens - 1])
    sampling = greedy_inputs(step_batch(driver, [1], 0), driver.vocab_size)
    begin = time.perf_counter()
    driver.launch(batch, sampling).wait()
    return tokens / (time.perf_counter() - begin)
