"""``make gpu-check``: everything that is to be run on a device for the first time, in order, and one report of it.

Each check is a process of its own, under a time limit, with its log beside the report. A check that later ones rest on stops
them when it fails: figures of wrong logits would mean nothing. Where no command may take so long, ``--only smoke,attention`` runs
some, and adds to the report; what was compiled and what ended a process is kept. Without a CUDA device it says so, and no more.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[1]
PYTEST = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider")
SANITIZED = ("tests/gpu/test_cache.py", "-k", "move")
RACED = ("tests/gpu/test_attention.py", "-k", "paged", "--maxfail", "1")
PACKAGES = ("triton", "transformers", "msgspec", "pytest", "llguidance")
REPORT = "report.md"
TAIL = 30
SECONDS = 45 * 60
"""Of all checks together."""
WORKERS = 8


@dataclass(frozen=True)
class Check:
    """A command with its time limit in seconds. ``needed``: what comes behind means nothing without it."""

    name: str
    command: tuple[str, ...]
    seconds: int
    needed: bool = False

    @property
    def log(self) -> str:
        """The name of its log."""
        return self.name.split(":")[0].replace(", ", "-").replace(" ", "-") + ".log"


@dataclass(frozen=True)
class Outcome:
    """How a check ended, in words, and after how many seconds."""

    check: Check
    said: str
    seconds: float

    @property
    def passed(self) -> bool:
        """True if nothing was wrong."""
        return self.said == "passed"


def checks(output: Path) -> list[Check]:
    """Return the checks in their order. What one does not need of its time the next ones may have."""
    smoke = (sys.executable, str(ROOT / "scripts" / "gpu_smoke.py"))
    found = [
        Check("smoke", smoke, 90, needed=True),
        Check("sampling, cache, elementwise", _tests("sampling", "cache", "elementwise"), 360, needed=True),
        Check("attention, products", _tests("attention", "product", "quantized"), 540, needed=True),
        Check("fusion, early launches, streams", _tests("fusion"), 180, needed=True),
        Check("driver: tokens and logits", _tests("cuda_driver", "served", "run_ahead"), 450, needed=True),
        Check("two devices", _tests("tensor_parallel"), 60),
        Check("memory of steps", (*PYTEST, "tests/gpu/test_served.py", "-k", "memory"), 60),
        Check("a recording that fails", (*smoke, "--broken"), 30),
        Check("a device that is lost", (*PYTEST, "tests/gpu/test_launch_marks.py"), 30),
        Check("benchmark", (sys.executable, "benchmarks/gpu.py", "--output", str(output)), 600),
    ]
    sanitizer = shutil.which("compute-sanitizer")
    if sanitizer is not None:
        # What PyTorch hands out from its reserve has no bounds of its own.
        bounded = ("env", "PYTORCH_NO_CUDA_MEMORY_CACHING=1", sanitizer)
        memory = Check("memcheck", (*bounded, "--tool", "memcheck", "--error-exitcode", "9", *PYTEST, *SANITIZED), 150)
        races = Check("racecheck", (sanitizer, "--tool", "racecheck", "--error-exitcode", "9", *PYTEST, *RACED), 150)
        found[3:3] = [memory, races]
    return found


def _tests(*names: str) -> tuple[str, ...]:
    """Side by side where pytest-xdist is installed: compiling kernels takes nearly all of the time, and processors stand idle."""
    beside = () if find_spec("xdist") is None else ("-n", str(min(WORKERS, os.cpu_count() or 1)))
    return (*PYTEST, "--maxfail", "5", *beside, *(f"tests/gpu/test_{name}.py" for name in names))


def run(check: Check, output: Path, seconds: float) -> Outcome:
    """Run a check for at most so many seconds; its log is in ``output``."""
    log = output / check.log
    paths = os.pathsep.join(str(ROOT / room) for room in ("sdk", "runtime", "grammar"))
    # One cache for all processes: what one compiled, the others find. And one of this run for what is kept between starts.
    caches = {"TRITON_CACHE_DIR": str(output / "triton"), "INFERD_CACHE_DIR": str(output / "cache")}
    environment = {**os.environ, "PYTHONPATH": paths, **caches}
    started = time.monotonic()
    with log.open("wb") as printed:
        try:
            done = subprocess.run(
                check.command, cwd=ROOT, env=environment, stdout=printed, stderr=subprocess.STDOUT, timeout=seconds,
                check=False,
            )  # fmt: skip
            said = "passed" if done.returncode == 0 else f"failed with code {done.returncode}"
        except subprocess.TimeoutExpired:
            said = f"was not done after {seconds:.0f} s"
    return Outcome(check, said, time.monotonic() - started)


def report(title: str, outcomes: Sequence[Outcome], left: Sequence[Check], output: Path) -> str:
    """Return the report: a line for each check, and the end of the logs of those that failed."""
    lines = [f"# {title}", ""]
    lines += ["| check | outcome | seconds |", "|---|---|---|"]
    lines += [f"| {one.check.name} | {one.said} | {one.seconds:.0f} |" for one in outcomes]
    lines += [f"| {check.name} | not run: a check that it rests on failed | |" for check in left]
    for one in outcomes:
        if not one.passed:
            tail = (output / one.check.log).read_text(errors="replace").splitlines()[-TAIL:]
            lines += ["", f"## {one.check.name}", "", *(f"    {line}" for line in tail)]
    ended = [path.read_text(errors="replace").strip() for path in sorted((output / "cache" / "launches").glob("*"))]
    if any(ended):
        lines += ["", "## What ended a process while it loaded a model, and was replaced from then on", ""]
        lines += [f"- {name}" for name in ended if name]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Run the checks. Returns 0 if all passed, or if there is no device."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=ROOT / "build" / "gpu")
    parser.add_argument("--only", default="", help="words, with commas between them: checks whose name has one of them")
    options = parser.parse_args()
    output = options.output.resolve()
    if not torch.cuda.is_available():
        print("There is no CUDA device here: nothing was checked.")
        return 0
    missing = [name for name in PACKAGES if find_spec(name) is None]
    if missing:
        print(f"Nothing was checked, as packages are missing: {', '.join(missing)}")
        return 1
    words = options.only.split(",")
    chosen = [check for check in checks(output) if any(word in check.name for word in words)]
    if not chosen:
        print(f"No check is named so; there are: {'; '.join(check.name for check in checks(output))}")
        return 1
    output.mkdir(parents=True, exist_ok=True)
    if not options.only:
        shutil.rmtree(output / "cache", ignore_errors=True)
        (output / REPORT).unlink(missing_ok=True)
    title = f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {time.strftime('%Y-%m-%d')}"
    return run_all(title, chosen, output)


def run_all(title: str, left: list[Check], output: Path) -> int:
    """Run checks in their order and write the report. Returns 0 if all passed."""
    outcomes: list[Outcome] = []
    while left:
        check = left.pop(0)
        print(f"{check.name} ...", flush=True)
        spare = SECONDS - sum(one.seconds for one in outcomes) - sum(one.seconds for one in (check, *left))
        outcomes.append(run(check, output, check.seconds + max(0.0, spare)))
        print(f"{check.name}: {outcomes[-1].said}, {outcomes[-1].seconds:.0f} s", flush=True)
        if check.needed and not outcomes[-1].passed:
            break
    with (output / REPORT).open("a") as file:
        file.write(report(title, outcomes, left, output))
    print(f"report: {output / REPORT}")
    return 0 if all(one.passed for one in outcomes) and not left else 1


if __name__ == "__main__":
    sys.exit(main())
