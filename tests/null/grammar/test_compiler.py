"""The cache, threads, choice of backend, Lark, and what the package imports."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest

import inferd_grammar
from inferd_grammar import (
    AnyJsonGrammar,
    ChoiceGrammar,
    Compiled,
    GrammarCompiler,
    GrammarError,
    JsonSchemaGrammar,
    LarkGrammar,
    RegexGrammar,
    TokenTable,
)
from inferd_grammar.cache import OutcomeCache
from inferd_grammar.compiler import Backend
from inferd_grammar.conformance.matcher_checks import look
from inferd_grammar.constraints import Constraint, SequenceGrammar, TextGrammar
from inferd_grammar.limits import CompileLimits
from inferd_grammar.matchers.matcher import Core


class CountingBackend:
    """Passes on to a real backend; raises what it is told to first."""

    name = "counting"

    def __init__(self, inner: Backend, failure: Exception | None = None) -> None:
        self.inner, self.failure, self.calls = inner, failure, 0

    def rebuild(self, recipe: str) -> Core:
        return self.inner.rebuild(recipe)

    def compile(self, constraint: Constraint, limits: CompileLimits) -> Core:
        self.calls += 1
        failure, self.failure = self.failure, None
        if failure is not None:
            raise failure
        return self.inner.compile(constraint, limits)


@pytest.fixture
def counted(table: TokenTable) -> tuple[GrammarCompiler, CountingBackend]:
    compiler = GrammarCompiler(table, cache_bytes=700_000)  # two small ones
    compiler._backend = backend = CountingBackend(compiler._backend)
    return compiler, backend


def test_equal_constraints_compile_once(counted: tuple[GrammarCompiler, CountingBackend]) -> None:
    compiler, backend = counted
    first = compiler.compile(JsonSchemaGrammar({"type": "integer"}))
    assert compiler.compile(JsonSchemaGrammar('{"type":"integer"}')) is first
    assert backend.calls == 1


def test_key_order_is_part_of_a_schema(compiler: GrammarCompiler) -> None:
    def forced(*names: str) -> bytes:
        properties = {name: {"type": "null"} for name in names}
        schema = {"type": "object", "properties": properties, "required": list(names), "additionalProperties": False}
        return compiler.compile(JsonSchemaGrammar(schema)).matcher().forced()

    assert forced("a", "b") == b'{"a":null,"b":null}'
    assert forced("b", "a") == b'{"b":null,"a":null}'


def test_least_recently_used_goes_first(counted: tuple[GrammarCompiler, CountingBackend]) -> None:
    compiler, backend = counted
    for pattern in ("a", "b", "a", "c", "a", "b"):  # c pushes out b
        compiler.compile(RegexGrammar(pattern))
    assert backend.calls == 4


def test_a_flood_of_constraints_pushes_out_those_of_its_owner_alone(
    counted: tuple[GrammarCompiler, CountingBackend],
) -> None:
    compiler, backend = counted
    compiler.compile(RegexGrammar("a"), "one")
    for pattern in ("a", "b", "c", "d"):
        compiler.compile(RegexGrammar(pattern), "many")
    assert backend.calls == 5, "each owner has its own"
    compiler.compile(RegexGrammar("a"), "one")
    assert backend.calls == 5


def test_refusals_are_cached_and_raised_afresh(counted: tuple[GrammarCompiler, CountingBackend]) -> None:
    compiler, backend = counted
    errors = []
    for _ in range(3):
        with pytest.raises(GrammarError) as caught:
            compiler.compile(JsonSchemaGrammar({"$ref": "#/missing"}))
        errors.append(caught.value)
    assert backend.calls == 1
    assert {error.pointer for error in errors} == {"/$ref"}
    assert len(set(map(id, errors))) == 3


def test_a_refusal_that_is_kept_holds_nothing_of_what_found_it(
    counted: tuple[GrammarCompiler, CountingBackend],
) -> None:
    """Each held its traceback's frames, 21 KB that counted as one: 250,000 refused constraints took the engine gigabytes."""
    compiler, backend = counted
    backend.failure = GrammarError("no")
    found = weakref.ref(backend.failure)
    with pytest.raises(GrammarError, match="no"):
        compiler.compile(RegexGrammar("a"))
    gc.collect()
    assert found() is None
    with pytest.raises(GrammarError, match="no"):
        compiler.compile(RegexGrammar("a"))
    assert backend.calls == 1


@pytest.mark.parametrize("letter", ["a", "\u65e5", "\U0001f642"])
def test_a_refusal_counts_with_its_reason_and_its_constraint_in_bytes(
    counted: tuple[GrammarCompiler, CountingBackend], letter: str
) -> None:
    """Characters of the constraint were counted, of the reason nothing: 256 MiB of refusals took 2 GB."""
    compiler, backend = counted
    constraint = LarkGrammar(f"%import {letter * 10_000}.x")
    backend.failure = GrammarError(constraint.text)
    with pytest.raises(GrammarError):
        compiler.compile(constraint)
    assert compiler._cache._held.total() > 2 * sys.getsizeof(constraint.text)


def test_where_the_largest_holder_has_its_newest_alone_another_loses_some() -> None:
    cache: OutcomeCache[str] = OutcomeCache(1100)
    for key, cost in ((("one", "a"), 100), (("one", "b"), 100), (("two", "c"), 700)):
        future, mine = cache.claim(key)
        assert mine
        cache.keep(key, future, key[1], cost)
    assert [cache.get(("one", "a")), cache.get(("one", "b")), cache.get(("two", "c"))] == [None, "b", "c"]


