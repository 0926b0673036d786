"""Programs in the real sandbox: what they get, what they may use, and how their errors look."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from inferd_runtime.sandbox.messages import (
    Bundle,
    ForgetProgram,
    KeepProgram,
    LaunchRun,
    Limits,
    Output,
    RunFinished,
    Sent,
    Started,
)
from inferd_runtime.session.wire import RUN_SESSION

from .conftest import GRANTS, Gateway
from .fake_engine import USED, FakeEngine

ERROR_CODES = {"program", "program.syntax", "client.invalid", "limit"}


def test_main_gets_its_arguments_and_its_value_comes_back(gateway: Gateway) -> None:
    program = """
        from dataclasses import dataclass

        @dataclass
        class Person:
            name: str
            ages: list[int]

        async def main(name: str, count: int = 2) -> Person:
            return Person(name.upper(), list(range(count)))
    """
    assert gateway.value(program, name="ada") == {"name": "ADA", "ages": [0, 1]}


def test_a_run_is_reported_in_order(gateway: Gateway) -> None:
    run = gateway.launch("async def main():\n    print('hello')\n    return 1")
    finished = gateway.wait(run)
    kinds = [type(message) for message in gateway.messages[run]]
    assert kinds == [Started, Output, RunFinished]
    assert gateway.text(run) == "hello\n"
    usage = finished.usage
    assert usage.tokens == USED.tokens
    assert (usage.steps, usage.drafted, usage.accepted) == (USED.steps, USED.drafted, USED.accepted)
    assert 0 < usage.cpu_ms <= usage.wall_ms + 50
    assert 20 < usage.peak_memory_mb < 100


def test_peak_memory_is_what_the_program_used(gateway: Gateway) -> None:
    small = gateway.run("def main(): pass").usage.peak_memory_mb
    large = gateway.run("def main():\n    x = bytearray(100 << 20)\n    del x").usage.peak_memory_mb
    assert 95 < large - small < 120


def test_an_annotation_that_names_nothing_is_refused_by_its_parameter(gateway: Gateway) -> None:
    """The sandbox's Python evaluates annotations when they are read, not when the function is made."""
    error = gateway.error("def main(x: Missing): pass", x=1)
    assert error.code == "client.invalid"
    assert "main: an annotation cannot be evaluated: name 'Missing'" in error.message
    tools = """
        import inferd
        def lookup(x: Missing, n: int = 3) -> str: return ""
        def main():
            try:
                inferd.tool(lookup)
            except inferd.InvalidRequest as error:
                return error.message
    """
    assert "the tool lookup, parameter x: its annotation cannot be read: name 'Missing'" in gateway.value(tools)


def test_session_is_opened_for_the_tenant_and_closed(gateway: Gateway, engine: FakeEngine) -> None:
    run = gateway.launch("def main(): pass")
    gateway.wait(run)
    session = f"run/{run}"
    assert engine.opened[session] == ("tenant", "test")
    assert session in engine.closed


def test_a_megabyte_of_print_arrives_whole(gateway: Gateway) -> None:
    program = """
        import sys
        def main():
            print("é" * 500_000)
            for number in range(2000):
                print(number)
            print("to stderr", file=sys.stderr)
            sys.stdout.buffer.write(b"raw bytes")
    """
    run = gateway.launch(program)
    assert gateway.wait(run).error is None
    numbers = "".join(f"{n}\n" for n in range(2000))
    assert gateway.text(run) == "é" * 500_000 + "\n" + numbers + "raw bytes"
    assert gateway.text(run, "stderr") == "to stderr\n"


def test_a_program_that_fails_for_an_await_that_it_forgot_is_told_which(gateway: Gateway) -> None:
    program = """
        async def look_up():
            return "text"
        async def main():
            found = look_up()
            return found.upper()
    """
    run = gateway.launch(program)
    error = gateway.wait(run).error
    assert error is not None
    assert "'coroutine' object has no attribute 'upper'" in error.message
    assert "coroutine 'look_up' was never awaited" in gateway.text(run, "stderr")


def test_output_is_there_while_the_program_runs(gateway: Gateway) -> None:
    program = """
        import inferd
        async def main():
            print("before", end="")
            return await inferd.session.receive()
    """
    run = gateway.launch(program)
    gateway.wait_text(run, "before")
    gateway.deliver(run, {"a": [1, None]})
    assert json.loads(gateway.wait(run).result or "") == {"a": [1, None]}


