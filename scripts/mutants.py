"""Change one thing in a function, run the tests that reach it, and say whether one of them fails: do the tests bite?

    make mutants                                        # every room, 40 mutants each
    python scripts/mutants.py kv --sample 0             # all of one room
    python scripts/mutants.py engine --only overlap.py --seed 3 --budget 60

Everything is imported once. Each mutant is a forked process, in which the changed function's code replaces the live one's; there
the tests that execute the changed statement run, the quickest first, until one fails. Which tests those are is traced before,
one forked process per test. Survivors are printed; those that docs/mutants.md explains are counted on their own.
"""

from __future__ import annotations

import argparse
import ast
import builtins
import gc
import itertools
import json
import os
import random
import resource
import signal
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from types import CodeType, FunctionType
from typing import IO, Any, NamedTuple

import hypothesis
import pytest

ROOT = Path(__file__).parent.parent
ENGINE = "runtime/inferd_runtime/engine/"
NULL = "tests/null/"
MATCHER_TESTS = (
    "guard",
    "healing",
    "tokens",
    "composed",
    "program",
    "regex",
    "speculation_bugs",
    "xgrammar",
    "llguidance",
)
ROOMS: dict[str, tuple[list[str], list[str]]] = {
    "kv": (["runtime/inferd_runtime/kv/*.py"], [NULL + "kv"]),
    "sampling": (
        [ENGINE + "sampling/*.py"],
        [NULL + name for name in ("engine", "session/test_forward.py", "speculation/test_distribution.py")],
    ),
    "engine": (
        [ENGINE + name for name in ("*.py", "jobs/generation.py", "scheduling/*.py", "sequences/*.py")],
        [NULL + "engine", NULL + "session"],
    ),
    "grammar": (
        ["grammar/inferd_grammar/matchers/*.py", "grammar/inferd_grammar/healing.py", "grammar/inferd_grammar/tokens.py"],
        [f"{NULL}grammar/test_{name}.py" for name in MATCHER_TESTS],
    ),
    "limits": (
        ["runtime/inferd_runtime/server/gateway/auth.py", "runtime/inferd_runtime/server/tokens_file.py",
         "runtime/inferd_runtime/sandbox/host/meter.py", "grammar/inferd_grammar/limits.py"],
        [NULL + "server", NULL + "sandbox/host", NULL + "grammar/test_guard.py"],
    ),
}  # fmt: skip
EXPLAINED = ROOT / "docs/mutants.md"
SWAPS: dict[type, tuple[type, ...]] = {
    ast.Lt: (ast.LtE, ast.GtE), ast.LtE: (ast.Lt, ast.Gt), ast.Gt: (ast.GtE, ast.LtE), ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,), ast.NotEq: (ast.Eq,), ast.Is: (ast.IsNot,), ast.IsNot: (ast.Is,), ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,), ast.Add: (ast.Sub,), ast.Sub: (ast.Add,), ast.Mult: (ast.FloorDiv,), ast.FloorDiv: (ast.Mult,),
    ast.Div: (ast.Mult,), ast.Mod: (ast.FloorDiv,), ast.BitAnd: (ast.BitOr,), ast.BitOr: (ast.BitAnd,),
    ast.BitXor: (ast.BitOr,), ast.LShift: (ast.RShift,), ast.RShift: (ast.LShift,), ast.Pow: (ast.Mult,),
    ast.And: (ast.Or,), ast.Or: (ast.And,),
}  # fmt: skip
NAMES = {"min": "max", "max": "min", "any": "all", "all": "any"}
MARK = "__mutants_reached__"
Place = tuple[str, str, int]
"""File, qualified name and first line of a function."""
EFFECTS = (ast.AugAssign, ast.Delete, ast.Raise, ast.Break, ast.Continue)


