"""Compiles constraints beside the step loop: threads wait for the trial and the compile, the loop polls for the outcome."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Protocol

from inferd import protocol as p
from inferd_grammar import Compiled, Constraint, GrammarCompiler, GrammarError, GrammarFailure, RegexGrammar
from inferd_grammar.cache import CacheKey
from inferd_grammar.errors import GrammarInterrupted, GrammarLimit
from inferd_runtime.lanes import Charge, Lanes, Piece, free

CompileOutcome = Compiled | p.InferdError
CompileCallback = Callable[[CompileOutcome], None]
LANES = 2
ASIDE = 4
"""Compiles that take long, beside those: their children have what others leave of the processors, and at most a GiB each."""
MAX_WAITING = 64
"""Constraints of one tenant that wait to be compiled."""
TELL_SECONDS = 4e-3
"""Telling what has ended between two steps ends after so long: each of a thousand who wait for it may begin a generation."""

WARM_UP = RegexGrammar("warm")


class Children(Protocol):
    """The processes behind the compilers' trials (:class:`~inferd_grammar.trials.pool.TrialPool`)."""

    def close(self) -> None:
        """End them, so that no compile waits any more."""

    def on_slow(self, call: Callable[[], None]) -> None:
        """Have the thread of an attempt that takes long call this."""

    def take_spent(self) -> float:
        """Return the processor seconds that they have used for the calling thread since it last asked."""


@dataclass
class _Job:
    """A compile with all requests that wait for it. It is found by ``key`` until it has ended; ``outcome``: what it ended in."""

    key: tuple[int, CacheKey]
    listeners: deque[CompileCallback] = field(default_factory=deque)
    outcome: CompileOutcome | None = None


class CompileQueue:
    """Belongs to the thread of the step loop, which polls :meth:`fileno` with its other sources and calls :meth:`poll`.

    Tenants take turns (:class:`~inferd_runtime.lanes.Lanes`), those whose constraints take long make room for others, and each
    pays for its children's processor time. A constraint that a tenant asks for several times at once is compiled once. What
    another tenant asks for, or has compiled, plays no part: it would have to wait in that one's turn, and could tell what that
    one uses.
    """

    def __init__(self, trials: Children, *, charge: Charge = free) -> None:
        self._trials = trials
        self._lanes = Lanes(LANES, "compile", charge, aside=ASIDE)
        trials.on_slow(self._lanes.give_way)
        self._charge = charge
        self._known: dict[tuple[int, CacheKey], _Job] = {}
        self._ended: dict[str, deque[_Job]] = {}
        """By tenant, those that somebody is still to be told of."""

    def submit(
        self, tenant: str, compiler: GrammarCompiler, constraint: Constraint, done: CompileCallback
    ) -> Callable[[], None]:
        """Compile; :meth:`poll` then calls ``done``, which must not raise. Returns what takes ``done`` back.

        Raises GrammarError for what is refused at once, LimitExceeded when too much of the tenant waits.
        """
        key = (id(compiler), compiler.key(constraint, tenant))
        job = self._known.get(key)
        if job is None:
            self._check_room(tenant)
            job = self._known[key] = _Job(key)
            job.listeners.append(done)
            self._enqueue(tenant, lambda: _searched(compiler.compile(constraint, tenant)), job)
        else:
            job.listeners.append(done)
        return lambda: job.listeners.remove(done) if done in job.listeners else None

    def run(self, tenant: str, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        """Other slow work about constraints, in the tenant's turn: ``done`` gets its result, or the InferdError it ended with.

        It holds a lane until it ends, so it must have a bound of its own.
        """
        self._lanes.submit(Piece(tenant, work, lambda future: done(_outcome(future))))

    def fileno(self) -> int:
        """Readable when :meth:`poll` has something to do."""
        return self._lanes.fileno()

    def wait(self, seconds: float) -> bool:
        """Wait until there may be something to do, for callers that poll nothing else. False when the time is up."""
        return self._lanes.wait(seconds)

    def poll(self) -> bool:
        """Tell what has ended, and start what waited for it. False when nothing has."""
        progressed = self._lanes.poll()
        return self._tell() or progressed

    def warm(self, compilers: Sequence[GrammarCompiler]) -> None:
        """Have a child ready that knows their tokenizers, before anybody needs it."""
        for compiler in compilers:
            with contextlib.suppress(GrammarError):  # the child ended meanwhile: the next constraint starts another
                if compiler.find(WARM_UP) is None:
                    self.submit("", compiler, WARM_UP, lambda _: None)

    def close(self) -> None:
        """End the children and drop waiting jobs without an answer."""
        self._lanes.drop_waiting()
        self._trials.close()
        self._lanes.close()

    def _check_room(self, tenant: str) -> None:
        waiting = self._lanes.waiting(tenant)
        if waiting >= MAX_WAITING:
            raise p.LimitExceeded(
                f"{waiting} constraints of this tenant wait to be compiled", limit="waiting_constraints",
                value=MAX_WAITING, raise_with="waiting for some of them",
            )  # fmt: skip

    def _enqueue(self, tenant: str, work: Callable[[], Compiled], job: _Job) -> None:
        def wanted() -> bool:
            if not job.listeners:
                del self._known[job.key]
            return bool(job.listeners)

        def done(future: Future[Any]) -> None:
            del self._known[job.key]
            job.outcome = _outcome(future)
            self._ended.setdefault(tenant, deque()).append(job)

        self._lanes.submit(Piece(tenant, work, done, wanted, self._trials.take_spent))

    def _tell(self) -> bool:
        """Tell those who wait, one of each tenant in turn, which pays for it, for a few milliseconds; False if nobody does."""
        told, started = False, time.perf_counter()
        now = started
        while self._ended and now - started < TELL_SECONDS:
            tenant = next(iter(self._ended))
            told |= self._tell_one(tenant)
            before, now = now, time.perf_counter()
            self._charge(tenant, now - before)
        if self._ended:
            self._lanes.wake()
        return told

    def _tell_one(self, tenant: str) -> bool:
        jobs = self._ended.pop(tenant)
        job = jobs[0]
        listener = job.listeners.popleft() if job.listeners else None
        if not job.listeners:
            jobs.popleft()
        if jobs:
            self._ended[tenant] = jobs  # behind the others now
        if listener is not None and job.outcome is not None:
            listener(job.outcome)
        return listener is not None


def _searched(compiled: Compiled) -> Compiled:
    """Have the end of a constraint looked for, which takes up to a second where it was not done yet: not of the step loop."""
    with contextlib.suppress(GrammarFailure):  # raised again where the end is asked for
        compiled.shortest()
    return compiled


def refused(error: GrammarError) -> p.InferdError:
    """Return the error for the program: LimitExceeded, Unavailable where it may go well the next time, or ConstraintError with
    the JSON pointer where it is known.
    """
    if isinstance(error, GrammarInterrupted):
        return p.Unavailable(error.reason, process="compiler")
    if isinstance(error, GrammarLimit):
        return p.LimitExceeded(
            f"the constraint cannot be used: {error}", limit=error.limit, value=error.value, raise_with="a simpler one"
        )
    return p.ConstraintError(f"the constraint cannot be used: {error}", pointer=error.pointer)


def _outcome(future: Future[Any]) -> Any:
    error = future.exception()
    if error is None:
        return future.result()
    if isinstance(error, GrammarError):
        return refused(error)
    return p.InternalError(f"compiling a constraint failed: {error!r}")
