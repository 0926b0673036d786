"""One prompt through transformers' ``generate`` and through our engine, on the same weights and threads."""

from __future__ import annotations

import time
from typing import Any

import torch
from prompts import Prompt
from transformers import AutoModelForCausalLM

from inferd import protocol as p
from inferd_runtime.models.options import ModelOptions
from inferd_runtime.models.store.pull import resolve
from inferd_runtime.server.engine_process.serving import serve_model
from inferd_runtime.session.served_model import ServedModel
from inferd_runtime.settings.settings import EngineSettings
from inferd_runtime.testing.direct import DirectSession, Generated


class TransformersArm:
    """``model.generate``, greedy, with the settings that a user gets."""

    def __init__(self, model: str) -> None:
        self._model: Any = AutoModelForCausalLM.from_pretrained(resolve(model), dtype=torch.float32).eval()

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weights that one token reads."""
        return sum(parameter.numel() * parameter.element_size() for parameter in self._model.parameters())

    def run(self, tokens: list[int], max_tokens: int) -> tuple[list[int], float]:
        """The generated tokens and the tokens per second, prompt included in the time."""
        ids = torch.tensor([tokens])
        start = time.perf_counter()
        out = self._model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=max_tokens, do_sample=False)
        seconds = time.perf_counter() - start
        generated = out[0, len(tokens) :].tolist()
        return generated, len(generated) / seconds


class EngineArm:
    """Our engine in this process, through a session as a program would use it."""

    def __init__(self, model: str, threads: int) -> None:
        self.served: ServedModel = serve_model(EngineSettings(model=(ModelOptions(model),), threads=threads))
        self._direct = DirectSession(self.served)

    def tokens(self, prompt: Prompt) -> list[int]:
        """The prompt as token ids."""
        return self._direct.tokens(self._context(prompt))

    def run(self, prompt: Prompt, *, speculation: bool, grammar: bool) -> tuple[list[int], float, Generated]:
        """Generated tokens (end of text included), tokens per second with the prompt's time, and the generation."""
        context = self._context(prompt)
        length = len(self._direct.tokens(context))
        constraint = p.ConstraintSpec("json_schema", prompt.schema) if grammar else None
        start = time.perf_counter()
        generated = self._direct.generate(
            context, max_tokens=prompt.max_tokens, constraint=constraint, system_speculation=speculation
        )
        seconds = time.perf_counter() - start
        tokens = self._direct.tokens(context)[length:]
        self._direct.call(p.ReleaseContext(context))
        return tokens, len(tokens) / seconds, generated

    def _context(self, prompt: Prompt) -> int:
        return self._direct.chat(prompt.system, prompt.user) if prompt.system else self._direct.text(prompt.raw)
