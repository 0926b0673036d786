"""Compiling in a child that can be stopped: its limits, its life, and that only what survives there is compiled here."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from inferd_grammar import (
    AnyJsonGrammar,
    ChoiceGrammar,
    Constraint,
    GrammarCompiler,
    GrammarError,
    GrammarMatcher,
    JsonSchemaGrammar,
    JsonTextGrammar,
    LarkGrammar,
    RegexGrammar,
    SequenceGrammar,
    TextGrammar,
    TokenTable,
    UntilGrammar,
)
from inferd_grammar.compiler import Backend
from inferd_grammar.conformance.matcher_checks import JSON_CONSTRAINTS, TEXT_CONSTRAINTS, look
from inferd_grammar.constraints import ExactGrammar
from inferd_grammar.errors import GrammarInterrupted, GrammarLimit
from inferd_grammar.limits import CompileLimits
from inferd_grammar.trials import child as trial_child, pool as trial_pool
from inferd_grammar.trials.messages import Attempt, Tried
from inferd_grammar.trials.pool import TrialLimits, TrialPool, start_child

from .conftest import byte_level, table_of

# Within the caps, and about a second of work with 40 MB.
HEAVY = JsonSchemaGrammar({"type": "integer", "multipleOf": 99_991})
LIGHT = JsonSchemaGrammar({"type": "integer", "maximum": 12})


@dataclass
class Counted:
    """Trials that count, and remember what they were asked."""

    inner: TrialPool
    asked: list[Constraint] = field(default_factory=list)

    def attempt(self, table: TokenTable, backend: str, constraint: Constraint, limits: CompileLimits) -> Tried:
        self.asked.append(constraint)
        return self.inner.attempt(table, backend, constraint, limits)


@pytest.fixture(scope="module")
def table() -> TokenTable:
    return table_of(byte_level())


@pytest.fixture(scope="module")
def pool() -> Iterator[TrialPool]:
    made = TrialPool()
    yield made
    made.close()


@pytest.fixture
def limited(table: TokenTable, request: pytest.FixtureRequest) -> Iterator[GrammarCompiler]:
    pool = TrialPool(limits=request.param)
    yield GrammarCompiler(table, trials=pool)
    pool.close()


def test_what_was_tried_matches_as_what_is_compiled_here(table: TokenTable, pool: TrialPool) -> None:
    here, tried = GrammarCompiler(table), GrammarCompiler(table, trials=pool)

    def first(compiler: GrammarCompiler, constraint: Constraint) -> GrammarMatcher:
        return compiler.compile(constraint).matcher()

    loose = JsonSchemaGrammar({"type": "string", "format": "idn-email", "maxLength": 3}, mode="best_effort")
    lark = LarkGrammar('start: "a" /b+/')
    for constraint in (*TEXT_CONSTRAINTS, *JSON_CONSTRAINTS, loose, lark, ExactGrammar(JSON_CONSTRAINTS[0])):
        assert look(first(tried, constraint), table) == look(first(here, constraint), table), constraint
        assert tried.compile(constraint).checked == here.compile(constraint).checked


@pytest.mark.parametrize(
    "constraint",
    [
        JsonTextGrammar(LarkGrammar('start: "a" /\\n+/')),
        JsonTextGrammar(RegexGrammar('a"+')),
        SequenceGrammar((TextGrammar("<"), UntilGrammar("\n>", LarkGrammar("start: /a+/")))),
    ],
)
def test_a_grammar_inside_of_another_text_is_read_in_the_child_alone(
    table: TokenTable, pool: TrialPool, constraint: Constraint, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_here(*arguments: object) -> str:
        raise AssertionError("a stranger's grammar is read here")

    monkeypatch.setattr("inferd_grammar.backends.llguidance.json_text_lark", read_here)
    monkeypatch.setattr("inferd_grammar.backends.compose.lark_up_to", read_here)
    assert GrammarCompiler(table, trials=pool).compile(constraint).matcher().forced()
    with pytest.raises(AssertionError, match="is read here"):
        GrammarCompiler(table).compile(constraint)


@pytest.mark.parametrize(
    ("constraint", "pointer", "reason"),
    [
        (JsonSchemaGrammar({"properties": {"a": {"$ref": "#/missing"}}}), "/properties/a/$ref", "missing"),
        (
            JsonSchemaGrammar({"properties": {"a": {"$ref": "http://x.invalid/schema.json"}}}),
            "/properties/a/$ref",
            "none is fetched",
        ),
        (JsonSchemaGrammar({"$ref": "#"}), "", "requires itself again"),
        (RegexGrammar("("), None, "regex"),
    ],
)
def test_refusals_are_those_of_the_backend(
    table: TokenTable, pool: TrialPool, constraint: Constraint, pointer: str | None, reason: str
) -> None:
    with pytest.raises(GrammarError, match=reason) as caught:
        GrammarCompiler(table, trials=pool).compile(constraint)
    assert pointer in (None, caught.value.pointer)


def test_an_error_that_nobody_foresaw_costs_its_own_attempt_and_no_child(
    table: TokenTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each number of 400 digits ended a compiler, and was told to be tried again."""

    def broken(constraint: Constraint, limits: CompileLimits) -> None:
        raise OverflowError("int too large to convert to float")

    attempt = Attempt(("", ""), None, LIGHT, CompileLimits(), 1.0, 1 << 30, 1.0)
    backend = SimpleNamespace(compile=broken, name="broken")
    told = trial_child._answer(attempt, table, cast(Backend, backend))
    assert told == {
        "error": "the compiler failed on it: OverflowError: int too large to convert to float",
        "pointer": None,
    }