class Mutant(NamedTuple):
    """A change of the function ``name``: ``node`` at ``parent.field`` (``[at]`` where that is a list) of the module's ``tree``.

    ``first``: the line on which the function's code begins. ``line``: that of the changed statement.
    """

    path: str
    name: str
    first: int
    line: int
    change: str
    tree: ast.Module
    parent: ast.AST
    field: str
    at: int | None
    node: ast.AST

    @property
    def place(self) -> Place:
        """Where the function's code comes from."""
        return self.path, self.name, self.first

    @property
    def key(self) -> str:
        """Names the mutant in docs/mutants.md: stays the same when lines move."""
        return f"{Path(self.path).name}: {self.name}: {self.change}"


def changes(node: ast.AST) -> Iterator[ast.AST]:
    """Yield what may stand in a node's place. Texts are left alone."""
    if isinstance(node, ast.Compare):
        for at, op in enumerate(node.ops):
            for other in SWAPS.get(type(op), ()):
                yield ast.Compare(node.left, [*node.ops[:at], other(), *node.ops[at + 1 :]], node.comparators)
    elif isinstance(node, ast.BinOp):
        for other in SWAPS.get(type(node.op), ()):
            yield ast.BinOp(node.left, other(), node.right)
    elif isinstance(node, ast.AugAssign):
        for other in SWAPS.get(type(node.op), ()):
            yield ast.AugAssign(node.target, other(), node.value)
    elif isinstance(node, ast.BoolOp):
        yield ast.BoolOp(SWAPS[type(node.op)][0](), node.values)
        for at in range(len(node.values)):
            rest = node.values[:at] + node.values[at + 1 :]
            yield rest[0] if len(rest) == 1 else ast.BoolOp(node.op, rest)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub):
        yield node.operand
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield ast.Constant(not node.value)
    elif isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        yield ast.Constant(node.value + 1)
    elif isinstance(node, ast.Name) and node.id in NAMES:
        yield ast.Name(NAMES[node.id], node.ctx)
    elif isinstance(node, ast.If | ast.IfExp | ast.While) and isinstance(
        node.test, ast.Name | ast.Attribute | ast.Call
    ):
        yield type(node)(ast.UnaryOp(ast.Not(), node.test), node.body, node.orelse)
    elif isinstance(node, ast.Return) and node.value is not None and not isinstance(node.value, ast.Constant):
        yield ast.Return(ast.Constant(None))
    if isinstance(node, EFFECTS) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)):
        yield ast.Pass()
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute | ast.Subscript):
        yield ast.Pass()


def places(parent: ast.AST) -> Iterator[tuple[ast.AST, str, int | None, ast.AST]]:
    """Yield every node below with where it hangs; not in annotations, texts, messages of errors, defaults, or strict=."""
    for name, value in ast.iter_fields(parent):
        skipped = name in {"annotation", "returns", "decorator_list", "args", "msg", "type_params"}
        if skipped and not (name == "args" and isinstance(parent, ast.Call)):
            continue
        for at, child in enumerate(value) if isinstance(value, list) else [(None, value)]:
            if isinstance(child, ast.keyword) and child.arg == "strict":
                continue
            if isinstance(child, ast.AST) and not isinstance(child, ast.JoinedStr):
                yield parent, name, at, child
                if not isinstance(child, ast.Raise):
                    yield from places(child)


def functions(tree: ast.AST, prefix: str = "") -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Yield the outermost functions with their qualified names."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield prefix + node.name, node
        elif isinstance(node, ast.ClassDef):
            yield from functions(node, f"{prefix}{node.name}.")


def mutants(path: Path) -> Iterator[Mutant]:
    """Yield a file's mutants."""
    tree = ast.parse(path.read_text())
    for name, function in functions(tree):
        first = min([function.lineno, *(node.lineno for node in function.decorator_list)])
        statement: Any = function
        for parent, field, at, node in places(function):
            statement = node if isinstance(node, ast.stmt) else statement
            for other in changes(node):
                before, after = (ast.unparse(each).split("\n")[0] for each in (node, other))
                other = ast.copy_location(other, node)
                yield Mutant(
                    str(path), name, first, statement.lineno, f"{before} -> {after}", tree, parent, field, at, other
                )


