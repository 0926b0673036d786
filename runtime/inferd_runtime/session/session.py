"""One program's or script's open handles: protocol operations become engine calls. Synchronous; answers may come later."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from typing import Any

from inferd import protocol as p
from inferd_runtime.engine.context import Context
from inferd_runtime.engine.generation import Generation
from inferd_runtime.engine.jobs import ForwardPass, Prefill
from inferd_runtime.engine.sampling import RowSampler
from inferd_runtime.session import generating, transcript
from inferd_runtime.session.host import ServedModel

Respond = Callable[[Any], None]
MAX_HANDLES = 4096


class OpenContext:
    """A context handle: the engine's context, its model, and where the conversation stands."""

    def __init__(self, model: ServedModel, context: Context, turn: transcript.Turn) -> None:
        self.model = model
        self.context = context
        self._turns = [(0, turn)]

    @property
    def turn(self) -> transcript.Turn:
        """Where the conversation stands at the end of the context."""
        return self._turns[-1][1]

    def stand_at(self, turn: transcript.Turn) -> None:
        """Note where the conversation stands now."""
        self._turns.append((len(self.context.tokens), turn))

    def truncate(self, length: int) -> None:
        """Cut the context; the conversation stands where it stood then."""
        self.context.truncate(length)
        self._turns = [self._turns[0], *(mark for mark in self._turns[1:] if mark[0] <= length)]

    def fork(self) -> OpenContext:
        """A copy that stands at the same place, and knows the earlier ones."""
        child = OpenContext(self.model, self.context.fork(), self._turns[0][1])
        child._turns = list(self._turns)
        return child


