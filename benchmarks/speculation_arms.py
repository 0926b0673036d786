"""Prompts through our engine with any sources, and through transformers' own speculation, on the same weights and threads."""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from prompts import Prompt
from transformers import AutoModelForCausalLM

from inferd import protocol as p
from inferd_grammar import Compiled
from inferd_runtime.draft_models.direct import DirectDrafts
from inferd_runtime.draft_models.draft_host import DraftHost
from inferd_runtime.draft_models.drafter import DraftModelLink
from inferd_runtime.draft_models.models import DraftModels, connect
from inferd_runtime.engine.jobs.generation import Generation, GenerationSpec
from inferd_runtime.engine.jobs.grammar_masks import GrammarCursor
from inferd_runtime.engine.jobs.text import TextAssembler
from inferd_runtime.engine.sampling.host_sampling import RowSampler
from inferd_runtime.engine.sequences.cached_sequence import CachedSequence
from inferd_runtime.models.jinja_template import RENDER_SECONDS, RenderBudget
from inferd_runtime.models.options import ModelOptions
from inferd_runtime.models.store.pull import resolve
from inferd_runtime.server.engine_process.serving import serve_models
from inferd_runtime.server.engine_process.vocabularies import vocabulary_of
from inferd_runtime.session.constraints.conversion import to_grammar
from inferd_runtime.session.generation.sources import build_sources
from inferd_runtime.session.served_model import ServedModel
from inferd_runtime.session.transcript import Turn, render
from inferd_runtime.settings.settings import EngineSettings
from inferd_runtime.speculation.drafter import Drafter
from inferd_runtime.speculation.drafts import NOTHING, Proposal
from inferd_runtime.speculation.sources import SourceSet

Outputs = list[list[int]]
MOST_CHARACTERS = 1_000_000
MATCHES = (2, 5, 3, 12, 2, 8, 4, 3)
"""Match lengths as lookups have them; a longer one promises more."""


class Start(NamedTuple):
    """A generation that is about to start: the prompt's number, which of its turns, and what its sources are built from."""

    number: int
    turn: int
    prompt: Prompt
    context: CachedSequence
    sampler: RowSampler


Sources = Callable[[Start], SourceSet | None]


@dataclass(frozen=True)
class Run:
    """What one arm did: tokens by prompt and turn, wall-clock and processor seconds, drafted and accepted tokens, steps."""

    tokens: Outputs
    seconds: float
    processor: float = 0.0
    drafted: int = 0
    accepted: int = 0
    steps: int = 0

    @property
    def rate(self) -> float:
        """Generated tokens per second."""
        return sum(map(len, self.tokens)) / self.seconds

    @property
    def processor_rate(self) -> float:
        """Generated tokens per second of processor time, in which a busy machine counts for less."""
        return sum(map(len, self.tokens)) / self.processor


class RecordedDrafter(Drafter):
    """Proposes what is known to come, each token moved on by ``shift``: 0 is always right, anything else always wrong.

    It says that it is an n-gram source, with match lengths that look plausible.
    """

    source = "ngram"

    def __init__(self, output: Sequence[int], shift: int, vocab_size: int) -> None:
        self._output = [(token + shift) % vocab_size for token in output]
        self._at = -1

    def observe(self, tokens: Sequence[int]) -> None:
        """The first call brings the prompt, the others output."""
        self._at = 0 if self._at < 0 else self._at + len(tokens)

    def propose(self, limit: int, ahead: Sequence[int] = ()) -> Proposal:
        """The next tokens, or what stands for them."""
        tokens = self._output[self._at + len(ahead) :][:limit]
        return Proposal(tokens, match=MATCHES[self._at % len(MATCHES)]) if tokens else NOTHING