def build_in(mutant: Mutant, live: Mapping[Place, FunctionType]) -> None:
    """Give the live function the mutant's code."""
    if mutant.at is None:
        setattr(mutant.parent, mutant.field, mutant.node)
    else:
        getattr(mutant.parent, mutant.field)[mutant.at] = mutant.node
    code = compile(ast.fix_missing_locations(mutant.tree), mutant.path, "exec")
    live[mutant.place].__code__ = functions_of(code)[mutant.place]


def with_marks(path: Path) -> CodeType:
    """Compile a file such that each statement of a function notes that it is executed."""
    tree = ast.parse(path.read_text())
    for node in [*ast.walk(tree)]:
        for field in ("body", "orelse", "finalbody"):
            block = getattr(node, field, None)
            if isinstance(block, list) and not isinstance(node, ast.Module | ast.ClassDef):
                marks = [ast.parse(f"{MARK}({(str(path), each.lineno)!r})").body[0] for each in block]
                for each in [inner for mark in marks for inner in ast.walk(mark) if hasattr(inner, "lineno")]:
                    each.lineno = each.end_lineno = block[0].lineno
                setattr(node, field, [each for pair in zip(marks, block, strict=True) for each in pair])
    return compile(tree, str(path), "exec")


def functions_of(code: CodeType) -> dict[Place, CodeType]:
    """Return all code inside of code, by where it comes from."""
    inside = {where(code): code}
    for each in code.co_consts:
        if isinstance(each, CodeType):
            inside |= functions_of(each)
    return inside


def live_functions(files: Collection[str]) -> dict[Place, FunctionType]:
    """Return the functions of the files that somebody has imported, by where they come from."""
    found = [each for each in gc.get_objects() if isinstance(each, FunctionType) and each.__name__ != "<lambda>"]
    return {where(each.__code__): each for each in found if each.__code__.co_filename in files}


def where(code: CodeType) -> Place:
    """Where code comes from: file, qualified name, first line."""
    return code.co_filename, code.co_qualname, code.co_firstlineno


class Runner:
    """A pytest plugin: collects tests, and then runs mutants in place of them."""

    def __init__(self, arguments: argparse.Namespace, files: list[Path]) -> None:
        self.arguments = arguments
        self.files = files
        self.names = {str(path) for path in files}
        self.failed = False
        self.outcomes: Counter[str] = Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note a failure."""
        self.failed |= report.failed

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Run the mutants."""
        reached, seconds = self.trace(session.items)
        every = [
            each for path in self.files for each in mutants(path) if any(key in each.key for key in self.arguments.key)
        ]
        chosen = every
        if self.arguments.sample:
            chosen = random.Random(self.arguments.seed).sample(every, min(self.arguments.sample, len(every)))
        explained = EXPLAINED.read_text() if EXPLAINED.exists() else ""
        for mutant in chosen:
            items = sorted(reached[mutant.path, mutant.line], key=seconds.__getitem__)
            outcome = self.judge(mutant, [session.items[at] for at in items], [seconds[at] for at in items])
            if outcome != "killed" and f"`{mutant.key}`" in explained:
                outcome = "explained"
            self.outcomes[outcome] += 1
            if outcome not in {"killed", "explained"}:
                print(f"{outcome}: {Path(mutant.path).relative_to(ROOT)}:{mutant.line}: {mutant.key}", flush=True)
        print(f"{self.arguments.room}: {len(every)} generated, {len(chosen)} run: {dict(self.outcomes)}", flush=True)
        return True

    def trace(self, items: list[pytest.Item]) -> tuple[dict[tuple[str, int], set[int]], dict[int, float]]:
        """Return the tests, by number, that execute each line of the files, and how many CPU seconds each test takes."""
        reached: dict[tuple[str, int], set[int]] = defaultdict(set)
        seconds: dict[int, float] = {}
        marked = {place: code for path in self.files for place, code in functions_of(with_marks(path)).items()}
        for at, item in enumerate(items):
            with tempfile.TemporaryFile("w+") as notes:
                if forked(lambda item=item, notes=notes: self.traced(item, marked, notes), self.arguments.slowest):
                    print(f"left out, it fails or takes too long: {item.nodeid}", flush=True)
                    continue
                notes.seek(0)
                seconds[at], lines = json.load(notes)
            for path, line in lines:
                reached[path, line].add(at)
        return reached, seconds

    def traced(self, item: pytest.Item, marked: Mapping[Place, CodeType], notes: IO[str]) -> bool:
        """Run a test, and write down how long it took and what it executed."""
        lines: set[tuple[str, int]] = set()
        setattr(builtins, MARK, lines.add)
        for place, function in live_functions(self.names).items():
            function.__code__ = marked[place]
        start = time.process_time()
        passed = self.passes([item])
        json.dump((time.process_time() - start, sorted(lines)), notes)
        notes.flush()
        return passed

    def judge(self, mutant: Mutant, items: list[pytest.Item], seconds: list[float]) -> str:
        """Return "killed", "survived" or "not reached": by the quickest tests, as many as take ``--budget`` seconds."""
        count = sum(total <= self.arguments.budget for total in itertools.accumulate(seconds))
        items = items[: max(1, count)]
        live = live_functions(self.names)
        if not items or mutant.place not in live:
            return "not reached"

        def run() -> bool:
            build_in(mutant, live)
            return self.passes(items)

        return "killed" if forked(run, 10 + 3 * sum(seconds[: len(items)])) else "survived"

    def passes(self, items: list[pytest.Item]) -> bool:
        """Run tests until one fails."""
        for item, following in itertools.zip_longest(items, items[1:]):
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if self.failed:
                return False
        return True


