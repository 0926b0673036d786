"""One prompt through transformers' ``generate`` and through our engine, on the same weights and threads."""

from __future__ import annotations

import time
from typing import Any

import torch
from inferd import protocol as p
from prompts import Prompt
from transformers import AutoModelForCausalLM

from inferd_runtime.models.loading import resolve
from inferd_runtime.server.engine_process import EngineSettings, serve_model
from inferd_runtime.session.host import ServedModel
from inferd_runtime.session.session import Session


class TransformersArm:
    """``model.generate``, greedy, with the settings that a user gets."""

    def __init__(self, model: str) -> None:
        self._model: Any = AutoModelForCausalLM.from_pretrained(resolve(model), dtype=torch.float32).eval()

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
        self.served: ServedModel = serve_model(EngineSettings(endpoint="", model=model, threads=threads))
        self._session = Session({model: self.served}, "bench")

    def tokens(self, prompt: Prompt) -> list[int]:
        """The prompt as token ids."""
        context = self._context(prompt)
        tokens: list[int] = self._call(p.ContextTokens(context)).tokens
        self._call(p.ReleaseContext(context))
        return tokens

    def run(self, prompt: Prompt, *, speculation: bool, grammar: bool) -> tuple[list[int], float, list[p.Step]]:
        """Generated tokens (end of text included), tokens per second with the prompt's time, and the steps."""
        context = self._context(prompt)
        length = len(self._call(p.ContextTokens(context)).tokens)
        constraint = p.Constraint("json_schema", prompt.schema) if grammar else None
        start = time.perf_counter()
        started = self._call(
            p.StartGenerate(context, max_tokens=prompt.max_tokens, constraint=constraint, system_speculation=speculation)
        )
        steps: list[p.Step] = []
        finish = ""
        while not finish:
            reply = self._call(p.NextSteps(started.generation))
            finish, steps = reply.finish, steps + reply.steps
        seconds = time.perf_counter() - start
        self._call(p.CloseGenerate(started.generation))
        generated = self._call(p.ContextTokens(context, length)).tokens
        self._call(p.ReleaseContext(context))
        return generated, len(generated) / seconds, steps

    def _context(self, prompt: Prompt) -> int:
        parts = [p.Part("text", text=prompt.raw)]
        if prompt.system:
            parts = [p.Part("message", "system", prompt.system), p.Part("message", "user", prompt.user), p.Part("cue")]
        context: int = self._call(p.CreateContext()).context
        self._call(p.AppendContext(context, parts))
        return context

    def _call(self, request: Any) -> Any:
        replies: list[Any] = []
        self._session.handle(1, request, replies.append)
        while not replies:
            self.served.engine.step()
        if isinstance(replies[0], p.InferdError):
            raise replies[0]
        return replies[0]
