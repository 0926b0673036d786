"""Trying constraints in a child process, because nothing else can stop a library that compiles.

The child is long-lived (an attempt costs about a millisecond more than the compile) and is replaced when an attempt
ends it: a CPU clock that the kernel keeps, a bound on its memory, and a wall clock that the parent keeps.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from inferd_grammar.constraints import Constraint
from inferd_grammar.errors import GrammarError, GrammarInterrupted, GrammarLimit
from inferd_grammar.limits import CompileLimits
from inferd_grammar.tokens import TokenTable
from inferd_grammar.trials.messages import Attempt, Tried, read_message, write_message

START = "import sys; sys.path[3:3] = sys.argv[1:]; from inferd_grammar.trials.child import main; main()"
FEW_THREADS = {"OPENBLAS_NUM_THREADS": "1", "RAYON_NUM_THREADS": "1"}
QUICK_SECONDS = 0.1
BEHIND = 15
"""Added to the nice value of a child whose attempt takes long. Only root could lower it again."""
LAST = 19


@dataclass(frozen=True)
class TrialLimits:
    """Limits of one attempt. The wall clock includes the start of the child.

    Fields:
        cpu_seconds: of the child; slow schemas that people use need up to 2.5.
        memory_bytes: address space, over what the child holds when it is ready.
        wall_seconds: for children that wait, or get no processor: says nothing about the grammar.
        mask_seconds: CPU time of the slowest of the masks that are tried: later ones stop all runs for as long.
    """

    cpu_seconds: float = 4.0
    memory_bytes: int = 1 << 30
    wall_seconds: float = 15.0
    mask_seconds: float = 0.05


StartChild = Callable[[], "subprocess.Popen[bytes]"]
"""Starts a child that runs `inferd_grammar.trials.child.main`, with pipes as its standard input and output."""


def nobody() -> None:
    """Tell nobody that an attempt takes long."""


def start_child() -> subprocess.Popen[bytes]:
    """Start a child that imports nothing from the working directory or the environment, and has no other descriptor."""
    return subprocess.Popen(
        [sys.executable, "-I", "-c", START, str(Path(__file__).resolve().parents[2])],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, close_fds=True, env=FEW_THREADS,
    )  # fmt: skip


class TrialProcess:
    """One child. Belongs to one thread at a time; ``kill`` may come from any."""

    def __init__(self, start: StartChild, limits: TrialLimits, slow: Callable[[], None] = nobody) -> None:
        self._start = start
        self._limits = limits
        self._slow = slow
        self._child: subprocess.Popen[bytes] | None = None
        self._known: set[tuple[str, str]] = set()
        self._over = False
        self.spent = 0.0
        """Processor seconds of all attempts: as the child tells, or as long as it can have been before it was ended."""

    def attempt(self, table: TokenTable, backend: str, constraint: Constraint, limits: CompileLimits) -> Tried:
        """Compile and fill some masks there. Raises GrammarError (GrammarLimit when it took too much, GrammarInterrupted when
        it was not the grammar's doing).
        """
        late = threading.Event()
        started = time.monotonic()

        def stop() -> None:
            late.set()
            self.kill()

        clock = threading.Timer(self._limits.wall_seconds, stop)
        clock.daemon = True
        clock.start()
        try:
            answer = self._ask(table, backend, constraint, limits)
        except (OSError, EOFError):
            self.spent += min(time.monotonic() - started, self._limits.cpu_seconds)
            raise self._ended(late.is_set()) from None
        finally:
            clock.cancel()
        self.spent += answer["cpu"]
        if "error" in answer:
            raise GrammarError(answer["error"], answer["pointer"])
        if "slow" in answer:
            raise GrammarLimit(
                f"a mask of this grammar takes {answer['slow']:.3f} s", "mask_seconds", self._limits.mask_seconds
            )
        return Tried(answer["recipe"], answer["grown"])

    @property
    def is_started(self) -> bool:
        """True if there is a child, which loads until it is asked."""
        return self._child is not None

    def prepare(self) -> None:
        """Start a child, if there is none and may be one; where that fails, the next attempt tries again."""
        if not self._over:
            with contextlib.suppress(OSError):
                self._pipes()

    def kill(self) -> None:
        """End the child, and the attempt that runs in it."""
        child = self._child
        if child is not None:
            child.kill()

    def end(self) -> None:
        """As :meth:`kill`, for good: a child that another thread starts at this moment is ended, too."""
        self._over = True
        self.kill()

    def close(self) -> int | None:
        """End the child and wait for that; its exit code, None if there was none. The next attempt starts another."""
        self.kill()
        child, self._child = self._child, None
        self._known.clear()
        if child is None:
            return None
        for pipe in (child.stdin, child.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):  # of what was still to be written
                    pipe.close()
        return child.wait()

    def _ask(self, table: TokenTable, backend: str, constraint: Constraint, limits: CompileLimits) -> Mapping[str, Any]:
        sink, source = self._pipes()
        known = (table.fingerprint, backend)
        vocabulary = None if known in self._known else (table.source, table.vocab_size, table.eos_ids)
        attempt = Attempt(
            known, vocabulary, constraint, limits, self._limits.cpu_seconds, self._limits.memory_bytes,
            self._limits.mask_seconds,
        )  # fmt: skip
        write_message(sink, pickle.dumps(attempt))
        if vocabulary is not None:
            read_message(source)
            self._known.add(known)
        slow = not select.select([source], [], [], QUICK_SECONDS)[0]
        if slow:
            self._demote()
            self._slow()
        answer: Mapping[str, Any] = json.loads(read_message(source))
        if slow:
            self.close()  # priority is not given back
        return answer

    def _demote(self) -> None:
        """Let a slow attempt have what others leave of the processors; quick ones are not worth waiting for."""
        assert self._child is not None
        with contextlib.suppress(ProcessLookupError):
            os.setpriority(os.PRIO_PROCESS, self._child.pid, min(os.getpriority(os.PRIO_PROCESS, 0) + BEHIND, LAST))

    def _pipes(self) -> tuple[IO[bytes], IO[bytes]]:
        """To and from a child that runs."""
        if self._child is None or self._child.poll() is not None:
            self.close()
            self._child = self._start()
            if self._over:
                self.kill()
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        return self._child.stdin, self._child.stdout

    def _ended(self, late: bool) -> GrammarError:
        """Return the reason of the child's end."""
        code, limits = self.close(), self._limits
        if late:
            seconds = f"{limits.wall_seconds:g} s"
            return GrammarInterrupted(f"the compiler got too little of the processors within {seconds}: try again")
        if code == -signal.SIGPROF:
            return GrammarLimit("compiling this grammar takes too much", "cpu_seconds", limits.cpu_seconds)
        if code == -signal.SIGKILL:  # at its limit of memory it ends itself
            return GrammarInterrupted("the compiler was killed while it worked on this grammar: try again")
        return GrammarLimit(
            f"compiling this grammar ended the compiler ({code}), most likely for want of memory",
            "memory_bytes", limits.memory_bytes,
        )  # fmt: skip


class TrialPool:
    """Children for as many threads as ask at once; one that is free is used again. Thread-safe."""

    def __init__(self, start: StartChild = start_child, limits: TrialLimits | None = None) -> None:
        self._start = start
        self._limits = limits or TrialLimits()
        self._lock = threading.Lock()
        self._local = threading.local()
        self._slow = nobody
        self._free: list[TrialProcess] = []
        self._all: list[TrialProcess] = []
        self._closed = False

    def attempt(self, table: TokenTable, backend: str, constraint: Constraint, limits: CompileLimits) -> Tried:
        """See `TrialProcess.attempt`."""
        process = self._take()
        before = process.spent
        try:
            return process.attempt(table, backend, constraint, limits)
        finally:
            self._local.spent = getattr(self._local, "spent", 0.0) + process.spent - before
            self._give_back(process)

    def on_slow(self, call: Callable[[], None]) -> None:
        """Have the thread of an attempt that takes long call this, once its child has a low priority. Say so before the first."""
        self._slow = call

    def take_spent(self) -> float:
        """Return the processor seconds that attempts of the calling thread have used since it last asked."""
        spent: float = getattr(self._local, "spent", 0.0)
        self._local.spent = 0.0
        return spent

    def close(self) -> None:
        """End all children; attempts that run fail."""
        with self._lock:
            self._closed = True
            for process in self._all:
                process.end()
            for process in self._free:
                process.close()

    def _give_back(self, process: TrialProcess) -> None:
        """Let another thread have a process, one with a child first; a quick constraint is not to wait until one has started."""
        if not any(free.is_started for free in tuple(self._free)):
            process.prepare()
        with self._lock:
            self._free.insert(len(self._free) if process.is_started else 0, process)

    def _take(self) -> TrialProcess:
        with self._lock:
            if self._closed:
                raise GrammarError("the compiler is closed")
            if not self._free:
                self._free.append(TrialProcess(self._start, self._limits, self._slow))
                self._all.append(self._free[-1])
            return self._free.pop()