def forked(run: Callable[[], bool], limit: float) -> bool:
    """Return True if ``run`` fails in a process of its own: is false, raises, takes more than ``limit`` CPU seconds or 4 GiB."""
    process = os.fork()
    if process:
        return os.waitpid(process, 0)[1] != 0
    try:
        for number in (signal.SIGPROF, signal.SIGALRM):
            signal.signal(number, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_PROF, limit)
        signal.alarm(60 + 10 * int(limit))  # where it waits for ever
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + (4 << 30),) * 2)
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1)
        os.dup2(quiet, 2)
        os._exit(not run())
    finally:
        os._exit(1)


def main() -> int:
    """Run one room's mutants. Return 1 if one survives that docs/mutants.md does not explain."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("room", choices=ROOMS)
    parser.add_argument("--only", default="", help="files whose path holds this")
    parser.add_argument("--key", nargs="*", default=[""], help="mutants whose name, as printed, holds one of these")
    parser.add_argument("--tests", nargs="*", help="files or folders of tests, in place of the room's")
    parser.add_argument("--sample", type=int, default=0, help="that many mutants, drawn at random (0: all)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--budget", type=float, default=60.0, help="CPU seconds of tests per mutant")
    parser.add_argument("--slowest", type=float, default=15.0, help="CPU seconds; tests that take more are left out")
    arguments = parser.parse_args()
    patterns, tests = ROOMS[arguments.room]
    files = [path for pattern in patterns for path in sorted(ROOT.glob(pattern)) if arguments.only in str(path)]
    # Examples that are the same every time, and none that are made smaller once one fails.
    phases = (hypothesis.Phase.explicit, hypothesis.Phase.generate)
    checks = list(hypothesis.HealthCheck)
    hypothesis.settings.register_profile(
        "mutants", derandomize=True, database=None, phases=phases, deadline=None, suppress_health_check=checks
    )
    runner = Runner(arguments, files)
    os.chdir(ROOT)
    options = (
        "-p no:cacheprovider -W ignore::pytest.PytestAssertRewriteWarning --capture=no --hypothesis-profile=mutants"
    )
    code = pytest.main([*options.split(), *(arguments.tests or tests)], plugins=[runner])
    return int(code != 0 or runner.outcomes["survived"] + runner.outcomes["not reached"] > 0)


if __name__ == "__main__":
    sys.exit(main())
