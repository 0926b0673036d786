"""``context.flush``, ``forward``, ``prompt_logprobs``, ``speculation.verify``: work in the batch that is not a generation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from inferd import protocol as p
from inferd_runtime.engine.adapters import AdapterLease
from inferd_runtime.engine.jobs.draft_verification import PROGRAM, DraftVerification
from inferd_runtime.engine.jobs.forward_pass import ContextJob, ForwardPass, Prefill, RowSpec
from inferd_runtime.engine.jobs.prompt_scoring import PromptScoring
from inferd_runtime.engine.sampling.probes import RowEdit, read_mask, resolve_all
from inferd_runtime.engine.sequences.visibility import RunEnds, ends_of
from inferd_runtime.session.served_model import ServedModel
from inferd_runtime.session.state import Call, OpenContext, SessionState

MAX_RUNS = 1 << 20
"""Runs of one attention mask."""


def flush(state: SessionState, call: Call) -> None:
    """Compute all pending tokens but the last one."""
    request: p.FlushContext = call.request
    entry = state.free_context(request.context)
    with entry.leased(request.adapter) as lease:
        job = Prefill(entry.context)
        await_job(state, call, job, lambda: state.context_state(request.context), lease)
    job.end_if_done()
    entry.model.engine.submit(job)


def forward(state: SessionState, call: Call) -> None:
    """Run a program's own forward pass."""
    request: p.Forward = call.request
    p.check_forward(request)
    entry = state.free_context(request.context)
    rows = row_spec(request, entry)
    held = len(entry.context.tokens)
    visible = visibility(request.attention_mask, held, held + len(request.tokens))
    with entry.leased(request.adapter) as lease:
        job = ForwardPass(entry.context, request.tokens, request.at, rows, positions=request.positions, visible=visible)
        await_job(state, call, job, lambda: p.ForwardResult(job.rows(), len(entry.context.tokens)), lease)
    entry.model.engine.submit(job)


def prompt_logprobs(state: SessionState, call: Call) -> None:
    """Score each token of a text."""
    request: p.PromptLogprobs = call.request
    p.check_prompt_logprobs(request)
    entry = state.free_context(request.context)
    with entry.leased(request.adapter) as lease:
        job = PromptScoring(entry.context, request.tokens, request.top)
        await_job(state, call, job, lambda: p.TokenLogprobs(job.scores(), len(entry.context.tokens)), lease)
    job.end_if_done()
    entry.model.engine.submit(job)


def verify(state: SessionState, call: Call) -> None:
    """Verify a program's draft in one step."""
    request: p.VerifyDraft = call.request
    p.check_verify(request)
    entry = state.free_context(request.context)
    sampler = entry.row_sampler(request.sampling)
    with entry.leased(request.adapter) as lease:
        job = DraftVerification(
            entry.context, request.tokens, request.parents, sampler, entry.model.tokenizer.eos_tokens, request.generated
        )
        await_job(state, call, job, lambda: verified(job, entry.model), lease)
    entry.model.engine.submit(job)


def verified(job: DraftVerification, model: ServedModel) -> p.Verification:
    """Count the draft among the model's and return the answer."""
    accepted = len(job.accepted)
    counts = [p.SourceCount(PROGRAM, job.drafted, 0, accepted)] if job.drafted else []
    model.engine.draft_budget.counters.count(counts, accepted, accepted + 1)
    return p.Verification(job.accepted, job.token, job.path, len(job.context.tokens), job.drafted)


def row_spec(request: p.Forward, entry: OpenContext) -> RowSpec:
    """Return what a checked request wants of each row. Raises InvalidRequest or LimitExceeded for what the model has not."""
    vocab_size = entry.model.engine.driver.vocab_size
    mask = read_mask(request.mask, request.mask_bits, vocab_size)
    edit = RowEdit.resolve(mask, request.bias_tokens, request.bias_values, vocab_size)
    readings = resolve_all(request.probes, len(request.at) or 1, request.top, vocab_size)
    return RowSpec(entry.row_sampler(request.sampling), edit, request.top, readings)


def visibility(rows: Sequence[Sequence[int]], start: int, length: int) -> list[RunEnds]:
    """Return run lengths (hidden, seen, hidden, ...) of the tokens from ``start`` on as rows, of contexts of ``length`` tokens.

    Each speaks of all tokens up to its own, or of more. Raises InvalidRequest or LimitExceeded.
    """
    count = sum(map(len, rows))
    if count > MAX_RUNS:
        raise p.LimitExceeded(
            f"attention_mask: {count} runs; {MAX_RUNS} are allowed", limit="attention_mask", value=MAX_RUNS,
            raise_with="several calls, or a mask of fewer runs",
        )  # fmt: skip
    for at, runs in enumerate(rows):
        if min(runs, default=0) < 0 or not start + at < sum(runs) <= length:
            raise p.InvalidRequest(
                f"attention_mask[{at}] speaks of {sum(runs)} tokens; with those given the context holds {length}"
            )
    return [ends_of(runs) for runs in rows]


def await_job(state: SessionState, call: Call, job: ContextJob, reply: Callable[[], Any], lease: AdapterLease) -> None:
    """Answer with ``reply()`` or the job's error when it ends, count its use, and release the adapter. A cancel ends the job."""

    def ended() -> None:
        lease.release()
        state.count(job.usage)
        state.waiting.pop(call.ticket, None)
        call.respond(job.error if job.error is not None else reply())

    job.listener = ended
    state.waiting[call.ticket] = lambda: job.fail(p.Cancelled("the operation was cancelled"))


HANDLERS = {p.FlushContext: flush, p.Forward: forward, p.PromptLogprobs: prompt_logprobs, p.VerifyDraft: verify}
