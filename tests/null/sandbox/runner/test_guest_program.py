"""The guest's loading and running of programs, here in the test's own Python."""

from __future__ import annotations

import json
import sys
import textwrap
from base64 import b64encode
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from inferd_runtime.sandbox.runner import rehearsal
from inferd_runtime.sandbox.runner.entry import Runner
from inferd_runtime.sandbox.runner.rehearsal import AnsweringHost

Run = Callable[..., dict[str, Any]]


class Host(AnsweringHost):
    """Keeps what is written, and what was compiled; has packages."""

    def __init__(self, packages: dict[str, bytes] | None = None, kept: dict[str, str] | None = None) -> None:
        super().__init__()
        self.written: dict[str, str] = {"stdout": "", "stderr": ""}
        self.packages = packages or {}
        self.kept = {} if kept is None else kept
        self.read: list[str] = []

    def log(self, target: str, text: str) -> None:
        self.written[target] += text

    def file(self, path: str) -> str:
        self.read.append(path)
        return b64encode(self.packages[path]).decode()

    def code(self, path: str) -> str:
        return self.kept.get(path, "")

    def keep(self, code: str) -> None:
        self.kept |= json.loads(code)


@pytest.fixture
def run() -> Iterator[Run]:
    def run(
        files: dict[str, str] | str,
        arguments: Any = None,
        entry: str = "main.py",
        seed: int | None = None,
        data: dict[str, bytes] | None = None,
        packages: dict[str, bytes] | None = None,
        host: Host | None = None,
    ) -> dict[str, Any]:
        host = host or Host(packages)
        bundle = {
            "name": "test",
            "files": {"main.py": files} if isinstance(files, str) else files,
            "entry": entry,
            "seed": seed,
            "data": {path: b64encode(content).decode() for path, content in (data or {}).items()},
            "packages": list(host.packages),
            "keeps_code": True,
        }
        text = arguments if isinstance(arguments, str) else json.dumps(arguments or {})
        outcome = Runner(host).run(json.dumps(bundle), text)
        decoded = json.loads(outcome.text)
        return {"value": decoded} if outcome.ok else dict(decoded)

    with rehearsal.left_as_found():
        yield run


def test_the_rehearsal_runs_as_it_is_meant_to() -> None:
    before = set(sys.modules)
    endings = rehearsal.rehearse(2)
    assert {name: outcome.ok for name, outcome in endings.items()} == {
        "asyncio": True, "generation": True, "failure": False, "syntax": False,
    }  # fmt: skip
    assert json.loads(endings["asyncio"].text) == {"texts": ["0", "2"], "count": 2}
    assert json.loads(endings["failure"].text)["message"] == "KeyError: 'missing'"
    assert json.loads(endings["syntax"].text)["code"] == "program.syntax"
    assert set(sys.modules) == before


def test_modules_are_found_beside_the_entry_and_from_the_top(run: Run) -> None:
    files = {
        "src/main.py": "import beside, shared.deep\ndef main(): return [beside.x, shared.deep.y, __name__]",
        "src/beside.py": "x = 1",
        "shared/deep.py": "y = 2",
    }
    assert run(files, entry="src/main.py") == {"value": [1, 2, "main"]}


def test_an_entry_in_a_package_can_import_from_it(run: Run) -> None:
    files = {
        "app/__init__.py": "",
        "app/main.py": "from . import words\nfrom .words import w\ndef main(): return [w, __name__, words.__package__]",
        "app/words.py": "w = 'w'",
    }
    assert run(files, entry="app/main.py") == {"value": ["w", "app.main", "app"]}


def test_sources_can_be_inspected(run: Run) -> None:
    program = "import inspect\ndef main(): return inspect.getsource(main)"
    assert run(program) == {"value": "def main(): return inspect.getsource(main)\n"}


