"""The compiler, constraint -> matcher: checks limits, chooses the backend, caches.

Compiling runs in the caller's thread and cannot be interrupted. The caps in `CompileLimits` keep out what is known to
hang; for the rest, a compiler with `trials` compiles only what a child process has compiled within its limits before.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import ExitStack, suppress
from functools import cached_property, partial
from sys import getsizeof
from typing import Protocol

import numpy as np

from inferd_grammar.cache import CacheKey, OutcomeCache
from inferd_grammar.completion.guesses import guess
from inferd_grammar.completion.outline import NOTHING_KNOWN, Outline, outline
from inferd_grammar.completion.plan import (
    FIRST_LOOKS,
    GUARDED_LOOKS,
    GUESSING_COST,
    EndPlanner,
    first_end,
    first_of_parts,
    opened_ends,
)
from inferd_grammar.completion.search import SearchClock
from inferd_grammar.completion.split import Split, Splitter
from inferd_grammar.constraints import AnyJsonGrammar, ChoiceGrammar, Constraint, ExactGrammar, JsonSchemaGrammar
from inferd_grammar.errors import TOO_DEEP, GrammarError, GrammarFailure, GrammarInterrupted, GrammarLimit
from inferd_grammar.keys import constraint_key
from inferd_grammar.limits import DEFAULT_LIMITS, CompileLimits
from inferd_grammar.matchers.matcher import Core, GuardedMatcher
from inferd_grammar.memo import Memo, memoising
from inferd_grammar.references import read_by_place
from inferd_grammar.rewrites.endless import without_endless
from inferd_grammar.schema import require_size, schema_text
from inferd_grammar.tokens import TokenTable
from inferd_grammar.trials.messages import Tried
from inferd_grammar.validation import Problem, SchemaValidator

_BACKENDS = ("auto", "llguidance", "outlines", "xgrammar")
_COMPILED_BYTES = 256 << 10  # a small grammar of llguidance with the caches it fills
_REFUSAL_BYTES = 3 << 10
_OBJECT_BYTES, _LIST_BYTES, _MARK_BYTES = 232, 72, 30  # of what is read from JSON; a string has two marks
_TRIVIAL_CHOICE = 1000
_LEARNT_TEXTS = 4
_END_SECONDS = 4.0
"""Processor time for the search for an end of a constraint, which holds a compile lane meanwhile."""


class Backend(Protocol):
    """A library that compiles constraints for one tokenizer; called from any thread."""

    @property
    def name(self) -> str:
        """The name that :func:`make_backend` knows it by."""

    def compile(self, constraint: Constraint, limits: CompileLimits) -> Core:
        """Return a core at the start of the text. Raises GrammarError for what is invalid, too large or not supported."""

    def rebuild(self, recipe: str) -> Core:
        """Return the core that the same backend compiled in another process, from its `Core.recipe`. Raises GrammarError."""


class Compiled:
    """One constraint compiled for one tokenizer, its first mask computed. Thread-safe."""

    def __init__(
        self,
        core: Core,
        table: TokenTable,
        backend: str,
        validator: SchemaValidator | None = None,
        grown: int = 0,
        outline: Outline = NOTHING_KNOWN,
    ) -> None:
        self.backend = backend
        self.cost = max(_COMPILED_BYTES, grown)  # bytes, as far as they are known
        self.grew: Callable[[int], None] | None = None  # called with what is added to them later
        self.checked = core.checked  # (keyword, pointer) of what masks do not hold: `validate` does
        self._validator = validator
        self._core = core
        self._learnt = 0
        self._spelling = table
        self._table = table = table.allowing(core.named)
        self._lock = threading.Lock()  # llguidance raises when two threads copy one matcher at once
        self._first = np.empty(table.words, dtype=np.int32)
        first = GuardedMatcher(core.copy(), table)
        first.fill(self._first)
        self._first_ends = first.may_end()
        self._outline = outline
        self._end: Split | None = None
        self._searched = False
        self.late: GrammarLimit | None = None
        """Why no end is known, where looking for one took too long."""

    @property
    def recipe(self) -> str | None:
        """See `Core.recipe`."""
        return self._core.recipe

    def learn(self, matcher: GuardedMatcher) -> None:
        """Make a matcher that is used no more the template, for the library caches that its text filled.

        Only the first few are taken, because those caches grow with every text. One that has broken is left alone.
        """
        if self._learnt >= _LEARNT_TEXTS:
            return
        try:
            core = matcher.reset()
        except GrammarFailure:
            return
        with self._lock:
            self._learnt += 1
            self._core = core

    @cached_property
    def _splitter(self) -> Splitter:
        return self._spelling.splitter_for(self._core.named)

    @property
    def may_meet_dead_ends(self) -> bool:
        """True if masks may lead to where nothing can follow, so that a text needs a planner to be sure of an end."""
        return bool(getattr(self._core, "may_meet_dead_ends", False))

    @property
    def refusal(self) -> GrammarError | None:
        """Why masks alone do not hold the constraint; None where they do."""
        refusal: GrammarError | None = getattr(self._core, "refusal", None)
        return refusal

    def shortest(self) -> bytes | None:
        """Return the shortest whole text that the search finds (`inferd_grammar.completion`); None if it finds none.

        Raises GrammarLimit, each time, where it takes too long.
        """
        if not self._searched:
            try:
                self._end = self._sought()
                self._grow([] if self._end is None else [self._end])
            except GrammarLimit as limit:
                self.late = limit.fresh()
            self._searched = True
        if self.late is not None:
            raise self.late.fresh()
        return None if self._end is None else self._end.text

    def _sought(self) -> Split | None:
        outline = self._outline
        if outline.parts is not None:
            found = first_of_parts(outline.parts, self._opened)
        else:
            found = first_end(self.matcher(), self._splitter, outline, self._looks, SearchClock(_END_SECONDS))
        with memoising(Memo()):
            return self._guessed() if found is None else found

    @property
    def _looks(self) -> int:
        return FIRST_LOOKS if self.refusal is None else GUARDED_LOOKS

    def _guessed(self) -> Split | None:
        """Return a guess that is a whole text, for a constraint of which masks hold only a part."""
        guarded = getattr(self._core, "guarded", None)
        if guarded is None:
            return None
        schema, holds = guarded
        matcher, splitter = self.matcher(), self._splitter
        most = matcher.cost + GUESSING_COST
        texts = guess(schema, holds, lambda: matcher.cost < most)
        return next((end for end in map(splitter.split, texts) if matcher.ends_with(end.tokens(0))), None)

    def planner(self) -> EndPlanner | None:
        """Return what steers a text to its end in time; None where `shortest` is. Raises GrammarFailure and GrammarLimit."""
        self.shortest()
        if self._end is None:
            return None
        return EndPlanner(self.matcher(), self._table, self._splitter, self._outline, self._end, self._opened)

    @cached_property
    def _opened(self) -> list[Split]:
        found = opened_ends(self.matcher(), self._splitter, self._outline, self._looks, SearchClock(_END_SECONDS))
        self._grow(found)
        return found

    def _grow(self, ends: Sequence[Split]) -> None:
        size = sum(end.size for end in ends)
        self.cost += size
        if self.grew is not None:
            self.grew(size)

    def validate(self, text: str) -> Problem | None:
        """Return what is wrong with a finished text; None if nothing is. Only `best_effort` leaves anything to find."""
        return None if self._validator is None else self._validator.problem(text)

    def matcher(self) -> GuardedMatcher:
        """Return a matcher at the start of the text: a copy of the template (microseconds), independent of all others."""
        with self._lock:
            core = self._core.copy()
        matcher = GuardedMatcher(core, self._table)
        matcher.seed_mask(self._first, self._first_ends)
        return matcher


class Trials(Protocol):
    """Compiles elsewhere first, where it can be stopped: see `inferd_grammar.trials.pool`. Called from any thread."""

    def attempt(self, table: TokenTable, backend: str, constraint: Constraint, limits: CompileLimits) -> Tried:
        """Compile it elsewhere. Raises GrammarError if it was refused, GrammarLimit if it took too much."""


class GrammarCompiler:
    """Compiles constraints for one tokenizer and keeps those used last, refusals included.

    Thread-safe: a constraint that two threads ask for at once is compiled once. What is kept is found by its `owner` alone, so
    that nobody can tell by the time it takes what others have compiled.
    """

    def __init__(
        self,
        table: TokenTable,
        *,
        backend: str | Backend = "auto",
        cache_bytes: int = 256 << 20,
        limits: CompileLimits = DEFAULT_LIMITS,
        trials: Trials | None = None,
    ) -> None:
        """`backend` is "auto" (llguidance), "llguidance", "outlines", "xgrammar", never replaced by another, or your own.

        Raises GrammarError for an unknown or absent backend, or a tokenizer it does not read as `table` does;
        ValueError if `cache_bytes` is below 1, or for `trials` (whose child makes its backend by name) with one of your own.
        """
        if cache_bytes < 1:
            raise ValueError(f"cache_bytes must be at least 1, not {cache_bytes}")
        if trials is not None and not isinstance(backend, str):
            raise ValueError("trials need a backend that has a name in make_backend")
        self.table = table
        self.limits = limits
        self._name = backend if isinstance(backend, str) else backend.name
        self._backend = make_backend(backend, table) if isinstance(backend, str) else backend
        self._trials = trials
        self._cache: OutcomeCache[Compiled | GrammarError] = OutcomeCache(cache_bytes)

    def key(self, constraint: Constraint, owner: str = "") -> CacheKey:
        """Return a key, equal for an owner's equal constraints. Raises GrammarError for what is no text and what is too large."""
        key = constraint_key(constraint)
        require_size("".join(key), "constraint", self.limits)
        return (owner, *key)

    def find(self, constraint: Constraint, owner: str = "") -> Compiled | None:
        """Return what the cache holds; None if this has to be compiled. Raises GrammarError if it was refused."""
        outcome = self._cache.get(self.key(constraint, owner))
        if outcome is None and trivial(constraint):
            return self.compile(constraint, owner)
        return None if outcome is None else _unwrap(outcome)

    def compile(self, constraint: Constraint, owner: str = "") -> Compiled:
        """Compile, or take from the cache. Raises GrammarError, also from the cache."""
        key = self.key(constraint, owner)
        while True:
            future, mine = self._cache.claim(key)
            if mine:
                self._fulfil(key, future, constraint)
            try:
                return _unwrap(future.result())
            except CancelledError:
                continue  # another thread was to compile this and hit a bug or an interrupt; try it here

    def _fulfil(self, key: CacheKey, future: Future[Compiled | GrammarError], constraint: Constraint) -> None:
        with ExitStack() as undo:
            undo.callback(self._cache.drop, key, future)  # neither compiled nor refused: a bug, on its way up
            with memoising(Memo()):
                outcome = self._outcome(constraint, _read_bytes(key))
            undo.pop_all()
        if isinstance(outcome, GrammarInterrupted):
            self._cache.drop(key, future, outcome)  # not the grammar's doing
        else:
            if isinstance(outcome, Compiled):
                outcome.grew = partial(self._cache.grow, key)
            self._cache.keep(key, future, outcome, _cost(outcome))

    def _outcome(self, constraint: Constraint, read: int) -> Compiled | GrammarError:
        try:
            core, grown = self._core(constraint)
            known = outline(constraint, self.limits, lambda text: self.table.spelled(text, core.named))
            validator = _validator(constraint, self.limits)
            compiled = Compiled(core, self.table, self._backend.name, validator, grown + read, known)
            if compiled.refusal is not None and compiled.shortest() is None:
                return compiled.refusal.fresh()
            if known.parts is not None:
                with suppress(GrammarFailure):  # raised again where the end is asked for
                    compiled.planner()  # its search is not for the loop that asks for one
            return compiled
        except GrammarFailure as failure:
            return GrammarError(f"the grammar has no first token: {failure.reason}")
        except GrammarError as error:
            return error.fresh()  # it is kept, and would hold all that its traceback does
        except RecursionError:
            return GrammarError(TOO_DEEP)

    def _core(self, constraint: Constraint) -> tuple[Core, int]:
        """Return the core, and how many bytes it is known to need."""
        if self._trials is None or trivial(constraint):
            return self._backend.compile(constraint, self.limits), 0
        tried = self._trials.attempt(self.table, self._name, constraint, self.limits)
        if tried.recipe is None:
            return self._backend.compile(constraint, self.limits), tried.grown
        return self._backend.rebuild(tried.recipe), tried.grown


