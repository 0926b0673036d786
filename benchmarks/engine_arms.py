"""The same weights behind our engine, transformers' ``generate``, and its continuous batching ``generate_batch``.

Our engine puts large weights on huge pages; transformers' arms get them, too, so that memory is the same for all.
"""

from __future__ import annotations

import copy
import logging
import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from transformers import AutoModelForCausalLM, ContinuousBatchingConfig, GenerationConfig, Qwen3Config

from inferd_runtime.engine.driver import Driver, StepResult
from inferd_runtime.engine.drivers.torch_driver import TorchDriver
from inferd_runtime.engine.engine import Engine, EngineOptions
from inferd_runtime.engine.jobs.generation import Generation, GenerationSpec
from inferd_runtime.engine.jobs.text import TextAssembler
from inferd_runtime.engine.prepare import prepare
from inferd_runtime.engine.sampling.host_sampling import RowSampler
from inferd_runtime.engine.verification import advance_table, compact, split_result, verify_job
from inferd_runtime.models.checks.probe import attach
from inferd_runtime.models.host_memory import huge_pages_later
from inferd_runtime.models.passes.fused import fuse
from inferd_runtime.models.passes.plain import ModelPass, PlainPass
from inferd_runtime.models.store.pull import resolve
from inferd_runtime.models.weights.held import hold, plan_holding

Prompts = Sequence[Sequence[int]]
GREEDY = RowSampler(temperature=0.0, top_k=0, top_p=1.0, min_p=0.0, key=0)
STAGES = ("plan", "prepare", "forward", "sample", "commit")
TOKEN_BUDGET = 512
PAGE_SIZE = 16
# Not an id: nothing ends before its length.
NO_END = -1
SPECIAL = 3


def embedded_model() -> Any:
    """The embedded toy model, float32."""
    return AutoModelForCausalLM.from_pretrained(resolve("tiny"), dtype=torch.float32).eval()


def random_model(*, layers: int = 14, hidden: int = 768, max_length: int = 4096) -> Any:
    """A Qwen3-shaped model with random weights: 103 million parameters as it stands, float32."""
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=8192, hidden_size=hidden, intermediate_size=3 * hidden, num_hidden_layers=layers,
        num_attention_heads=hidden // 64, num_key_value_heads=max(1, hidden // 192), head_dim=64,
        max_position_embeddings=max_length, tie_word_embeddings=True,
    )  # fmt: skip
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()


def weight_elements(model: Any) -> int:
    """Elements that one token reads: every matrix once; a tied embedding counts as the head that it is."""
    return sum(parameter.numel() for parameter in model.parameters())


def random_prompts(vocab_size: int, lengths: Sequence[int], seed: int) -> list[list[int]]:
    """Random tokens; another seed brings other prompts, so that no prefix is found again."""
    source = random.Random(seed)
    return [source.choices(range(SPECIAL, vocab_size), k=length) for length in lengths]


@dataclass
class Run:
    """What one arm did: tokens by prompt, wall-clock seconds, and ours: seconds by stage, a list entry per step."""

    tokens: list[list[int]]
    seconds: float
    stages: dict[str, list[float]] = field(default_factory=dict)

    @property
    def rate(self) -> float:
        """Generated tokens per second, with the prompts' time."""
        return sum(map(len, self.tokens)) / self.seconds


class StagedStep(NamedTuple):
    """One step: how many rows it fed, and seconds by stage."""

    rows: int
    seconds: list[float]


