"""A Llama with random weights, made on the device: behind our driver, our engine, and transformers' own generation."""

from __future__ import annotations

import copy
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from engine_arms import GREEDY, Prompts, collect, finish, greedy, random_prompts
from gpu_bench import Bench, ModelShape
from transformers import AutoModelForCausalLM, ContinuousBatchingConfig, LlamaConfig

from inferd_runtime.engine.drivers.build import EXACT, ROUNDED, DriverOptions, fast_driver, logit_difference
from inferd_runtime.engine.drivers.cuda_driver import CudaDriver
from inferd_runtime.engine.engine import Engine, EngineOptions
from inferd_runtime.engine.jobs.forward_pass import Prefill
from inferd_runtime.engine.jobs.generation import Generation, GenerationSpec
from inferd_runtime.engine.jobs.text import TextAssembler
from inferd_runtime.engine.sampling.device_sampling import greedy_inputs
from inferd_runtime.engine.sequences.cached_sequence import CachedSequence
from inferd_runtime.models.batch import Batch, Span
from inferd_runtime.models.checks.probe import Probed, attach
from inferd_runtime.models.loaded import LoadedModel
from inferd_runtime.models.passes.fused import FusedPass, _fuse_layer, fuse
from inferd_runtime.models.passes.plain import ModelPass
from inferd_runtime.models.passes.products import DenseProduct
from inferd_runtime.speculation.sources import SourceSet
from inferd_runtime.speculation.times import StepTimes

PAGE_SIZE = 16


@dataclass
class Served:
    """A model that is ready to run. ``accepted``: whether ``fuse`` trusted the fused pass by itself; ``agrees``: whether the
    kernels' logits are the reference's; ``own``: a copy of it with transformers' attention, on the same device.
    """

    loaded: LoadedModel
    fused: ModelPass
    driver: CudaDriver
    accepted: bool
    agrees: bool
    own: Any | None = None

    @property
    def way(self) -> str:
        """Which pass it runs through."""
        return type(self.driver._body._run).__name__


def random_llama(shape: ModelShape, device: torch.device, dtype: torch.dtype) -> Any:
    """Random weights as transformers draws them, straight on the device."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=shape.vocab, hidden_size=shape.hidden, intermediate_size=shape.inner,
        num_hidden_layers=shape.layers, num_attention_heads=shape.heads, num_key_value_heads=shape.kv_heads,
        head_dim=shape.width, max_position_embeddings=shape.context, tie_word_embeddings=False,
        rope_parameters={"rope_type": "default", "rope_theta": 500000.0},
        bos_token_id=None, eos_token_id=None, pad_token_id=None,
    )  # fmt: skip
    with device:
        model = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation="sdpa")
    return model.eval().to(device)


def serve(bench: Bench, *, own: bool) -> Served:
    """The model of ``bench.sizes``, built as the engine process does; whether the kernels' logits are the reference's is noted,
    not enforced.
    """
    sizes = bench.sizes
    model = random_llama(sizes.model, bench.device, sizes.dtype)
    with torch.inference_mode():
        twin = copy.deepcopy(model) if own else None
    probed = attach(model, "random")
    # Nobody decodes text here: there is no tokenizer.
    loaded = LoadedModel("random", model, None, probed, sizes.model.vocab, probed.context, "")  # type: ignore[arg-type]
    fused = fuse(model, probed.kv, probed.rules)
    accepted = fused is not None
    # Rounding alone can bring random weights to the edge of what fuse() lets pass: what is measured must not hang on that.
    fused = fused or fused_unchecked(model, probed)
    driver = make_driver(bench, loaded, fused)
    allowed = EXACT if sizes.dtype == torch.float32 else ROUNDED
    return Served(loaded, fused, driver, accepted, logit_difference(driver, driver.plain) <= allowed, twin)


def fused_unchecked(model: Any, probed: Probed) -> FusedPass:
    """The fused pass of a Llama, whatever its logits are."""
    layers = [_fuse_layer(layer, rule) for layer, rule in zip(model.model.layers, probed.rules, strict=True)]
    return FusedPass(model, layers, DenseProduct(model.lm_head.weight))


def make_driver(
    bench: Bench, loaded: LoadedModel, fused: ModelPass, *, pages: int = 0, graphs: bool = True
) -> CudaDriver:
    """Another driver of the model, with a cache of its own."""
    sizes = bench.sizes
    options = DriverOptions(pages or sizes.pages, PAGE_SIZE, sizes.most_rows, graphs=graphs)
    return fast_driver(loaded, fused, options, bench.kernels, bench.accelerator)


def weight_bytes(served: Served) -> int:
    """Bytes of the weights that a step reads: all but the embedding, of which it reads a row per token."""
    model: Any = served.loaded.module
    every = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    embedding = model.model.embed_tokens.weight
    return every - embedding.numel() * embedding.element_size()


def step_floor(served: Served, batch: int, context: float, bandwidth: float) -> float:
    """Seconds that reading the weights once, and each stream's K and V, takes."""
    return (weight_bytes(served) + batch * context * sum(served.driver.token_bytes)) / bandwidth