def trivial(constraint: Constraint) -> bool:
    """Return True if compiling is bounded by its few bytes: a fixed grammar, or a choice, whose automaton is a trie."""
    match constraint:
        case AnyJsonGrammar():
            return True
        case ChoiceGrammar(options):
            return sum(len(option) for option in options if isinstance(option, str)) <= _TRIVIAL_CHOICE
        case ExactGrammar(inner):
            return trivial(inner)
    return False


def _cost(outcome: Compiled | GrammarError) -> int:
    """Return about how many bytes it takes; a refusal may repeat much of its constraint."""
    if isinstance(outcome, Compiled):
        return outcome.cost
    return _REFUSAL_BYTES + getsizeof(outcome.reason) + getsizeof(outcome.pointer)


def _read_bytes(key: CacheKey) -> int:
    """Return about what the JSON in a constraint takes once it is read: the process that tries a constraint keeps none of it."""
    return sum(
        _OBJECT_BYTES * text.count("{") + _LIST_BYTES * text.count("[") + _MARK_BYTES * text.count('"') for text in key
    )


def _unwrap(outcome: Compiled | GrammarError) -> Compiled:
    if isinstance(outcome, GrammarError):
        raise outcome.fresh()
    if outcome.late is not None:
        raise outcome.late.fresh()
    return outcome


def make_backend(name: str, table: TokenTable) -> Backend:
    """Return the backend of that name. Imports its library on demand: the optional ones may be absent."""
    if name in ("auto", "llguidance"):
        from inferd_grammar.backends.llguidance import LlguidanceBackend

        return LlguidanceBackend(table)
    if name == "outlines":
        from inferd_grammar.backends.outlines import OutlinesBackend

        return OutlinesBackend(table)
    if name == "xgrammar":
        from inferd_grammar.backends.xgrammar import XgrammarBackend

        return XgrammarBackend(table)
    raise GrammarError(f"unknown backend {name!r}; known: {', '.join(_BACKENDS)}")


def _validator(constraint: Constraint, limits: CompileLimits) -> SchemaValidator | None:
    if isinstance(constraint, ExactGrammar):
        return _validator(constraint.inner, limits)
    if not isinstance(constraint, JsonSchemaGrammar) or constraint.mode == "strict":
        return None
    return SchemaValidator(without_endless(read_by_place(schema_text(constraint.schema), limits)))
