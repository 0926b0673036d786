"""``model.embed``: each input in a context of its own, which lives as long as the request."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from functools import partial

from inferd import protocol as p
from inferd.protocol.passes import check_input
from inferd_runtime.engine.adapters import AdapterLease
from inferd_runtime.engine.jobs.embedding import Embedding, normalized, pooling_of
from inferd_runtime.engine.sampling.probes import check_numbers, check_vocabulary, pack
from inferd_runtime.session.served_model import ServedModel
from inferd_runtime.session.state import Call, SessionState
from inferd_runtime.session.texts import check_text, run_with

IN_FLIGHT_TOKENS = 4096
"""Of one request: enough for full steps, and little beside what else is in the cache."""


class EmbedRequest:
    """The inputs of one request, several at a time in the batch; answered when the last one ends, or the first one fails."""

    def __init__(self, state: SessionState, call: Call, model: ServedModel, lease: AdapterLease) -> None:
        self._state = state
        self._call = call
        self._model = model
        self._lease = lease
        self._waiting: deque[Sequence[int]] = deque()
        self._jobs: list[Embedding] = []
        self._in_flight = 0
        self._running = 0
        self._numbers = 0
        self._prompt_tokens = 0
        self._answered = False
        state.waiting[call.ticket] = lambda: self.fail(p.Cancelled("the operation was cancelled"))

    def run(self, inputs: Sequence[Sequence[int]]) -> None:
        """Put the inputs into the batch, one after the other."""
        self._waiting.extend(inputs)
        self._prompt_tokens = sum(map(len, inputs))
        self._feed()

    def _feed(self) -> None:
        try:
            while self._waiting and self._start(self._waiting[0]):
                self._waiting.popleft()
        except p.InferdError as error:
            self.fail(error)

    def _start(self, tokens: Sequence[int]) -> bool:
        """Start the job of one more input. False if enough inputs run for now, or for the tenant's quota."""
        engine = self._model.engine
        context = engine.create_context(self._state.tenant, meter=self._state.meter)
        wanted = self._in_flight + len(tokens)
        pages = -(-wanted // engine.pool.page_size) + self._running
        if self._running and (wanted > IN_FLIGHT_TOKENS or context.account.short(pages)):
            context.release()
            return False
        context.use_adapter(self._lease.key)
        job = Embedding(context, tokens, pooling_of(self._call.request.pooling), self._spend)
        job.listener = partial(self._ended, job, len(tokens))
        self._jobs.append(job)
        self._in_flight = wanted
        self._running += 1
        engine.submit(job)
        return True

    def fail(self, error: p.InferdError) -> None:
        """Answer with an error and end the running jobs."""
        self._answer(error)
        for job in self._jobs:
            job.fail(error)

    def _spend(self, numbers: int) -> None:
        self._numbers += numbers
        check_numbers(self._numbers)

    def _ended(self, job: Embedding, tokens: int) -> None:
        self._state.count(job.usage)
        self._in_flight -= tokens
        self._running -= 1
        if self._answered:
            return
        if job.error is not None:
            self.fail(job.error)
            return
        self._feed()
        if not self._running and not self._answered:
            self._answer(self._reply())

    def _reply(self) -> p.Embeddings:
        states = [job.states() for job in self._jobs]
        if self._call.request.normalize:
            states = [normalized(each) for each in states]
        return p.Embeddings(states[0].shape[1], [pack(each) for each in states], self._prompt_tokens)

    def _answer(self, reply: p.Embeddings | p.InferdError) -> None:
        if self._answered:
            return
        self._answered = True
        self._lease.release()
        self._state.waiting.pop(self._call.ticket, None)
        self._call.respond(reply)


def embed(state: SessionState, call: Call) -> None:
    """Answer with the pooled hidden states of every input."""
    request: p.Embed = call.request
    p.check_embed(request)
    model = state.model(request.model)
    for text in request.texts:
        check_text(model, len(text), model.engine.driver.max_context)

    def run(inputs: Sequence[Sequence[int]]) -> None:
        check_inputs(inputs, model)
        lease = model.adapters.lease(state.tenant, request.adapter)
        EmbedRequest(state, call, model, lease).run(inputs)

    run_with(state, call, sum(map(len, request.texts)), partial(tokenized, request, model), run)


def tokenized(request: p.Embed, model: ServedModel) -> list[list[int]]:
    """Return the inputs as tokens."""
    if request.tokens:
        return request.tokens
    return [model.tokenizer.encode(text, start=True) for text in request.texts]


def check_inputs(inputs: Sequence[Sequence[int]], model: ServedModel) -> None:
    """Raises InvalidRequest or LimitExceeded for an input that cannot be computed, before any is."""
    longest = model.engine.driver.max_context
    for at, tokens in enumerate(inputs):
        check_input(at, tokens)  # a text may have none
        if len(tokens) > longest:
            raise p.LimitExceeded(
                f"inputs[{at}] has {len(tokens)} tokens, the model's context holds {longest}",
                limit="context_tokens", value=longest, raise_with="a model with a longer context",
            )  # fmt: skip
        check_vocabulary(f"inputs[{at}]", tokens, model.engine.driver.vocab_size)


HANDLERS = {p.Embed: embed}
