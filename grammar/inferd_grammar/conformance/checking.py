"""Running schemas with valid and invalid instances through the compiler, each under a clock in a child process.

An instance is accepted if its compact text is taken token by token to a place where it may end, and, in `best_effort`,
the validator finds nothing in it. JSON objects have no key order and a grammar has one, so that an instance is tried as
it is written and in the schema's orders (`key_orders.py`); it counts as accepted if any of these texts is.
"""

from __future__ import annotations

import json
import multiprocessing
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import numpy as np

from inferd_grammar.compiler import Compiled, GrammarCompiler
from inferd_grammar.conformance.key_orders import Holds, orders
from inferd_grammar.constraints import JsonSchemaGrammar
from inferd_grammar.errors import GrammarError, GrammarFailure
from inferd_grammar.matchers.matcher import GrammarMatcher
from inferd_grammar.tokens import TokenTable
from inferd_grammar.validation import SchemaValidator

CheckMode = Literal["strict", "best_effort"]
# As in the research's figures: masks of up to two valid instances of a case, of their first 600 tokens.
_TIMED_INSTANCES = 2
_TIMED_TOKENS = 600


@dataclass
class CaseResult:
    """Result of one case. Times are of one thread; `remarks` are lines for a person."""

    outcome: Literal["compiled", "refused", "timeout"] = "compiled"
    compile_ms: float = 0.0
    valid_accepted: int = 0
    valid_total: int = 0
    invalid_refused: int = 0
    invalid_total: int = 0
    mask_us: list[float] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)


@dataclass
class Summary:
    """Totals over cases; instances are counted for compiled cases alone."""

    mode: CheckMode
    outcomes: dict[str, int] = field(default_factory=lambda: dict.fromkeys(("compiled", "refused", "timeout"), 0))
    valid_accepted: int = 0
    valid_total: int = 0
    invalid_refused: int = 0
    invalid_total: int = 0
    compile_ms: list[float] = field(default_factory=list)
    mask_us: list[float] = field(default_factory=list)

    def add(self, result: CaseResult) -> None:
        """Count one case."""
        self.outcomes[result.outcome] += 1
        if result.outcome != "compiled":
            return
        self.valid_accepted += result.valid_accepted
        self.valid_total += result.valid_total
        self.invalid_refused += result.invalid_refused
        self.invalid_total += result.invalid_total
        self.compile_ms.append(result.compile_ms)
        self.mask_us += result.mask_us

    def figures(self) -> dict[str, Any]:
        """Return the last line of the command: counts, and percentiles in ms and us (None without any)."""
        return {
            "mode": self.mode,
            "cases": sum(self.outcomes.values()),
            "compiled": self.outcomes["compiled"],
            "refused": self.outcomes["refused"],
            "timeouts": self.outcomes["timeout"],
            "valid_accepted": self.valid_accepted,
            "valid_total": self.valid_total,
            "invalid_refused": self.invalid_refused,
            "invalid_total": self.invalid_total,
            "compile_p50_ms": _percentile(self.compile_ms, 50),
            "compile_p95_ms": _percentile(self.compile_ms, 95),
            "mask_p50_us": _percentile(self.mask_us, 50),
            "mask_p90_us": _percentile(self.mask_us, 90),
            "mask_p99_us": _percentile(self.mask_us, 99),
            "mask_max_us": _percentile(self.mask_us, 100),
        }


