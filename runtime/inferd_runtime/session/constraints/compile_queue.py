"""Compiles constraints beside the step loop: threads wait for the trial and the compile, the loop polls for the outcome."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Protocol

from inferd import protocol as p
from inferd_grammar import Compiled, Constraint, GrammarCompiler, GrammarError, RegexGrammar
from inferd_grammar.cache import CacheKey
from inferd_grammar.errors import GrammarLimit
from inferd_runtime.waker import Waker

CompileOutcome = Compiled | p.InferdError
CompileCallback = Callable[[CompileOutcome], None]
LANES = 2
MAX_WAITING = 64
"""Constraints of one tenant that wait to be compiled."""

WARM_UP = RegexGrammar("warm")


class Children(Protocol):
    """The processes behind the compilers' trials (:class:`~inferd_grammar.trials.pool.TrialPool`)."""

    def close(self) -> None:
        """End them, so that no compile waits any more."""
        ...


@dataclass
class _Job:
    """Work with all requests that wait for it. A compile is found by ``key`` until it has ended."""

    tenant: str
    work: Callable[[], Any]
    key: tuple[int, CacheKey] | None = None
    listeners: list[Callable[[Any], None]] = field(default_factory=list)


class CompileQueue:
    """Belongs to the thread of the step loop, which polls :meth:`fileno` with its other sources and calls :meth:`poll`.

    Tenants take turns, and each has one compile running at most: a tenant that sends slow constraints delays only itself,
    as long as there are fewer such tenants than lanes. A constraint that several ask for at once is compiled once.
    """

    def __init__(self, trials: Children, *, lanes: int = LANES) -> None:
        self._trials = trials
        self._lanes = lanes
        self._threads = ThreadPoolExecutor(lanes, "compile")
        self._waker = Waker()
        self._known: dict[tuple[int, CacheKey], _Job] = {}
        self._waiting: dict[str, deque[_Job]] = {}
        self._running: set[str] = set()
        self._finished: deque[tuple[_Job, Future[Any]]] = deque()

    def submit(
        self, tenant: str, compiler: GrammarCompiler, constraint: Constraint, done: CompileCallback
    ) -> Callable[[], None]:
        """Compile; :meth:`poll` then calls ``done``, which must not raise. Returns what takes ``done`` back.

        Raises GrammarError for what is refused at once, LimitExceeded when too much of the tenant waits.
        """
        key = (id(compiler), compiler.key(constraint))
        job = self._known.get(key)
        if job is None:
            job = self._enqueue(_Job(tenant, lambda: compiler.compile(constraint), key), key)
        job.listeners.append(done)
        self._start()
        return lambda: job.listeners.remove(done) if done in job.listeners else None

    def run(self, tenant: str, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        """Other slow work about constraints, in the tenant's turn: ``done`` gets its result, or the InferdError it ended with.

        It holds a lane until it ends, so it must have a bound of its own.
        """
        self._waiting.setdefault(tenant, deque()).append(_Job(tenant, work, listeners=[done]))
        self._start()

    def warm(self, compilers: Sequence[GrammarCompiler]) -> None:
        """Have a child ready that knows their tokenizers, before anybody needs it."""
        for compiler in compilers:
            if compiler.find(WARM_UP) is None:
                self.submit("", compiler, WARM_UP, lambda _: None)

    def fileno(self) -> int:
        """Readable when :meth:`poll` has something to do."""
        return self._waker.fileno()

    def wait(self, seconds: float) -> bool:
        """Wait until there may be something to do, for callers that poll nothing else. False when the time is up."""
        return self._waker.wait(seconds)

    def poll(self) -> bool:
        """Tell what has ended, and start what waited for it. False when nothing has."""
        self._waker.drain()
        progressed = bool(self._finished)
        while self._finished:
            job, future = self._finished.popleft()
            self._running.discard(job.tenant)
            self._forget(job)
            outcome = _outcome(future)
            for done in job.listeners:
                done(outcome)
        self._start()
        return progressed

    def close(self) -> None:
        """End the children and drop waiting jobs without an answer."""
        self._waiting.clear()
        self._trials.close()
        self._threads.shutdown()
        self._waker.close()

    def _enqueue(self, job: _Job, key: tuple[int, CacheKey]) -> _Job:
        queue = self._waiting.setdefault(job.tenant, deque())
        if len(queue) >= MAX_WAITING:
            raise p.LimitExceeded(
                f"{len(queue)} constraints of this tenant wait to be compiled", limit="waiting_constraints",
                value=MAX_WAITING, raise_with="waiting for some of them",
            )  # fmt: skip
        queue.append(job)
        self._known[key] = job
        return job

    def _forget(self, job: _Job) -> None:
        if job.key is not None:
            del self._known[job.key]

    def _start(self) -> None:
        """Fill the lanes, one job of each tenant in turn."""
        for tenant in list(self._waiting):
            if len(self._running) >= self._lanes:
                return
            if tenant in self._running:
                continue
            queue = self._waiting.pop(tenant)
            while queue and not queue[0].listeners:
                self._forget(queue.popleft())
            if queue:
                self._run(queue.popleft())
            if queue:
                self._waiting[tenant] = queue  # behind the others now

    def _run(self, job: _Job) -> None:
        self._running.add(job.tenant)
        future = self._threads.submit(job.work)
        future.add_done_callback(lambda ended: self._end(job, ended))

    def _end(self, job: _Job, future: Future[Any]) -> None:
        self._finished.append((job, future))
        self._waker.wake()


def refused(error: GrammarError) -> p.InferdError:
    """Return the error for the program: LimitExceeded, or ConstraintError with the JSON pointer where it is known."""
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