def test_asyncio(gateway: Gateway) -> None:
    program = """
        import asyncio, time

        async def after(seconds, value):
            await asyncio.sleep(seconds)
            return value

        async def main():
            start = time.monotonic()
            gathered = await asyncio.gather(*(after(0.05, n) for n in range(20)))
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(after(0.01 * n, n)) for n in range(3)]
            try:
                async with asyncio.timeout(0.02):
                    await after(30, None)
                timed_out = False
            except TimeoutError:
                timed_out = True
            queue = asyncio.Queue()
            producer = asyncio.create_task(queue.put(7))
            got = await queue.get()
            time.sleep(0.02)
            elapsed = time.monotonic() - start
            return [sum(gathered), [t.result() for t in tasks], timed_out, got, 0.11 < elapsed < 20]
    """
    assert gateway.value(program) == [190, [0, 1, 2], True, 7, True]


def test_asyncio_run_in_a_sync_main(gateway: Gateway) -> None:
    program = """
        import asyncio
        from inferd.protocol import Tokenize
        from inferd.transport import current_transport

        async def count(text):
            await asyncio.sleep(0.001)
            return (await current_transport().call(Tokenize(text))).tokens

        def main():
            return asyncio.run(count("abc")) + asyncio.run(count("abcd"))
    """
    assert gateway.value(program) == [3, 4]


def test_operations_run_at_the_same_time(gateway: Gateway) -> None:
    program = """
        import asyncio
        from inferd.protocol import Detokenize, Tokenize
        from inferd.transport import current_transport

        async def main():
            call = current_transport().call
            texts = await asyncio.gather(*(call(Tokenize("x" * n)) for n in range(300)))
            text = await call(Detokenize([40, 2]))
            return [sum(t.tokens[0] for t in texts), text.text]
    """
    assert gateway.value(program) == [sum(range(300)), "42"]


def test_a_cancelled_operation_is_cancelled_in_the_engine(gateway: Gateway, engine: FakeEngine) -> None:
    program = """
        import asyncio
        from inferd.protocol import FlushContext
        from inferd.transport import current_transport

        async def main():
            try:
                async with asyncio.timeout(0.02):
                    await current_transport().call(FlushContext(1))
            except TimeoutError:
                return "timed out"
    """
    run = gateway.launch(program)
    assert json.loads(gateway.wait(run).result or "") == "timed out"
    assert [session for session, _ in engine.cancelled].count(f"run/{run}") == 1


def test_errors_of_the_runtime_reach_the_program(gateway: Gateway) -> None:
    program = """
        from inferd import ConstraintError
        from inferd.protocol import CreateContext
        from inferd.transport import current_transport

        async def main(catch: bool):
            try:
                await current_transport().call(CreateContext("bad"))
            except ConstraintError as error:
                if not catch:
                    raise
                return [error.message, error.detail]
    """
    assert gateway.value(program, catch=True) == ["no such luck", {"pointer": "/a"}]
    error = gateway.error(program, catch=False)
    assert (error.code, error.message, error.detail["pointer"]) == ("client.constraint", "no such luck", "/a")
    assert 'File "main.py", line 8, in main' in error.detail["traceback"]


def test_private_and_unknown_operations_are_refused(gateway: Gateway, engine: FakeEngine) -> None:
    program = """
        import asyncio, json
        from inferd_runtime.sandbox.runner.app import RUNNER

        async def main():
            answers = []
            for op in ["session.open", "session.close", "cancel", "nonsense"]:
                ok, answer = await RUNNER.completions.answer(RUNNER.completions.submit(op, "{}", None))
                answers.append([ok, answer["code"]])
            return answers
    """
    run = gateway.launch(program)
    assert json.loads(gateway.wait(run).result or "") == [[False, "client.invalid"]] * 4
    assert [op for session, op in engine.asked if session == f"run/{run}"] == ["session.open", "session.close"]


def test_messages_both_ways(gateway: Gateway) -> None:
    program = """
        import asyncio
        from inferd import session

        async def main():
            total = 0
            for _ in range(3):
                message = await session.receive()
                total += message
                await session.send({"total": total})
            try:
                async with asyncio.timeout(0.01):
                    await session.receive()
            except TimeoutError:
                await session.send("nothing more")
            return total
    """
    run = gateway.launch(program)
    for number in (1, 2, 3):
        gateway.deliver(run, number)
    assert gateway.wait(run).result == "6"
    sent = [json.loads(message.json) for message in gateway.messages[run] if isinstance(message, Sent)]
    assert sent == [{"total": 1}, {"total": 3}, {"total": 6}, "nothing more"]