class Checker:
    """Runs cases one after the other in a child process, which is ended and replaced where a case takes too long.

    Raises GrammarError at the start for a backend that is not known or does not take the tokenizer.
    """

    def __init__(self, table: TokenTable, mode: CheckMode, backend: str, seconds: float) -> None:
        self._setup = (table.source, table.vocab_size, table.eos_ids, mode, backend)
        self._seconds = seconds
        self._context = multiprocessing.get_context("spawn")
        self._start()

    def run(self, case: dict[str, Any]) -> CaseResult:
        """Return the result of one case; `timeout` also where the child died."""
        self._pipe.send(case)
        if self._pipe.poll(self._seconds):
            try:
                result: CaseResult = self._pipe.recv()
                return result
            except EOFError:
                reason = "the process died"
        else:
            reason = f"more than {self._seconds} s"
        self._stop()
        self._start()
        return CaseResult("timeout", remarks=[f"stopped: {reason}"])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def _start(self) -> None:
        self._pipe, theirs = self._context.Pipe()
        self._process = self._context.Process(target=_serve, args=(theirs, *self._setup), daemon=True)
        self._process.start()
        theirs.close()
        refusal = self._pipe.recv()  # the start of the process is not the first case's time
        if refusal is not None:
            self._stop()
            raise GrammarError(refusal)

    def _stop(self) -> None:
        self._process.kill()
        self._process.join()
        self._pipe.close()


def check_case(
    case: dict[str, Any], compiler: GrammarCompiler, mode: CheckMode, reader: TextReader, *, timed: bool = True
) -> CaseResult:
    """Run one case in this process: compile, try the instances; where it is `timed`, time masks."""
    started = time.perf_counter()
    try:
        compiled = compiler.compile(JsonSchemaGrammar(case["schema"], mode))
    except GrammarError as error:
        return CaseResult("refused", remarks=[f"refused: {error}"])
    result = CaseResult(compile_ms=(time.perf_counter() - started) * 1e3)
    holds = _holds(case["schema"])
    for test in case["tests"]:
        values = orders(test["data"], case["schema"], holds)
        ids = _accepted(values, compiled, reader, result)
        if test["valid"]:
            result.valid_total += 1
            result.valid_accepted += ids is not None
            if timed and ids is not None and result.valid_accepted <= _TIMED_INSTANCES:
                result.mask_us += _mask_times(compiled.matcher(), ids, compiler.table.words)
        else:
            result.invalid_total += 1
            result.invalid_refused += ids is None
        if (ids is not None) != test["valid"]:
            kind = "valid instance refused" if test["valid"] else "INVALID INSTANCE ACCEPTED"
            result.remarks.append(f"{kind}: {json.dumps(test['data'])[:200]}")
    return result


def load_table(folder: Path | None) -> TokenTable:
    """Return the table of a folder's tokenizer.json (EOS from its configuration files), or of a vocabulary of single bytes."""
    if folder is None:
        return TokenTable.of_bytes()
    text = (folder / "tokenizer.json").read_text(encoding="utf-8")
    return TokenTable.from_tokenizer_json(text, eos_ids=_eos_ids(folder, json.loads(text)))


