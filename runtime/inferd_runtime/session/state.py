"""The state of one session: open contexts and generations, requests that wait for an answer, and usage."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from inferd import protocol as p
from inferd_runtime.engine.adapters import AdapterLease
from inferd_runtime.engine.jobs.boundary import typed_error
from inferd_runtime.engine.jobs.generation import Generation
from inferd_runtime.engine.sampling.host_sampling import RowSampler
from inferd_runtime.engine.sampling.probes import check_vocabulary
from inferd_runtime.engine.sequences.cached_sequence import CachedSequence
from inferd_runtime.engine.sequences.prompt_meter import PromptMeter
from inferd_runtime.engine.uploads import Uploads
from inferd_runtime.kv.snapshots import SnapshotStore
from inferd_runtime.lanes import Lanes
from inferd_runtime.session.constraints.compile_queue import CompileQueue
from inferd_runtime.session.constraints.held_grammars import HeldGrammars
from inferd_runtime.session.generation.open_generation import OpenGeneration
from inferd_runtime.session.served_model import ServedModel
from inferd_runtime.session.transcript import Turn
from inferd_runtime.session.turn_marks import TurnMarks

Respond = Callable[[Any], None]
MAX_HANDLES = 4096
"""Contexts, and generations, of one session."""
MAX_CONTEXTS = 1 << 14
"""Of all sessions of a tenant."""
MAX_TOKENS = 1 << 24
"""Of a tenant's contexts together, those that they share counted for each: lists of 128 MiB."""
MAX_HELD_NUMBERS = 1 << 26
"""What probes of steps found, rows that programs choose from, and what the requests brought, over all generations of a tenant:
256 MiB as float32.
"""
Publish = Callable[[int, int, Sequence[p.Step]], None]
"""Called with delivered steps: a generation's handle, the number of the first step, the steps."""


def publish_nowhere(generation: int, first: int, steps: Sequence[p.Step]) -> None:
    """Do nothing: for sessions without a feed."""


@dataclass(frozen=True, slots=True)
class Call:
    """One request and the way back: ``respond`` gets a reply dataclass or an InferdError, now or after later steps."""

    ticket: int
    request: Any
    respond: Respond


class OpenContext:
    """A context handle: the engine's context, its model, and where the conversation stands."""

    def __init__(self, model: ServedModel, context: CachedSequence, turns: TurnMarks | None = None) -> None:
        self.model = model
        self.context = context
        self.turns = turns or TurnMarks()

    @property
    def turn(self) -> Turn:
        """Return where the conversation stands at the end of the context."""
        return self.turns.last

    def stand_at(self, turn: Turn) -> None:
        """Note where the conversation stands now."""
        self.turns.set(len(self.context.tokens), turn)

    def stand_from(self, length: int) -> None:
        """Note that the conversation stands from ``length`` on where it stands now: the rest may be rewritten in fewer tokens."""
        self.turns.set(length, self.turn)

    def truncate(self, length: int) -> None:
        """Cut the context; the conversation stands where it stood then."""
        self.context.truncate(length)
        self.turns.cut(length)

    def fork(self, length: int | None = None, behind: Sequence[int] = (), *, own_noise: bool = True) -> OpenContext:
        """Return a copy of the first ``length`` tokens (None: all) with the tokens ``behind`` them, at the same place in the
        conversation. It has its own noise, unless it is to stand for this one.
        """
        child = self.context.fork(length, own_noise=own_noise)
        child.append(behind)
        return OpenContext(self.model, child, self.turns.copy(len(child.tokens)))

    @contextmanager
    def leased(self, adapter: str) -> Iterator[AdapterLease]:
        """Lease an adapter ("": none) and let the context be computed with it from now on.

        The job that computes releases the lease; if the body raises, this does. Raises NotFound when there is no such
        adapter, and InvalidRequest when the context cannot be computed again with another one.
        """
        lease = self.model.adapters.lease(self.context.tenant, adapter)
        with ExitStack() as on_error:
            on_error.callback(lease.release)
            self.context.use_adapter(lease.key)
            yield lease
            on_error.pop_all()

    def row_sampler(self, sampling: p.Sampling) -> RowSampler:
        """Return the checked sampler, with a random seed if it has none. Raises InvalidRequest or LimitExceeded."""
        seed = secrets.randbits(63) if sampling.seed is None else sampling.seed
        sampler = RowSampler.resolve(sampling, seed=seed, lineage=self.context.lineage)
        for name, tokens in (("logit_bias", sampling.bias_tokens), ("allowed_tokens", sampling.allowed_tokens)):
            check_vocabulary(name, tokens, self.model.engine.driver.vocab_size)  # once they are few
        return sampler


