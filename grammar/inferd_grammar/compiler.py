"""Constraint -> matcher: caps, backend choice, cache.

Compiling runs in the caller's thread and cannot be interrupted; the caps in `CompileLimits` keep out what is known to
hang. Compiling in a child process under a clock is not done yet: hostile grammars within the caps can still be slow.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from concurrent.futures import CancelledError, Future
from typing import Protocol

import numpy as np

from inferd_grammar.constraints import AnyJson, Choice, Constraint, JsonSchema, Lark, Regex
from inferd_grammar.errors import GrammarError, GrammarFailure
from inferd_grammar.limits import DEFAULT_LIMITS, CompileLimits
from inferd_grammar.matcher import Core, GuardedMatcher, Matcher
from inferd_grammar.schema import read_schema, schema_text
from inferd_grammar.tokens import TokenTable
from inferd_grammar.validation import Problem, SchemaValidator

_BACKENDS = ("auto", "llguidance", "outlines")


class Backend(Protocol):
    """A library that compiles constraints for one tokenizer; called from any thread."""

    @property
    def name(self) -> str: ...

    def compile(self, constraint: Constraint, limits: CompileLimits) -> Core:
        """A core at the start of the text. Raises GrammarError for what is invalid, too large or not supported."""


class Compiled:
    """One constraint compiled for one tokenizer, its first mask computed. Thread-safe."""

    def __init__(
        self, core: Core, table: TokenTable, backend: str, validator: SchemaValidator | None = None
    ) -> None:
        self.backend = backend
        self.checked = core.checked  # (keyword, pointer) of what masks do not hold: `validate` does
        self._validator = validator
        self._core = core
        self._table = table
        self._lock = threading.Lock()  # llguidance raises when two threads copy one matcher at once
        self._first = np.empty(table.words, dtype=np.int32)
        GuardedMatcher(core.copy(), table).fill(self._first)

    def validate(self, text: str) -> Problem | None:
        """What is wrong with a finished text. Always None but for `best_effort`: masks leave nothing to find."""
        return None if self._validator is None else self._validator.problem(text)

    def matcher(self) -> Matcher:
        """A matcher at the start of the text: a copy of the template (microseconds), independent of all others."""
        with self._lock:
            core = self._core.copy()
        matcher = GuardedMatcher(core, self._table)
        matcher.seed_mask(self._first)
        return matcher


_Entry = Future[Compiled | GrammarError]


class GrammarCompiler:
    """Compiles constraints for one tokenizer and keeps the last `cache_entries` of them, refusals included.

    Thread-safe: a constraint that two threads ask for at once is compiled once.
    """

    def __init__(
        self,
        table: TokenTable,
        *,
        backend: str = "auto",
        cache_entries: int = 256,
        limits: CompileLimits = DEFAULT_LIMITS,
    ) -> None:
        """`backend` is "auto" (llguidance), "llguidance" or "outlines"; an explicit one is never replaced by another.

        Raises GrammarError for an unknown or absent backend, or a tokenizer it does not read as `table` does;
        ValueError if `cache_entries` is below 1.
        """
        if cache_entries < 1:
            raise ValueError(f"cache_entries must be at least 1, not {cache_entries}")
        self.table = table
        self.limits = limits
        self._backend = _make_backend(backend, table)
        self._entries = cache_entries
        self._cache: OrderedDict[tuple[str, ...], _Entry] = OrderedDict()
        self._lock = threading.Lock()

    def compile(self, constraint: Constraint) -> Compiled:
        """Compile, or take from the cache. Raises GrammarError, also from the cache."""
        key = _key(constraint)
        while True:
            future, mine = self._claim(key)
            if mine:
                self._fulfil(key, future, constraint)
            try:
                outcome = future.result()
            except CancelledError:
                continue  # another thread was to compile this and hit a bug or an interrupt; try it here
            if isinstance(outcome, GrammarError):
                raise GrammarError(outcome.reason, outcome.pointer)  # a fresh one: tracebacks grow on raise
            return outcome

    def _claim(self, key: tuple[str, ...]) -> tuple[_Entry, bool]:
        """The entry for a key, and whether the caller has to fill it."""
        with self._lock:
            if (future := self._cache.get(key)) is not None:
                self._cache.move_to_end(key)
                return future, False
            future = self._cache[key] = _Entry()
            if len(self._cache) > self._entries:
                self._cache.popitem(last=False)
            return future, True

    def _fulfil(self, key: tuple[str, ...], future: _Entry, constraint: Constraint) -> None:
        try:
            future.set_result(self._outcome(constraint))
        finally:
            if not future.done():  # neither compiled nor refused: a bug, on its way up
                with self._lock:
                    self._cache.pop(key, None)
                future.cancel()

    def _outcome(self, constraint: Constraint) -> Compiled | GrammarError:
        try:
            core = self._backend.compile(constraint, self.limits)
            return Compiled(core, self.table, self._backend.name, _validator(constraint, self.limits))
        except GrammarFailure as failure:
            return GrammarError(f"the grammar has no first token: {failure.reason}")
        except GrammarError as error:
            return error


def _make_backend(name: str, table: TokenTable) -> Backend:
    """Imports the library on demand: the optional ones may be absent."""
    if name in ("auto", "llguidance"):
        from inferd_grammar.backends.llguidance import LlguidanceBackend

        return LlguidanceBackend(table)
    if name == "outlines":
        from inferd_grammar.backends.outlines import OutlinesBackend

        return OutlinesBackend(table)
    raise GrammarError(f"unknown backend {name!r}; known: {', '.join(_BACKENDS)}")


def _validator(constraint: Constraint, limits: CompileLimits) -> SchemaValidator | None:
    if not isinstance(constraint, JsonSchema) or constraint.mode == "strict":
        return None
    return SchemaValidator(read_schema(schema_text(constraint.schema), limits))


def _key(constraint: Constraint) -> tuple[str, ...]:
    """Equal keys mean equal grammars. Key order of a schema counts: it is the order of the output."""
    match constraint:
        case JsonSchema(schema, mode):
            return ("json", mode, schema_text(schema))
        case AnyJson():
            return ("any_json",)
        case Regex(pattern):
            return ("regex", _text(pattern, "regex"))
        case Lark(text):
            return ("lark", _text(text, "Lark grammar"))
        case Choice(options):
            return ("choice", *(_text(option, "option of a choice") for option in options))
    raise GrammarError(f"{type(constraint).__name__} is not a constraint")


def _text(value: object, what: str) -> str:
    """The value as text a library can read. Raises GrammarError for other types and lone surrogates."""
    if not isinstance(value, str):
        raise GrammarError(f"{what} must be text, not {type(value).__name__}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise GrammarError(f"{what} is not Unicode text: {error}") from error
    return value