def test_size_and_encoding_are_checked_before_the_child(table: TokenTable, pool: TrialPool) -> None:
    counted = Counted(pool)
    compiler = GrammarCompiler(table, trials=counted)
    for text, reason in (('"' + "x" * 10_000_000, "max_bytes"), ('{"const":"\udfff"}', "not Unicode")):
        for find in (compiler.compile, compiler.find):
            with pytest.raises(GrammarError, match=reason):
                find(JsonSchemaGrammar(text))
    assert not counted.asked


def test_what_is_trivial_needs_no_child(table: TokenTable, pool: TrialPool) -> None:
    counted = Counted(pool)
    compiler = GrammarCompiler(table, trials=counted)
    assert compiler.find(LIGHT) is None
    for constraint in (AnyJsonGrammar(), ChoiceGrammar(("yes", "no")), ExactGrammar(AnyJsonGrammar())):
        assert compiler.find(constraint) is compiler.compile(constraint)
    assert not counted.asked
    compiler.compile(ChoiceGrammar(tuple(f"option {n}" for n in range(200))))
    compiler.compile(LIGHT)
    assert len(counted.asked) == 2
    assert compiler.find(LIGHT) is compiler.compile(LIGHT)


@pytest.mark.parametrize(
    ("limited", "limit", "constraint"),
    [
        (TrialLimits(cpu_seconds=0.2), "cpu_seconds", HEAVY),
        (TrialLimits(memory_bytes=16 << 20), "memory_bytes", HEAVY),
        (TrialLimits(mask_seconds=-1), "mask_seconds", LIGHT),  # one that compiles in no time reaches its masks
    ],
    indirect=["limited"],
)
def test_an_attempt_that_takes_too_much_is_refused_and_remembered(
    limited: GrammarCompiler, limit: str, constraint: JsonSchemaGrammar
) -> None:
    counted = Counted(limited._trials)  # type: ignore[arg-type]
    limited._trials = counted
    for _ in range(2):
        with pytest.raises(GrammarLimit, match=limit) as caught:
            limited.compile(constraint)
        assert caught.value.limit == limit
    assert counted.asked == [constraint]


