"""A draft model on another machine against none: tokens per second at several round trips, on paced models.

``python benchmarks/remote_draft.py [--step-ms 20] [--draft-ms 2] [--acceptance 0.8]``. The target and the draft model compute
nothing but a pseudo-random function, and take as long as they are told by sleeping; the draft engine is a process of its own, and
a proxy in this process delays what goes over the connection. All else is the real thing: step loop, controller, drafter, frames,
hand-shake, draft engine. So what is measured is what the way costs and what drafting behind it gains, not a model's speed.

Figures are wall time, as a step that waits uses no processor; arms are interleaved, and each is set beside no draft in the same
round. SpecSplit's own figures stand beside them: its target is far slower, and it has published none without drafts.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import socket
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from measure import figure, interleaved, ratios

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))

from draft_engines import KEY, TERMS, Proxy, connected

from inferd.protocol import Sampling
from inferd_runtime.draft_models.draft_host import DraftHost
from inferd_runtime.draft_models.drafter import DraftModelLink
from inferd_runtime.draft_models.models import DraftModel, DraftModels
from inferd_runtime.draft_models.remote.network_drafts import NetworkDrafts
from inferd_runtime.draft_models.remote.service import DraftService
from inferd_runtime.draft_models.thread import DraftThread
from inferd_runtime.engine.engine import Engine, EngineOptions
from inferd_runtime.engine.jobs.generation import Generation, GenerationSpec
from inferd_runtime.engine.jobs.text import TextAssembler
from inferd_runtime.engine.sampling.host_sampling import LogitRows, RowSampler
from inferd_runtime.engine.sampling.noise import mix
from inferd_runtime.models.batch import Batch, Outputs
from inferd_runtime.speculation.times import StepTimes
from inferd_runtime.testing.byte_tokenizer import ByteTokenizer
from inferd_runtime.testing.null_driver import NullDriver

ROUND_TRIPS = (0, 2, 10, 50)
ROW_SHARE = 0.01
"""A further row makes a step so much longer."""
VOCAB = 64
PROMPT = [1, 2, 3, 4, 5, 6, 7, 8]
NO_END = 1 << 20
LONGEST_WAIT = 1e-3
SPECSPLIT = {"1": 1.73, "3": 1.00, "5": 0.85, "8": 0.97, "12": 1.08}
"""Tokens per second by draft length, of Llama-3.1-8B, from its own 62 runs."""


@dataclass(frozen=True)
class Pace:
    """Seconds of a step of the target, of a token of the draft model, and how often that is right."""

    step: float
    draft: float
    acceptance: float
    tokens: int


class PacedDriver(NullDriver):
    """Takes ``seconds`` for a step. ``wrong``: the share of its tokens that are others than the unpaced driver's."""

    def __init__(self, seconds: float, wrong: float = 0.0) -> None:
        super().__init__(vocab_size=VOCAB, pages=512, page_size=16, max_context=TERMS.max_context, scale=8.0)
        self._seconds = seconds
        self._wrong = int(wrong * 1000)

    def forward(self, batch: Batch) -> Outputs:
        """See :class:`NullDriver`."""
        rows = max(1, len(batch.tokens))
        done = time.perf_counter() + self._seconds * (1 + ROW_SHARE * (rows - 1))
        outputs = super().forward(batch)
        time.sleep(max(0.0, done - time.perf_counter()))
        return outputs

    def logits(self, history: list[int]) -> LogitRows:  # type: ignore[override]
        """See :class:`NullDriver`. A wrong token is another one than the likeliest."""
        row = super().logits(history)
        if mix(hash(tuple(history[-8:])) & 0xFFFFFFFF) % 1000 < self._wrong:
            row = row[::-1].copy()
        return row


