"""A draft model on another machine against none: tokens per second at several round trips, on paced models.

``python benchmarks/remote_draft.py [--acceptance 0.8] [--step-ms 20] [--draft-ms 2] [--wall]``. The target and the draft model
compute nothing but a pseudo-random function, and take as long as they are told; so what is measured is what the way costs and
what drafting behind it gains, not a model's speed. Step loop, controller, drafter and draft host are the real ones.

Without ``--wall`` time is simulated (``remote_draft_clock.py``): a machine that others use shows as little as one of a few
processors. With it, models sleep, the draft engine is a process of its own behind real connections, and a proxy in this process
delays them; such figures are of use on an idle machine only. Arms are interleaved, and each stands beside no draft in the same
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
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from measure import figure, interleaved, ratios
from remote_draft_clock import SimulatedClock, SimulatedWay

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))

from draft_engines import KEY, TERMS, Proxy, connected

from inferd.protocol import Sampling
from inferd_runtime.draft_models.draft_host import DraftHost
from inferd_runtime.draft_models.drafter import DraftModelLink
from inferd_runtime.draft_models.messages import DraftTransport
from inferd_runtime.draft_models.models import DraftModel, DraftModels
from inferd_runtime.draft_models.remote.service import DraftService
from inferd_runtime.draft_models.thread import DraftThread
from inferd_runtime.engine.engine import Engine, EngineOptions
from inferd_runtime.engine.jobs.generation import Generation, GenerationSpec
from inferd_runtime.engine.jobs.text import TextAssembler
from inferd_runtime.engine.sampling.host_sampling import LogitRows, RowSampler
from inferd_runtime.engine.sampling.noise import mix
from inferd_runtime.models.batch import Batch, Outputs
from inferd_runtime.speculation.counters import DraftModelCounters
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
    """Takes ``seconds`` for a step. ``wrong``: the share of its tokens that are others than the unpaced driver's.

    ``clock``: the simulated one, None: it sleeps.
    """

    def __init__(self, seconds: float, wrong: float = 0.0, clock: SimulatedClock | None = None) -> None:
        super().__init__(vocab_size=VOCAB, pages=512, page_size=16, max_context=TERMS.max_context, scale=8.0)
        self._seconds = seconds
        self._clock = clock
        self._wrong = int(wrong * 1000)

    def forward(self, batch: Batch) -> Outputs:
        """See :class:`NullDriver`."""
        seconds = self._seconds * (1 + ROW_SHARE * max(0, len(batch.tokens) - 1))
        if self._clock is not None:
            with self._clock.elsewhere():
                outputs = super().forward(batch)
            self._clock.pass_by(seconds)
            return outputs
        done = time.perf_counter() + seconds
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
    """Generations on the paced target, one after the other, with a draft model or without.

    ``now`` tells the time; ``rest`` lets time pass, so many seconds at most, while the generation waits for a draft.
    """

    def __init__(
        self, pace: Pace, now: Callable[[], float], clock: SimulatedClock | None = None,
        transport: DraftTransport | None = None, rest: Callable[[float], object] = lambda seconds: None,
    ) -> None:  # fmt: skip
        self._pace, self._now, self._rest = pace, now, rest
        self._seed = 0
        times = StepTimes.linear(pace.step, pace.step * ROW_SHARE)
        options = EngineOptions(token_budget=64, times=times, clock=now)
        self._engine = Engine(PacedDriver(pace.step, clock=clock), options)
        self.counters = DraftModelCounters()
        self.drafts: DraftModels | None = None
        if transport is not None:
            link = DraftModelLink(transport, TERMS.max_context, 0.25, True, self.counters, clock=now)
            self.drafts = DraftModels([DraftModel("far", link, VOCAB)])

    def speed(self) -> float:
        """Tokens per second of one generation."""
        self._seed += 1
        sampler = RowSampler.resolve(Sampling(temperature=0.8), seed=self._seed, lineage=0)
        context = self._engine.create_context("tenant")
        context.append(list(PROMPT))
        drafters = [] if self.drafts is None else [self.drafts.open(tenant="tenant", sampler=sampler)]
        sources = self._engine.draft_budget.sources(drafters) if drafters else None
        spec = GenerationSpec(sampler, self._pace.tokens, [NO_END], None, sources)
        generation = Generation(context, spec, TextAssembler(ByteTokenizer().stream(), ()))
        started = self._now()
        self._engine.submit(generation)
        self.written = self._run(generation)
        seconds = self._now() - started
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
            if not self._engine.step() and self.drafts is not None:
                self._rest(self.drafts.patience(LONGEST_WAIT))
        return tokens

    def close(self) -> None:
        """End the session."""
        if self.drafts is not None:
            self.drafts.close()


def draft_host(pace: Pace, clock: SimulatedClock | None = None) -> DraftHost:
    """Return the paced draft model. On a simulated clock the way to it says how long its steps take."""
    driver = PacedDriver(0.0 if clock else pace.draft, 1 - pace.acceptance, clock)
    return DraftHost(Engine(driver, EngineOptions(token_budget=64, swap_bytes=0)), ())


def simulated(pace: Pace) -> dict[str, Stream]:
    """Return a stream for each arm, each on a simulated clock of its own."""
    plain = SimulatedClock()
    streams = {"none": Stream(pace, plain.now, plain)}
    terms = replace(TERMS, vocab_size=VOCAB)
    for trip in ROUND_TRIPS:
        clock = SimulatedClock()
        way = SimulatedWay(clock, draft_host(pace, SimulatedClock()), terms, trip=trip / 1000, step=pace.draft)
        streams[f"{trip} ms"] = Stream(pace, clock.now, clock, way, way.rest)
    return streams


@contextlib.contextmanager
def real(pace: Pace) -> Iterator[dict[str, Stream]]:
    """Start a draft engine, and give a stream for each arm, each behind a proxy of its own."""
    command = [sys.executable, __file__, *sys.argv[1:], "--serve"]
    with contextlib.ExitStack() as held:
        child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        held.callback(child.communicate)
        assert child.stdout is not None
        port = int(child.stdout.readline())
        streams = {"none": Stream(pace, time.perf_counter)}
        for trip in ROUND_TRIPS:
            proxy = Proxy(port)
            held.callback(proxy.close)
            proxy.delay = lambda one_way=trip / 2000: one_way
            transport = connected(proxy.port)
            streams[f"{trip} ms"] = Stream(pace, time.perf_counter, None, transport, transport.wait)
        yield streams
        for stream in streams.values():
            stream.close()


def serve(pace: Pace) -> None:
    """Be the draft engine: print a port, and serve until the standard input ends."""
    host = draft_host(pace)
    listener = socket.create_server(("127.0.0.1", 0))
    print(listener.getsockname()[1], flush=True)

    async def run() -> None:
        drafts = DraftThread(host)
        terms = replace(TERMS, vocab_size=VOCAB)
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


def measure(streams: dict[str, Stream], rounds: int) -> dict[str, object]:
    """Run all arms, print each with its counters, and return the figures."""
    samples = interleaved({name: stream.speed for name, stream in streams.items()}, rounds)
    plain = figure(samples["none"])
    print(f"no draft        {plain} tokens/s")
    found: dict[str, object] = {"plain_tokens_per_s": plain.median}
    for name, stream in streams.items():
        assert stream.written == streams["none"].written, f"other tokens at {name}"
        if name == "none":
            continue
        against = figure(ratios(samples[name], samples["none"]))
        print(f"{name:>6} away     {figure(samples[name])} tokens/s = {against} of no draft")
        print(f"                {stream.counters}")
        key = name.replace(" ", "_")
        found[f"speed_{key}"], found[f"least_{key}"] = against.median, against.low
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--step-ms", type=float, default=20.0)
    parser.add_argument("--draft-ms", type=float, default=2.0)
    parser.add_argument("--acceptance", type=float, default=0.8)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--wall", action="store_true", help="real time and connections")
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
    if parsed.wall:
        with real(pace) as streams:
            found = measure(streams, parsed.rounds)
    else:
        found = measure(simulated(pace), parsed.rounds)
    print("SpecSplit's own (tokens/s by draft length, another model and machine, no figure without drafts):", SPECSPLIT)
    clock = "wall" if parsed.wall else "simulated"
    print(json.dumps({"benchmark": "remote_draft", "clock": clock, **vars(pace), "ceiling": ceiling, **found}))


if __name__ == "__main__":
    main()
