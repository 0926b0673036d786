"""Python's standard library in the sandbox: what works, and what is refused with what to do instead."""

from __future__ import annotations

import hashlib
import json

import pytest

from inferd_runtime.sandbox.messages import Bundle, Deliver, ForgetProgram, KeepProgram, Sent

from .conftest import Gateway


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("import threading\ndef main(): threading.Thread(target=print).start()", "asyncio.to_thread"),
        ("import subprocess\ndef main(): subprocess.run(['ls'])", "inferd.launch"),
        ("import os\ndef main(): os.system('ls')", "inferd.launch"),
        ("import asyncio\nasync def main(): await asyncio.create_subprocess_exec('ls')", "inferd.launch"),
        ("import socket\ndef main(): socket.create_connection(('a', 1))", "inferd.http.fetch"),
        ("import asyncio\nasync def main(): await asyncio.open_connection('a', 1)", "inferd.http.fetch"),
        ("import requests\ndef main(): pass", "inferd.http.fetch"),
        ("import asyncio\nasync def main(): await asyncio.start_server(print, 'a', 1)", "inferd.http.fetch"),
        ("import http.client\ndef main(): http.client.HTTPSConnection('a')", "inferd.http.fetch"),
        ("import multiprocessing\ndef main(): multiprocessing.Process(target=print).start()", "inferd.launch"),
        ("from concurrent.futures import ProcessPoolExecutor\ndef main(): ProcessPoolExecutor()", "inferd.launch"),
        ("import inferd\nasync def main():\n    async with inferd.connect(): pass", "leave inferd.connect out"),
        ("from inferd import Client\ndef main(): Client()", "inferd.launch"),
        ("import bz2\ndef main(): bz2.compress(b'a')", "zlib and gzip"),
        ("import zoneinfo\ndef main(): zoneinfo.ZoneInfo('Europe/Rome')", "tzdata"),
        ("import ssl\ndef main(): pass", "the sandbox has no threads"),
        ("import pydantic\ndef main(): pass", "pydantic<2"),
        ("import numpy\ndef main(): pass", "it is compiled"),
        ("def main(): open('out.txt', 'w')", "session.send_file"),
        ("from pathlib import Path\ndef main(): Path('a').mkdir()", "session.send_file"),
        ("def main(): open('data.txt')", "inferd.files.names()"),
        ("import hashlib\ndef main(): hashlib.scrypt(b'', salt=b'', n=2, r=1, p=1)", "the sandbox has no users"),
        ("import os\ndef main(): os.getlogin()", "the sandbox has no users"),
    ],
)
def test_what_is_not_there_is_refused_with_what_to_do_instead(gateway: Gateway, program: str, words: str) -> None:
    error = gateway.error(program)
    assert error.code == "program"
    assert words in error.message


def test_packages_that_import_a_missing_compression_work_without_it(gateway: Gateway) -> None:
    """networkx has `openers = {"bz2": bz2.BZ2File}` at its top; shutil and zipfile look whether it is there."""
    program = """
        import bz2, lzma, shutil, zipfile
        class Reader(bz2.BZ2File): pass
        def main():
            try:
                lzma.open("a")
            except (lzma.LZMAError, OSError) as error:
                return [str(error)[-18:], zipfile.bz2, "bztar" in dict(shutil.get_archive_formats()), hasattr(bz2, "__path__")]
    """
    assert gateway.value(program) == ["and gzip are there", None, False, False]