class Stream:
    """Generations on the paced target, one after the other, with a draft model or without."""

    def __init__(self, pace: Pace, port: int | None) -> None:
        self._pace = pace
        self._seed = 0
        times = StepTimes.linear(pace.step, pace.step * ROW_SHARE)
        self._engine = Engine(PacedDriver(pace.step), EngineOptions(token_budget=64, times=times))
        self.transport: NetworkDrafts | None = None
        self.drafts: DraftModels | None = None
        if port is not None:
            self.transport = connected(port)
            link = DraftModelLink(
                self.transport, TERMS.max_context, 0.25, remote=True, counters=self.transport.counters
            )
            self.drafts = DraftModels([DraftModel("far", link, VOCAB)])

    def speed(self) -> float:
        """Tokens per second of one generation."""
        self._seed += 1
        sampler = RowSampler.resolve(Sampling(temperature=0.8), seed=self._seed, lineage=0)
        context = self._engine.create_context("tenant")
        context.append(list(PROMPT))
        drafters = [] if self.drafts is None else [self.drafts.open(tenant="tenant", sampler=sampler)]
        sources = self._engine.draft_budget.sources(drafters) if drafters else None
        spec = GenerationSpec(sampler, self._pace.tokens, frozenset([NO_END]), None, sources)
        generation = Generation(context, spec, TextAssembler(ByteTokenizer().stream(), ()))
        started = time.perf_counter()
        self._engine.submit(generation)
        self.written = self._run(generation)
        seconds = time.perf_counter() - started
        generation.close()
        context.release()
        return len(self.written) / seconds

    def _run(self, generation: Generation) -> list[int]:
        """Step as the engine process does: poll, step, and wait where a draft is waited for."""
        tokens: list[int] = []
        while not generation.finished() or generation.outbox:
            tokens += [token for step in generation.take() for token in step.tokens]
            if self.drafts is not None:
                self.drafts.poll()
            if not self._engine.step() and self.drafts is not None and self.transport is not None:
                self.transport.wait(self.drafts.patience(LONGEST_WAIT))
        return tokens

    def close(self) -> None:
        """End the session."""
        if self.drafts is not None:
            self.drafts.close()


def serve(pace: Pace) -> None:
    """Be the draft engine: print a port, and serve until the standard input ends."""
    driver = PacedDriver(pace.draft, 1 - pace.acceptance)
    host = DraftHost(Engine(driver, EngineOptions(token_budget=64, swap_bytes=0)), ())
    listener = socket.create_server(("127.0.0.1", 0))
    print(listener.getsockname()[1], flush=True)

    async def run() -> None:
        drafts = DraftThread(host)
        terms = TERMS.__class__(**{**vars(TERMS), "vocab_size": VOCAB})
        task = asyncio.create_task(DraftService(drafts, terms, KEY).serve(listener))
        ended = asyncio.Event()
        loop = asyncio.get_running_loop()
        threading.Thread(target=lambda: (sys.stdin.read(), loop.call_soon_threadsafe(ended.set)), daemon=True).start()
        await ended.wait()
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        drafts.close()

    asyncio.run(run())


def measure(pace: Pace, port: int, rounds: int) -> dict[str, object]:
    """Run all arms, print each with its counters, and return the figures."""
    proxies = {trip: Proxy(port) for trip in ROUND_TRIPS}
    for trip, proxy in proxies.items():
        proxy.delay = lambda one_way=trip / 2000: one_way
    plain = Stream(pace, None)
    streams = {trip: Stream(pace, proxy.port) for trip, proxy in proxies.items()}
    arms = {"none": plain.speed, **{f"{trip} ms": stream.speed for trip, stream in streams.items()}}
    samples = interleaved(arms, rounds)
    for trip, stream in streams.items():
        assert stream.written == plain.written, f"other tokens at {trip} ms"
    print(f"no draft        {figure(samples['none'])} tokens/s")
    found: dict[str, object] = {"plain_tokens_per_s": figure(samples["none"]).median}
    for trip, stream in streams.items():
        name = f"{trip} ms"
        against = figure(ratios(samples[name], samples["none"]))
        print(f"{name:>6} away     {figure(samples[name])} tokens/s = {against} of no draft")
        assert stream.transport is not None
        print(f"                {stream.transport.counters}")
        found[f"speed_{trip}_ms"], found[f"least_{trip}_ms"] = against.median, against.low
    for stream in (plain, *streams.values()):
        stream.close()
    for proxy in proxies.values():
        proxy.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--step-ms", type=float, default=20.0)
    parser.add_argument("--draft-ms", type=float, default=2.0)
    parser.add_argument("--acceptance", type=float, default=0.8)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    parsed = parser.parse_args()
    pace = Pace(parsed.step_ms / 1000, parsed.draft_ms / 1000, parsed.acceptance, parsed.tokens)
    if parsed.serve:
        return serve(pace)
    ceiling = min(1 / max(1 - pace.acceptance, 1e-3), max(1.0, pace.step / pace.draft), 17.0)
    print(
        f"a step {parsed.step_ms:g} ms, a draft token {parsed.draft_ms:g} ms, right {parsed.acceptance:g} of the time: "
        f"at most {ceiling:.2f} tokens a step"
    )
    child = subprocess.Popen(
        [sys.executable, __file__, *sys.argv[1:], "--serve"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    try:
        found = measure(pace, int(child.stdout.readline()), parsed.rounds)
    finally:
        child.communicate()
    print("SpecSplit's own (tokens/s by draft length, another model and machine, no figure without drafts):", SPECSPLIT)
    print(json.dumps({"benchmark": "remote_draft", **vars(pace), "ceiling": ceiling, **found, "specsplit": SPECSPLIT}))


if __name__ == "__main__":
    main()