def prefill_flops(shape: ModelShape, tokens: int) -> float:
    """Floating-point operations of a prompt, with logits for its last token."""
    heads = shape.width * (shape.heads + 2 * shape.kv_heads)
    matrices = shape.layers * (shape.hidden * (heads + shape.heads * shape.width) + 3 * shape.hidden * shape.inner)
    attention = shape.layers * 2 * tokens * tokens * shape.heads * shape.width
    return 2.0 * tokens * matrices + 2.0 * shape.hidden * shape.vocab + attention


def step_batch(driver: CudaDriver, counts: Sequence[int], context: int, wanted: Sequence[int] = ()) -> Batch:
    """``counts`` random tokens of sequences that hold ``context`` tokens, on scattered pages; ``wanted`` rows' logits, or all."""
    chance = np.random.default_rng(len(counts))
    each = -(-(context + max(counts)) // driver.page_size)
    pages = chance.permutation(driver.pages)[: each * len(counts)].reshape(len(counts), each)
    ends = np.cumsum(counts)
    index = np.concatenate([np.arange(context, context + count) for count in counts])
    owner = np.repeat(np.arange(len(counts)), counts)
    return Batch(
        tokens=chance.integers(0, driver.vocab_size, int(ends[-1])),
        positions=index,
        slots=pages[owner, index // driver.page_size] * driver.page_size + index % driver.page_size,
        logit_rows=np.asarray(wanted, np.int64) if len(wanted) else np.arange(int(ends[-1])),
        spans=[
            Span(int(end) - count, count, context, own.tolist())
            for count, end, own in zip(counts, ends, pages, strict=True)
        ],
    )


class DriverArm:
    """The driver alone: the same decode step again and again. ``ahead``: the next one is launched before one is waited for."""

    def __init__(self, driver: CudaDriver, batch: int, context: int, steps: int, *, ahead: bool = False) -> None:
        self._driver = driver
        self._steps = steps
        self._ahead = ahead
        self._batch = step_batch(driver, [1] * batch, context)
        self._sampling = greedy_inputs(self._batch, driver.vocab_size)

    def rate(self) -> float:
        """Tokens per second."""
        begin = time.perf_counter()
        launched = [self._driver.launch(self._batch, self._sampling)]
        for _ in range(self._steps - 1):
            if not self._ahead:
                launched.pop().wait()
            launched.append(self._driver.launch(self._batch, self._sampling))
            if self._ahead:
                launched.pop(0).wait()
        launched.pop().wait()
        return len(self._batch.spans) * self._steps / (time.perf_counter() - begin)


@dataclass(frozen=True)
class Answered:
    """What streams said in how many seconds, and what came of their drafts."""

    tokens: list[list[int]]
    seconds: float
    drafted: int
    accepted: int

    @property
    def rate(self) -> float:
        """Tokens per second."""
        return sum(map(len, self.tokens)) / self.seconds


class StreamArm:
    """Our engine over a driver, greedy streams without text."""

    def __init__(
        self, driver: CudaDriver, *, overlap: bool = True, times: StepTimes | None = None, fixed: int = 0
    ) -> None:
        options = EngineOptions(
            token_budget=driver._options.most_rows // max(1, fixed), swap_bytes=0, overlap=overlap, fixed_rows=fixed,
            times=times or StepTimes.linear(1e-3, 1e-5),
        )  # fmt: skip
        self.engine = Engine(driver, options)

    def contexts(self, prompts: Prompts) -> list[CachedSequence]:
        """Contexts whose prompts are computed, except the last token."""
        made = [self.engine.create_context() for _ in prompts]
        for context, prompt in zip(made, prompts, strict=True):
            context.append(list(prompt))
            job = Prefill(context)
            job.end_if_done()
            if not job.finished():
                self.engine.submit(job)
        while self.engine.step():
            pass
        return made

    def start(
        self, contexts: Sequence[CachedSequence], new_tokens: int, sources: Sequence[SourceSet | None] = ()
    ) -> list[Generation]:
        """Submit one greedy generation per context."""
        started = []
        for context, source in zip(contexts, sources or [None] * len(contexts), strict=True):
            spec = GenerationSpec(GREEDY, new_tokens, (), sources=source)
            started.append(Generation(context, spec, TextAssembler(lambda token: "", ())))
            self.engine.submit(started[-1])
        return started

    def answers(
        self, prompts: Prompts, new_tokens: int, make: Callable[[int], SourceSet | None] = lambda stream: None
    ) -> Answered:
        """What all streams say, and how long that took without their prompts. ``make(stream)``: the sources of its drafts."""
        contexts = self.contexts(prompts)
        tokens: list[list[int]] = [[] for _ in prompts]
        begin = time.perf_counter()
        generations = self.start(contexts, new_tokens, [make(stream) for stream in range(len(prompts))])
        while self.engine.step():
            collect(generations, tokens)
        seconds = time.perf_counter() - begin
        finish(generations)
        counters = [generation.counters for generation in generations]
        return Answered(tokens, seconds, sum(one.drafted for one in counters), sum(one.accepted for one in counters))

    def decode_rate(self, vocab: int, batch: int, prompt: int, new_tokens: int) -> float:
        """Tokens per second of streams that decode side by side. Prompts are new, and computed before."""
        return self.answers(random_prompts(vocab, [prompt] * batch, seed=time.perf_counter_ns()), new_tokens).rate

    def prompt_rate(self, vocab: int, tokens: int) -> float:
        """Tokens of one prompt per second, until its first token is there."""
        prompt = random_prompts(vocab, [tokens], seed=time.perf_counter_ns())[0]
        context = self.engine.create_context()
        context.append(prompt)
        begin = time.perf_counter()
        generations = self.start([context], 1)
        while self.engine.step():
            pass
        seconds = time.perf_counter() - begin
        finish(generations)
        return tokens / seconds


def behind(whole: float, first: float) -> float:
    """Seconds of a run behind its first token; a tenth of it at least, where noise says otherwise."""
    return max(whole / 10, whole - first)


class GeneratePeer:
    """``model.generate``, greedy, all prompts as one batch, with its default cache."""

    def __init__(self, bench: Bench, model: Any) -> None:
        self._bench = bench
        self._model = model

    def decode_rate(self, batch: int, prompt: int, new_tokens: int) -> float:
        """Tokens per second behind the first one: the time of a run less that of one which ends with its first token."""
        prompts = random_prompts(self._model.config.vocab_size, [prompt] * batch, seed=time.perf_counter_ns())
        return batch * new_tokens / behind(self._seconds(prompts, new_tokens + 1), self._seconds(prompts, 1))

    def _seconds(self, prompts: Prompts, new_tokens: int) -> float:
        ids = torch.tensor(prompts, device=self._bench.device)
        self._bench.synchronize()
        begin = time.perf_counter()
        self._model.generate(ids, attention_mask=torch.ones_like(ids), generation_config=greedy(new_tokens))
        self._bench.synchronize()
        return time.perf_counter() - begin

    def prompt_rate(self, tokens: int) -> float:
        """Tokens of one prompt per second through the model, with a cache and one row of logits."""
        ids = torch.randint(self._model.config.vocab_size, (1, tokens), device=self._bench.device)
        self._bench.synchronize()
        begin = time.perf_counter()
        with torch.inference_mode():
            self._model(ids, use_cache=True, logits_to_keep=1)
        self._bench.synchronize()
        return tokens / (time.perf_counter() - begin)


class GenerateBatchPeer:
    """``model.generate_batch``: transformers' continuous batching, its manager and cache made once."""

    def __init__(self, bench: Bench, model: Any, batch: int, length: int) -> None:
        logging.getLogger("ContinuousBatchingLogger").setLevel(logging.CRITICAL)
        self._bench = bench
        self._model = model
        blocks = batch * (-(-length // 256) + 1)
        budget = bench.sizes.most_rows
        self._config = ContinuousBatchingConfig(num_blocks=blocks, max_batch_tokens=budget)

    def decode_rate(self, batch: int, prompt: int, new_tokens: int) -> float:
        """As :meth:`GeneratePeer.decode_rate`."""
        prompts = random_prompts(self._model.config.vocab_size, [prompt] * batch, seed=time.perf_counter_ns())
        return batch * new_tokens / behind(self._seconds(prompts, new_tokens + 1), self._seconds(prompts, 1))

    def _seconds(self, prompts: Prompts, new_tokens: int) -> float:
        begin = time.perf_counter()
        outputs = self._model.generate_batch(
            [list(prompt) for prompt in prompts], generation_config=greedy(new_tokens),
            continuous_batching_config=self._config, persistent_manager=True, progress_bar=False,
        )  # fmt: skip
        seconds = time.perf_counter() - begin
        done = sum(len(output.generated_tokens) for output in outputs.values())
        if done != len(prompts) * new_tokens:
            raise RuntimeError(f"generate_batch brought {done} tokens, not {len(prompts) * new_tokens}")
        return seconds

    def close(self) -> None:
        """Drop the manager and its cache."""
        self._model.destroy_cached_continuous_batching_manager()