@pytest.mark.parametrize(
    ("files", "arguments", "message"),
    [
        ({"other.py": ""}, {}, "no Python file 'main.py'"),
        ({"main.py": "main = 1"}, {}, "defines no function `main`"),
        ({"main.py": "def main(): pass", "json/__init__.py": ""}, {}, "hide the module 'json'"),
        ({"main.py": "def main(): pass"}, "[1]", "have to be a JSON object, not list"),
        ({"main.py": "def main(): pass"}, "{", "are not JSON"),
        ({"main.py": "def main(): pass"}, {"x": 1}, "no parameter 'x'"),
    ],
)
def test_what_cannot_be_run_is_refused(run: Run, files: dict[str, str], arguments: Any, message: str) -> None:
    error = run(files, arguments)
    assert error["code"] == "client.invalid"
    assert message in error["message"]
    assert "traceback" not in error["detail"]


def test_an_invalid_request_of_the_program_itself_has_its_place(run: Run) -> None:
    error = run("import inferd\ndef main(): raise inferd.InvalidRequest('no', field=object())")
    assert error["code"] == "client.invalid"
    assert 'File "main.py", line 2, in main' in error["detail"]["traceback"]
    assert error["detail"]["field"].startswith("<object")


def test_a_cause_keeps_its_own_lines(run: Run) -> None:
    program = """
def inner():
    raise KeyError("a")
def main():
    try:
        inner()
    except KeyError as error:
        raise ValueError("b") from error
"""
    trace = run(program)["detail"]["traceback"]
    assert trace.index("KeyError: 'a'") < trace.index("direct cause") < trace.index("ValueError: b")
    assert trace.count('File "main.py"') == 3
    assert "sandbox/runner" not in trace


def test_a_syntax_error_in_text_that_the_program_compiles_is_an_ordinary_error(run: Run) -> None:
    error = run("def main(): eval('1 +')")
    assert error["code"] == "program"
    assert error["detail"]["exception"] == "SyntaxError"


def test_a_syntax_error_in_an_imported_file_is_its(run: Run) -> None:
    error = run({"main.py": "import other\ndef main(): pass", "other.py": "\nx ="})
    assert error["code"] == "program.syntax"
    assert error["message"].startswith("other.py:2: ")
    assert 'File "main.py", line 1' in error["detail"]["traceback"]


def test_a_long_traceback_is_cut_in_the_middle(run: Run) -> None:
    error = run("def main(): raise ValueError('a' * 100_000 + 'z' * 100_000)")
    assert len(error["detail"]["traceback"]) < 70_000
    assert "[...]" in error["detail"]["traceback"]


@pytest.mark.parametrize(
    ("leave", "outcome"),
    [
        ("sys.exit()", {"value": None}),
        ("sys.exit(0)", {"value": None}),
        ("sys.exit('bye')", "the program exited with 'bye'"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt"),
        ("raise asyncio.CancelledError", "asyncio.exceptions.CancelledError"),
        (
            "raise ExceptionGroup('two', [ValueError(1), KeyError(2)])",
            "ExceptionGroup: two (2 sub-exceptions): ValueError: 1; KeyError: 2",
        ),
        ("raise ExceptionGroup('one', [ExceptionGroup('x', [ValueError(1)])])", "ValueError: 1"),
    ],
)
@pytest.mark.parametrize("kind", ["def", "async def"])
def test_other_ways_out(run: Run, kind: str, leave: str, outcome: Any) -> None:
    ended = run(f"import asyncio, sys\n{kind} main(): {leave}")
    if isinstance(outcome, dict):
        assert ended == outcome
    else:
        assert (ended["code"], ended["message"]) == ("program", outcome)


@pytest.mark.parametrize(
    ("text", "half"),
    [
        ("a\\ud800b", True), ("\\udc00", True), ("\\udc00\\ud800", True), ("\\\\\\ud83d", True), ("\U0001f600\\ud83d", True),
        ("\U0001f600", False), ("\\\\ud800", False), ("\U0001f600\U0001f600", False), ("ü \ud7ff \ue000", False),
    ],
)  # fmt: skip
@pytest.mark.parametrize(
    "end",
    [
        "return {'a': [TEXT]}", "await session.send({TEXT: 1})", "await Context().user(TEXT).flush()",
        "await topic.publish('t', TEXT)", "await queue.push('q', {TEXT: 1})",
    ],
)  # fmt: skip
def test_half_a_surrogate_pair_is_named_before_a_message_with_it_is_sent(
    run: Run, end: str, text: str, half: bool
) -> None:
    ended = run(f"from inferd import Context, queue, session, topic\nTEXT = '{text}'\nasync def main(): {end}")
    assert ("half a surrogate pair" in ended.get("message", "")) == half, ended


@pytest.mark.parametrize(
    "line",
    [
        "from inferlet.eta import Channel", "from inferlet import Event", "import inferlet.mask",
        "import inferlet; inferlet.get_auto_model()", "import inferlet; inferlet.Sampler.argmax().generate_until",
    ],
)  # fmt: skip
def test_names_of_other_versions_of_pie_are_told_to_be_of_others(run: Run, line: str) -> None:
    assert "has the names of Pie 0.4" in run(f"{line}\nasync def main(): pass")["message"]


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("import os; os.no_such_call()", True),
        ("from shutil import no_such_call", True),
        ("import helper; helper.missing", False),
        ("[].missing", False),
        ("raise AttributeError(obj=type('C', (), {'__module__': 5})())", False),
    ],
)
def test_what_the_standard_library_lacks_is_told_to_be_the_sandboxs(run: Run, line: str, told: bool) -> None:
    ended = run({"main.py": f"{line}\nasync def main(): pass", "helper.py": ""})
    assert ("the sandbox has no users" in ended["message"]) == told, ended