def test_files_below_tmp_are_written_and_gone_with_the_run(gateway: Gateway) -> None:
    program = """
        import os, shutil, tempfile, zipfile
        from pathlib import Path
        def main():
            before = os.listdir("/tmp")
            with tempfile.TemporaryDirectory() as folder:
                Path(folder, "a").mkdir()
                Path(folder, "a", "x.txt").write_text("x")
                shutil.copytree(f"{folder}/a", "/tmp/copy")
            with tempfile.NamedTemporaryFile("w+") as named, zipfile.ZipFile("/tmp/z.zip", "w") as archive:
                print("y", file=named, flush=True)
                archive.write(named.name, "y.txt")
            with zipfile.ZipFile("/tmp/z.zip") as archive:
                read = archive.read("y.txt").decode()
            return [before, sorted(os.listdir("/tmp")), os.listdir("/tmp/copy"), read, tempfile.gettempdir()]
    """
    for _ in range(2):
        assert gateway.value(program) == [[], ["copy", "z.zip"], ["x.txt"], "y\n", "/tmp"]


def test_what_programs_take_for_granted_is_there(gateway: Gateway) -> None:
    """Each of these failed, or did nothing: pools of threads, the zone UTC, a home, archives and shelves below /tmp."""
    program = """
        import asyncio, dbm, glob, os, shelve, sqlite3, tarfile, threading
        from concurrent.futures import ThreadPoolExecutor
        from datetime import datetime
        from pathlib import Path
        from zoneinfo import ZoneInfo
        async def main():
            began = []
            with ThreadPoolExecutor(4, initializer=began.append, initargs=(1,)) as pool:
                texts = list(pool.map(str.upper, "ab"))
                failed = pool.submit(int, "x").exception()
                more = await asyncio.get_running_loop().run_in_executor(pool, sum, [1, 2])
            with shelve.open("/tmp/shelf") as shelf:
                shelf["a"] = [1]
            with shelve.open("/tmp/shelf") as shelf:
                kept = shelf["a"]
            Path("/tmp/f/g").mkdir(parents=True)
            Path("/tmp/f/g/x.txt").touch()
            with tarfile.open("/tmp/a.tar.gz", "w:gz") as archive:
                archive.add("/tmp/f", "f")
            with tarfile.open("/tmp/a.tar.gz") as archive:
                archive.extractall("/tmp/out", filter="data")
            try:
                sqlite3.connect("/tmp/x.db")
            except sqlite3.OperationalError as error:
                said = str(error)
            zone = datetime(2026, 7, 1, tzinfo=ZoneInfo("UTC"))
            return [
                began, texts, type(failed).__name__, more, kept, glob.glob("/tmp/**/*.txt", recursive=True), said,
                zone.isoformat(), zone.tzname(), str(Path.home()), sqlite3.connect(":memory:").execute("select 1").fetchone(),
            ]
    """
    found = gateway.value(program)
    assert found[:6] == [[1], ["A", "B"], "ValueError", 3, [1], ["/tmp/f/g/x.txt", "/tmp/out/f/g/x.txt"]]
    assert "in its memory" in found[6]
    assert found[7:] == ["2026-07-01T00:00:00+00:00", "UTC", "/", [1]]


def test_modules_of_the_library_can_be_run_again(gateway: Gateway) -> None:
    """The packages markdown and defusedxml do: they change their own copies."""
    program = """
        import html.parser, importlib.util, inspect, json, sys
        def main():
            spec = importlib.util.find_spec("html.parser")
            copy = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(copy)
            importlib.reload(json)
            before = sys.modules.pop("xml.etree.ElementTree", None)
            import xml.etree.ElementTree as again
            text = inspect.getsource(json.JSONDecoder)
            return [copy.HTMLParser is not html.parser.HTMLParser, again is not before, again.fromstring("<a/>").tag, text[:18]]
    """
    assert gateway.value(program) == [True, True, "a", "class JSONDecoder("]


def test_packages_import_what_the_sandbox_has_not(gateway: Gateway) -> None:
    """PyJWT and ollama import ssl, and could not be imported."""
    packages = {
        "top.py": b"import ssl, fcntl\ntry:\n    import ctypes\nexcept ImportError:\n    ctypes = 0\ndef use(): ssl.SSLContext()",
        "traced.py": b"import inspect\ndef f():\n    return 1\nlines = inspect.getsource(f)",
    }
    program = """
        import os, sys, top, traced
        def main():
            try:
                top.use()
            except OSError as error:
                return [str(error), top.ctypes, "ssl" in sys.modules, traced.lines, os.getuid() > 0]
    """
    said, ctypes, there, lines, user = gateway.value({"main.py": program}, packages=packages)
    assert "inferd.http.fetch" in said
    assert [ctypes, there, lines, user] == [0, False, "def f():\n    return 1\n", True]