@pytest.mark.parametrize("limited", [TrialLimits(cpu_seconds=0.2)], indirect=True)
def test_the_next_attempt_gets_a_new_child(limited: GrammarCompiler) -> None:
    with pytest.raises(GrammarLimit):
        limited.compile(HEAVY)
    assert limited.compile(LIGHT).matcher().depth == 0


@pytest.mark.parametrize("limited", [TrialLimits(wall_seconds=0.02)], indirect=True)
def test_a_wall_clock_that_ran_out_is_not_the_grammars_fault_and_not_remembered(limited: GrammarCompiler) -> None:
    """No child is up in that time. On a busy machine clients got 400 for small schemas."""
    counted = Counted(limited._trials)  # type: ignore[arg-type]
    limited._trials = counted
    for _ in range(2):
        with pytest.raises(GrammarInterrupted, match="try again"):
            limited.compile(LIGHT)
    assert len(counted.asked) == 2


def test_threads_have_a_child_each_and_use_it_again(table: TokenTable) -> None:
    pool = TrialPool()
    compiler = GrammarCompiler(table, trials=pool)
    constraints = [JsonSchemaGrammar({"const": f"value {n}"}) for n in range(24)]
    try:
        with ThreadPoolExecutor(2) as threads:
            assert len({id(compiled) for compiled in threads.map(compiler.compile, constraints)}) == 24
        assert 1 <= len(pool._all) <= 2
    finally:
        pool.close()


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """However busy the machine is, no attempt counts as slow, and no child is ended after one."""
    monkeypatch.setattr(trial_pool, "QUICK_SECONDS", 60.0)


@pytest.mark.usefixtures("patient")
def test_a_slow_attempt_never_gets_a_lower_nice_value_than_the_server(
    table: TokenTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only root may lower one."""
    with closing(TrialPool()) as pool:
        GrammarCompiler(table, trials=pool).compile(LIGHT)
        given: list[int] = []
        monkeypatch.setattr(os, "getpriority", lambda which, who: 17)
        monkeypatch.setattr(os, "setpriority", lambda which, who, value: given.append(value))
        with closing(pool._take()) as process:
            process._demote()
    assert given == [19]


def test_behind_a_slow_attempt_one_child_is_ready_for_the_next(
    table: TokenTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A quick constraint had to wait until one had started: half a second beside slow ones."""
    monkeypatch.setattr(trial_pool, "QUICK_SECONDS", 0.0)
    slow: list[bool] = []
    with closing(TrialPool()) as pool:
        pool.on_slow(lambda: slow.append(True))
        first, second = pool._take(), pool._take()
        for process in (first, second):
            process.attempt(table, "llguidance", LIGHT, CompileLimits())
            pool._give_back(process)
        assert slow == [True, True]
        assert [process.is_started for process in (first, second)] == [True, False]
        taken = pool._take()
        pool._give_back(taken)
        assert taken is first


@pytest.mark.usefixtures("patient")
def test_a_closed_pool_ends_its_children_and_refuses(table: TokenTable) -> None:
    pool = TrialPool()
    compiler = GrammarCompiler(table, trials=pool)
    compiler.compile(LIGHT)
    child = pool._all[0]._child
    assert child is not None
    pool.close()
    assert child.returncode is not None
    with pytest.raises(GrammarError, match="closed"):
        compiler.compile(HEAVY)


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="descriptors are listed in /proc on Linux only")
@pytest.mark.usefixtures("patient")
def test_a_child_has_pipes_and_no_other_descriptor(table: TokenTable, pool: TrialPool) -> None:
    read, write = os.pipe()
    os.set_inheritable(write, True)
    own = TrialPool()
    try:
        GrammarCompiler(table, trials=own).compile(LIGHT)
        child = own._all[0]._child
        assert child is not None
        held = [os.readlink(entry) for entry in Path(f"/proc/{child.pid}/fd").iterdir()]
        # libffi keeps its own file open.
        allowed = [target.startswith("pipe:") or target == "/dev/null" or "/libffi.so" in target for target in held]
        assert all(allowed), held
        assert os.readlink(f"/proc/self/fd/{write}") not in held
    finally:
        own.close()
        os.close(read)
        os.close(write)