class SessionState:
    """The handles of one session. They are numbers that mean nothing outside of it."""

    def __init__(
        self,
        models: Mapping[str, ServedModel],
        tenant: str,
        snapshots: SnapshotStore | None = None,
        compiles: CompileQueue | None = None,
        texts: Lanes | None = None,
        siblings: list[SessionState] | None = None,
        name: str = "",
        publish: Publish = publish_nowhere,
    ) -> None:
        """Without ``compiles`` constraints are compiled, and without ``texts`` long texts tokenized, at once, in the caller's
        thread. ``siblings``: the open sessions of the tenant, which this one joins: what they hold of the process's memory is
        bounded together. ``name``: as its grant says, for figures of its generations.
        """
        self.tenant = tenant
        self.siblings = [] if siblings is None else siblings
        self.siblings.append(self)
        self.name = name
        self.models = models
        self.snapshots = snapshots
        self.compiles = compiles
        self.texts = texts
        self.held = False
        """True while a request is carried out that all later ones of the session have to wait for."""
        self.contexts: dict[int, OpenContext] = {}
        self.generations: dict[int, OpenGeneration] = {}
        self.held_numbers = 0
        self.grammars = HeldGrammars(lambda: (state.grammars for state in self.siblings))
        self.waiting: dict[int, Callable[[], None]] = {}
        self.uploads: set[tuple[Uploads, int]] = set()
        self.publish = publish
        self.meter = PromptMeter()
        self._usage = p.Usage()
        self._last_handle = 0

    def model(self, name: str) -> ServedModel:
        """Return the model of that name, "" for the default one. Raises NotFound, which names those that are served."""
        if not name:
            return next(iter(self.models.values()))
        if name not in self.models:
            raise p.NotFound(f"no model {p.shown(name)} is served; there is {', '.join(self.models)}")
        return self.models[name]

    # -- Contexts -------------------------------------------------------------------------------------------------

    def open_context(self, entry: OpenContext) -> p.ContextState:
        """Give a context a handle. Raises LimitExceeded when the session holds too many; the context is released then."""
        try:
            self.check_room()
            self.check_tokens(0)
        except p.LimitExceeded:
            entry.context.release()
            raise
        self._last_handle += 1
        self.contexts[self._last_handle] = entry
        return self.context_state(self._last_handle)

    def context(self, handle: int) -> OpenContext:
        """Return the context of a handle. Raises NotFound."""
        if handle not in self.contexts:
            raise p.NotFound(f"context {handle} does not exist or was released")
        return self.contexts[handle]

    def free_context(self, handle: int) -> OpenContext:
        """Close a finished generation on the context and return it. Raises InvalidRequest while a job works on it."""
        entry = self.context(handle)
        user = entry.context.user
        if isinstance(user, Generation) and user.finished() and not user.outbox:
            self.end_generation(user)
        entry.context.check_unused()
        return entry

    def context_state(self, handle: int) -> p.ContextState:
        """Return the reply about a context."""
        context = self.contexts[handle].context
        return p.ContextState(handle, len(context.tokens), context.pending)

    def drop_context(self, handle: int) -> None:
        """Forget a handle and release its context."""
        entry = self.contexts.pop(handle)
        if entry.context.user is None:
            entry.context.release()

    # -- Generations ----------------------------------------------------------------------------------------------

    def open_generation(self, opened: OpenGeneration) -> int:
        """Give a generation a handle."""
        self._last_handle += 1
        self.generations[self._last_handle] = opened
        self.held_numbers += opened.held_numbers
        return self._last_handle

    def drop_generation(self, handle: int) -> None:
        """Forget the handle of a closed generation."""
        self.held_numbers -= self.generations.pop(handle).held_numbers

    def generation(self, handle: int) -> OpenGeneration:
        """Return the generation of a handle. Raises NotFound."""
        if handle not in self.generations:
            raise p.NotFound(f"generation {handle} does not exist or was closed")
        return self.generations[handle]

    def running_on(self, context: CachedSequence) -> OpenGeneration | None:
        """Return the generation that owns the context, or None."""
        return next((opened for opened in self.generations.values() if opened.generation is context.user), None)

    def end_generation(self, generation: Generation) -> None:
        """Close a generation but keep its handle, which still tells why it ended. A waiting ``generate.next`` is answered."""
        for opened in self.generations.values():
            if opened.generation is generation:
                opened.close()
        if generation.listener is not None:
            generation.listener()

    def check_room(self) -> None:
        """Raise LimitExceeded when the session holds as many handles as it may."""
        if max(len(self.contexts), len(self.generations)) >= MAX_HANDLES:
            raise p.LimitExceeded(
                f"a session may hold {MAX_HANDLES} contexts and as many generations; release or close some",
                limit="handles", value=MAX_HANDLES,
            )  # fmt: skip
        contexts = self._of_all(lambda state: len(state.contexts))
        if max(contexts, self._of_all(lambda state: len(state.generations))) >= MAX_CONTEXTS:
            raise p.LimitExceeded(
                f"the sessions of a tenant may hold {MAX_CONTEXTS} contexts together, and as many generations",
                limit="contexts", value=MAX_CONTEXTS, raise_with="releasing or closing some",
            )  # fmt: skip

    def check_tokens(self, more: int) -> None:
        """Raise LimitExceeded if the tenant's contexts have no room for ``more`` tokens."""
        held = sum(model.engine.accounts.of(self.tenant).tokens for model in self.models.values())
        if held + more > MAX_TOKENS:
            raise p.LimitExceeded(
                f"the contexts of a tenant may hold {MAX_TOKENS} tokens together", limit="held_tokens", value=MAX_TOKENS,
                raise_with="releasing some",
            )  # fmt: skip

    def check_numbers(self, more: int) -> None:
        """Raise LimitExceeded if a generation that holds ``more`` numbers is too much beside the open ones."""
        if self._of_all(lambda state: state.held_numbers) + more > MAX_HELD_NUMBERS:
            raise p.LimitExceeded(
                f"the generations of a tenant may hold {MAX_HELD_NUMBERS} numbers of probes, candidates, predictions and biases",
                limit="held_numbers", value=MAX_HELD_NUMBERS, raise_with="fewer such generations at a time",
            )  # fmt: skip

    def leave(self) -> None:
        """Stop counting among the tenant's sessions."""
        self.siblings[:] = [state for state in self.siblings if state is not self]

    def _of_all(self, count: Callable[[SessionState], int]) -> int:
        """Return a count over all sessions of the tenant."""
        return sum(map(count, self.siblings))

    # -- Usage ----------------------------------------------------------------------------------------------------

    def count(self, used: p.Usage) -> None:
        """Add to the session's usage."""
        self._usage += used

    def usage(self) -> p.Usage:
        """Return the session's usage, open generations included."""
        total = self._usage + p.Usage(self.meter.prompt_tokens, cached_tokens=self.meter.cached_tokens)
        for opened in self.generations.values():
            total += opened.usage()
        return total


def guarded(reply: Callable[..., Any], *arguments: Any) -> Any:
    """Return what ``reply`` returns, or the error it raised: for answers outside of a request handler."""
    try:
        return reply(*arguments)
    except Exception as error:  # noqa: BLE001 - the boundary of one request: the engine serves others, too
        return typed_error(error)