def test_a_programs_packages_are_compiled_once_in_a_worker(gateway: Gateway) -> None:
    """Half of a second went into that in each run of a program with jinja2, PyYAML and pydantic 1."""
    packages = {"large.py": b"\n".join(b"def f%d(x): return [x + %d, x * 2]" % (n, n) for n in range(8000))}
    bundle = Bundle("kept", {"main.py": "import large\ndef main(): return large.f7(1)"}, packages=packages)
    gateway.send(KeepProgram("kept", bundle))
    first, second = (gateway.wait(gateway.launch({}, kept="kept")) for _ in range(2))
    assert first.result == second.result == "[8,2]"
    assert second.usage.cpu_ms < first.usage.cpu_ms / 2
    gateway.send(ForgetProgram("kept"))


def test_python_reads_the_programs_own_files(gateway: Gateway) -> None:
    program = """
        import configparser, glob, json, os
        from pathlib import Path
        def main():
            here = Path(__file__).parent
            return [
                json.load(open("data/a.json")), (here / "data" / "ä.txt").read_text(), Path("main.py").read_bytes()[:1] == b"\\n",
                sorted(map(str, Path("data").iterdir())), sorted(glob.glob("**/*.json", recursive=True)),
                sorted(path.name for path in Path().rglob("*.txt")), [len(files) for _, _, files in os.walk(".")],
                [Path(name).exists() for name in ("data", "data/a.json", "data/b.json")], os.path.isdir("data"),
                (here / "data/a.json").resolve().stat().st_size, [line.decode() for line in open("data/ä.txt", "rb")],
                configparser.ConfigParser().read("setup.cfg"),
            ]
    """
    files = {"main.py": program, "data/a.json": "[1]", "data/ä.txt": "grüß", "setup.cfg": "[a]\nb = 1\n"}
    assert gateway.value(files) == [
        [1], "grüß", True, ["data/a.json", "data/ä.txt"], ["data/a.json"], ["ä.txt"], [2, 2], [True, True, False], True, 3,
        ["grüß"], ["setup.cfg"],
    ]  # fmt: skip


def test_functions_for_threads_run_at_once(gateway: Gateway) -> None:
    program = """
        import asyncio
        async def main():
            loop = asyncio.get_running_loop()
            done = await asyncio.gather(*(asyncio.to_thread(pow, 2, n) for n in range(3)))
            try:
                await loop.run_in_executor(None, int, "x")
            except ValueError as error:
                return [done, str(error)[:15]]
    """
    assert gateway.value(program) == [[1, 2, 4], "invalid literal"]


def test_a_parser_of_arguments_is_named_after_the_program(gateway: Gateway) -> None:
    program = """
        import argparse, sys
        def main():
            parser = argparse.ArgumentParser()
            parser.add_argument("--n", type=int, default=5)
            return [sys.argv, parser.prog, parser.parse_args().n, parser.parse_args(["--n", "3"]).n]
    """
    assert gateway.value(program) == [["main.py"], "main.py", 5, 3]


KEYS: list[tuple[str, int, int | None]] = [("sha1", 1, None), ("sha256", 1000, 70), ("sha512", 3, 1)]


def test_keys_are_derived_from_passwords_as_openssl_does(gateway: Gateway) -> None:
    program = f"""
        import hashlib
        def main():
            return [hashlib.pbkdf2_hmac(name, b"word" * 40, b"salt", n, size).hex() for name, n, size in {KEYS}]
    """
    assert gateway.value(program) == [
        hashlib.pbkdf2_hmac(name, b"word" * 40, b"salt", n, size).hex() for name, n, size in KEYS
    ]


