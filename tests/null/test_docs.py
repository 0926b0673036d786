"""The pages that explain the house name nothing that is not there: every path, class, function and link is looked up."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest
from mutants import EXPLAINED, ROOMS, mutants

from inferd_runtime.settings.settings import FIELDS

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = tuple(
    ROOT / path for path in ("sdk/inferd", "sdk/inferlet", "runtime/inferd_runtime", "grammar/inferd_grammar")
)
SOURCES = (*PACKAGES, *(ROOT / name for name in ("tests", "benchmarks", "inferlets", "examples", "scripts")))
STRICT = [ROOT / "docs" / "architecture.md", *sorted(ROOT.glob("docs/extending/*.md"), key=str)]
STRICT += sorted(ROOT.glob("docs/decisions/*.md"))
STRICT += [
    ROOT / "docs" / f"{name}.md" for name in ("security", "exactness", "testing", "models", "beyond-one-machine")
]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted(ROOT.glob("docs/**/*.md"))]
MOST_LINES = 200
FENCED = re.compile(r"^```.*?^```$|^    .*?$", re.MULTILINE | re.DOTALL)
SPAN = re.compile(r"`([^`\n]+)`")
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[\w-]*)?\)")
FILE = re.compile(r"(?:[\w.-]+/)*[\w.-]+\.(?:py|md|toml|txt|wit)")
FOLDER = re.compile(r"(?:[\w.-]+/)+[\w.-]*")
SYMBOL = re.compile(r"@?([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)(?:\(.*\))?")
WORD = re.compile(r"[A-Za-z_]\w*")
LIBRARIES = frozenset({"AttentionInterface", "io_uring"})
"""Names of transformers, and of Linux."""
OPTIONS = {"fail-with-body", "model_args", "tasks", "build-arg", "from-file", "home-dir", "offline", "system", "dist"}
"""Of other programs that the pages call."""


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def prose(page: Path) -> str:
    """A page without its blocks of code."""
    return FENCED.sub("", page.read_text())


def exists(path: str) -> bool:
    """True if a path is there from the root, from the tests, from a package, or, for a bare name, anywhere in the sources."""
    if any((base / path).exists() for base in (ROOT, ROOT / "tests", *PACKAGES)):
        return True
    return "/" not in path and any(any(base.rglob(path)) for base in SOURCES)


@cache
def texts() -> tuple[str, ...]:
    """What stands in every source but this one."""
    files = (path for base in SOURCES for path in base.rglob("*.py") if path != Path(__file__).resolve())
    return tuple(path.read_text() for path in files)


@cache
def names() -> frozenset[str]:
    """Every word of the sources that could be an identifier."""
    return frozenset(word for text in texts() for word in WORD.findall(text))


@cache
def options() -> set[str]:
    """Every option of the command line, of the scripts and of the programs, without its dashes."""
    written = {name for text in texts() for name in re.findall(r'"--([a-z][\w-]*)', text)}
    return {field.flag.removeprefix("--") for field in FIELDS.values()} | written | OPTIONS


@cache
def variables() -> set[str]:
    """Every environment variable of ours."""
    written = {name for text in texts() for name in re.findall(r"INFERD_[A-Z_]+", text)}
    return {field.variable for field in FIELDS.values()} | written


@cache
def members() -> dict[str, set[str]]:
    """What each class defines or sets on itself, by the name of the class; its bases' members with it."""
    own, bases = defaultdict[str, set[str]](set), defaultdict[str, set[str]](set)
    trees = (ast.parse(path.read_text()) for base in PACKAGES for path in base.rglob("*.py"))
    for node in (node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef)):
        own[node.name].update(_defined(node))
        bases[node.name].update(ast.unparse(base).split("[")[0].rpartition(".")[2] for base in node.bases)
    for name in own:
        waiting, seen = [name], set[str]()
        while waiting:
            seen.add(base := waiting.pop())
            own[name] |= own.get(base, set())
            waiting += [each for each in bases.get(base, ()) if each not in seen]
    return dict(own)


def _defined(cls: ast.ClassDef) -> Iterator[str]:
    for node in ast.walk(cls):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self":
            yield node.attr
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id


