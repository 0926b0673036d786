"""Constraints are compiled beside the step loop: who waits, who does not, and what becomes of the context meanwhile."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from inferd import protocol as p
from inferd_grammar import Constraint, GrammarCompiler, RegexGrammar, TokenTable, compiler
from inferd_grammar.completion.split import Split
from inferd_grammar.limits import CompileLimits
from inferd_grammar.trials.messages import Tried
from inferd_grammar.trials.pool import TrialLimits, TrialPool
from inferd_runtime.session.constraints.compile_queue import MAX_WAITING, CompileQueue
from inferd_runtime.session.served_model import ServedModel
from inferd_runtime.session.session import Session
from inferd_runtime.session.state import SessionState
from inferd_runtime.testing.byte_tokenizer import END, VOCAB_SIZE, ByteTokenizer
from inferd_runtime.testing.served import null_model

SECONDS = 30.0
SLOW = p.ConstraintSpec("json_schema", '{"type":"integer","multipleOf":99991}')  # about a second of work
QUICK = p.ConstraintSpec("regex", "[ab]{3}")


class Gate:
    """Trials that let nothing pass whose pattern is not open; a closed gate lets everything pass."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.open: set[str] = set()
        self.asked: list[str] = []
        self.all = False

    def attempt(self, table: TokenTable, backend: str, constraint: Constraint, limits: CompileLimits) -> Tried:
        assert isinstance(constraint, RegexGrammar)
        with self.changed:
            self.asked.append(constraint.pattern)
            self.changed.notify_all()
            assert self.changed.wait_for(lambda: self.all or constraint.pattern in self.open, SECONDS)
        return Tried(None, 0)

    def take_spent(self) -> float:
        return 0.0

    def on_slow(self, call: Callable[[], None]) -> None:
        pass

    def let(self, pattern: str) -> None:
        with self.changed:
            self.open.add(pattern)
            self.changed.notify_all()

    def wait_asked(self, *patterns: str) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: set(patterns) <= set(self.asked), SECONDS), self.asked

    def close(self) -> None:
        with self.changed:
            self.all = True
            self.changed.notify_all()


class Answers:
    """A session whose answers are kept by ticket."""

    def __init__(self, model: ServedModel, queue: CompileQueue, tenant: str = "a") -> None:
        self.session = Session(SessionState({model.info.name: model}, tenant, compiles=queue))
        self.got: dict[int, Any] = {}

    def ask(self, request: Any) -> int:
        ticket = len(self.got) + 1
        self.got[ticket] = None

        def respond(reply: Any) -> None:
            assert self.got[ticket] is None, "answered twice"
            self.got[ticket] = reply

        self.session.handle(ticket, request, respond)
        return ticket

    def now(self, request: Any) -> Any:
        answer = self.got[self.ask(request)]
        assert answer is not None, f"{request} was not answered at once"
        return answer

    def start(self, constraint: p.ConstraintSpec | None) -> tuple[int, int]:
        """A context with a prompt, and the ticket of a generation on it."""
        context = self.now(p.CreateContext()).context
        self.now(p.AppendContext(context, [p.Part("text", text="x")]))
        return context, self.ask(p.StartGenerate(context, max_tokens=50, constraint=constraint))


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest.fixture
def queue(gate: Gate) -> Iterator[CompileQueue]:
    made = CompileQueue(gate)
    yield made
    made.close()


@pytest.fixture
def model(gate: Gate) -> ServedModel:
    return tried_by(gate)


def tried_by(trials: Any) -> ServedModel:
    table = TokenTable.from_tokenizer_json(ByteTokenizer.tokenizer_json(), vocab_size=VOCAB_SIZE, eos_ids=[END])
    plain = null_model()
    return ServedModel(plain.info, plain.engine, plain.tokenizer, GrammarCompiler(table, trials=trials), plain.adapters)


def settle(queue: CompileQueue) -> None:
    """Wait for the next compile to end, and tell."""
    assert queue.wait(SECONDS)
    queue.poll()


def pattern(text: str) -> p.ConstraintSpec:
    return p.ConstraintSpec("regex", text)


