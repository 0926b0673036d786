"""A real pair of target and draft engine against no draft, at several round trips, through a server and `inferd serve-draft`.

``python benchmarks/remote_draft_real.py [--model smollm2-135m] [--draft smollm2-135m] [--draft-weights int4] [--tokens 64]``.
Each of the server's draft models is the same draft engine behind a proxy of its own, which delays what it carries; so weights,
step loop, controller, connections and frames are the real ones, and only the distance is made. All of it shares this machine's
processors, which another machine's draft engine would not: what the draft engine computes is missing to the target here. Arms are
interleaved, and each stands beside no draft in the same round. All arms have to bring the same text.
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
from pathlib import Path

from measure import Figure, figure, ratios

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))

from draft_engines import Proxy

import inferd
from inferd import Context, Sampler, SpecConfig

ROUND_TRIPS = (0, 2, 10, 50)
KEY = "the key of a benchmark, of more than enough kinds 0123456789"
PROMPT = "Explain in detail how a suspension bridge carries its load, part by part."


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "inferd_runtime.cli", *arguments]


@contextlib.contextmanager
def started(arguments: list[str]) -> Iterator[dict[str, str]]:
    """Start a server that says in a line of JSON when it is ready."""
    process = subprocess.Popen(command(*arguments, "--json"), stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield json.loads(process.stdout.readline())
    finally:
        process.terminate()
        process.communicate()


@contextlib.contextmanager
def pair(parsed: argparse.Namespace, folder: Path) -> Iterator[tuple[str, str]]:
    """Start a draft engine and its target. Yield the target's address and token."""
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
        url = held.enter_context(started(serving))["url"]
        yield url, (folder / "state" / "token").read_text().strip()


async def speed(draft: str, tokens: int) -> tuple[float, str, str]:
    """Return tokens per second of one generation, its text, and what came of its drafts."""
    speculation = SpecConfig(sources=["draft_model"], draft_model=draft) if draft else False
    context = Context().user(PROMPT)
    await context.flush()
    started_at = time.perf_counter()
    generation = context.generate(Sampler.argmax(), max_tokens=tokens, system_speculation=speculation)
    text = await generation.collect_text()
    used = generation.usage
    seconds = time.perf_counter() - started_at
    return used.tokens / seconds, text, f"{used.steps} steps, {used.drafted} drafted, {used.accepted} accepted"


async def measured(url: str, token: str, parsed: argparse.Namespace) -> dict[str, list[float]]:
    """Run every arm once a round; the first round is warm-up."""
    arms = ["", *(f"far-{trip}" for trip in ROUND_TRIPS)]
    samples: dict[str, list[float]] = {arm: [] for arm in arms}
    async with inferd.connect(url, token=token):
        for round_ in range(parsed.rounds + 1):
            texts = set()
            for arm in arms:
                rate, text, counted = await speed(arm, parsed.tokens)
                texts.add(text)
                if round_:
                    samples[arm].append(rate)
                if round_ == parsed.rounds:
                    print(f"{arm or 'no draft':>8}: {counted}")
            assert len(texts) == 1, "another text with drafts"
    return samples


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--draft", default="smollm2-135m")
    parser.add_argument("--draft-weights", default="int4")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parsed = parser.parse_args()
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder, pair(parsed, Path(folder)) as (url, token):
        samples = asyncio.run(measured(url, token, parsed))
    without = samples.pop("")
    plain: Figure = figure(without)
    print(f"no draft        {plain} tokens/s; load {load:.1f} before, {os.getloadavg()[0]:.1f} after")
    found: dict[str, float] = {"plain_tokens_per_s": plain.median}
    for arm, rates in samples.items():
        against = figure(ratios(rates, without))
        print(f"{arm:>8}        {figure(rates)} tokens/s = {against} of no draft")
        found[f"speed_{arm}"], found[f"least_{arm}"] = against.median, against.low
    print(json.dumps({"benchmark": "remote_draft_real", **vars(parsed), **found}))


if __name__ == "__main__":
    main()