def test_the_end_of_a_long_fixed_text_counts_for_the_cache_and_its_holder(
    counted: tuple[GrammarCompiler, CountingBackend],
) -> None:
    """Its tokens take thirteen times its bytes, and were found after what the constraint takes had been counted."""
    compiler, _ = counted
    constraint = SequenceGrammar((TextGrammar("ab cd " * 5000), JsonSchemaGrammar({"type": "integer"})))
    compiled = compiler.compile(constraint)
    before, held = compiled.cost, compiler._cache._held.total()
    assert compiled.shortest() is not None
    assert compiled.cost - before > 13 * 30_000
    assert compiler._cache._held.total() - held == compiled.cost - before


def test_an_optional_group_over_lines_may_name_a_rule_like_an_attribute(compiler: GrammarCompiler) -> None:
    matcher = compiler.compile(LarkGrammar('start: [ stop\n | "b" ]\nstop: "a"')).matcher()
    assert matcher.may_end()


def test_a_bug_is_not_cached(counted: tuple[GrammarCompiler, CountingBackend]) -> None:
    compiler, backend = counted
    backend.failure = RuntimeError("bug")
    with pytest.raises(RuntimeError, match="bug"):
        compiler.compile(RegexGrammar("a"))
    assert isinstance(compiler.compile(RegexGrammar("a")), Compiled)


def test_threads_share_one_compile_and_one_template(counted: tuple[GrammarCompiler, CountingBackend]) -> None:
    compiler, backend = counted
    constraint = JsonSchemaGrammar({"enum": [f"value {n}" for n in range(300)]})

    def run(_: int) -> object:
        matcher = compiler.compile(constraint).matcher()
        assert matcher.accept(matcher.forced_tokens()) > 0
        return look(matcher, compiler.table)

    with ThreadPoolExecutor(8) as pool:
        assert len(set(map(str, pool.map(run, range(64))))) == 1
    assert backend.calls == 1


def test_unknown_backends_and_constraints_are_refused(table: TokenTable, compiler: GrammarCompiler) -> None:
    with pytest.raises(GrammarError, match="unknown backend 'xyz'; known: auto, llguidance, outlines, xgrammar"):
        GrammarCompiler(table, backend="xyz")
    with pytest.raises(ValueError, match="cache_bytes"):
        GrammarCompiler(table, cache_bytes=0)
    with pytest.raises(GrammarError, match="str is not a constraint"):
        compiler.compile("[a-z]")  # type: ignore[arg-type]


def test_an_absent_backend_names_its_extra(table: TokenTable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "inferd_grammar.backends.outlines", raising=False)
    monkeypatch.setitem(sys.modules, "outlines_core", None)
    with pytest.raises(GrammarError, match=r"inferd\[outlines\]"):
        GrammarCompiler(table, backend="outlines")


def test_lark_grammars(compiler: GrammarCompiler) -> None:
    matcher = compiler.compile(LarkGrammar('start: "<" /[a-z]+/ ">"  // a <tag> in a comment')).matcher()
    assert matcher.forced() == b"<"


def test_what_guidance_writes_around_a_grammar_changes_no_text(compiler: GrammarCompiler) -> None:
    text = '%llguidance {}\n\nstart: a b\na[capture]: "a[capture]: "\nb[capture="x"]: B\nB: "y"\n'
    assert compiler.compile(LarkGrammar(text)).matcher().forced() == b"a[capture]: y"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('start: <|im_start|> "a"', r"special token <\|im_start\|>"),
        ("start: <[12]>", r"special token <\[12\]>"),
        ("start: a\na[max_tokens=3]: /.*/", "'max_tokens' is not supported"),
        ('start: a\na[stop="x"]: /.*/', "'stop' is not supported"),
        ('start: a\na[capture, stop="x"]: /x/', "'capture' is not supported"),
        ('%llguidance {"no_forcing": true}\nstart: /x/', "'%llguidance' in a Lark grammar"),
        ("start: a\n%llguidance {}\na: /x/", "'%llguidance' in a Lark grammar"),
        ("start: a\na[temperature=0.5]: /x/", "'temperature' is not supported"),
        ('root ::= "a"', "with ::= is GBNF"),
        ("start: missing", "unknown name"),
        ("start: NUMBER", "unknown name.*define NUMBER, or write `%import common.NUMBER`"),
        ("expr: NUMBER", "no rule `start`: add one"),
        ("", "no rule `start`"),
        ("x" * 2_000_001, "max_bytes"),
    ],
)
def test_lark_that_cannot_be_held_is_refused(compiler: GrammarCompiler, text: str, reason: str) -> None:
    with pytest.raises(GrammarError, match=reason):
        compiler.compile(LarkGrammar(text))


def test_everything_exported_exists() -> None:
    assert all(hasattr(inferd_grammar, name) for name in inferd_grammar.__all__)
    assert AnyJsonGrammar() == AnyJsonGrammar()
    assert hash(ChoiceGrammar(("a",))) == hash(ChoiceGrammar(("a",)))


def test_importing_needs_neither_torch_nor_the_runtime() -> None:
    code = (
        "import sys, inferd_grammar, inferd_grammar.conformance.matcher_checks;"
        "bad = {'torch', 'transformers', 'inferd', 'inferd_runtime', 'outlines_core'} & set(sys.modules);"
        "sys.exit(str(bad) if bad else 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
