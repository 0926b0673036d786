"""Where the time of a decode step goes: the host's stages, waiting, and the device's kernels by name."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

from engine_arms import finish, random_prompts
from gpu_bench import Bench, Budget, Report
from gpu_ceilings import Ceilings
from gpu_model import DriverArm, Served, StreamArm, make_driver, step_batch
from measure import figure, interleaved, ratios
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from inferd_runtime.engine.drivers.cuda_driver import CudaDriver
from inferd_runtime.engine.in_flight import InFlightStep
from inferd_runtime.engine.prepare import prepare
from inferd_runtime.engine.sampling.device_sampling import greedy_inputs, sampling_inputs
from inferd_runtime.engine.verification import commit_step, verify_step

STAGES = ("plan", "prepare", "lay_out", "launch", "wait", "commit")
TOP = 15
VERIFIED = (0, 1, 2, 4, 8, 15)
VERIFY_CONTEXT = 1024
TARGET_K, TARGET = 8, 1.15


class Stopwatch:
    """Adds up the seconds of a method of an object, in whose place it stands."""

    def __init__(self, owner: Any, name: str) -> None:
        self._owner = owner
        self._name = name
        self._call = getattr(owner, name)
        self.seconds = 0.0
        setattr(owner, name, self)

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        begin = time.perf_counter()
        try:
            return self._call(*arguments, **options)
        finally:
            self.seconds += time.perf_counter() - begin

    def remove(self) -> None:
        """Put the method back."""
        delattr(self._owner, self._name)


def measure_steps(bench: Bench, report: Report, budget: Budget, served: Served, ceilings: Ceilings) -> None:
    """The simple loop stage by stage, kernels by name, recorded and not; and steps with drafted rows against steps without.

    On an H200: a few hundred steps of 4 to 8 ms, twice as long where they are not recorded: 10 s, and 5 s for profiles.
    """
    del ceilings
    pages = max(bench.sizes.step_batches) * (-(-(bench.sizes.prompt + bench.sizes.new_tokens) // 16) + 2)
    drivers = {
        "recorded": served.driver,
        "launched": make_driver(bench, served.loaded, served.fused, pages=pages, graphs=False),
    }
    for batch in bench.sizes.step_batches:
        for name, driver in drivers.items():
            if budget.allows(f"{name} steps of {batch}"):
                stages_of(bench, report, driver, f"step_b{batch}_{name}", batch)
                kernels_of(bench, report, driver, f"step_b{batch}_{name}", batch)
    for batch in bench.sizes.attended:
        if budget.allows(f"steps with drafted rows, batch {batch}"):
            verify_steps(bench, report, served.driver, batch)


def stages_of(bench: Bench, report: Report, driver: CudaDriver, prefix: str, batch: int) -> None:
    """Medians over the steps of a run, after one run to warm up."""
    for _ in range(2):
        rows, inside = run_in_stages(bench, driver, batch)
    print(f"\n{prefix}, us a step")
    for name, samples in zip(STAGES, zip(*rows, strict=True), strict=True):
        print(f"  {name:<10}{report.add(f'{prefix}_{name}_us', samples, 1e6)}")
    for name, seconds in inside.items():
        print(f"  in launch: {name:<10}{report.value(f'{prefix}_{name}_us', seconds / len(rows) * 1e6):9.2f}")
    whole = figure([sum(row) for row in rows])
    report.value(f"{prefix}_whole_us", whole.median * 1e6)
    print(f"  whole     {whole.median * 1e6:9.2f}")


def run_in_stages(bench: Bench, driver: CudaDriver, batch: int) -> tuple[list[list[float]], dict[str, float]]:
    """Seconds by stage of every step but the first two, and of what a launch holds: uploads with packing, and without."""
    sizes, arm = bench.sizes, StreamArm(driver, overlap=False)
    contexts = arm.contexts(random_prompts(sizes.model.vocab, [sizes.prompt] * batch, seed=time.perf_counter_ns()))
    generations = arm.start(contexts, sizes.new_tokens)
    watches = {"upload": Stopwatch(driver, "_upload"), "staging": Stopwatch(driver._staging, "upload")}
    rows: list[list[float]] = []
    while (row := step_in_stages(arm, driver)) is not None:
        rows.append(row)
        for generation in generations:
            if generation.outbox:
                generation.take()
    for watch in watches.values():
        watch.remove()
    finish(generations)
    return rows[2:] or rows, {name: watch.seconds for name, watch in watches.items()}


def step_in_stages(arm: StreamArm, driver: CudaDriver) -> list[float] | None:
    """What :meth:`Engine.step` does without running ahead. None when nobody wanted anything."""
    clock = [time.perf_counter()]
    plan = arm.engine.scheduler.plan()
    if not plan:
        return None
    clock.append(time.perf_counter())
    batch = prepare(plan, driver.page_size)
    clock.append(time.perf_counter())
    sampling = sampling_inputs(plan, driver.vocab_size)
    clock.append(time.perf_counter())
    launched = driver.launch(batch, sampling)
    clock.append(time.perf_counter())
    result = launched.wait()
    clock.append(time.perf_counter())
    step = InFlightStep(plan, launched, clock[0])
    commit_step(step, verify_step(step, result), driver)
    clock.append(time.perf_counter())
    return [end - begin for begin, end in pairwise(clock)]


def kernels_of(bench: Bench, report: Report, driver: CudaDriver, prefix: str, batch: int) -> None:
    """The device's kernels of the same step, by name: microseconds and launches a step."""
    steps, sizes = bench.sizes.profiled, bench.sizes
    arm = DriverArm(driver, batch, sizes.prompt + sizes.new_tokens // 2, steps)
    arm.rate()
    activity = ProfilerActivity.CUDA if bench.on_device else ProfilerActivity.CPU
    with profile(activities=[activity]) as found:
        arm.rate()
    kernels = [one for one in found.key_averages() if not bench.on_device or one.device_type == DeviceType.CUDA]
    spent = sorted(((own_time(bench, one), one.count, one.key) for one in kernels), reverse=True)
    total = report.value(f"{prefix}_kernels_us", sum(time_ for time_, _, _ in spent) / steps)
    report.value(f"{prefix}_launches", sum(count for _, count, _ in spent) / steps)
    print(f"  kernels   {total:9.2f} us a step; the {TOP} that take longest:")
    table = [{"name": key, "us": time_ / steps, "launches": count / steps} for time_, count, key in spent]
    report.tables[f"{prefix}_kernels"] = table[: 4 * TOP]
    for row in table[:TOP]:
        print(f"    {row['us']:9.2f} us {row['launches']:7.1f} x  {str(row['name'])[:90]}")


def own_time(bench: Bench, event: Any) -> float:
    """Microseconds of a profiled kernel; without a device, of an operation."""
    return float(event.self_device_time_total if bench.on_device else event.self_cpu_time_total)


def verify_steps(bench: Bench, report: Report, driver: CudaDriver, batch: int) -> None:
    """Whole steps of the driver with k drafted rows for each stream, over those without."""
    prefix = f"verify_step_b{batch}"
    context = min(VERIFY_CONTEXT, bench.sizes.model.context // 2, driver.pages // batch * 16 - 32)
    arms = {
        f"k{k}": partial(step_seconds, driver, [k + 1] * batch, context, bench.sizes.step_repeats) for k in VERIFIED
    }
    found = interleaved(arms, bench.rounds)
    print(f"\nsteps with k drafted rows, batch {batch}, context {context}")
    for name, samples in found.items():
        gain = report.add(f"{prefix}_{name}_vs_k0", ratios(samples, found["k0"]))
        print(f"  {name:<5}{report.add(f'{prefix}_{name}_ms', samples, 1e3)} ms, x {gain}")
    print(f"  k = {TARGET_K}: {report.figures[f'{prefix}_k{TARGET_K}_vs_k0']:.3f} of none; target {TARGET} at batch 1")


def step_seconds(driver: CudaDriver, counts: Sequence[int], context: int, repeats: int) -> float:
    """Seconds of a step."""
    batch = step_batch(driver, counts, context)
    sampling = greedy_inputs(batch, driver.vocab_size)
    launch: Callable[[], object] = lambda: driver.launch(batch, sampling).wait()  # noqa: E731
    launch()
    begin = time.perf_counter()
    for _ in range(repeats):
        launch()
    return (time.perf_counter() - begin) / repeats
