"""Everything that is to be known of one CUDA device: ceilings, decode, prefill, sampling, attention, speculation, a step's parts.

    python benchmarks/gpu.py [--only ceilings,decode,...] [--output DIR] [--smoke]

Prints the ceilings first and one JSON line last; arms run interleaved in this process, figures are medians of at least five
rounds with their range. ``--output`` gets ``gpu.json`` with every sample, written after each section. A section that has used
up its time names what it left out; one that fails is named, and costs the others nothing. ``--smoke`` runs all of it on the
CPU in tiny sizes, with the kernels' references and a stand-in for CUDA graphs: its figures say nothing.

What each section takes on an H200 is estimated from bytes and operations where it stands; together about eight minutes. Which
packages it needs, and what was expected of each figure before any was measured: docs/experiments.md.
"""

from __future__ import annotations

import argparse
import faulthandler
import gc
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy
import torch
import transformers
import triton
from gpu_attention import measure_attention, measure_verify
from gpu_bench import Bench, Budget, Report, cuda_bench, smoke_bench
from gpu_ceilings import Ceilings, measure_ceilings
from gpu_decode import measure_continuous, measure_decode, measure_prefill
from gpu_model import Served, serve
from gpu_sampling import measure_rejection, measure_sampling
from gpu_speculation import measure_equality, measure_speculation
from gpu_steps import measure_steps
from gpu_weights import measure_weights

PATIENCE = 60
"""Seconds over twice its own that a section may take before the process is ended."""


class Sections:
    """The sections in their order, each with the seconds that it may take on an H200. The model is made for those that run it,
    and given up before those that do not.
    """

    def __init__(self, bench: Bench, report: Report) -> None:
        self._bench = bench
        self._report = report
        self._ceilings: Ceilings | None = None
        self._served: Served | None = None

    @property
    def all(self) -> dict[str, Section]:
        """By name. ``speculation`` changes the weights and ``continuous`` starts a thread of transformers': they come last."""
        return {
            "ceilings": Section(5, self._run_ceilings),
            "sampling": Section(60, self._plainly(measure_sampling)),
            "rejection": Section(20, self._plainly(measure_rejection)),
            "attention": Section(40, self._plainly(measure_attention)),
            "verify": Section(50, self._plainly(measure_verify)),
            "weights": Section(60, self._plainly(measure_weights)),
            "decode": Section(90, self._with_model(measure_decode)),
            "prefill": Section(20, self._with_model(measure_prefill)),
            "steps": Section(30, self._with_model(measure_steps)),
            "equality": Section(25, self._with_model(measure_equality)),
            "speculation": Section(110, self._with_model(measure_speculation)),
            "continuous": Section(50, self._with_model(measure_continuous)),
        }

    def run(self, name: str) -> None:
        """One section; the ceilings come first whatever is asked for."""
        section = self.all[name]
        # Should a library wait for ever, the process ends, and what was saved stays.
        faulthandler.dump_traceback_later(2 * section.seconds + PATIENCE, exit=True, file=sys.__stderr__)
        begin = time.perf_counter()
        self._report.attempt(name, lambda: section.run(Budget(self._report, name, section.seconds)))
        seconds = self._report.value(f"{name}_seconds", time.perf_counter() - begin)
        print(f"-- {name}: {seconds:.1f} s of {section.seconds} --")
        gc.collect()
        if self._bench.on_device:
            torch.cuda.empty_cache()
        faulthandler.cancel_dump_traceback_later()
        self._report.save()

    def _run_ceilings(self, budget: Budget) -> None:
        self._ceilings = measure_ceilings(self._bench, self._report, budget)

    def _plainly(self, measure: Callable[[Bench, Report, Budget, Ceilings], None]) -> Callable[[Budget], None]:
        return lambda budget: measure(self._bench, self._report, budget, self._known())

    def _with_model(
        self, measure: Callable[[Bench, Report, Budget, Served, Ceilings], None]
    ) -> Callable[[Budget], None]:
        return lambda budget: measure(self._bench, self._report, budget, self._model(), self._known())

    def _known(self) -> Ceilings:
        if self._ceilings is None:
            raise RuntimeError("the ceilings are not known")
        return self._ceilings

    def _model(self) -> Served:
        if self._served is None:
            begin = time.perf_counter()
            self._served = serve(self._bench, own=True)
            self._describe(self._served, time.perf_counter() - begin)
        return self._served

    def _describe(self, served: Served, seconds: float) -> None:
        self._report.value("kernels_agree", float(served.agrees))
        self._report.value("fuse_accepted", float(served.accepted))
        print(
            f"\nmodel made in {seconds:.1f} s; runs through {served.way}; the fused pass was accepted: {served.accepted}; ",
            end="",
        )
        print(f"kernels agree with the reference: {served.agrees}")


@dataclass(frozen=True)
class Section:
    """What is measured, and in how many seconds."""

    seconds: float
    run: Callable[[Budget], None]


def main() -> None:
    """Run the sections and print."""
    options = parse()
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    if not options.smoke and not torch.cuda.is_available():
        raise SystemExit(
            "gpu.py needs a CUDA device, and there is none here (--smoke runs everything on the CPU, in tiny sizes)"
        )
    bench = smoke_bench() if options.smoke else cuda_bench()
    transformers.logging.set_verbosity_error()
    report = Report(options.output, header(bench, options.smoke))
    sections = Sections(bench, report)
    wanted = options.only.split(",") if options.only else list(sections.all)
    unknown = sorted(set(wanted) - set(sections.all))
    if unknown:
        raise SystemExit(f"no section {', '.join(unknown)}: there are {', '.join(sections.all)}")
    print(", ".join(f"{name} {value}" for name, value in report.header.items()))
    for name in sections.all:
        if name == "ceilings" or name in wanted:
            sections.run(name)
    print(report.line())
    if report.failed:
        raise SystemExit(1)


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="Figures of a CUDA device.")
    parser.add_argument(
        "--only", default="", help="sections, with commas between them; the ceilings are always measured"
    )
    parser.add_argument("--output", type=Path, default=None, help="folder for gpu.json with every sample")
    parser.add_argument("--smoke", action="store_true", help="tiny sizes on the CPU")
    return parser.parse_args()


def header(bench: Bench, smoke: bool) -> dict[str, Any]:
    """Where and with what this was measured."""
    return {
        "benchmark": "gpu", "smoke": smoke, "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": torch.cuda.get_device_name(bench.device) if bench.on_device else "cpu",
        "processors": bench.accelerator.processors, "driver": driver_version() if bench.on_device else "",
        "cuda": torch.version.cuda or "", "torch": torch.__version__, "triton": triton.__version__,
        "transformers": transformers.__version__, "numpy": numpy.__version__, "python": platform.python_version(),
        "kernels": bench.kernels.paged_attention.__module__.removeprefix("inferd_runtime."), "rounds": bench.rounds,
    }  # fmt: skip


def driver_version() -> str:
    """Of the device's driver, as its tool says."""
    asked = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        return (
            subprocess.run(asked, capture_output=True, text=True, timeout=20, check=True).stdout.split("\n")[0].strip()
        )
    except (OSError, subprocess.SubprocessError) as error:
        return f"unknown: {error}"


if __name__ == "__main__":
    main()