class SpeculationArm:
    """Our engine in this process; nobody decodes text."""

    def __init__(self, model: str, draft: str, threads: int, **options: str) -> None:
        """``draft``: "" for none. ``options``: what else :class:`ModelOptions` says of the model."""
        names = [ModelOptions(model, **options), *([ModelOptions(draft)] if draft else [])]
        self.served, *drafting = serve_models(EngineSettings(model=tuple(names), threads=threads))
        self._with_draft = with_draft(self.served, drafting[0]) if drafting else self.served
        self._compiled: dict[str, Compiled] = {}
        self._rendered: dict[tuple[Prompt, int, bool], list[int]] = {}
        self._tenants = map(str, itertools.count())

    def run(self, prompts: Sequence[Prompt], batch: int, sources: Sources, *, cold: bool = False) -> Run:
        """All prompts, ``batch`` of them at a time: the next begins where one ends. ``cold``: none is in the prefix cache."""
        tenant = next(self._tenants) if cold else ""
        conversations = [Conversation(self, number, prompt, tenant) for number, prompt in enumerate(prompts)]
        start, processor = time.perf_counter(), time.process_time()
        waiting = deque(conversations)
        running: list[Conversation] = []
        while running or waiting:
            while waiting and len(running) < batch:
                running.append(waiting.popleft())
                running[-1].begin(sources)
            self.served.engine.step()
            running = [one for one in running if one.go_on(sources)]
        seconds, processor = time.perf_counter() - start, time.process_time() - processor
        counters = [generation.counters for one in conversations for generation in one.generations]
        return Run(
            [output for one in conversations for output in one.outputs], seconds, processor,
            *(sum(getattr(counter, name) for counter in counters) for name in ("drafted", "accepted", "steps")),
        )  # fmt: skip

    # -- Sources --------------------------------------------------------------------------------------------------

    def none(self, start: Start) -> None:
        """No speculation."""

    def usual(self, start: Start) -> SourceSet | None:
        """What a request gets that asks for speculation and names no source."""
        return self._build(start, self.served, p.StartGenerate(0, system_speculation=True))

    def predicted(self, start: Start) -> SourceSet | None:
        """The same, and the user says that the answer will be much like the prompt."""
        tokens = self.served.tokenizer.encode(start.prompt.user)
        request = p.StartGenerate(0, system_speculation=True, predicted=tokens)
        return self._build(start, self.served, request)

    def draft_model(self, start: Start) -> SourceSet | None:
        """The draft model alone."""
        alone = p.SpeculationSettings(sources=["draft_model"])
        request = p.StartGenerate(0, system_speculation=True, speculation=alone)
        return self._build(start, self._with_draft, request)

    def recorded(self, outputs: Outputs, shift: int) -> Sources:
        """Drafts of known outputs (of prompts with one turn), moved on by ``shift``."""

        def sources(start: Start) -> SourceSet:
            drafter = RecordedDrafter(outputs[start.number], shift, self.served.info.vocab_size)
            return self.served.engine.draft_budget.sources([drafter])

        return sources

    def _build(self, start: Start, served: ServedModel, request: p.StartGenerate) -> SourceSet | None:
        request = replace(request, constraint=constraint_of(start.prompt))
        return build_sources(request, served, start.context, start.sampler)

    # -- What conversations are made of ---------------------------------------------------------------------------

    def tokens(self, prompt: Prompt, turn: int = 0, *, ended: bool = True) -> list[int]:
        """The tokens that open a turn. ``ended``: the answer before it has written its own end."""
        key = (prompt, turn, ended)
        if key not in self._rendered:
            tokenizer = self.served.tokenizer
            messages = [p.Part("message", "user", text) for text in (prompt.user, *prompt.more)][turn : turn + 1]
            if turn == 0:
                messages.insert(0, p.Part("message", "system", prompt.system))
            parts = [p.Part("text", text=prompt.raw)] if prompt.raw else [*messages, p.Part("cue")]
            last = tokenizer.eos_tokens[0] if ended else None
            stands = Turn(empty=False, answering=True) if turn else Turn()
            budget = RenderBudget(RENDER_SECONDS, MOST_CHARACTERS)
            self._rendered[key] = render(parts, stands, last, tokenizer, budget)[0]
        return self._rendered[key]

    def spec(self, start: Start, sources: Sources) -> GenerationSpec:
        """The generation of a turn."""
        prompt, eos = start.prompt, self.served.tokenizer.eos_tokens
        return GenerationSpec(start.sampler, prompt.max_tokens, eos, self._cursor(prompt), sources(start))

    def _cursor(self, prompt: Prompt) -> GrammarCursor | None:
        constraint = constraint_of(prompt)
        if constraint is None:
            return None
        if prompt.schema not in self._compiled:
            self._compiled[prompt.schema] = self.served.grammars.compile(to_grammar(constraint))
        words = -(-self.served.info.vocab_size // 32)
        return GrammarCursor(self._compiled[prompt.schema].matcher(), words, self.served.tokenizer.eos_tokens)


def with_draft(served: ServedModel, drafting: ServedModel) -> ServedModel:
    """The target with a draft model that runs in the same thread, as an assistant model does."""
    host = DraftHost(drafting.engine, drafting.tokenizer.eos_tokens)
    line = DraftModelLink(DirectDrafts(host), drafting.info.max_context)
    vocabularies = [vocabulary_of(model.grammars.table) for model in (served, drafting)]
    return replace(served, drafts=DraftModels([connect(drafting.info.name, line, *vocabularies)]))


class Conversation:
    """One prompt on its way through its turns."""

    def __init__(self, arm: SpeculationArm, number: int, prompt: Prompt, tenant: str) -> None:
        self.outputs: Outputs = []
        self.generations: list[Generation] = []
        self._arm, self._number, self._prompt, self._tenant = arm, number, prompt, tenant
        self._turn = 0

    def begin(self, sources: Sources) -> None:
        """Open the context, and its first turn."""
        self._context = self._arm.served.engine.create_context(self._tenant)
        self._context.append(list(self._arm.tokens(self._prompt)))
        self._generate(sources)

    def go_on(self, sources: Sources) -> bool:
        """Take what is ready, and start the next turn where one has ended. False when that was the last."""
        generation = self.generations[-1]
        if generation.outbox:
            generation.take()
        if not generation.finished():
            return True
        if generation.error is not None:
            raise generation.error
        generation.close()
        self.outputs.append(self._context.tokens[self._start :])
        self._turn += 1
        if self._turn > len(self._prompt.more):
            self._context.release()
            return False
        ended = generation.finish == "stop"
        self._context.append(list(self._arm.tokens(self._prompt, self._turn, ended=ended)))
        self._generate(sources)
        return True

    def _generate(self, sources: Sources) -> None:
        self._start = len(self._context.tokens)
        sampling = p.Sampling(temperature=self._prompt.temperature)
        sampler = RowSampler.resolve(sampling, seed=self._number, lineage=0)
        start = Start(self._number, self._turn, self._prompt, self._context, sampler)
        self.generations.append(
            Generation(self._context, self._arm.spec(start, sources), TextAssembler(lambda token: "", ()))
        )
        self._arm.served.engine.submit(self.generations[-1])


def constraint_of(prompt: Prompt) -> p.ConstraintSpec | None:
    """The prompt's schema as a constraint."""
    return p.ConstraintSpec("json_schema", prompt.schema) if prompt.schema else None


class TransformersArm:
    """``model.generate``, greedy, one prompt after the other, with the settings that a user gets."""

    def __init__(self, model: str, assistant: str = "") -> None:
        self._model = pretrained(model)
        self.assistant = pretrained(assistant) if assistant else None

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weights that one token reads."""
        return sum(parameter.numel() * parameter.element_size() for parameter in self._model.parameters())

    def run(self, prompts: Sequence[Sequence[int]], max_tokens: int, how: Mapping[str, Any]) -> Run:
        """``how``: prompt_lookup_num_tokens, assistant_model, or nothing."""
        start, processor = time.perf_counter(), time.process_time()
        tokens = []
        for prompt in prompts:
            ids = torch.tensor([prompt])
            out = self._model.generate(
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=max_tokens, do_sample=False, **how
            )
            tokens.append(out[0, len(prompt) :].tolist())
        return Run(tokens, time.perf_counter() - start, time.process_time() - processor)


def pretrained(model: str) -> Any:
    """The model, float32."""
    return AutoModelForCausalLM.from_pretrained(resolve(model), dtype=torch.float32).eval()
