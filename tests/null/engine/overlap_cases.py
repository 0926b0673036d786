"""Engines that run ahead, step by step: what the tests of it share."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
from sampling_driver import BegunStep, FinishedStep, SamplingNullDriver

from inferd.protocol import Sampling
from inferd_runtime.engine.driver import StepResult
from inferd_runtime.engine.engine import Engine, EngineOptions
from inferd_runtime.engine.jobs.step_queue import MAX_UNDELIVERED_STEPS
from inferd_runtime.engine.sampling.device_sampling import SampledRows, SamplingInputs
from inferd_runtime.engine.sampling.host_sampling import RowSampler
from inferd_runtime.engine.scheduling.fairness import StepCost
from inferd_runtime.models.batch import Batch, Outputs
from inferd_runtime.speculation.drafter import Drafter
from inferd_runtime.speculation.drafts import Proposal
from inferd_runtime.speculation.times import StepTimes
from inferd_runtime.testing.byte_tokenizer import END
from inferd_runtime.testing.speculation import GenerationUnderTest, Guesser, Request

MODEL: dict[str, Any] = {"vocab_size": 6, "scale": 1.2, "seed": 1, "order": 4, "max_context": 60}
SAMPLINGS = [
    Sampling(), Sampling(1.0), Sampling(0.8, top_p=0.9), Sampling(1.5, min_p=0.05), Sampling(0.0, repetition_penalty=1.3),
]  # fmt: skip
GREEDY = RowSampler.resolve(Sampling(), seed=0, lineage=0)
FREE_ROWS = StepTimes.linear(1.0, 0.0)
EVERYBODY = StepCost(1000.0)
Patch = pytest.MonkeyPatch


class Watched(SamplingNullDriver):
    """Notes of every launch whether somebody had waited for the one before, and which tokens it fed. Fails where it is told."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.early: list[bool] = []
        self.fed: list[list[int]] = []
        self.fail_launch: set[int] = set()
        self.fail_wait: set[int] = set()

    def begin(self, batch: Batch, rows: SampledRows) -> BegunStep:
        self.early.append(bool(self.launches) and not self.launches[-1].waited)
        self.fed.append(batch.tokens.tolist())
        number = len(self.early) - 1
        if number in self.fail_launch:
            raise RuntimeError("no room on the device")
        return super().begin(batch, rows)

    def draw(self, outputs: Outputs, sampling: SamplingInputs) -> FinishedStep:
        launched = super().draw(outputs, sampling)
        if len(self.launches) - 1 in self.fail_wait:
            self.launches[-1] = launched = Lost(launched)
        return launched


class Lost(FinishedStep):
    """A step that the device did not bring to its end."""

    def __init__(self, step: FinishedStep) -> None:
        super().__init__(step.wait())

    def wait(self) -> StepResult:
        super().wait()
        raise RuntimeError("the device is lost")


class Device(Watched):
    """A clock that only the device and the host's calls move: a step takes ``busy`` behind the one before, a launch 1."""

    def __init__(self, busy: float, **options: Any) -> None:
        super().__init__(**options)
        self.now = self.free = 0.0
        self.busy = busy

    def draw(self, outputs: Outputs, sampling: SamplingInputs) -> FinishedStep:
        self.now += 1
        self.free = max(self.free, self.now) + self.busy
        self.launches[-1] = timed = Timed(super().draw(outputs, sampling), self, self.free)
        return timed


class Timed(FinishedStep):
    """Done at a time of the device's."""

    def __init__(self, step: FinishedStep, device: Device, done: float) -> None:
        super().__init__(step.wait())
        self.device, self.done = device, done

    def wait(self) -> StepResult:
        self.device.now = max(self.device.now, self.done)
        return super().wait()


class Right(Guesser):
    """Four tokens that are always right."""

    def propose(self, limit: int, ahead: Sequence[int] = ()) -> Proposal:
        return Proposal(self.right(min(limit, 4), ahead))


class Half(Guesser):
    """Up to five tokens, of which about every other chain has a wrong one: the same at every asking."""

    def propose(self, limit: int, ahead: Sequence[int] = ()) -> Proposal:
        tokens = self.right(min(limit, 5), ahead)
        chance = random.Random((self.seen + len(ahead)) * 7919 + len(self.answer))
        if tokens and chance.random() < 0.5:
            at = chance.randrange(len(tokens))
            tokens[at] = (tokens[at] + 1) % self.vocab
        return Proposal(tokens)


