"""The same generations by programs in the sandbox and by an engine with nothing around it, interleaved."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass

from measure import ratios
from sandbox_runtime import Place

from inferd.protocol import Sampling
from inferd_runtime.engine.engine import Engine
from inferd_runtime.engine.jobs.forward_pass import Prefill
from inferd_runtime.engine.jobs.generation import Generation, GenerationSpec
from inferd_runtime.engine.jobs.text import TextAssembler
from inferd_runtime.engine.sampling.host_sampling import RowSampler
from inferd_runtime.engine.sequences.cached_sequence import CachedSequence
from inferd_runtime.server.engine_process.serving import serve_model
from inferd_runtime.server.programs.bundles import Program
from inferd_runtime.server.supervisor.runs import Run
from inferd_runtime.settings.settings import EngineSettings

STREAMS = (1, 8, 32)
TOKENS = {1: 512, 8: 256, 32: 128}
"""By the number of streams; of another model than the embedded one, an eighth."""
PROMPT = 24
"""Tokens of the shortest prompt; each of the others has one more than the last. Programs that begin one after the other never
have the same length; an engine whose sequences all have needs no mask, and is up to 10 % faster for no merit of its own."""
GENERATE = """
from inferd import Context, Sampler, session


async def main(prompt: list[int], tokens: int, ends: list[int]) -> list[int]:
    async with Context() as context:
        context.append(prompt)
        await context.flush()
        await session.send("ready")
        await session.receive()
        on = Sampler.argmax().biased({end: -100.0 for end in ends})
        return await context.generate(on, max_tokens=tokens, system_speculation=False).collect_tokens()
"""


@dataclass(frozen=True)
class Throughput:
    """Tokens per second of both arms, round by round."""

    streams: int
    sandbox: list[float]
    engine: list[float]

    @property
    def ratios(self) -> list[float]:
        """Sandbox over engine."""
        return ratios(self.sandbox, self.engine)


class EngineArm:
    """An engine in this process."""

    def __init__(self, settings: EngineSettings) -> None:
        served = serve_model(settings)
        self._engine: Engine = served.engine
        self._tokenizer = served.tokenizer
        self.vocabulary = served.info.vocab_size
        self.ends = sorted(served.tokenizer.eos_tokens)

    def run(self, prompts: list[list[int]], tokens: int) -> tuple[list[list[int]], float]:
        """The generated tokens and the tokens per second, without the prompts' time."""
        contexts = [self._computed(prompt) for prompt in prompts]
        generations = [self._started(context, tokens) for context in contexts]
        start = time.perf_counter()
        made: list[list[int]] = [[] for _ in prompts]
        while not all(generation.finished() for generation in generations):
            self._engine.step()
            for tokens_of, generation in zip(made, generations, strict=True):
                tokens_of += [token for step in generation.take() for token in step.tokens]
        rate = sum(map(len, made)) / (time.perf_counter() - start)
        for generation in generations:
            generation.close()
            generation.context.release()
        return made, rate

    def _computed(self, prompt: list[int]) -> CachedSequence:
        context = self._engine.create_context("benchmark")
        context.append(prompt)
        prefill = Prefill(context)
        self._engine.submit(prefill)
        while prefill.ready():
            self._engine.step()
        return context

    def _started(self, context: CachedSequence, tokens: int) -> Generation:
        never = Sampling(bias_tokens=tuple(self.ends), bias_values=(-100.0,) * len(self.ends))
        spec = GenerationSpec(RowSampler.resolve(never, seed=0, lineage=0), tokens, tuple(self.ends))
        generation = Generation(context, spec, TextAssembler(self._tokenizer.stream(), ()))
        self._engine.submit(generation)
        return generation


class SandboxArm:
    """Programs through the real processes."""

    def __init__(self, place: Place, program: Program, ends: list[int]) -> None:
        self._place = place
        self._program = program
        self._ends = ends

    async def run(self, prompts: list[list[int]], tokens: int) -> tuple[list[list[int]], float]:
        """The same of programs that are told to begin once all are ready; until the last one has ended."""
        runs = [self._place.launch(self._program, prompt=one, tokens=tokens, ends=self._ends) for one in prompts]
        for run in runs:
            await _ready(run)
        start = time.perf_counter()
        for run in runs:
            run.deliver("go")
        endings = [await run.wait() for run in runs]
        seconds = time.perf_counter() - start
        errors = [ending.error.message for ending in endings if ending.error is not None]
        if errors:
            raise RuntimeError(errors[0])
        made = [json.loads(ending.result or "[]") for ending in endings]
        return made, sum(map(len, made)) / seconds


async def _ready(run: Run) -> None:
    async for event in run.follow():
        if event.kind in ("message", "finished"):
            return


async def throughput(place: Place, engine: EngineSettings, rounds: int) -> list[Throughput]:
    """Both arms with each number of streams, each with these settings. Raises RuntimeError if their tokens differ."""
    arm = EngineArm(engine)
    sandbox = SandboxArm(place, await place.upload("generate", GENERATE), arm.ends)
    share = 1 if engine.model == EngineSettings().model else 8
    return [result async for result in _compared(arm, sandbox, rounds, share)]


async def _compared(arm: EngineArm, sandbox: SandboxArm, rounds: int, share: int) -> AsyncIterator[Throughput]:
    for streams in STREAMS:
        result = Throughput(streams, [], [])
        tokens = TOKENS[streams] // share
        for round_ in range(rounds + 1):
            prompts = [
                [(round_ * 101 + stream * 7 + at) % arm.vocabulary for at in range(PROMPT + stream)]
                for stream in range(streams)
            ]
            ours, rate = await sandbox.run(prompts, tokens)
            plain, plain_rate = arm.run(prompts, tokens)
            if ours != plain:
                raise RuntimeError("the sandbox brought other tokens than the engine")
            if round_:  # the first is warm-up
                result.sandbox.append(rate)
                result.engine.append(plain_rate)
        yield result
