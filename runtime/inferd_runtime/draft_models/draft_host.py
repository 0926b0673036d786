"""The draft model's side: an engine with the sequences of all generations that it drafts for."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Collection, Hashable
from functools import partial

from inferd_runtime.draft_models.messages import AnswerCallback, AskDraft, DraftAnswer
from inferd_runtime.draft_models.sequence import DraftSequence
from inferd_runtime.engine.driver import SamplingDriver
from inferd_runtime.engine.engine import Engine

MAX_SEQUENCES = 1024


class DraftHost:
    """Runs the draft model's engine, which batches all sequences. Owned by the thread that steps it.

    A sequence is known by its ``client`` and a number. When there are more than ``most``, the tenant that has most of them loses
    its least recently used one, and its client sends it again. KV pages need no such limit, as contexts leave the cache under
    pressure.
    """

    def __init__(self, engine: Engine, eos_tokens: Collection[int], *, most: int = MAX_SEQUENCES) -> None:
        self.engine = engine
        self._eos = frozenset(eos_tokens)
        self._most = most
        self._device_vocab = engine.driver.vocab_size if isinstance(engine.driver, SamplingDriver) else 0
        self._sequences: OrderedDict[tuple[Hashable, int], DraftSequence] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sequences)

    def ask(self, client: Hashable, request: AskDraft, done: AnswerCallback) -> None:
        """Take a request. ``done`` is called with its answer once, now or in a later step."""
        key = (client, request.sequence)
        if request.spec is not None:
            self.drop(client, request.sequence)
            context = self.engine.create_context(request.spec.tenant, request.spec.salt)
            forget = partial(self._forget, key)
            self._sequences[key] = DraftSequence(context, request.spec, self._eos, forget, self._device_vocab)
            self.engine.submit(self._sequences[key])
        sequence = self._sequences.get(key)
        if sequence is None or not sequence.holds(request.start):
            return done(DraftAnswer(lost=True))
        self._sequences.move_to_end(key)
        self._forget_oldest()
        sequence.ask(request, done)

    def drop(self, client: Hashable, sequence: int) -> None:
        """Drop a sequence if it is known."""
        found = self._sequences.pop((client, sequence), None)
        if found is not None:
            found.drop()

    def close(self) -> None:
        """Drop all sequences."""
        while self._sequences:
            self._sequences.popitem()[1].drop()

    def step(self) -> bool:
        """Run one step of the engine. Returns False if no sequence has work."""
        return self.engine.step()

    def _forget(self, key: tuple[Hashable, int]) -> None:
        self._sequences.pop(key, None)

    def _forget_oldest(self) -> None:
        while len(self._sequences) > self._most:
            counts = Counter(sequence.context.tenant for sequence in self._sequences.values())
            largest = max(counts, key=lambda tenant: counts[tenant])
            oldest = next(key for key, sequence in self._sequences.items() if sequence.context.tenant == largest)
            self._sequences.pop(oldest).drop()