class Session:
    """Turns requests into engine calls. ``respond`` gets a reply dataclass or an InferdError, now or after later steps.

    Handles are numbers that mean nothing outside this session; closing it releases all of them.
    """

    def __init__(self, models: Mapping[str, ServedModel], tenant: str, label: str = "") -> None:
        self.tenant = tenant
        self.label = label
        self._models = models
        self._contexts: dict[int, OpenContext] = {}
        self._generations: dict[int, generating.OpenGeneration] = {}
        self._waiting: dict[int, Callable[[], None]] = {}
        self._usage = p.Usage()
        self._next_handle = 0
        self._handlers: dict[type[Any], Callable[[int, Any, Respond], None]] = {
            p.ListModels: self._list_models,
            p.Tokenize: self._tokenize,
            p.Detokenize: self._detokenize,
            p.CreateContext: self._create,
            p.AppendContext: self._append,
            p.FlushContext: self._flush,
            p.ForkContext: self._fork,
            p.TruncateContext: self._truncate,
            p.ContextTokens: self._tokens,
            p.ReleaseContext: self._release,
            p.Forward: self._forward,
            p.StartGenerate: self._start,
            p.NextSteps: self._next,
            p.CloseGenerate: self._close_generation,
            p.GetUsage: self._get_usage,
        }

    def handle(self, ticket: int, request: Any, respond: Respond) -> None:
        """Carry out one request. Every request is answered exactly once."""
        handler = self._handlers.get(type(request))
        try:
            if handler is None:
                raise p.InvalidRequest(f"{type(request).op!r} is not available here")
            handler(ticket, request, respond)
        except p.InferdError as error:
            respond(error)

    def cancel(self, ticket: int) -> None:
        """Drop a request that waits; it is answered with Cancelled. One that is already answered is left alone."""
        stop = self._waiting.pop(ticket, None)
        if stop is not None:
            stop()

    def close(self) -> p.Usage:
        """Release everything; what still waits is answered with Cancelled."""
        for ticket in list(self._waiting):
            self.cancel(ticket)
        for generation in self._generations.values():
            generation.close()
        for handle in list(self._contexts):
            self._drop(handle)
        return self._total()

    def owned_tables(self) -> list[list[int]]:
        """The pages of every open context, for the pool's integrity check."""
        return [entry.context.table.pages for entry in self._contexts.values()]

    # -- Model ----------------------------------------------------------------------------------------------------

    def _list_models(self, ticket: int, request: p.ListModels, respond: Respond) -> None:
        respond(p.Models([model.info for model in self._models.values()]))

    def _tokenize(self, ticket: int, request: p.Tokenize, respond: Respond) -> None:
        respond(p.Tokens(self._model(request.model).tokenizer.encode(request.text, special=request.special)))

    def _detokenize(self, ticket: int, request: p.Detokenize, respond: Respond) -> None:
        model = self._model(request.model)
        for token in request.tokens:
            if not 0 <= token < model.info.vocab_size:
                raise p.InvalidRequest(f"token id {token} is outside the vocabulary of {model.info.vocab_size}")
        respond(p.Text(model.tokenizer.decode(request.tokens, special=request.special)))

    def _model(self, name: str) -> ServedModel:
        if not name:
            return next(iter(self._models.values()))
        if name not in self._models:
            raise p.NotFound(f"no model {name!r} is served; there is {', '.join(self._models)}")
        return self._models[name]

    # -- Contexts -------------------------------------------------------------------------------------------------

    def _create(self, ticket: int, request: p.CreateContext, respond: Respond) -> None:
        model = self._model(request.model)
        respond(self._open(OpenContext(model, model.engine.create_context(), transcript.Turn())))

    def _append(self, ticket: int, request: p.AppendContext, respond: Respond) -> None:
        entry = self._free(request.context)
        last = entry.context.tokens[-1] if entry.context.tokens else None
        tokens, turn = transcript.render(request.parts, entry.turn, last, entry.model.tokenizer)
        entry.context.append(tokens)
        entry.stand_at(turn)
        respond(self._state(request.context))

    def _flush(self, ticket: int, request: p.FlushContext, respond: Respond) -> None:
        entry = self._free(request.context)
        job = Prefill(entry.context)
        self._await_job(ticket, job, respond, lambda: self._state(request.context))
        job.settle()
        entry.model.engine.submit(job)

    def _fork(self, ticket: int, request: p.ForkContext, respond: Respond) -> None:
        entry = self._free(request.context)
        self._check_room()
        respond(self._open(entry.fork()))

    def _truncate(self, ticket: int, request: p.TruncateContext, respond: Respond) -> None:
        entry = self._free(request.context)
        entry.truncate(request.length)
        respond(self._state(request.context))

    def _tokens(self, ticket: int, request: p.ContextTokens, respond: Respond) -> None:
        respond(p.Tokens(self._context(request.context).context.tokens[max(0, request.start) :]))

    def _release(self, ticket: int, request: p.ReleaseContext, respond: Respond) -> None:
        self._free(request.context)
        self._drop(request.context)
        respond(p.Done())

    def _open(self, entry: OpenContext) -> p.ContextState:
        self._check_room()
        self._next_handle += 1
        self._contexts[self._next_handle] = entry
        return self._state(self._next_handle)

    def _check_room(self) -> None:
        if max(len(self._contexts), len(self._generations)) >= MAX_HANDLES:
            raise p.LimitExceeded(
                f"a session may hold {MAX_HANDLES} contexts and as many generations; release or close some",
                limit="handles", value=MAX_HANDLES,
            )  # fmt: skip

    def _context(self, handle: int) -> OpenContext:
        if handle not in self._contexts:
            raise p.NotFound(f"context {handle} does not exist or was released")
        return self._contexts[handle]

    def _free(self, handle: int) -> OpenContext:
        """The context, once a generation that has finished on it is closed. InvalidRequest while anything works on it."""
        entry = self._context(handle)
        user = entry.context.user
        if isinstance(user, Generation) and user.finished() and not user.outbox:
            user.close()
        if entry.context.user is not None:
            raise p.InvalidRequest("the context is in use: close its generation or wait for its operation first")
        return entry

    def _state(self, handle: int) -> p.ContextState:
        context = self._contexts[handle].context
        return p.ContextState(handle, len(context.tokens), context.pending)

    def _drop(self, handle: int) -> None:
        entry = self._contexts.pop(handle)
        if entry.context.user is None:
            entry.context.release()

    # -- Work in the batch ----------------------------------------------------------------------------------------

    def _forward(self, ticket: int, request: p.Forward, respond: Respond) -> None:
        entry = self._free(request.context)
        job = ForwardPass(
            entry.context, request.tokens, request.at, self._sampler(request.sampling, entry), request.top
        )
        self._await_job(ticket, job, respond, lambda: p.Rows(job.rows(), len(entry.context.tokens)))
        entry.model.engine.submit(job)

    def _await_job(self, ticket: int, job: Prefill | ForwardPass, respond: Respond, reply: Callable[[], Any]) -> None:
        def ended() -> None:
            self._waiting.pop(ticket, None)
            respond(job.error if job.error is not None else reply())

        job.listener = ended
        self._waiting[ticket] = lambda: job.fail(p.Cancelled("the operation was cancelled"))

    def _sampler(self, sampling: p.Sampling, entry: OpenContext) -> RowSampler:
        seed = secrets.randbits(63) if sampling.seed is None else sampling.seed
        return RowSampler.resolve(sampling, seed=seed, lineage=entry.context.lineage)

    # -- Generations ----------------------------------------------------------------------------------------------

    def _start(self, ticket: int, request: p.StartGenerate, respond: Respond) -> None:
        entry = self._free(request.context)
        self._check_room()
        prompt = list(entry.context.tokens)
        opened = generating.start(request, entry.model, entry.context, self._sampler(request.sampling, entry))
        self._next_handle += 1
        self._generations[self._next_handle] = opened
        self._count_prompt(len(prompt))
        respond(p.Generation(self._next_handle, len(prompt), prompt if request.program_speculation else []))

    def _next(self, ticket: int, request: p.NextSteps, respond: Respond) -> None:
        opened = self._generation(request.generation)
        opened.request_steps(request)

        def deliver() -> None:
            reply = opened.finished_steps()
            if reply is not None:
                self._waiting.pop(ticket, None)
                opened.generation.listener = None
                respond(reply)

        def stop() -> None:
            opened.generation.listener = None
            respond(p.Cancelled("the operation was cancelled"))

        self._waiting[ticket] = stop
        opened.generation.listener = deliver
        deliver()

    def _close_generation(self, ticket: int, request: p.CloseGenerate, respond: Respond) -> None:
        opened = self._generation(request.generation)
        opened.generation.close(request.keep)
        if opened.generation.listener is not None:
            opened.generation.listener()
        del self._generations[request.generation]
        self._add(opened)
        handle = next((h for h, entry in self._contexts.items() if entry.context is opened.generation.context), None)
        respond(self._state(handle) if handle is not None else p.ContextState(0, 0, 0))

    def _generation(self, handle: int) -> generating.OpenGeneration:
        if handle not in self._generations:
            raise p.NotFound(f"generation {handle} does not exist or was closed")
        return self._generations[handle]

    # -- Usage ----------------------------------------------------------------------------------------------------

    def _get_usage(self, ticket: int, request: p.GetUsage, respond: Respond) -> None:
        respond(self._total())

    def _count_prompt(self, tokens: int) -> None:
        self._usage = generating.add_usage(self._usage, p.Usage(prompt_tokens=tokens))

    def _add(self, opened: generating.OpenGeneration) -> None:
        self._usage = generating.add_usage(self._usage, opened.usage())

    def _total(self) -> p.Usage:
        total = self._usage
        for opened in self._generations.values():
            total = generating.add_usage(total, opened.usage())
        return total
