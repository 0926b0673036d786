"""The child of `inferd_grammar.trials.pool`: attempts in, answers out."""

from __future__ import annotations

import ctypes
import json
import os
import pickle
import resource
import signal
import sys
import time
from typing import TYPE_CHECKING, Any

from inferd_grammar.trials.messages import Attempt, read_message, write_message

if TYPE_CHECKING:
    from inferd_grammar.compiler import Backend, Compiled
    from inferd_grammar.tokens import TokenTable

TRIED_MASKS = 12
MAX_BUG = 200
"""Characters that are told of an error that nobody foresaw."""
PAGE = resource.getpagesize()


class _Allocated(ctypes.Structure):
    """``struct mallinfo2`` of glibc."""

    _names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
    _fields_ = tuple((name, ctypes.c_size_t) for name in _names.split())


def main() -> None:
    """Answer until the parent closes its end."""
    source = sys.stdin.buffer
    sink = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints is no answer
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    backends: dict[tuple[str, str], tuple[TokenTable, Backend]] = {}
    while True:
        try:
            attempt: Attempt = pickle.loads(read_message(source))
        except EOFError:
            return
        if attempt.table is not None:
            backends[attempt.known] = _prepare(attempt)
            write_message(sink, b"{}")  # ready: what follows is the attempt alone
        write_message(sink, json.dumps(_bounded(attempt, *backends[attempt.known])).encode())


def _prepare(attempt: Attempt) -> tuple[TokenTable, Backend]:
    from inferd_grammar.compiler import make_backend
    from inferd_grammar.tokens import TokenTable

    assert attempt.table is not None
    text, size, eos_ids = attempt.table
    table = TokenTable.from_tokenizer_json(text, vocab_size=size, eos_ids=eos_ids)
    return table, make_backend(attempt.known[1], table)


def _bounded(attempt: Attempt, table: TokenTable, backend: Backend) -> dict[str, Any]:
    """Run the attempt under a CPU and a memory limit; the signal of the CPU limit ends this process."""
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    before = _memory()
    if before[0]:  # elsewhere than on Linux no limit on what is not known; resident memory is not known there either
        resource.setrlimit(resource.RLIMIT_AS, (before[0] + attempt.memory_bytes, hard))
    signal.setitimer(signal.ITIMER_PROF, attempt.cpu_seconds)
    started = time.process_time()
    try:
        return _answer(attempt, table, backend) | {"cpu": time.process_time() - started}
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        resource.setrlimit(resource.RLIMIT_AS, (hard, hard))


def _answer(attempt: Attempt, table: TokenTable, backend: Backend) -> dict[str, Any]:
    from inferd_grammar.compiler import Compiled
    from inferd_grammar.errors import TOO_DEEP, GrammarError, GrammarFailure
    from inferd_grammar.memo import Memo, memoising

    before = allocated()
    try:
        with memoising(Memo()):  # the next attempt may be another tenant's
            core = backend.compile(attempt.constraint, attempt.limits)
            compiled = Compiled(core, table, backend.name)
            slowest = _slowest_mask(compiled, table)
    except GrammarFailure as failure:
        return {"error": f"the grammar has no first token: {failure.reason}", "pointer": None}
    except GrammarError as error:
        return {"error": error.reason, "pointer": error.pointer}
    except RecursionError:
        return {"error": TOO_DEEP, "pointer": None}
    except MemoryError:  # the process has its limit of memory, and ends at it
        raise
    except Exception as bug:  # noqa: BLE001 - the boundary of one attempt: another one shall not have to start a child for it
        return {"error": f"the compiler failed on it: {type(bug).__name__}: {str(bug)[:MAX_BUG]}", "pointer": None}
    if slowest > attempt.mask_seconds:
        return {"slow": slowest}
    return {"recipe": core.recipe, "grown": max(0, allocated() - before)}


def _slowest_mask(compiled: Compiled, table: TokenTable) -> float:
    """CPU seconds of the slowest of the first masks on one way through the grammar: always the middle legal token."""
    import numpy as np

    from inferd_grammar.errors import GrammarFailure

    matcher, row, slowest = compiled.matcher(), np.empty(table.words, np.int32), 0.0
    for _ in range(TRIED_MASKS):
        start = time.process_time()
        try:
            matcher.fill(row)
        except GrammarFailure:
            return slowest  # a dead end further on is for the run that gets there
        slowest = max(slowest, time.process_time() - start)
        legal = np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little"))
        if not matcher.accept([int(legal[len(legal) // 2])]) or matcher.ended():
            break
    return slowest


def allocated() -> int:
    """Return the bytes that are allocated: resident ones would leave out what takes the place of an earlier attempt's. Where the
    C library does not tell, these all the same.
    """
    tell = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if tell is None:
        return _memory()[1]
    tell.restype = _Allocated
    found = tell()
    return int(found.uordblks + found.hblkhd)


def _memory() -> tuple[int, int]:
    """Bytes of address space and of resident memory of this process; zeros where the system does not tell."""
    try:
        with open("/proc/self/statm", "rb") as source:
            size, resident = source.read().split()[:2]
    except OSError:
        return 0, 0
    return int(size) * PAGE, int(resident) * PAGE
