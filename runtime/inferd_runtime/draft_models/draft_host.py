"""The draft model's side: an engine, and the sequences of all generations that it drafts for."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Collection, Hashable
from functools import partial

from inferd_runtime.draft_models.messages import AnswerCallback, AskDraft, DraftAnswer
from inferd_runtime.draft_models.sequence import DraftSequence
from inferd_runtime.engine.engine import Engine

MAX_SEQUENCES = 1024


class DraftHost:
    """Owned by the thread that steps the engine, which batches all sequences.

    A sequence belongs to a ``client`` and is known to it by a number. When there are more than ``most``, the tenant that has
    most of them loses the one that was asked for longest ago; its client sends it again. KV pages need no such limit: under
    pressure contexts leave the cache, of the tenant that holds most those that nothing is drawn for before the others.
    """

    def __init__(self, engine: Engine, eos_tokens: Collection[int], *, most: int = MAX_SEQUENCES) -> None:
        self.engine = engine
        self._eos = frozenset(eos_tokens)
        self._most = most
        self._sequences: OrderedDict[tuple[Hashable, int], DraftSequence] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sequences)

    def ask(self, client: Hashable, request: AskDraft, done: AnswerCallback) -> None:
        """Take a request; ``done`` hears its answer once, now or in a later step."""
        key = (client, request.sequence)
        if request.spec is not None:
            self.drop(client, request.sequence)
            context = self.engine.create_context(request.spec.tenant)
            self._sequences[key] = DraftSequence(context, request.spec, self._eos, partial(self._forget, key))
            self.engine.submit(self._sequences[key])
        sequence = self._sequences.get(key)
        if sequence is None or not sequence.holds(request.start):
            return done(DraftAnswer(lost=True))
        self._sequences.move_to_end(key)
        self._forget_oldest()
        sequence.ask(request, done)

    def drop(self, client: Hashable, sequence: int) -> None:
        """Forget a sequence, if it is known."""
        found = self._sequences.pop((client, sequence), None)
        if found is not None:
            found.drop()

    def close(self) -> None:
        """Forget all sequences."""
        while self._sequences:
            self._sequences.popitem()[1].drop()

    def step(self) -> bool:
        """One step of the engine. False when nobody wants anything."""
        return self.engine.step()

    def _forget(self, key: tuple[Hashable, int]) -> None:
        self._sequences.pop(key, None)

    def _forget_oldest(self) -> None:
        while len(self._sequences) > self._most:
            counts = Counter(sequence.context.tenant for sequence in self._sequences.values())
            largest = max(counts, key=lambda tenant: counts[tenant])
            oldest = next(key for key, sequence in self._sequences.items() if sequence.context.tenant == largest)
            self._sequences.pop(oldest).drop()