def make_request(driver: SamplingNullDriver, prompt: Sequence[int], seed: int, **fields: Any) -> Request:
    sampler = RowSampler.resolve(SAMPLINGS[seed % len(SAMPLINGS)], seed=seed, lineage=fields.pop("lineage", 0))
    return Request(tuple(prompt), sampler, **{"max_tokens": 20, "eos": END, **fields}).answered(driver)


def start(
    engine: Engine, request: Request, drafters: Sequence[Drafter] = (), tenant: str = "", **how: Any
) -> GenerationUnderTest:
    context = engine.create_context(tenant)
    context.append(request.prompt)
    return GenerationUnderTest.submit(engine, context, request, drafters, **how)


def finish(engine: Engine, running: Sequence[GenerationUnderTest], most: int = 400) -> None:
    """Step until all have ended, and hold them to their answers."""
    for _ in range(most):
        if all(one.generation.finished() for one in running):
            break
        engine.step()
        engine.check_integrity()
        for one in running:
            assert len(one.generation.outbox) <= MAX_UNDELIVERED_STEPS
            one.take()
    for one in running:
        one.take()
        one.check()


def release(engine: Engine, running: Sequence[GenerationUnderTest]) -> None:
    """Everything goes; no page may stay."""
    for one in running:
        one.generation.close()
        one.generation.context.release()
    engine.close()
    engine.pool.check_integrity([])


def state(engine: Engine) -> list[Any]:
    """What a step leaves behind. Pages that a step in flight will write are no part of it."""
    size = engine.pool.page_size
    pages = [(context, -(-context.table.length // size)) for context in engine.contexts]
    return [
        (context.tokens, context.table.length, context.pending, len(context.table.chain), held, context.lineage)
        for context, held in pages
    ]


def pages_ahead(engine: Engine) -> int:
    size = engine.pool.page_size
    return sum(len(context.table.pages) - -(-context.table.length // size) for context in engine.contexts)


def lockstep(seed: int, page_size: int) -> int:
    """Both loops through the same schedule of streams that never draft, and whose prompts fit into the first step: after every
    step all is the same. How many steps were launched early.
    """
    chance = random.Random(seed)
    drivers = [Watched(**MODEL, page_size=page_size) for _ in range(2)]
    engines = [
        Engine(driver, EngineOptions(token_budget=64, times=FREE_ROWS, overlap=overlap, cost=EVERYBODY))
        for driver, overlap in zip(drivers, (True, False), strict=True)
    ]
    twins: list[list[GenerationUnderTest]] = []
    for _ in range(chance.randint(1, 6)):
        prompt = chance.choices(range(3), k=chance.randint(1, 9))
        stop = "".join(map(chr, chance.choices(range(6), k=2))) if chance.random() < 0.3 else ""
        request = make_request(
            drivers[0], prompt, chance.randrange(100), stop=stop,
            max_tokens=chance.choice((1, 2, 9, 40)), eos=chance.choice((END, END, 4)),
        )  # fmt: skip
        tenant = chance.choice("ab")
        twins.append([start(engine, request, tenant=tenant) for engine in engines])
    steps = 0
    while any(not one.generation.finished() for pair in twins for one in pair):
        assert [engine.step() for engine in engines] == [True, True]
        steps += 1
        left, right = engines
        assert state(left) == state(right)
        # A tail that a fork shares is copied a step later where a step in flight writes it already.
        alone = not any(context.forks for context in left.contexts)
        assert not alone or left.pool.available + pages_ahead(left) == right.pool.available + pages_ahead(right)
        for pair in twins:
            assert pair[0].take() == pair[1].take()
            assert pair[0].generation.finish == pair[1].generation.finish
        for pair in [pair for pair in twins if chance.random() < 0.03 and pair[0].generation.context.user is not None]:
            interfere(pair, chance.choice(("close", "fork")), chance.random())
        for engine in engines:
            engine.check_integrity()
    assert [engine.steps for engine in engines] == [steps, steps]
    for engine in engines:
        engine.close()
        assert not pages_ahead(engine)
    for engine, running in zip(engines, zip(*twins, strict=True), strict=True):
        for one in running:
            if one.generation.context.user is not None:
                one.check()
        for context in list(engine.contexts):
            context.release()
        engine.close()
        engine.pool.check_integrity([])
    return sum(drivers[0].early)


def interfere(pair: Sequence[GenerationUnderTest], what: str, chance: float) -> None:
    """The same to both twins, between two steps."""
    for one in pair:
        generation = one.generation
        if what == "close":
            generation.close(int(chance * len(one.tokens)))
        else:
            generation.context.fork(generation.delivered_length)
