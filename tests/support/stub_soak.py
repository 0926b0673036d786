"""A mixed soak over the fast driver without a device: prompts of many lengths, grammar, penalties, drafts, trees, sampled rows.

    PYTHONPATH=sdk:runtime:grammar:tests/support python tests/support/stub_soak.py

prints, as one line of JSON, what the load and the soak launched and compiled, and the host's microseconds for the launches.
With ``eager`` no step is recorded, with ``careless`` nothing else is compiled at load.
"""

from __future__ import annotations

import json
import random
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from stub_launcher import StubLauncher
from torch import Tensor

from inferd.protocol import Sampling
from inferd_grammar import GrammarCompiler, RegexGrammar, TokenTable
from inferd_runtime.engine.drivers.build import DriverOptions, fast_driver
from inferd_runtime.engine.engine import Engine, EngineOptions
from inferd_runtime.engine.sampling.host_sampling import RowSampler
from inferd_runtime.kernels.sampling import SampleRows, allowed
from inferd_runtime.kernels.suite import KernelSuite, reference_kernels
from inferd_runtime.models.loaded import LoadedModel
from inferd_runtime.models.loading import load
from inferd_runtime.models.passes.fused import fuse
from inferd_runtime.speculation.drafts import Proposal
from inferd_runtime.speculation.times import StepTimes
from inferd_runtime.testing.recorded_host import RecordedHost
from inferd_runtime.testing.speculation import (
    Blind,
    BlindTree,
    GenerationUnderTest,
    Guesser,
    Oracle,
    OracleTree,
    Request,
)

BUDGET, ROWS, WAVES, TOGETHER = 192, 192, 3, 10
SAMPLERS = (
    Sampling(),
    Sampling(0.9, top_k=30, top_p=0.9, min_p=0.01),
    Sampling(0.8, repetition_penalty=1.3, bias_tokens=(5, 7), bias_values=(2.0, -3.0)),
)


class Sampled(Guesser):
    """Draws its guesses, as a draft model would."""

    looks_ahead = False

    def propose(self, limit: int, ahead: Any = ()) -> Proposal:
        chance = np.random.default_rng(self.seen)
        rows = chance.dirichlet(np.full(self.vocab, 0.3), size=min(limit, 3)).astype(np.float32)
        return Proposal([int(row.argmax()) for row in rows], probabilities=rows)


DRAFTERS = (None, Oracle, OracleTree, Blind, BlindTree, Sampled)


def cheap_kernels() -> KernelSuite:
    """Twins that choose tokens which grammars allow: what else they compute is of no interest here."""

    def attention(query: Tensor, keys: Tensor, values: Tensor, rows: Any, rule: Any) -> Tensor:
        return query.new_zeros(*query.shape[:2], values.shape[3])

    def sample(logits: Tensor, rows: SampleRows) -> Tensor:
        free = (rows.mask_rows < 0)[:, None]
        fine = free | allowed(rows.masks[rows.mask_rows.clamp(min=0)], logits.shape[1])
        return logits.float().masked_fill(~fine, float("-inf")).argmax(dim=1)

    return reference_kernels()._replace(paged_attention=attention, sample=sample)


def soak(engine: Engine, loaded: LoadedModel) -> list[list[int]]:
    """Waves of generations, each of which is drafted for in its own way. Returns their tokens, but of those with drafts that
    are drawn: these depend on what is verified at a time.
    """
    tokens: list[list[int]] = []
    eos, vocab = loaded.tokenizer.eos_tokens[0], loaded.vocab_size
    table = TokenTable.from_tokenizer_json(loaded.tokenizer.json, vocab_size=vocab, eos_ids=[eos])
    grammar = GrammarCompiler(table).compile(RegexGrammar(r"[a-d]{3,6}=(x|yy|[0-4]{2})"))
    chance = random.Random(3)
    for wave in range(WAVES):
        running = []
        for number in range(TOGETHER):
            prompt = tuple(chance.randrange(300, vocab) for _ in range(chance.choice((1, 2, 5, 17, 40, 150, 300))))
            sampler = RowSampler.resolve(SAMPLERS[number % 3], seed=number, lineage=wave)
            request = Request(
                prompt, sampler, chance.randrange(2, 8), eos, grammar=grammar if number % 4 == 3 else None
            )
            context = engine.create_context()
            context.append(prompt)
            drafter = DRAFTERS[chance.randrange(len(DRAFTERS))]
            guessed = replace(request, tokens=tuple(chance.randrange(300, vocab) for _ in range(9)))
            sources = [] if drafter is None else [drafter(guessed, vocab, 1)]  # type: ignore[call-arg]
            running.append(GenerationUnderTest.submit(engine, context, request, sources))
            if drafter is not Sampled:
                tokens.append(running[-1].tokens)
        while not all(one.generation.finished() for one in running):
            engine.step()
            for one in running:
                one.take()
        for one in running:
            one.generation.close()
            one.generation.context.release()
    return tokens


def main() -> int:
    """Load, soak, print."""
    torch.set_num_threads(1)
    graphs = "eager" not in sys.argv[1:]
    stub, host, loaded = StubLauncher(), RecordedHost(), load("tiny")
    fused = fuse(loaded.module, loaded.probe.kv, loaded.probe.rules)
    with stub.installed():
        options = DriverOptions(pages=600, page_size=16, most_rows=ROWS, graphs=graphs, products="kernel")
        driver = fast_driver(loaded, fused, options, stub.suite(cheap_kernels()), host)
        driver.record_all()
        if "careless" not in sys.argv[1:]:
            driver.compile_all()
        loading, before = set(stub.compiled), sum(stub.launches.values())
        stub.seconds, replayed, compute = 0.0, list[bool](), driver._compute

        def counted(*given: Any) -> Any:
            computed = compute(*given)
            replayed.append(computed.recorded is not None)
            return computed

        driver._compute = counted  # type: ignore[method-assign]
        engine = Engine(driver, EngineOptions(token_budget=BUDGET, times=StepTimes.linear(1.0, 1e-6)))
        soak(engine, loaded)
    print(json.dumps({
        "steps": len(replayed),
        "replays": sum(replayed),
        "recordings": host.recordings,
        "compiled_at_load": len(loading),
        "compiled_later": sorted({name for name, _ in stub.compiled - loading}),
        "launches_a_step": round((sum(stub.launches.values()) - before) / len(replayed), 1),
        "host_us_a_step": round(1e6 * stub.seconds / len(replayed)),
    }))  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())