def test_the_only_thread_has_a_clock(gateway: Gateway) -> None:
    program = """
        import time
        def main():
            return [time.thread_time() <= time.thread_time_ns() / 1e9 <= time.process_time()]
    """
    assert gateway.value(program) == [True]


def test_input_takes_the_launchers_messages(gateway: Gateway) -> None:
    run = gateway.launch("def main():\n    return [input('Name? '), input()]")
    gateway.wait_text(run, "Name? ")
    gateway.deliver(run, "Ann")
    gateway.deliver(run, {"age": 3})
    assert json.loads(gateway.wait(run).result or "") == ["Ann", '{"age": 3}']


def test_what_is_read_of_stdin_is_the_launchers_messages_and_not_silently_nothing(gateway: Gateway) -> None:
    run = gateway.launch(
        "import sys\ndef main():\n    return [sys.stdin.readline(), input(), [*sys.stdin], sys.stdin.read()]"
    )
    for message in ("Ann " * 5000, {"age": 3}, "é", ""):
        gateway.deliver(run, message)
    gateway.send(Deliver(run, ""))
    assert json.loads(gateway.wait(run).result or "") == ["Ann " * 5000 + "\n", '{"age": 3}', ["é\n", "\n"], ""]


@pytest.mark.parametrize("end", ["return 1", "raise ValueError", "import sys; sys.exit(0)"])
def test_handlers_of_atexit_run_last_first_however_main_ends(gateway: Gateway, end: str) -> None:
    program = f"""
        import asyncio, atexit, logging.handlers, weakref
        from inferlet import session
        def main():
            print("main")
            memory = logging.handlers.MemoryHandler(9, target=logging.StreamHandler())
            logging.getLogger().addHandler(memory)
            logging.warning("was kept back")
            atexit.register(print, "first")
            atexit.register(int, "no number")
            atexit.register(lambda: session.send(asyncio.run(asyncio.sleep(0, "sent"))))
            {end}
    """
    run = gateway.launch(program)
    gateway.wait(run)
    assert gateway.text(run) == "main\nfirst\n"
    assert "invalid literal for int() with base 10: 'no number'" in gateway.text(run, "stderr")
    assert gateway.text(run, "stderr").endswith("was kept back\n")
    assert json.loads(gateway.wait_for(run, Sent).json) == "sent"


def test_the_standard_library_is_there(gateway: Gateway) -> None:
    program = """
        import importlib
        NAMES = '''argparse ast asyncio base64 bisect calendar collections concurrent.futures configparser copy csv
        dataclasses datetime decimal difflib email.message enum fractions functools gzip hashlib heapq hmac html.parser
        http.client io itertools json logging math numbers operator pathlib pickle pprint queue random re secrets shlex
        statistics string struct tempfile textwrap threading time tomllib traceback typing unicodedata unittest
        urllib.parse uuid warnings weakref xml.etree.ElementTree zipfile zlib zoneinfo encodings.cp1252
        encodings.shift_jis'''.split()

        def main():
            for name in NAMES:
                importlib.import_module(name)
            return [len(NAMES), "é".encode("cp1252").hex()]
    """
    count, encoded = gateway.value(program)
    assert count > 60
    assert encoded == "e9"


def test_time_limits_of_locks_and_queues_wait(gateway: Gateway) -> None:
    program = """
        import queue, select, threading, time
        def main():
            waits = []
            for wait in (
                lambda: threading.Event().wait(0.03), lambda: select.select([], [], [], 0.03), lambda: select.poll().poll(30),
                lambda: threading.Condition().acquire() and threading.Semaphore(0).acquire(timeout=0.03),
            ):
                start = time.monotonic()
                wait()
                waits.append(0.025 < time.monotonic() - start < 20)
            try:
                queue.SimpleQueue().get(timeout=0.03)
            except queue.Empty:
                waits.append(True)
            return waits
    """
    assert gateway.value(program) == [True] * 5
