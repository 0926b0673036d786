"""``model.embed``: each input in a context of its own, which lives as long as the request."""

from __future__ import annotations

from collections.abc import Sequence

from inferd import protocol as p
from inferd_runtime.engine.adapters import AdapterLease
from inferd_runtime.engine.embedding import Embedding, normalized, pooling_of
from inferd_runtime.engine.probes import check_numbers, pack
from inferd_runtime.session.host import ServedModel
from inferd_runtime.session.state import Call, SessionState

MAX_INPUTS = 1024


class EmbedRequest:
    """The inputs of one request, in the batch together; answered when the last one ends, or the first one fails."""

    def __init__(self, state: SessionState, call: Call, lease: AdapterLease) -> None:
        self._state = state
        self._call = call
        self._lease = lease
        self._jobs: list[Embedding] = []
        self._numbers = 0
        self._answered = False
        state.waiting[call.ticket] = lambda: self.fail(p.Cancelled("the operation was cancelled"))

    def run(self, model: ServedModel, inputs: Sequence[Sequence[int]], pooling: str) -> None:
        """Put every input into the batch. Raises InvalidRequest or LimitExceeded, and then none is there."""
        try:
            for tokens in inputs:
                context = model.engine.create_context(self._state.tenant)
                context.use_adapter(self._lease.key)
                job = Embedding(context, tokens, pooling_of(pooling), self._spend)
                job.listener = self._ended
                self._jobs.append(job)
        except p.InferdError as error:
            self.fail(error)
            return
        for job in self._jobs:
            model.engine.submit(job)

    def fail(self, error: p.InferdError) -> None:
        """Answer with an error and end what still runs."""
        self._answer(error)
        for job in self._jobs:
            job.fail(error)

    def _spend(self, numbers: int) -> None:
        self._numbers += numbers
        check_numbers(self._numbers)

    def _ended(self) -> None:
        if self._answered:
            return
        failed = next((job.error for job in self._jobs if job.error is not None), None)
        if failed is not None:
            self.fail(failed)
        elif all(job.finished() for job in self._jobs):
            self._answer(self._reply())

    def _reply(self) -> p.Embeddings:
        states = [job.states() for job in self._jobs]
        if self._call.request.normalize:
            states = [normalized(each) for each in states]
        return p.Embeddings(states[0].shape[1], [pack(each) for each in states])

    def _answer(self, reply: p.Embeddings | p.InferdError) -> None:
        if self._answered:
            return
        self._answered = True
        self._lease.release()
        self._state.waiting.pop(self._call.ticket, None)
        self._call.respond(reply)


def embed(state: SessionState, call: Call) -> None:
    """Pooled hidden states of every input."""
    request: p.Embed = call.request
    model = state.model(request.model)
    inputs = tokenized(request, model)
    pooling_of(request.pooling)
    lease = model.adapters.lease(state.tenant, request.adapter)
    state.count(p.Usage(prompt_tokens=sum(len(tokens) for tokens in inputs)))
    EmbedRequest(state, call, lease).run(model, inputs, request.pooling)


def tokenized(request: p.Embed, model: ServedModel) -> list[list[int]]:
    """The inputs as tokens. Raises InvalidRequest when there are none or both kinds, LimitExceeded for too many."""
    if bool(request.texts) == bool(request.tokens):
        raise p.InvalidRequest("embed needs texts or tokens, and not both")
    if max(len(request.texts), len(request.tokens)) > MAX_INPUTS:
        raise p.LimitExceeded(
            f"embed: {max(len(request.texts), len(request.tokens))} inputs; {MAX_INPUTS} are allowed",
            limit="embed_inputs", value=MAX_INPUTS, raise_with="several calls",
        )  # fmt: skip
    if request.tokens:
        return request.tokens
    return [model.tokenizer.encode(text, start=True) for text in request.texts]


HANDLERS = {p.Embed: embed}