def test_files_of_a_program_import_each_other(gateway: Gateway) -> None:
    files = {
        "main.py": "import pkgutil\nfrom lib import helper\nimport other\nasync def main(): return helper.greet() + other.name()",
        "other.py": "import main\ndef name(): return main.__name__",
        "lib/__init__.py": "",
        "lib/helper.py": "from .deep.words import hello\nimport pkgutil\nDATA = pkgutil.get_data('lib', 'data.txt').decode()\n"
        "def greet(): return hello + DATA",
        "lib/deep/words.py": "hello = 'hello '",
        "lib/data.txt": "from ",
    }
    assert gateway.value(files) == "hello from main"


def test_an_entry_imports_from_its_folder_relatively(gateway: Gateway) -> None:
    files = {
        "main.py": "from .lib.words import hello\nfrom . import other\nasync def main(): return hello() + other.NAME",
        "other.py": "NAME = __name__",
        "lib/words.py": "from ..other import NAME\ndef hello(): return NAME + ' '",
    }
    assert gateway.value(files) == "program_folder.other program_folder.other"


def test_a_program_may_be_called_like_a_module_of_the_library(gateway: Gateway) -> None:
    run = gateway.launch({"json.py": "import json\ndef main(): return json.dumps([1])"}, None, "json.py")
    assert gateway.wait(run).result == '"[1]"'


def test_a_module_that_would_hide_the_library_is_refused(gateway: Gateway) -> None:
    error = gateway.error({"main.py": "def main(): pass", "json.py": ""})
    assert error.code == "client.invalid"
    assert "json.py would hide the module 'json'" in error.message


def test_traceback_shows_the_programs_own_lines(gateway: Gateway) -> None:
    files = {
        "main.py": "import asyncio\nfrom helper import divide\n\n"
        "async def main():\n    await asyncio.sleep(0)\n    return divide(1, 0)\n",
        "helper.py": "def divide(a, b):\n    return (a + 1) / b\n",
    }
    error = gateway.error(files)
    assert error.code == "program"
    assert error.message == "ZeroDivisionError: division by zero"
    assert error.detail["exception"] == "ZeroDivisionError"
    assert error.detail["traceback"] == (
        "Traceback (most recent call last):\n"
        '  File "main.py", line 6, in main\n'
        "    return divide(1, 0)\n"
        '  File "helper.py", line 2, in divide\n'
        "    return (a + 1) / b\n"
        "           ~~~~~~~~^~~\n"
        "ZeroDivisionError: division by zero\n"
    )


def test_syntax_error_shows_the_place(gateway: Gateway) -> None:
    error = gateway.error("x = 1\nasync def main(:\n    pass\n")
    assert error.code == "program.syntax"
    assert error.message.startswith("main.py:2: ")
    assert '  File "main.py", line 2\n    async def main(:\n                   ^\n' in error.detail["traceback"]


def test_an_exception_in_a_task_group_is_what_happened(gateway: Gateway) -> None:
    program = """
        import asyncio
        async def fail():
            raise KeyError("gone")
        async def main():
            async with asyncio.TaskGroup() as group:
                group.create_task(fail())
    """
    error = gateway.error(program)
    assert error.message == "KeyError: 'gone'"
    assert 'raise KeyError("gone")' in error.detail["traceback"]


