"""The fast driver beside the reference driver, on tiny models: on the CPU, where steps are recorded for show, or on a device."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from families import VOCAB, make

from inferd.protocol import Sampling
from inferd_grammar import Compiled
from inferd_runtime.engine.driver import Driver
from inferd_runtime.engine.drivers.accelerator import CudaAccelerator
from inferd_runtime.engine.drivers.cuda_driver import CudaDriver, CudaOptions
from inferd_runtime.engine.drivers.torch_driver import TorchDriver
from inferd_runtime.engine.engine import Engine, EngineOptions
from inferd_runtime.engine.sampling.host_sampling import RowSampler
from inferd_runtime.kernels.cache import CacheBlock
from inferd_runtime.kernels.rows import SPLIT_KEYS
from inferd_runtime.kernels.suite import KernelSuite
from inferd_runtime.models.checks.probe import attach
from inferd_runtime.models.lora.bank import LoraBank
from inferd_runtime.models.passes.plain import PlainPass
from inferd_runtime.speculation.drafter import Drafter
from inferd_runtime.speculation.times import StepTimes
from inferd_runtime.testing.recorded_host import RecordedHost
from inferd_runtime.testing.speculation import GenerationUnderTest, Request

PAGE_SIZE = 4
PAGES = 128
MOST_ROWS = 96
EOS = 2
FREE_ROWS = StepTimes.linear(1.0, 1e-6)
SAMPLERS = {
    "argmax": Sampling(),
    "filtered": Sampling(0.9, top_k=30, top_p=0.9, min_p=0.01),
    "penalised": Sampling(
        0.8, repetition_penalty=1.3, presence_penalty=0.4, bias_tokens=[5, 7], bias_values=[2.0, -3.0]
    ),
}


class CudaBench:
    """One model behind both drivers, each with a cache of its own. ``host`` counts what is recorded and replayed."""

    def __init__(
        self,
        family: str,
        kernels: KernelSuite,
        *,
        record: bool = True,
        vocab_size: int = VOCAB,
        most_rows: int = MOST_ROWS,
        device: str = "cpu",
        fixed_rows: int = 0,
        split_keys: int = SPLIT_KEYS,
        **changes: int,
    ) -> None:
        model = make(family, vocab_size=vocab_size, **changes).to(device)
        probed = attach(model, family)
        run, like = PlainPass(model), next(model.parameters())
        sizes = {"vocab_size": vocab_size, "max_context": 256, "pages": PAGES, "page_size": PAGE_SIZE}
        block = CacheBlock(probed.kv.keys, probed.kv.values, torch.float32, PAGES, PAGE_SIZE, device)
        caches = (block.keys, block.values)
        adapters = LoraBank(run, model, probed.kv)
        self.host: Any = RecordedHost() if device == "cpu" else CudaAccelerator(torch.device(device))
        self.reference = TorchDriver(run, like, probed.kv, adapters=adapters, **sizes)
        self.driver = CudaDriver(
            run,
            TorchDriver(run, like, probed.kv, adapters=adapters, caches=caches, **sizes),
            block,
            kernels,
            self.host,
            CudaOptions(most_rows, probed_group(model), split_keys, record=record, fixed_rows=fixed_rows),
        )


def probed_group(model: torch.nn.Module) -> int:
    """Query heads per key head."""
    config = model.config
    return config.num_attention_heads // getattr(config, "num_key_value_heads", config.num_attention_heads)


def requests_of(name: str, count: int, grammar: Compiled | None = None) -> list[Request]:
    chance = random.Random(name)
    found = []
    for seed in range(count):
        prompt = tuple(chance.randrange(3, VOCAB) for _ in range(chance.randrange(1, 30)))
        sampler = RowSampler.resolve(SAMPLERS[name], seed=seed, lineage=0)
        found.append(Request(prompt, sampler, chance.randrange(4, 14), EOS, grammar=grammar))
    return found


def run(
    driver: Driver, requests: Sequence[Request], drafters: Sequence[type[Drafter] | None]
) -> list[GenerationUnderTest]:
    """All at once; each with its drafter, if any. Those whose answer is known are held against it."""
    engine = Engine(driver, EngineOptions(token_budget=64, times=FREE_ROWS))
    running = []
    for request, drafter in zip(requests, drafters, strict=True):
        context = engine.create_context()
        context.append(request.prompt)
        sources = [] if drafter is None else [drafter(request, VOCAB, 1)]  # type: ignore[call-arg]
        running.append(GenerationUnderTest.submit(engine, context, request, sources))
    while not all(one.generation.finished() for one in running):
        engine.step()
        for one in running:
            one.take()
    for one in running:
        if one.request.finish:
            one.check()
        one.generation.close()
        one.generation.context.release()
    return running


def answered(driver: Driver, requests: Sequence[Request]) -> list[Request]:
    """With what the reference driver and the host's sampler bring, without drafts."""
    plain = run(driver, requests, [None] * len(requests))
    return [
        replace(request, tokens=tuple(one.tokens), finish=one.generation.finish)
        for request, one in zip(requests, plain, strict=True)
    ]
