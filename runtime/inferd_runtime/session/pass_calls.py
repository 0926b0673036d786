"""``context.flush`` and ``forward``: work in the batch that is not a generation."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Any

from inferd import protocol as p
from inferd_runtime.engine.jobs import ForwardPass, Prefill
from inferd_runtime.engine.sampling import RowSampler
from inferd_runtime.session.state import Call, OpenContext, SessionState


def flush(state: SessionState, call: Call) -> None:
    """Compute what is pending, but for the last token."""
    request: p.FlushContext = call.request
    entry = state.free_context(request.context)
    job = Prefill(entry.context)
    await_job(state, call, job, lambda: state.context_state(request.context))
    job.settle()
    entry.model.engine.submit(job)


def forward(state: SessionState, call: Call) -> None:
    """A program's own forward pass."""
    request: p.Forward = call.request
    entry = state.free_context(request.context)
    sampler = row_sampler(request.sampling, entry)
    job = ForwardPass(entry.context, request.tokens, request.at, sampler, request.top)
    await_job(state, call, job, lambda: p.Rows(job.rows(), len(entry.context.tokens)))
    entry.model.engine.submit(job)


def await_job(state: SessionState, call: Call, job: Prefill | ForwardPass, reply: Callable[[], Any]) -> None:
    """Answer when the job ends: ``reply()``, or its error. A cancel ends it."""

    def ended() -> None:
        state.waiting.pop(call.ticket, None)
        call.respond(job.error if job.error is not None else reply())

    job.listener = ended
    state.waiting[call.ticket] = lambda: job.fail(p.Cancelled("the operation was cancelled"))


def row_sampler(sampling: p.Sampling, entry: OpenContext) -> RowSampler:
    """The request's sampler on this context; without a seed one is picked. Raises InvalidRequest."""
    seed = secrets.randbits(63) if sampling.seed is None else sampling.seed
    return RowSampler.resolve(sampling, seed=seed, lineage=entry.context.lineage)


HANDLERS = {p.FlushContext: flush, p.Forward: forward}