def test_tasks_that_are_left_are_cancelled_and_may_clean_up(run: Run) -> None:
    program = """
import asyncio
seen = []
async def forever():
    try:
        await asyncio.sleep(1000)
    finally:
        seen.append("cleaned")
async def main():
    asyncio.create_task(forever())
    await asyncio.sleep(0)
    return seen
"""
    assert run(program) == {"value": ["cleaned"]}
    assert run(program.replace("return seen", "raise ValueError(seen)"))["message"] == "ValueError: ['cleaned']"


def test_a_deadlock_is_an_error_that_names_the_lines_where_tasks_wait(run: Run) -> None:
    program = """
import asyncio
async def take(first, second):
    async with first:
        await asyncio.sleep(0)
        async with second:
            pass
async def main():
    one, two = asyncio.Lock(), asyncio.Lock()
    await asyncio.gather(take(one, two), take(two, one))
"""
    error = run(program)
    assert error["message"].startswith("the program would wait for ever")
    assert error["message"].endswith("they wait at main.py:10, main.py:6")


SEEDED = """
import random
from inferd import Sampler
from inferd.protocol import SendMessage, StartGenerate
from inferd.transport import current_transport

async def main():
    transport = current_transport()
    requests = [transport._seeded(StartGenerate(1)) for _ in range(2)]
    given = transport._seeded(StartGenerate(1, sampling=Sampler.multinomial(seed=5).sampling))
    other = transport._seeded(SendMessage(1))
    return [random.random(), *[one.sampling.seed for one in requests], given.sampling.seed, other.message]
"""


def test_a_seed_decides_every_draw_of_a_program(run: Run) -> None:
    first, same, other = (run(SEEDED, seed=seed)["value"] for seed in (7, 7, 8))
    assert first == same
    assert first[-2:] == other[-2:] == [5, 1]
    assert len({*first[:3], *other[:3]}) == 6


def test_packages_are_imported_behind_the_programs_own_modules(run: Run) -> None:
    source = (
        "import low, top\ndef main(): return [top.low.x, low.x, top.__file__.endswith('site-packages/top/__init__.py')]"
    )
    files = {"main.py": source, "low.py": "x = 'own'"}
    packages = {"top/__init__.py": b"import low", "low.py": b"x = 'package'"}
    assert run(files, packages=packages)["value"] == ["own", "own", True]


