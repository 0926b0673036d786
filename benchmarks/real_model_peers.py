"""Peers that run in this process, on the model's own weights: continuous batching, and JSON with outlines."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import engine_arms
import jsonschema
import msgspec
import outlines
from prompts import Prompt
from speculation_arms import Run, pretrained
from transformers import AutoTokenizer

from inferd_runtime.models.store.pull import resolve


def batched(model: str, streams: int, length: int) -> Callable[[Sequence[Sequence[int]], int], Run]:
    """Return transformers' ``generate_batch`` for so many streams of ``length`` tokens at most."""
    arm = engine_arms.GenerateBatchArm(pretrained(model), streams=streams, length=length)

    def run(prompts: Sequence[Sequence[int]], tokens: int) -> Run:
        processor = time.process_time()
        made = arm.run(prompts, tokens)
        return Run(made.tokens, made.seconds, time.process_time() - processor)

    return run


class OutlinesArm:
    """Generation under a JSON schema by outlines over transformers. A schema is compiled once, outside of what is timed."""

    def __init__(self, model: str) -> None:
        self.tokenizer: Any = AutoTokenizer.from_pretrained(resolve(model))
        self._model: Any = outlines.from_transformers(pretrained(model), self.tokenizer)
        self._generators: dict[str, Any] = {}

    def run(self, prompts: Sequence[Prompt], texts: Sequence[str]) -> Run:
        """``texts``: the prompts as the model reads them."""
        for prompt in prompts:
            if prompt.schema not in self._generators:
                self._generators[prompt.schema] = outlines.Generator(self._model, outlines.json_schema(prompt.schema))
        start, processor = time.perf_counter(), time.process_time()
        answers = [
            self._generators[prompt.schema](text, max_new_tokens=prompt.max_tokens, do_sample=False)
            for prompt, text in zip(prompts, texts, strict=True)
        ]
        seconds, processor = time.perf_counter() - start, time.process_time() - processor
        return Run([self.tokenizer(answer)["input_ids"] for answer in answers], seconds, processor)


def is_valid(text: str, schema: str) -> bool:
    """True if a text is JSON of a schema."""
    try:
        jsonschema.validate(msgspec.json.decode(text), msgspec.json.decode(schema))
    except (msgspec.DecodeError, jsonschema.ValidationError):
        return False
    return True