@pytest.mark.parametrize(
    ("program", "code", "words"),
    [
        ("x = 1", "client.invalid", "defines no function `main`"),
        ("def main(): return object()", "program", "result"),
        ("def main(): return float('nan')", "program", "result"),
        ("def main(): return 2**70", "program", "64 bits"),
        ("def main():\n    v = 1\n    for _ in range(900): v = [v]\n    return v", "program", "200 deep"),
        ("from inferd import session\nasync def main(): await session.send(2**70)", "client.invalid", "64 bits"),
        ("from inferd.protocol import ProgramError\ndef main(): raise ProgramError('odd', n=2**70)", "program", "odd"),
        ("def main(number: int): pass", "client.invalid", "number"),
        ("import sys\ndef main(): sys.exit(3)", "program", "exited with 3"),
        ("import os\ndef main(): os._exit(0)", "program", "os._exit"),
        ("import os\ndef main(): os.abort()", "program", "abnormally"),
        ("import nothing_like_it\ndef main(): pass", "program", "No module named 'nothing_like_it'"),
        (
            "import threading\ndef main():\n    l = threading.Lock()\n    l.acquire()\n    l.acquire()",
            "program",
            "one thread",
        ),
        ("import asyncio\nasync def main(): await asyncio.Event().wait()", "program", "wait for ever"),
        ("import select\ndef main(): select.select([0], [], [])", "program", "no files or sockets"),
        ("def f(): f()\ndef main(): f()", "program", "RecursionError"),
        ("import json\ndef main(): json.loads('[' * 3_000_000)", "program", "too deeply"),
        ("def main(): raise BaseException('odd')", "program", "BaseException: odd"),
        ("class Mine(Exception): pass\ndef main(): raise Mine()", "program", "main.Mine"),
    ],
)
def test_what_goes_wrong_is_said(gateway: Gateway, program: str, code: str, words: str) -> None:
    error = gateway.error(program)
    assert error.code == code
    assert words in error.message


def test_a_missing_entry_and_bad_arguments_are_refused(gateway: Gateway) -> None:
    finished = gateway.wait(gateway.launch({"other.py": "x = 1"}))
    assert finished.error is not None
    assert "no Python file 'main.py'" in finished.error.message
    error = gateway.error("def main(number: int): pass", number="three")
    assert error.code == "client.invalid"
    assert "number" in error.message
    assert "traceback" not in error.detail


def test_sys_exit_without_a_code_is_a_normal_end(gateway: Gateway) -> None:
    assert gateway.value("import sys\ndef main(): sys.exit()") is None


def test_nothing_of_the_host_is_there(gateway: Gateway) -> None:
    program = """
        import os, socket, subprocess, sys

        def attempt(action):
            try:
                action()
            except Exception as error:
                return type(error).__name__
            return "allowed"

        def main():
            return {
                "environment": dict(os.environ),
                "argv": sys.argv,
                "read": attempt(lambda: open("/etc/passwd").read()),
                "write": attempt(lambda: open("/etc/x", "w")),
                "list": os.listdir("/"),
                "tcp": attempt(lambda: socket.create_connection(("127.0.0.1", 80), 1)),
                "socket": attempt(lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM)),
                "name": attempt(lambda: socket.gethostbyname("localhost")),
                "process": attempt(lambda: subprocess.run(["ls"])),
                "anyio": attempt(lambda: __import__("anyio")),
                "ctypes": attempt(lambda: __import__("ctypes")),
            }
    """
    seen = gateway.value(program)
    assert seen.pop("environment") == {}
    assert all("/" not in part for part in seen.pop("argv"))
    assert seen.pop("anyio") == seen.pop("ctypes") == "ModuleNotFoundError"
    assert seen.pop("list") == ["main.py"]  # the program's own folder
    assert "allowed" not in seen.values(), seen


def test_each_run_draws_its_own_random_numbers(gateway: Gateway) -> None:
    program = """
        import os, random, secrets, uuid
        def main():
            return [random.random(), os.urandom(8).hex(), secrets.token_hex(8), str(uuid.uuid4())]
    """
    first, second = gateway.value(program), gateway.value(program)
    assert all(a != b for a, b in zip(first, second, strict=True))


def test_limits_below_the_runner_are_refused(gateway: Gateway) -> None:
    error = gateway.error("def main(): pass", Limits(memory_mb=8))
    assert error.code == "limit"
    assert error.detail["limit"] == "memory_mb"


def test_the_build_command_prints_where_the_runner_is(runner: Path) -> None:
    command = [sys.executable, "-W", "error", "-m", "inferd_runtime.cli", "build-runner"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.startswith(str(runner))
    assert done.stderr == ""


def test_runs_name_a_program_that_the_worker_keeps(gateway: Gateway) -> None:
    gateway.send(KeepProgram("large", Bundle("p", {"main.py": "def main(n): return n"})))
    for n, run in enumerate(("kept-1", "kept-2")):
        grant = GRANTS.issue(RUN_SESSION + run, "tenant")
        arguments = json.dumps({"n": n})
        gateway.send(LaunchRun(run, grant, Bundle("p", {}), arguments, Limits(), program="large"))
    gateway.send(ForgetProgram("large"))
    assert [gateway.wait(run).result for run in ("kept-1", "kept-2")] == ["0", "1"]
