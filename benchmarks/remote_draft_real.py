"""A real pair of target and draft engine against no draft, at several round trips, through a server and `inferd serve-draft`.

``python benchmarks/remote_draft_real.py [--model smollm2-135m] [--draft smollm2-135m] [--draft-weights int4] [--tokens 64]``.
Each of the server's draft models is the same draft engine behind a proxy of its own, which delays what it carries; so weights,
step loop, controller, connections and frames are the real ones, and only the distance is made. All of it shares this machine's
processors, which another machine's draft engine would not: what the draft engine computes is missing to the target here. So
beside tokens per second there are tokens per second of the target engine's own processor time, in which neither the draft engine
nor other work on the machine shows (nor time in which the target waits). Arms are interleaved: a round begins and ends without
a draft, and its arms stand beside the mean of these two, which also stand beside each other: that is the machine's noise. All
arms have to bring the same text.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from measure import figure, ratios

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))

from draft_engines import Proxy

import inferd
from inferd import Context, Sampler, SpecConfig

ROUND_TRIPS = (0, 2, 10, 50)
AGAIN = "none"
KEY = "the key of a benchmark, of more than enough kinds 0123456789"
PROMPT = "Explain in detail how a suspension bridge carries its load, part by part."


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "inferd_runtime.cli", *arguments]


@contextlib.contextmanager
def started(arguments: list[str]) -> Iterator[dict[str, Any]]:
    """Start a server that says in a line of JSON when it is ready, and yield that with its process id."""
    process = subprocess.Popen(command(*arguments, "--json"), stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield {**json.loads(process.stdout.readline()), "pid": process.pid}
    finally:
        process.terminate()
        process.communicate()


@contextlib.contextmanager
def pair(parsed: argparse.Namespace, folder: Path) -> Iterator[Target]:
    """Start a draft engine and its target."""
    key = folder / "draft.key"
    key.write_text(KEY)
    key.chmod(0o600)
    common = ["--threads", "1", "--draft-key-file", str(key)]
    drafting = ["serve-draft", "--model", parsed.draft, "--listen", "127.0.0.1:0", *common]
    if parsed.draft_weights:
        drafting += ["--weights", parsed.draft_weights]
    with contextlib.ExitStack() as held:
        port = int(held.enter_context(started(drafting))["port"])
        folders = ["--state-dir", str(folder / "state"), "--data-dir", str(folder / "data")]
        serving = ["serve", "--model", parsed.model, "--port", "0", *common, *folders]
        for trip in ROUND_TRIPS:
            proxy = Proxy(port)
            held.callback(proxy.close)
            proxy.delay = lambda one_way=trip / 2000: one_way
            serving += ["--draft", f"far-{trip},at=127.0.0.1:{proxy.port}"]
        server = held.enter_context(started(serving))
        children = psutil.Process(server["pid"]).children(recursive=True)
        (engine,) = [child for child in children if any("engine_main" in word for word in child.cmdline())]
        yield Target(server["url"], (folder / "state" / "token").read_text().strip(), engine)


@dataclass(frozen=True)
class Target:
    """A server, and the process of its engine."""

    url: str
    token: str
    engine: psutil.Process

    def cpu_seconds(self) -> float:
        """Return the processor time that the engine has used."""
        times = self.engine.cpu_times()
        return float(times.user + times.system)


@dataclass(frozen=True)
class Sample:
    """One generation: tokens per second, and per second of the target engine's processor time; its text; its drafts."""

    rate: float
    cpu_rate: float
    text: str
    steps: int
    drafted: int
    accepted: int


async def sample(target: Target, draft: str, tokens: int) -> Sample:
    """Return how one generation went."""
    speculation = SpecConfig(sources=["draft_model"], draft_model=draft) if draft else False
    context = Context().user(PROMPT)
    await context.flush()
    started_at, cpu = time.perf_counter(), target.cpu_seconds()
    generation = context.generate(Sampler.argmax(), max_tokens=tokens, system_speculation=speculation)
    text = await generation.collect_text()
    used = generation.usage
    seconds, cpu = time.perf_counter() - started_at, target.cpu_seconds() - cpu
    return Sample(used.tokens / seconds, used.tokens / cpu, text, used.steps, used.drafted, used.accepted)


async def measured(target: Target, parsed: argparse.Namespace) -> dict[str, list[Sample]]:
    """Run every arm once a round; the first round is warm-up."""
    arms = ["", *(f"far-{trip}" for trip in ROUND_TRIPS), AGAIN]
    samples: dict[str, list[Sample]] = {arm: [] for arm in arms}
    async with inferd.connect("ws" + target.url.removeprefix("http"), token=target.token):
        for _ in range(parsed.rounds + 1):
            for arm in arms:
                samples[arm].append(await sample(target, arm if arm != AGAIN else "", parsed.tokens))
    assert len({one.text for taken in samples.values() for one in taken}) == 1, "another text with drafts"
    return {arm: taken[1:] for arm, taken in samples.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--draft", default="smollm2-135m")
    parser.add_argument("--draft-weights", default="int4")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parsed = parser.parse_args()
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder, pair(parsed, Path(folder)) as target:
        samples = asyncio.run(measured(target, parsed))
    first, last = samples.pop(""), samples[AGAIN]
    rates = [(one.rate + other.rate) / 2 for one, other in zip(first, last, strict=True)]
    cpu_rates = [(one.cpu_rate + other.cpu_rate) / 2 for one, other in zip(first, last, strict=True)]
    samples[AGAIN] = first
    print(f"load {load:.1f} before, {os.getloadavg()[0]:.1f} after; no draft: {figure(rates)} tokens/s, "
          f"{figure(cpu_rates)} a second of the engine's processor time")  # fmt: skip
    found: dict[str, float] = {"plain_tokens_per_s": figure(rates).median}
    for arm, taken in samples.items():
        wall = figure(ratios([one.rate for one in taken], rates))
        cpu = figure(ratios([one.cpu_rate for one in taken], cpu_rates))
        counted = ", ".join(
            f"{sum(getattr(one, what) for one in taken)} {what}" for what in ("steps", "drafted", "accepted")
        )
        print(f"{arm:>8}: {wall} of no draft; by processor time {cpu}; {counted}")
        found[f"speed_{arm}"], found[f"cpu_{arm}"], found[f"least_cpu_{arm}"] = wall.median, cpu.median, cpu.low
    print(json.dumps({"benchmark": "remote_draft_real", **vars(parsed), **found}))


if __name__ == "__main__":
    main()