class EngineArm:
    """Our engine in this process, one generation per prompt, without text: ``generate`` decodes none either."""

    def __init__(self, driver: Driver) -> None:
        self.engine = Engine(driver, EngineOptions(token_budget=TOKEN_BUDGET))

    @classmethod
    def over(cls, model: Any, *, streams: int, length: int) -> EngineArm:
        """A copy of a model behind the reference driver, with pages for ``streams`` contexts of ``length`` tokens."""
        module = copy.deepcopy(model)
        probed = attach(module, "benchmark")
        dense = fuse(module, probed.kv, probed.rules)
        run: ModelPass = PlainPass(module) if dense is None else hold(dense, module, plan_holding(dense))
        return cls(
            TorchDriver(
                run, next(module.parameters()), probed.kv, vocab_size=model.config.vocab_size,
                max_context=model.config.max_position_embeddings, pages=streams * (length // PAGE_SIZE + 2),
                page_size=PAGE_SIZE,
            )
        )  # fmt: skip

    def start(self, prompts: Prompts, new_tokens: int) -> list[Generation]:
        """Submit one greedy generation per prompt."""
        started = []
        for prompt in prompts:
            context = self.engine.create_context()
            context.append(list(prompt))
            spec = GenerationSpec(GREEDY, new_tokens, ())
            started.append(Generation(context, spec, TextAssembler(lambda token: "", ())))
            self.engine.submit(started[-1])
        return started

    def run(self, prompts: Prompts, new_tokens: int) -> Run:
        """Generate through :meth:`Engine.step`, as the engine process does."""
        start = time.perf_counter()
        generations = self.start(prompts, new_tokens)
        tokens: list[list[int]] = [[] for _ in prompts]
        while self.engine.step():
            collect(generations, tokens)
        seconds = time.perf_counter() - start
        finish(generations)
        return Run(tokens, seconds)

    def run_in_stages(self, prompts: Prompts, new_tokens: int) -> Run:
        """The same with a clock between the stages; times of full decode steps only, which carry one row per prompt."""
        generations = self.start(prompts, new_tokens)
        run = Run([[] for _ in prompts], 0.0, {name: [] for name in STAGES})
        start = time.perf_counter()
        while (step := self.step_in_stages()) is not None:
            decoding = all(run.tokens)
            collect(generations, run.tokens)
            if decoding and step.rows == len(prompts):
                for name, seconds in zip(STAGES, step.seconds, strict=True):
                    run.stages[name].append(seconds)
        run.seconds = time.perf_counter() - start
        finish(generations)
        return run

    def step_in_stages(self) -> StagedStep | None:
        """What :meth:`Engine.step` does. None when nobody wanted anything."""
        clock = [time.perf_counter()]
        plan = self.engine.scheduler.plan()
        if not plan:
            return None
        clock.append(time.perf_counter())
        batch = prepare(plan, self.engine.driver.page_size)
        clock.append(time.perf_counter())
        outputs = self.engine.driver.forward(batch)
        clock.append(time.perf_counter())
        verified = [(part.item, verify_job(part)) for part in split_result(plan, StepResult(outputs))]
        clock.append(time.perf_counter())
        compact(verified, self.engine.driver)
        for item, done in verified:
            advance_table(item, done)
            item.job.commit(done)
            item.table.publish(item.job.context.tokens)
        clock.append(time.perf_counter())
        return StagedStep(len(batch.tokens), [end - begin for begin, end in pairwise(clock)])


def collect(generations: Sequence[Generation], tokens: Sequence[list[int]]) -> None:
    """Take the finished steps of all generations."""
    for generation, taken in zip(generations, tokens, strict=True):
        if generation.outbox:
            taken.extend(token for step in generation.take() for token in step.tokens)


def finish(generations: Sequence[Generation]) -> None:
    """Give the contexts back. Raises RuntimeError when a generation failed."""
    for generation in generations:
        if generation.error is not None:
            raise RuntimeError(generation.error.message)
        generation.close()
        generation.context.release()


class GenerateArm:
    """``model.generate``, greedy, with its default cache."""

    def __init__(self, model: Any) -> None:
        self._model = copy.deepcopy(model)
        huge_pages_later()

    def run(self, prompts: Prompts, new_tokens: int) -> Run:
        """One prompt after the other."""
        start = time.perf_counter()
        tokens = []
        for prompt in prompts:
            ids = torch.tensor([prompt])
            out = self._model.generate(ids, attention_mask=torch.ones_like(ids), generation_config=greedy(new_tokens))
            tokens.append(out[0, len(prompt) :].tolist())
        return Run(tokens, time.perf_counter() - start)


class GenerateBatchArm:
    """``model.generate_batch``: transformers' continuous batching. Its manager and cache are made once, and stay."""

    def __init__(self, model: Any, *, streams: int, length: int, attention: str = "sdpa", block: int = 256) -> None:
        logging.getLogger("ContinuousBatchingLogger").setLevel(logging.CRITICAL)
        self._model = copy.deepcopy(model)
        self._model.set_attn_implementation(attention)
        huge_pages_later()
        # As many blocks as all requests can need, the same token budget as ours.
        blocks = streams * (-(-length // block) + 1)
        self._config = ContinuousBatchingConfig(page_size=block, num_blocks=blocks, max_batch_tokens=TOKEN_BUDGET)

    def run(self, prompts: Prompts, new_tokens: int) -> Run:
        """All prompts at once."""
        start = time.perf_counter()
        outputs = self._model.generate_batch(
            [list(prompt) for prompt in prompts],
            generation_config=greedy(new_tokens),
            continuous_batching_config=self._config,
            persistent_manager=True,
        )
        seconds = time.perf_counter() - start
        return Run([list(output.generated_tokens) for output in outputs.values()], seconds)

    def close(self) -> None:
        """Drop the manager and its cache."""
        self._model.destroy_cached_continuous_batching_manager()


def greedy(new_tokens: int) -> GenerationConfig:
    """Exactly that many tokens, the likeliest each time."""
    return GenerationConfig(max_new_tokens=new_tokens, do_sample=False, eos_token_id=NO_END, pad_token_id=0)


def same_share(ours: Run, theirs: Run) -> float:
    """The share of tokens that are equal before the first that differs: a near tie may part two correct ways."""
    same = total = 0
    for mine, other in zip(ours.tokens, theirs.tokens, strict=True):
        total += len(mine)
        same += next((at for at, (a, b) in enumerate(zip(mine, other, strict=True)) if a != b), len(mine))
    return same / total


def median_ms(run: Run) -> dict[str, float]:
    """Milliseconds by stage: medians over the decode steps."""
    return {name: statistics.median(seconds) * 1e3 for name, seconds in run.stages.items()}