def test_a_slow_compile_holds_up_no_step() -> None:
    """Steps are counted, not seconds: the loop never waits for a compile."""
    pool = TrialPool(limits=TrialLimits(cpu_seconds=0.1))
    queue, model = CompileQueue(pool), tried_by(pool)
    caller = Answers(model, queue)
    try:
        _, hostile = caller.start(SLOW)
        steps = 0
        while caller.got[hostile] is None:
            context, ticket = caller.start(None)
            generation = caller.got[ticket].generation
            waiting = caller.ask(p.NextSteps(generation))
            while caller.got[waiting] is None:
                model.engine.step()
                steps += 1
            caller.now(p.CloseGenerate(generation))
            caller.now(p.ReleaseContext(context))
            queue.poll()
        assert steps > 50
        assert isinstance(caller.got[hostile], p.LimitExceeded)
        assert caller.got[hostile].detail["limit"] == "cpu_seconds"
        _, again = caller.start(SLOW)
        assert isinstance(caller.got[again], p.LimitExceeded), "a refusal is remembered"
    finally:
        caller.session.close()
        queue.close()


def test_the_end_of_a_constraint_is_not_looked_for_in_the_step_loop(
    gate: Gate, queue: CompileQueue, model: ServedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first search of an end takes half a second for a pattern of 10,000 bytes; what was found is kept."""
    searched: list[threading.Thread] = []
    search = compiler.first_end

    def noted(*arguments: Any) -> Split | None:
        searched.append(threading.current_thread())
        return search(*arguments)

    monkeypatch.setattr(compiler, "first_end", noted)
    gate.let(QUICK.value)
    compiled: list[Any] = []
    queue.submit("a", model.grammars, RegexGrammar(QUICK.value), compiled.append)
    while not compiled:
        queue.wait(1)
        queue.poll()
    assert compiled[0].shortest() is not None
    assert len(searched) == 1
    assert searched[0] is not threading.current_thread()


def test_what_is_compiled_or_trivial_is_answered_at_once(gate: Gate, queue: CompileQueue, model: ServedModel) -> None:
    caller = Answers(model, queue)
    gate.let(QUICK.value)
    _, first = caller.start(QUICK)
    assert caller.got[first] is None
    settle(queue)
    assert isinstance(caller.got[first], p.GenerationStarted)
    for constraint in (QUICK, p.ConstraintSpec("any_json"), p.ConstraintSpec("choice", options=["yes", "no"])):
        _, ticket = caller.start(constraint)
        assert isinstance(caller.got[ticket], p.GenerationStarted)
    assert gate.asked == [QUICK.value]
    caller.session.close()


def test_the_context_belongs_to_the_request_meanwhile(gate: Gate, queue: CompileQueue, model: ServedModel) -> None:
    caller = Answers(model, queue)
    context, ticket = caller.start(QUICK)
    for request in (
        p.AppendContext(context, [p.Part("text", text="y")]),
        p.ReleaseContext(context),
        p.ForkContext(context),
        p.StartGenerate(context),
    ):
        assert isinstance(caller.now(request), p.InvalidRequest)
    gate.let(QUICK.value)
    settle(queue)
    assert isinstance(caller.got[ticket], p.GenerationStarted)
    caller.session.close()
    model.engine.pool.check_integrity([])


def test_a_cancelled_start_gives_the_context_back(gate: Gate, queue: CompileQueue, model: ServedModel) -> None:
    caller = Answers(model, queue)
    context, ticket = caller.start(QUICK)
    caller.session.cancel(ticket)
    assert isinstance(caller.got[ticket], p.Cancelled)
    assert isinstance(caller.now(p.ReleaseContext(context)), p.Done)
    gate.let(QUICK.value)
    settle(queue)
    _, again = caller.start(QUICK)
    assert isinstance(caller.got[again], p.GenerationStarted), "the compile was not lost"
    caller.session.close()


def test_a_session_that_closes_while_it_waits_leaves_nothing(
    gate: Gate, queue: CompileQueue, model: ServedModel
) -> None:
    caller = Answers(model, queue)
    _, ticket = caller.start(QUICK)
    caller.session.close()
    assert isinstance(caller.got[ticket], p.Cancelled)
    gate.let(QUICK.value)
    settle(queue)
    model.engine.pool.check_integrity([])


def test_sessions_of_a_tenant_share_one_compile(gate: Gate, queue: CompileQueue, model: ServedModel) -> None:
    callers = [Answers(model, queue) for _ in range(3)]
    tickets = [caller.start(QUICK)[1] for caller in callers]
    gate.let(QUICK.value)
    settle(queue)
    assert gate.asked == [QUICK.value]
    for caller, ticket in zip(callers, tickets, strict=True):
        assert isinstance(caller.got[ticket], p.GenerationStarted)
        caller.session.close()


def test_many_who_wait_for_one_compile_are_told_a_few_at_a_time(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand answers of one request began in one turn of the step loop, which took 0.65 s."""
    now, charged = [0.0], Counter[str]()
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    queue = CompileQueue(gate, charge=lambda tenant, seconds: charged.update({tenant: round(seconds * 1e3)}))
    compiler, told = tried_by(gate).grammars, list[str]()

    def listener(tenant: str) -> Callable[[Any], None]:
        def tell(_: Any) -> None:
            told.append(tenant)
            now[0] += 1e-3

        return tell

    forget = [queue.submit(name, compiler, RegexGrammar("x+"), listener(name)) for name in "a" * 20 + "b" * 2]
    try:
        gate.wait_asked("x+")
        gate.let("x+")
        while len(told) < 21:
            before = len(told)
            assert queue.wait(SECONDS)
            queue.poll()
            assert len(told) - before <= 4
            forget[19]()
        assert told.count("b") == 2
        assert charged["a"] >= 19
        assert charged["b"] >= 2
        assert not queue.poll()
    finally:
        queue.close()


def test_nobody_waits_for_a_constraint_in_another_tenants_turn(
    gate: Gate, queue: CompileQueue, model: ServedModel
) -> None:
    hostile, other = Answers(model, queue, "hostile"), Answers(model, queue, "other")
    hostile.start(pattern("slow"))
    gate.wait_asked("slow")
    hostile.start(QUICK)  # it waits behind the slow one
    _, ticket = other.start(QUICK)
    gate.let(QUICK.value)
    settle(queue)
    assert isinstance(other.got[ticket], p.GenerationStarted)
    hostile.session.close()
    other.session.close()


def test_nobody_can_tell_by_its_time_which_constraints_another_tenant_uses(
    gate: Gate, queue: CompileQueue, model: ServedModel
) -> None:
    one, other = Answers(model, queue, "one"), Answers(model, queue, "other")
    gate.let(QUICK.value)
    for caller, asked in ((one, 1), (other, 2)):
        _, ticket = caller.start(QUICK)
        assert caller.got[ticket] is None, "not at once, whoever had it compiled before"
        settle(queue)
        assert isinstance(caller.got[ticket], p.GenerationStarted)
        assert gate.asked == [QUICK.value] * asked
        caller.session.close()


def test_a_tenant_with_slow_constraints_waits_for_them_alone(
    gate: Gate, queue: CompileQueue, model: ServedModel
) -> None:
    hostile, other = Answers(model, queue, "hostile"), Answers(model, queue, "other")
    for number in range(5):
        hostile.start(pattern(f"slow{number}"))
    gate.wait_asked("slow0")
    for text in ("aa", "bb"):
        gate.let(text)
        _, ticket = other.start(pattern(text))
        settle(queue)
        assert isinstance(other.got[ticket], p.GenerationStarted)
    assert gate.asked == ["slow0", "aa", "bb"], "one of a tenant at a time"
    hostile.session.close()
    other.session.close()


def test_a_tenant_may_not_queue_without_end(gate: Gate, queue: CompileQueue, model: ServedModel) -> None:
    caller = Answers(model, queue)
    for number in range(MAX_WAITING + 1):  # one runs
        _, ticket = caller.start(pattern(f"x{number}"))
        assert caller.got[ticket] is None
    context, ticket = caller.start(pattern("one more"))
    assert caller.got[ticket].detail["limit"] == "waiting_constraints"
    assert isinstance(caller.now(p.ReleaseContext(context)), p.Done)
    caller.session.close()


@pytest.mark.parametrize(
    ("constraint", "reason"),
    [
        (p.ConstraintSpec("json_schema", '"' * 10_000_000), "max_bytes"),
        (p.ConstraintSpec("json_schema", '{"const":"\udfff"}'), "Unicode"),
        (p.ConstraintSpec("regex", "x" * 2_000_000), "max_bytes"),
    ],
    ids=["10 MB", "not UTF-8", "regex"],
)
def test_what_is_too_large_is_refused_at_once(
    gate: Gate, queue: CompileQueue, model: ServedModel, constraint: p.ConstraintSpec, reason: str
) -> None:
    caller = Answers(model, queue)
    context, ticket = caller.start(constraint)
    assert isinstance(caller.got[ticket], p.ConstraintError)
    assert reason in caller.got[ticket].message
    assert isinstance(caller.now(p.ReleaseContext(context)), p.Done)
    assert not gate.asked


def test_a_warm_queue_has_a_child_for_every_tokenizer(gate: Gate, queue: CompileQueue, model: ServedModel) -> None:
    gate.close()
    queue.warm([model.grammars])
    settle(queue)
    queue.warm([model.grammars])
    assert not queue.poll()
    assert gate.asked == ["warm"]


DISTINCT = '{"type":"array","items":{"type":"string","pattern":"^[a-d]$"},"minItems":3,"maxItems":3,"uniqueItems":true}'


def test_a_finished_text_is_checked_beside_the_step_loop(queue: CompileQueue) -> None:
    """The steps come at once; who waits for the end is told when the check is done, and nobody else waits."""
    model, outcomes = null_model(), set()
    for seed in range(8):
        answers = Answers(model, queue)
        context = answers.now(p.CreateContext()).context
        answers.now(p.AppendContext(context, [p.Part("text", text="x")]))
        constraint = p.ConstraintSpec("json_schema", DISTINCT, mode="best_effort")
        sampling = p.Sampling(temperature=1.0, seed=seed)
        ticket = answers.ask(p.StartGenerate(context, constraint=constraint, sampling=sampling))
        while answers.got[ticket] is None:
            assert queue.wait(SECONDS)
            queue.poll()
        generation = answers.got[ticket].generation
        while model.engine.step():
            pass
        steps = answers.now(p.NextSteps(generation))
        assert steps.finish == ""
        last = answers.ask(p.NextSteps(generation))
        assert answers.got[last] is None
        assert answers.now(p.CreateContext()).context
        assert queue.wait(SECONDS)
        queue.poll()
        outcomes.add(type(answers.got[last]))
        letters = "".join(step.text for step in steps.steps)[2::4]
        assert isinstance(answers.got[last], p.Steps) == (len(set(letters)) == 3)
        answers.session.close()
    assert outcomes == {p.Steps, p.ConstraintViolated}


def test_a_session_that_closes_during_a_check_is_told_once(queue: CompileQueue) -> None:
    model = null_model()
    answers = Answers(model, queue)
    context = answers.now(p.CreateContext()).context
    answers.now(p.AppendContext(context, [p.Part("text", text="x")]))
    ticket = answers.ask(
        p.StartGenerate(context, constraint=p.ConstraintSpec("json_schema", DISTINCT, mode="best_effort"))
    )
    while answers.got[ticket] is None:
        assert queue.wait(SECONDS)
        queue.poll()
    while model.engine.step():
        pass
    generation = answers.got[ticket].generation
    answers.now(p.NextSteps(generation))
    last = answers.ask(p.NextSteps(generation))
    answers.session.close()
    assert isinstance(answers.got[last], p.Cancelled)
    assert queue.wait(SECONDS)
    queue.poll()
    model.engine.pool.check_integrity([])