def test_what_a_run_has_compiled_the_next_one_need_not(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """jinja2, PyYAML and pydantic 1 took half a second to compile in every run."""
    files = {
        "main.py": "import top, own\nfrom inferd import session\ndef main():\n    import late\n    return late.x + own.x",
        "own.py": "x = 1",
    }
    packages = {"top.py": b"", "late.py": b"x = 2", "unused.py": b"no python"}
    host = Host(packages)
    assert run(files, host=host) == {"value": 3}
    assert set(host.kept) == {"main.py", "own.py", "site-packages/top.py", "site-packages/late.py"}
    assert host.read == ["top.py", "late.py"]
    again = Host(packages, dict(host.kept))
    again.keep = pytest.fail  # type: ignore[assignment]
    with rehearsal.left_as_found():
        for name in ("main", "own", "top", "late"):
            monkeypatch.delitem(sys.modules, name)
        assert run(files, host=again) == {"value": 3}
    assert again.read == []


@pytest.mark.parametrize("code", ["no Base64", "bm8gY29kZQ==", b64encode(b"i\x01\0\0\0").decode()])
def test_what_an_earlier_run_kept_and_is_no_code_is_compiled_anew(run: Run, code: str) -> None:
    assert run("def main(): return 7", host=Host({}, {"main.py": code})) == {"value": 7}


def test_a_run_that_fails_keeps_what_it_has_compiled(run: Run) -> None:
    host = Host({"top.py": b"", "bad.py": b"1 +"})
    outcome = run("import top\nimport bad\ndef main(): pass", host=host)
    assert "SyntaxError" in outcome["message"]
    assert set(host.kept) == {"main.py", "site-packages/top.py"}


@pytest.mark.parametrize("use", ["import top\ndef main(): top.new()", "from top import new"])
def test_what_a_package_lacks_is_said_with_its_version(run: Run, use: str) -> None:
    """ "dateparser" brought a version of 2014, because newer ones need compiled code: `parse` was not in it."""
    packages = {"top.py": b"", "top-0.1.dist-info/METADATA": b"Name: top\nVersion: 0.1\n"}
    assert "the dependencies brought top 0.1" in run(use, packages=packages)["message"]


def test_pkgutil_lists_what_packages_bring(run: Run) -> None:
    """faker found none of its providers: it asks for the modules in the folder of its own file."""
    packages = {
        "top/__init__.py": b"", "top/plugins/__init__.py": b"", "top/plugins/one.py": b"", "top/plugins/two/__init__.py": b"",
        "top/plugins/data/x.txt": b"", "top/plugins/two/deep.py": b"x = 1", "toplike.py": b"",
    }  # fmt: skip
    source = """
        import pkgutil, top.plugins
        def main():
            found = [list(map(tuple, ((m.name, m.ispkg) for m in pkgutil.iter_modules(path)))) for path in (
                top.plugins.__path__, ["/site-packages/top/plugins"], ["nowhere"])]
            return [*found, [m.name for m in pkgutil.walk_packages(top.__path__, "top.")]]
        """
    outcome = run(textwrap.dedent(source), packages=packages)
    plugins = [["one", False], ["two", True]]
    names = ["top.plugins", "top.plugins.one", "top.plugins.two", "top.plugins.two.deep"]
    assert outcome.get("value") == [plugins, plugins, [], names], outcome


def test_importlib_finds_what_packages_bring(run: Run) -> None:
    packages = {
        "top/__init__.py": b"", "top/part/words.txt": "größer".encode(),
        "The_Top-1.5.dist-info/METADATA": b"Name: the-top\nVersion: 1.5\n",
    }  # fmt: skip
    source = """
        import importlib.metadata, importlib.resources
        def main():
            with importlib.resources.as_file(importlib.resources.files("top") / "part/words.txt") as path:
                return [str(path), importlib.metadata.version("the.top")]
        """
    outcome = run(textwrap.dedent(source), packages=packages)
    assert outcome["value"] == ["/site-packages/top/part/words.txt", "1.5"]


def test_files_of_the_programs_folder_are_read(run: Run) -> None:
    source = """
        from inferd import files
        def main():
            missing = []
            for path in ("no.txt", "../main.py", "/etc/passwd"):
                try:
                    files.read_bytes(path)
                except FileNotFoundError as error:
                    missing.append(path)
            return [files.names(), files.read_json("a/x.json"), list(files.read_bytes("b.bin")), len(missing)]
        """
    data = {"a/x.json": b'{"y": 1}', "b.bin": bytes([0, 255])}
    outcome = run(textwrap.dedent(source), data=data, packages={"p.py": b""})
    assert outcome["value"] == [["a/x.json", "b.bin", "main.py"], {"y": 1}, [0, 255], 3]
