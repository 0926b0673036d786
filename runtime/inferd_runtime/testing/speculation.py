"""Tools to compare speculation with a run without any: the expected tokens, and drafters that know them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from inferd.protocol import TokenLogprob
from inferd_grammar import Compiled
from inferd_runtime.engine.engine import Engine
from inferd_runtime.engine.jobs.generation import Generation, GenerationSpec
from inferd_runtime.engine.jobs.grammar_masks import GrammarCursor
from inferd_runtime.engine.jobs.text import TextAssembler
from inferd_runtime.engine.sampling.host_sampling import LogitRows, RowSampler, draw
from inferd_runtime.engine.sampling.penalties import Penalties
from inferd_runtime.engine.sequences.cached_sequence import CachedSequence
from inferd_runtime.speculation.drafter import Drafter
from inferd_runtime.speculation.drafts import NO_DRAFT, ROOT, Proposal
from inferd_runtime.testing.byte_tokenizer import END, ByteTokenizer
from inferd_runtime.testing.null_driver import NullDriver


@dataclass(frozen=True)
class Request:
    """Arguments of a generation. ``tokens`` is what it has to bring (end of text left out), and ``finish`` how it ends:
    found row after row from the model's logits, without an engine.
    """

    prompt: tuple[int, ...]
    sampler: RowSampler
    max_tokens: int
    eos: int = END
    stop: str = ""
    grammar: Compiled | None = None
    tokens: tuple[int, ...] = ()
    finish: str = ""

    def answered(self, driver: NullDriver) -> Request:
        """Return the same request with the model's answer."""
        tokens: list[int] = []
        finish, cursor = "", self.cursor(driver.vocab_size)
        while not finish:
            mask = None if cursor is None else cursor.masks(NO_DRAFT)[1][0]
            position = len(self.prompt) + len(tokens)
            row = driver.logits([*self.prompt, *tokens])
            if self.sampler.penalties is not None:
                row = penalised(row, self.sampler.penalties, self.prompt, tokens)
            token = draw(row, self.sampler, position, mask)
            if token == self.eos:
                return replace(self, tokens=tuple(tokens), finish="stop")
            tokens.append(token)
            if cursor is not None:
                cursor.advance([token])
            finish = self._finish(tokens, driver, cursor)
        return replace(self, tokens=tuple(tokens), finish=finish)

    def _finish(self, tokens: Sequence[int], driver: NullDriver, cursor: GrammarCursor | None) -> str:
        if self.stop and self.stop in ByteTokenizer().decode(tokens):
            return "stop"
        if len(tokens) == self.max_tokens or len(self.prompt) + len(tokens) == driver.max_context:
            return "length"
        return "stop" if cursor is not None and cursor.must_end() else ""

    def cursor(self, vocab_size: int) -> GrammarCursor | None:
        """Yield the grammar's masks from the beginning, None if there is no grammar."""
        if self.grammar is None:
            return None
        return GrammarCursor(self.grammar.matcher(), -(-vocab_size // 32), [self.eos])


def penalised(logits: LogitRows, penalties: Penalties, prompt: Sequence[int], output: Sequence[int]) -> LogitRows:
    """Return a row float32[V] with penalties and biases, straight from their definitions: everything is counted anew."""
    row = logits.copy()
    biases = dict(zip(penalties.bias_tokens, penalties.bias_values, strict=True))
    for token in {*prompt, *output, *biases} & set(range(len(row))):
        value, times = float(logits[token]), output.count(token)
        if token in prompt or times:
            value = value / penalties.repetition if value > 0 else value * penalties.repetition
        shift = biases.get(token, 0.0) - penalties.frequency * times - (penalties.presence if times else 0.0)
        row[token] = np.float32(value + float(np.float32(shift)))
    return row


class Guesser(Drafter):
    """Base of drafters that know the answer."""

    looks_ahead = True

    def __init__(self, request: Request, vocab: int, seed: int = 0) -> None:
        self.answer = [*request.prompt, *request.tokens]
        self.vocab = vocab
        self.seen = 0
        self.random = random.Random(seed)

    def observe(self, tokens: Sequence[int]) -> None:
        """See :class:`Drafter`."""
        self.seen += len(tokens)

    def right(self, limit: int, ahead: Sequence[int]) -> list[int]:
        """Return the next tokens that the model will bring, at most ``limit``."""
        start = self.seen + len(ahead)
        return self.answer[start : start + limit]


class Oracle(Guesser):
    """A chain that is wrong at every seventh token."""

    def propose(self, limit: int, ahead: Sequence[int] = ()) -> Proposal:
        """See :class:`Drafter`."""
        right = enumerate(self.right(min(limit, 9), ahead), self.seen + len(ahead))
        return Proposal([token if at % 7 else (token + 1) % self.vocab for at, token in right])


class OracleTree(Guesser):
    """A tree in which the answer is one of two or three siblings at every depth, seldom the first; all have children."""

    def propose(self, limit: int, ahead: Sequence[int] = ()) -> Proposal:
        """See :class:`Drafter`."""
        tokens: list[int] = []
        parents: list[int] = []
        node = ROOT
        for token in self.right(4, ahead):
            siblings = [(token + 1) % self.vocab, token, (token + 2) % self.vocab][: self.random.randint(2, 3)]
            here = [*range(len(tokens), len(tokens) + len(siblings))]
            tokens += [*siblings, self.random.randrange(self.vocab)]
            parents += [*[node] * len(siblings), here[0]]
            node = here[1]
        return Proposal(tokens[:limit], parents[:limit], confidence=[1.0] * min(limit, len(tokens)))


class Wrong(Guesser):
    """A chain that is never right."""

    def propose(self, limit: int, ahead: Sequence[int] = ()) -> Proposal:
        """See :class:`Drafter`."""
        wrong = [(token + 1) % self.vocab for token in self.right(min(limit, 6), ahead)]
        return Proposal(wrong, confidence=[1.0] * len(wrong))


class WrongTree(Guesser):
    """A tree that is never right."""

    def propose(self, limit: int, ahead: Sequence[int] = ()) -> Proposal:
        """See :class:`Drafter`."""
        wrong = [(token + 1 + i) % self.vocab for token in self.right(1, ahead) for i in range(min(limit, 3))]
        return Proposal(wrong, [ROOT] * len(wrong), confidence=[1.0] * len(wrong))


class Blind(Guesser):
    """A chain of random tokens."""

    def propose(self, limit: int, ahead: Sequence[int] = ()) -> Proposal:
        """See :class:`Drafter`."""
        count = self.random.randint(0, min(limit, 9))
        return Proposal(self.random.choices(range(self.vocab), k=count), confidence=[1.0] * count)


class BlindTree(Guesser):
    """A tree of random tokens with random parents."""

    def propose(self, limit: int, ahead: Sequence[int] = ()) -> Proposal:
        """See :class:`Drafter`."""
        count = self.random.randint(0, min(limit, 12))
        parents = [self.random.randint(ROOT, node - 1) for node in range(count)]
        return Proposal(self.random.choices(range(self.vocab), k=count), parents, confidence=[1.0] * count)


class Broken(Oracle):
    """A drafter that raises after a while."""

    def propose(self, limit: int, ahead: Sequence[int] = ()) -> Proposal:
        """See :class:`Drafter`."""
        if self.seen > len(self.answer) // 2:
            raise RuntimeError("no more ideas")
        return super().propose(limit, ahead)


class NearDriver(NullDriver):
    """A model whose logits are near those of the NullDriver with the same arguments."""

    def logits(self, history: list[int]) -> LogitRows:
        """See :class:`NullDriver`."""
        other = self._normal(history, 2, self.vocab_size).astype(np.float32)
        return super().logits(history) + other * np.float32(0.5)


@dataclass
class GenerationUnderTest:
    """A running generation and what it has brought."""

    request: Request
    generation: Generation
    tokens: list[int] = field(default_factory=list)
    scores: list[TokenLogprob] = field(default_factory=list)
    steps: int = 0
    accepted: int = 0
    truncated: int = 0

    @classmethod
    def submit(
        cls,
        engine: Engine,
        context: CachedSequence,
        request: Request,
        drafters: Sequence[Drafter],
        *,
        tree: bool = True,
        paced: bool = False,
        logprobs: int | None = None,
        forced: bool = True,
    ) -> GenerationUnderTest:
        """Submit a request on a context that holds its prompt. ``forced``: what its grammar forces is drafted."""
        cursor = request.cursor(engine.driver.vocab_size)
        speculates = bool(drafters) or (cursor is not None and forced)
        sources = engine.draft_budget.sources(drafters, tree=tree) if speculates else None
        ends = [request.eos]
        spec = GenerationSpec(request.sampler, request.max_tokens, ends, cursor, sources, paced, logprobs=logprobs)
        stops = (request.stop,) if request.stop else ()
        generation = Generation(context, spec, TextAssembler(ByteTokenizer().stream(), stops))
        engine.submit(generation)
        return cls(request, generation)

    def take(self) -> list[int]:
        """Take the tokens that were delivered since the last call, and return them."""
        fresh: list[int] = []
        for step in self.generation.take():
            fresh += step.tokens
            self.scores += step.logprobs
            self.steps += 1
            self.accepted += step.accepted
            self.truncated += step.truncated
            assert step.accepted == sum(count.accepted for count in step.sources)
            assert step.drafted == sum(count.drafted for count in step.sources)
        self.tokens += fresh
        return fresh

    def check(self) -> None:
        """Assert that it brought what it had to, and emitted = steps + accepted - truncated, a sampled end of text included."""
        request, generation = self.request, self.generation
        assert generation.error is None
        assert tuple(self.tokens) == request.tokens
        assert generation.finish == request.finish
        context = generation.context.tokens
        written = len(request.prompt) + len(self.tokens)
        assert tuple(context[:written]) == request.prompt + request.tokens
        ends = context[written:]
        assert ends in ([], [request.eos])
        emitted = self.steps + self.accepted - self.truncated
        assert emitted - len(self.tokens) in ([len(ends)] if request.grammar is None else [0, len(ends)])