def test_a_child_ends_with_its_parent(table: TokenTable, tmp_path: Path) -> None:
    """Its input ends; the engine's launcher also covers a child that is busy then."""
    (tmp_path / "tokenizer.json").write_text(table.source)
    code = (
        "import sys; from inferd_grammar import *; from inferd_grammar.trials import pool as trial;"
        "trial.QUICK_SECONDS = 60;"
        f"table = TokenTable.from_tokenizer_json(open(sys.argv[1]).read(), eos_ids={list(table.eos_ids)});"
        "pool = trial.TrialPool(); GrammarCompiler(table, trials=pool).compile(RegexGrammar('ab'));"
        "import os; print(pool._all[0]._child.pid, flush=True); os._exit(0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "tokenizer.json")], check=True, capture_output=True, text=True
    )
    assert _gone(int(done.stdout))


def _gone(pid: int, seconds: float = 10) -> bool:
    """Whether a process that is no child of ours ends in that time."""
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([process], [], [], seconds)[0])
    finally:
        os.close(process)


def test_a_child_that_starts_while_the_pool_is_closed_is_ended_at_once(table: TokenTable) -> None:
    """It would be told the whole vocabulary first, and whoever closes waits for that."""
    children: list[subprocess.Popen[bytes]] = []

    def start() -> subprocess.Popen[bytes]:
        children.append(start_child())
        closing = threading.Thread(target=pool.close)
        closing.start()
        closing.join()
        return children[0]

    pool = TrialPool(start)
    with pytest.raises(GrammarInterrupted, match="was killed"):
        pool.attempt(table, "llguidance", LIGHT, CompileLimits())
    assert children[0].poll() == -signal.SIGKILL
    with pytest.raises(GrammarError, match="closed"):
        pool.attempt(table, "llguidance", LIGHT, CompileLimits())


def test_a_compiler_that_was_killed_is_not_remembered_against_the_grammar(table: TokenTable) -> None:
    """As the kernel kills one for want of memory, or an operator by mistake: nobody else may be refused for that."""
    dying = [True, False]

    def start() -> subprocess.Popen[bytes]:
        child = start_child()
        if dying.pop(0):
            child.kill()
            child.wait()
        return child

    pool = TrialPool(start)
    compiler = GrammarCompiler(table, trials=pool)
    with pytest.raises(GrammarInterrupted):
        compiler.compile(LIGHT)
    assert compiler.compile(LIGHT) is not None
    pool.close()


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the C library does not tell what is allocated")
def test_what_takes_the_place_of_an_earlier_constraint_counts_as_much(table: TokenTable, pool: TrialPool) -> None:
    """Resident memory did not grow then: 500 MiB of compiled choices, as they were counted, were 5 GiB of the engine."""
    options = [tuple(f"{letter}{number:04}" * 10 for number in range(1000)) for letter in "abc"]
    grown = [pool.attempt(table, "auto", ChoiceGrammar(each), CompileLimits()).grown for each in options]
    assert min(grown[1:]) > 500_000


def test_what_is_read_of_a_schema_counts_where_the_child_keeps_none_of_it(table: TokenTable, pool: TrialPool) -> None:
    """90,000 empty lists behind a keyword that nobody knows took 7 MB and counted as one and a half."""
    compiler = GrammarCompiler(table, trials=pool)
    first, second = (compiler.compile(JsonSchemaGrammar({"type": "null", name: [[]] * 50_000})) for name in "xy")
    assert min(first.cost, second.cost) > 50_000 * 64