def known(symbol: str) -> bool:
    """True if a dotted name is one of ours: a module, a member of a class, or names that all occur in the sources."""
    parts = symbol.split(".")
    if any((base.parent / Path(*parts)).with_suffix(".py").exists() for base in PACKAGES) or exists("/".join(parts)):
        return True
    for owner, member in pairwise(parts):
        if owner in members() and member not in members()[owner]:
            return False
    return all(part in names() or part in LIBRARIES for part in parts)


def says_a_name(symbol: str) -> bool:
    """True for what cannot be an ordinary word or value: dotted, with capitals inside, or with an underscore."""
    return bool(re.search(r"\.|_|[a-z][A-Z]|^[A-Z]+[a-z]", symbol))


def missing(span: str) -> str:
    """What a span of code names that is not there: a path, the symbol behind ``path: symbol``, or a symbol."""
    path, _, symbol = span.partition(": ")
    if FILE.fullmatch(path) or FOLDER.fullmatch(path):
        if not exists(path):
            return path
        return "" if not symbol or known(symbol) else symbol
    found = SYMBOL.fullmatch(span)
    return span if found is not None and says_a_name(found[1]) and not known(found[1]) else ""


@pytest.mark.parametrize("page", STRICT, ids=relative)
def test_every_name_is_there(page: Path) -> None:
    assert [gone for span in SPAN.findall(prose(page)) if (gone := missing(span))] == []


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_every_link_leads_somewhere(page: Path) -> None:
    targets = [target for target in LINK.findall(prose(page)) if "://" not in target]
    assert [target for target in targets if not (page.parent / target).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_every_source_file_that_is_named_is_there(page: Path) -> None:
    paths = [path for path in SPAN.findall(prose(page)) if re.fullmatch(r"(?:[\w.-]+/)+[\w.-]+\.py", path)]
    assert [path for path in paths if not exists(path)] == []


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_every_target_of_make_is_there(page: Path) -> None:
    named = re.findall(r"(?:`|^ {4})make ([a-z-]+)", page.read_text(), re.MULTILINE)
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert set(named) <= set(targets)


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_every_option_and_variable_is_there(page: Path) -> None:
    """The changes tell of what was there once."""
    if page.name != "CHANGELOG.md":
        text = page.read_text()
        assert set(re.findall(r"(?<![\w-])--([a-z][\w-]*)", text)) - options() == set()
        assert set(re.findall(r"\bINFERD_[A-Z_]+\b", text)) - variables() == set()


def test_every_mutant_that_is_explained_can_still_be_made() -> None:
    files = [path for patterns, _ in ROOMS.values() for pattern in patterns for path in ROOT.glob(pattern)]
    made = {mutant.key for path in files for mutant in mutants(path)}
    explained = re.findall(r"^\| `(.+)` \|", EXPLAINED.read_text(), re.MULTILINE)
    assert explained
    assert [key for key in explained if key not in made] == []


def test_the_tour_fits() -> None:
    assert len((ROOT / "docs" / "architecture.md").read_text().splitlines()) <= MOST_LINES


def test_decisions_are_numbered_and_listed() -> None:
    folder = ROOT / "docs" / "decisions"
    numbers = [path.name[:4] for path in sorted(folder.glob("[0-9]*.md"))]
    assert len(set(numbers)) == len(numbers)
    listed = set(LINK.findall((folder / "README.md").read_text()))
    assert {path.name for path in folder.glob("[0-9]*.md")} <= listed


@pytest.mark.parametrize(
    ("span", "gone"),
    [
        ("engine/no_such.py", "engine/no_such.py"),
        ("engine/engine.py: Engine.no_such", "Engine.no_such"),
        ("Engine.no_such", "Engine.no_such"),
        ("NoSuchClass", "NoSuchClass"),
        ("engine/engine.py: Engine.step", ""),
        ("inferd_runtime.testing", ""),
        ("make test", ""),
        ("tiny", ""),
    ],
)
def test_what_is_gone_is_found(span: str, gone: str) -> None:
    assert missing(span) == gone