def read_cases(path: Path, limit: int | None) -> list[dict[str, Any]]:
    """Return the cases of a JSON-lines file, or `limit` of them spread evenly."""
    lines = [line for line in path.read_text(encoding="utf-8").split("\n") if line.strip()]
    if limit is not None and 0 < limit < len(lines):
        lines = [lines[n * len(lines) // limit] for n in range(limit)]
    return [json.loads(line) for line in lines]


def _holds(schema: Any) -> Holds:
    """Return the validator's word on branches; without one no branch is preferred."""
    try:
        return SchemaValidator(schema).holds
    except GrammarError:
        return lambda part, value: False


def _accepted(values: Iterable[Any], compiled: Compiled, reader: TextReader, result: CaseResult) -> list[int] | None:
    """Return the tokens of the first text of an instance that is accepted."""
    for value in values:
        text = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
        try:
            ids = reader.take(compiled.matcher(), text)
        except GrammarFailure as failure:
            result.remarks.append(f"failed: {failure.reason}")
            return None
        if ids is not None and compiled.validate(text) is None:
            return ids
    return None


def _mask_times(matcher: GrammarMatcher, ids: list[int], words: int) -> list[float]:
    """Return the microseconds of each mask along a text, on a matcher that went the same way once before."""
    ids = ids[:_TIMED_TOKENS]
    row = np.empty(words, dtype=np.int32)
    matcher.accept(ids)
    matcher.rollback(len(ids))
    times = []
    for token in ids:
        started = time.perf_counter()
        matcher.fill(row)
        times.append((time.perf_counter() - started) * 1e6)
        matcher.accept([token])
    return times


def _serve(pipe: Connection, source: str, size: int, eos: tuple[int, ...], mode: CheckMode, backend: str) -> None:
    """Serve cases in the child process until the pipe closes: a case in, its result out."""
    table = TokenTable.from_tokenizer_json(source, vocab_size=size, eos_ids=eos)
    try:
        compiler = GrammarCompiler(table, backend=backend, cache_bytes=1)
    except GrammarError as error:
        pipe.send(str(error))
        return
    reader = TextReader(table)
    pipe.send(None)
    for case in _incoming(pipe):
        pipe.send(check_case(case, compiler, mode, reader))


def _incoming(pipe: Connection) -> Iterator[dict[str, Any]]:
    while True:
        try:
            yield pipe.recv()
        except EOFError:
            return


class TextReader:
    """Takes texts through a matcher in the tokens that its masks allow."""

    def __init__(self, table: TokenTable) -> None:
        import llguidance

        self._table = table
        self._tokenizer = llguidance.LLTokenizer(table.source, n_vocab=table.vocab_size, eos_token=list(table.eos_ids))
        self._ids = {token: i for i, token in enumerate(table.tokens) if token}
        self._longest = max(map(len, self._ids))

    def take(self, matcher: GrammarMatcher, text: str) -> list[int] | None:
        """Return the tokens in which the text was taken to a place where it may end, or None.

        The canonical tokens, and from where these are refused the longest that are legal: on forced text the masks
        allow one split, which looks no farther than the forced bytes.
        """
        ids = self._canonical(text)
        ids = ids[: matcher.accept(ids)]
        rest = text.encode()[sum(len(self._table.tokens[i]) for i in ids) :]
        while rest:
            step = next((i for i in self._candidates(rest) if matcher.accept([i])), None)
            if step is None:
                return None
            ids.append(step)
            rest = rest[len(self._table.tokens[step]) :]
        return ids if matcher.may_end() else None

    def _candidates(self, rest: bytes) -> Iterator[int]:
        """Return the tokens that the bytes begin with, longest first."""
        for size in range(min(self._longest, len(rest)), 0, -1):
            if (token := self._ids.get(rest[:size])) is not None:
                yield token

    def _canonical(self, text: str) -> list[int]:
        """Return the tokens of a text that stands in the middle of a line."""
        ids: list[int] = self._tokenizer.tokenize_str(text)
        if b"".join(self._table.tokens[i] for i in ids) == text.encode():
            return ids
        # A SentencePiece prefix: behind a line end there is none.
        ids = self._tokenizer.tokenize_str(f"\n{text}")
        skip = next(n for n in range(len(ids)) if self._table.tokens[ids[n]].endswith(b"\n"))
        return ids[skip + 1 :]


def _eos_ids(folder: Path, tokenizer: dict[str, Any]) -> list[int]:
    """Return the EOS ids: from generation_config.json or config.json, else the token that tokenizer_config.json names."""
    for name in ("generation_config.json", "config.json"):
        if (folder / name).exists():
            eos = json.loads((folder / name).read_text(encoding="utf-8")).get("eos_token_id")
            if eos is not None:
                return eos if isinstance(eos, list) else [eos]
    named = _eos_name(folder / "tokenizer_config.json")
    ids = [token["id"] for token in tokenizer.get("added_tokens", ()) if token["content"] == named]
    if not ids:
        raise ValueError(f"{folder} says nowhere which token ends a text")
    return ids


def _eos_name(path: Path) -> str | None:
    eos = json.loads(path.read_text(encoding="utf-8")).get("eos_token") if path.exists() else None
    return eos["content"] if isinstance(eos, dict) else eos


def _percentile(values: Iterable[float], percent: float) -> float | None:
    listed = list(values)
    return round(float(np.percentile(listed, percent)), 3) if listed else None
