"""The command line as a user sees it: outputs, exit codes, and a server that it talks to."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from inferd_runtime import __version__

from .conftest import CommandLine

HELLO = '''"""Says hello."""
async def main(name: str, times: int = 1, loud: bool = False, tags: list[str] | None = None) -> dict:
    """Greets somebody."""
    for _ in range(times):
        print("hello", name.upper() if loud else name)
    return {"times": times, "tags": tags}
'''
SLEEP = "import asyncio\nasync def main() -> None:\n    print('asleep', flush=True)\n    await asyncio.sleep(600)\n"


@pytest.fixture
def hello(tmp_path: Path) -> str:
    path = tmp_path / "hello.py"
    path.write_text(HELLO)
    return str(path)


@pytest.fixture
def sleeper(tmp_path: Path) -> str:
    path = tmp_path / "sleeper.py"
    path.write_text(SLEEP)
    return str(path)


@contextmanager
def server(inferd: CommandLine) -> Iterator[subprocess.Popen[str]]:
    """A server that ends well at SIGTERM."""
    with inferd.start("serve", "--port", "0", "--json", "--drain-seconds", "1") as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert json.loads(line)["models"] == ["fake"], line
        try:
            yield process
        finally:
            process.send_signal(signal.SIGTERM)
            _, err = process.communicate(timeout=20)
    assert process.returncode == 0, err


def test_version_and_overview(inferd: CommandLine) -> None:
    assert inferd("--version").stdout == f"inferd {__version__}\n"
    assert "build-runner" in inferd("--help").stdout
    assert inferd().returncode == 2
    assert inferd("nix").returncode == 2


def test_run_prints_output_then_result_and_the_figures_apart(inferd: CommandLine, hello: str) -> None:
    done = inferd("run", hello, "--name", "Bob", "--times", "2", "--loud", "--tags", "a", "--tags", "b")
    assert done.stdout == 'hello BOB\nhello BOB\n{"times": 2, "tags": ["a", "b"]}\n'
    assert done.stderr.startswith("7 tokens, 3 steps, 2.33 tokens/step, 6 drafted, 4 accepted, ")
    assert done.returncode == 0


def test_run_with_json_prints_one_object_and_nothing_else(inferd: CommandLine, hello: str) -> None:
    done = inferd("run", "--json", hello, "--input", '{"name": "x", "times": 2}', "--times", "1")
    value = json.loads(done.stdout)
    assert done.stdout.count("\n") == 1
    assert value["result"] == {"times": 1, "tags": None}
    assert set(value["usage"]) == {
        "tokens", "steps", "drafted", "accepted", "wall_ms", "cpu_ms", "peak_memory_mb", "prompt_tokens", "cached_tokens"
    }  # fmt: skip
    assert done.stderr == "hello x\n"


def test_the_whole_input_from_standard_input(inferd: CommandLine, hello: str) -> None:
    assert inferd("run", hello, "--input", "-", input='{"name": "pipe"}').stdout.startswith("hello pipe\n")


def test_help_shows_the_programs_own_parameters_without_running_anything(inferd: CommandLine, hello: str) -> None:
    done = inferd.but(INFERD_FAKE_ENGINE="--fail")("run", hello, "--help")
    assert done.returncode == 0
    for text in ("Greets somebody.", "--name TEXT", "--loud, --no-loud", "default False", "--limit-memory"):
        assert text in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--nmae", "x"], "--nmae"),
        ([], "--name"),
        (["--name", "x", "--times", "two"], "expected a whole number, got 'two'"),
        (["--input", "[1]"], "expected a JSON object"),
        (["--input", '{"nmae": 1}'], "'nmae'"),
        (["--name", "x", "--limit-wall", "soon"], "--limit-wall"),
        (["--name", "x", "--limit-memory", "-1"], "memory_mb must be positive"),
    ],
)
def test_wrong_options_are_refused_by_name(inferd: CommandLine, hello: str, arguments: list[str], message: str) -> None:
    done = inferd("run", hello, *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    as_json = inferd("run", hello, *arguments, "--json")
    assert as_json.returncode == 2
    assert message in json.loads(as_json.stdout)["error"]["message"]


@pytest.mark.parametrize(
    ("source", "code", "text"),
    [
        ("async def main():\n    return 1 / 0\n", 1, "ZeroDivisionError"),
        ("async def main():\n    x = (\n", 1, "line 2"),
        ("from inferd.protocol import InvalidRequest\nasync def main():\n    raise InvalidRequest('no')\n", 2, "no"),
        (
            "from inferd.protocol import LimitExceeded\nasync def main():\n    raise LimitExceeded('too much')\n",
            3,
            "too",
        ),
        ("import worker\nasync def main():\n    worker.die()\n", 5, "worker-1 was killed by SIGKILL"),
        ("import worker\nasync def main():\n    await worker.call('model.tokenize', text='die')\n", 5, "told to die"),
        ("from inferd.protocol import InternalError\nasync def main():\n    raise InternalError('bug')\n", 70, "bug"),
    ],
)
def test_exit_codes_say_whose_fault_it_is(
    inferd: CommandLine, tmp_path: Path, source: str, code: int, text: str
) -> None:
    path = tmp_path / "program.py"
    path.write_text(source)
    done = inferd("run", str(path))
    assert done.returncode == code, done.stderr
    assert text in done.stderr
    assert done.stdout == ""


def test_an_engine_that_does_not_start_is_unavailable_with_its_last_words(inferd: CommandLine, hello: str) -> None:
    done = inferd.but(INFERD_FAKE_ENGINE="--fail")("run", hello, "--name", "x", "--json")
    assert done.returncode == 5
    assert "no such model: fake" in json.loads(done.stdout)["error"]["message"]


@pytest.mark.usefixtures("hang_ups")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 4), (signal.SIGHUP, 4)])
def test_a_signal_cancels_the_run(inferd: CommandLine, sleeper: str, number: signal.Signals, code: int) -> None:
    with inferd.start("run", sleeper) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "asleep\n"
        process.send_signal(number)
        _, err = process.communicate(timeout=20)
    assert process.returncode == code, err
    assert "Traceback" not in err


def test_a_test_run_that_ignores_interrupts_does_not_hang_on_a_run_that_inherits_it(
    inferd: CommandLine, sleeper: str
) -> None:
    """As it does as a job in the background of a script."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        test_a_signal_cancels_the_run(inferd, sleeper, signal.SIGINT, 130)
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_process_that_nobody_ended_does_not_outlive_its_test(inferd: CommandLine, sleeper: str) -> None:
    with inferd.start("run", sleeper) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "asleep\n"
    assert process.returncode == -signal.SIGKILL


def test_on_a_terminal_a_program_cannot_send_control_sequences(inferd: CommandLine, tmp_path: Path) -> None:
    path = tmp_path / "rude.py"
    path.write_text("async def main():\n    print('\\x1b]0;title\\x07\\x1b[31mred')\n    return '\\x9b31m'\n")
    ours, theirs = pty.openpty()
    with open(ours, "rb") as shown:
        command = inferd.command("run", str(path))
        done = subprocess.run(command, env=inferd.environment, stdout=theirs, stderr=subprocess.PIPE, timeout=60)
        os.close(theirs)
        assert done.returncode == 0, done.stderr
        assert os.read(shown.fileno(), 1000) == b'red\r\n"31m"\r\n'


def test_a_server_and_the_commands_that_talk_to_it(inferd: CommandLine, hello: str, tmp_path: Path) -> None:
    assert inferd("ps").returncode == 5
    with server(inferd):
        token = tmp_path / "state" / "inferd" / "token"
        assert token.stat().st_mode & 0o777 == 0o600
        assert "fake" in inferd("models", "served").stdout
        assert inferd("models", "list").stdout == inferd("models").stdout != ""
        assert inferd("upload", hello).stdout.startswith("hello@0.0.1  sha256:")
        assert inferd("upload", hello, "--json").stdout.count('"created":false') == 1
        launched = inferd("launch", "hello", "--name", "Bob")
        assert launched.stdout == 'hello Bob\n{"times": 1, "tags": null}\n'
        as_json = json.loads(inferd("launch", "hello", "--name", "x", "--json").stdout)
        assert as_json["result"]["times"] == 1
        assert "--loud" in inferd("launch", "hello", "--help").stdout
        assert inferd("launch", "hello", "--nmae", "x").returncode == 2
        assert inferd("launch", "nix").returncode == 2
        assert "; there is hello@0.0.1" in inferd("launch", "Hello").stderr
        assert "hello@0.0.1" in inferd("programs").stdout
        assert inferd("launch", "hello", "--name", "x", "--limit-memory", "99999").returncode == 3
        runs = json.loads(inferd("ps", "--json").stdout)["runs"]
        assert [run["state"] for run in runs] == ["succeeded", "succeeded"]
        assert runs[0]["id"] in inferd("ps").stdout
        logs = inferd("logs", runs[1]["id"])
        assert logs.stdout.startswith("hello Bob\n")
        events = [json.loads(line) for line in inferd("logs", runs[1]["id"], "--json").stdout.splitlines()]
        assert events[-1]["type"] == "finished"
        assert inferd("logs", "nix").returncode == 2
        wrong = inferd.but(INFERD_TOKEN="wrong")("ps", "--json")
        assert (wrong.returncode, json.loads(wrong.stdout)["error"]["code"]) == (2, "client.unauthorized")
    assert not (tmp_path / "state" / "inferd" / "server.json").exists()


def test_stop_ends_a_run_that_was_detached(inferd: CommandLine, sleeper: str) -> None:
    with server(inferd):
        inferd("upload", sleeper)
        run = inferd("launch", "sleeper", "--detach").stdout.strip()
        assert inferd("stop", run).stdout == f"{run}  cancelled\n"
        assert inferd("logs", run).returncode == 0


def test_a_server_that_stands_behind_the_program_is_not_ignored(
    inferd: CommandLine, tmp_path: Path, hello: str
) -> None:
    fetch = tmp_path / "fetch.py"
    fetch.write_text("async def main(url: str) -> str: return url\n")
    behind = ("launch", "hello", "--name", "Bob", "--url", "http://127.0.0.1:9")
    refused = inferd(*behind)
    assert (refused.returncode, "stands before it" in refused.stderr) == (2, True)
    with server(inferd):
        assert inferd("upload", hello).returncode == inferd("upload", str(fetch)).returncode == 0
        refused = inferd(*behind)
        assert (refused.returncode, "hello has no such parameter" in refused.stderr) == (2, True)
        assert inferd("launch", "hello", "--token=x", "--name", "Bob").returncode == 2
        assert "--token" in inferd("launch", "hello", "--token=x", "--name", "Bob").stderr
        assert inferd("launch", "fetch", "--url", "http://127.0.0.1:9").stdout == '"http://127.0.0.1:9"\n'


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 4)])
def test_interrupting_a_launch_cancels_the_run_on_the_server(
    inferd: CommandLine, sleeper: str, number: signal.Signals, code: int
) -> None:
    with server(inferd):
        inferd("upload", sleeper)
        with inferd.start("launch", "sleeper") as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "asleep\n"
            process.send_signal(number)
            process.communicate(timeout=20)
        assert process.returncode == code
        assert [run["state"] for run in json.loads(inferd("ps", "--json").stdout)["runs"]] == ["cancelled"]


def test_losing_the_launching_client_does_not_cancel_the_run(inferd: CommandLine, sleeper: str) -> None:
    with server(inferd):
        inferd("upload", sleeper)
        with inferd.start("launch", "sleeper") as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "asleep\n"
            process.kill()
        assert [run["state"] for run in json.loads(inferd("ps", "--json").stdout)["runs"]] == ["running"]


def test_an_address_in_use_and_a_folder_in_use_are_unavailable(inferd: CommandLine, tmp_path: Path) -> None:
    with server(inferd):
        announced = Path(inferd.environment["XDG_STATE_HOME"], "inferd", "server.json")
        before = announced.read_text()
        elsewhere = inferd.but(XDG_STATE_HOME=str(tmp_path / "other"), XDG_DATA_HOME=str(tmp_path / "other"))
        done = elsewhere("serve", "--port", json.loads(before)["url"].rpartition(":")[2])
        assert (done.returncode, "cannot listen" in done.stderr) == (5, True), done.stderr
        second = inferd("serve", "--port", "0")
        assert (second.returncode, "a server runs on the folder" in second.stderr) == (5, True), second.stderr
        assert announced.read_text() == before, "the second one has not taken over"


def test_the_rest_of_the_command_line_needs_no_heavy_module(inferd: CommandLine) -> None:
    code = "import sys, inferd_runtime.cli.run, inferd_runtime.cli.remote, inferd_runtime.cli.launch, inferd_runtime.cli.build"
    heavy = "{'torch', 'transformers', 'wasmtime', 'starlette', 'uvicorn', 'numpy', 'rich'} & set(sys.modules)"
    command = [inferd.command()[0], "-c", f"{code}; print({heavy})"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert done.stdout == "set()\n", done.stderr
    code = f"import sys, inferd_runtime.cli.serve; print({heavy} - {{'starlette', 'uvicorn'}})"
    done = subprocess.run([inferd.command()[0], "-c", code], capture_output=True, text=True, timeout=30)
    assert done.stdout == "set()\n", done.stderr


ASKS = """
import worker
from inferd import EndOfMessages
async def main() -> list:
    heard = []
    while True:
        print("next?", flush=True)
        try:
            heard.append(await worker.ask())
        except EndOfMessages:
            return heard
"""
ASKS_ONCE = "import worker\nasync def main():\n    return await worker.ask()\n"


def test_lines_become_messages_of_a_program_that_waits_for_them(inferd: CommandLine, tmp_path: Path) -> None:
    for name, source in (("asks", ASKS), ("once", ASKS_ONCE)):
        (tmp_path / f"{name}.py").write_text(source)
    with server(inferd):
        inferd("upload", str(tmp_path / "asks.py"))
        inferd("upload", str(tmp_path / "once.py"))
        done = inferd("launch", "asks", input='one\n{"two": 2}\r\n\nlast')
        assert done.stdout.splitlines()[-1] == '["one", "{\\"two\\": 2}", "", "last"]', done.stderr
        parsed = inferd("launch", "--json-input", "asks", input='{"two": 2}\nNaN\n3')
        assert parsed.stdout.splitlines()[-1] == '[{"two": 2}, "NaN", 3]', parsed.stderr
        ended = inferd("launch", "once", input="")
        assert (ended.returncode, "no more" in ended.stderr) == (2, True), "a typed end, not a launch that hangs"
        with inferd.start("launch", "--no-input", "once") as waits:
            assert waits.stderr is not None
            told = waits.stderr.readline()
            assert "waits for a message: inferd send" in told
            run = told.split()[-2]
            assert inferd("send", run, "hello").returncode == 0
            assert waits.wait(20) == 0
            assert waits.stdout is not None
            assert waits.stdout.read() == '"hello"\n'
        assert inferd("send", run, "too late").returncode == 2
        assert inferd("send", run).returncode == 2


def test_a_program_without_a_server_is_talked_to_as_well(inferd: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "asks.py").write_text(ASKS)
    (tmp_path / "once.py").write_text(ASKS_ONCE)
    done = inferd("run", "--json-input", str(tmp_path / "asks.py"), input='{"two": 2}\nNaN\nlast')
    assert done.stdout.splitlines() == ["next?"] * 4 + ['[{"two": 2}, "NaN", "last"]'], done.stderr
    ended = inferd("run", "--json", str(tmp_path / "once.py"), input="")
    assert json.loads(ended.stdout)["error"]["message"] == "no more", "a typed end, not a run that hangs"
    unread = inferd("run", "--json", "--no-input", str(tmp_path / "once.py"))
    assert json.loads(unread.stdout)["error"]["message"] == "no more", "nobody could send it anything"
    missing = inferd("run", str(tmp_path / "once.py"), "--send-file", str(tmp_path / "none"))
    assert (missing.returncode, "is no file" in missing.stderr) == (2, True), missing.stderr


def test_attaching_to_a_run_shows_it_and_talks_to_it(inferd: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "asks.py").write_text(ASKS)
    with server(inferd):
        inferd("upload", str(tmp_path / "asks.py"))
        run = inferd("launch", "--detach", "asks").stdout.strip()
        assert inferd("send", run, "--json-input", "[1]").returncode == 0
        with inferd.start("attach", run, "--no-input", "--replay") as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "next?\n"
            process.send_signal(signal.SIGINT)
            assert process.wait(20) == 130
        assert json.loads(inferd("ps", "--json").stdout)["runs"][0]["state"] == "running", "it was left as it is"
        attached = inferd("attach", run, input="typed\n")
        assert attached.stdout.splitlines()[-1] == '[[1], "typed"]', attached.stderr
        again = inferd("attach", run, "--replay")
        assert again.stdout.splitlines() == ["next?", "next?", "next?", '[[1], "typed"]']


def test_a_terminal_is_told_that_the_program_waits(inferd: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "once.py").write_text(ASKS_ONCE)
    main, terminal = pty.openpty()
    with server(inferd):
        inferd("upload", str(tmp_path / "once.py"))
        with subprocess.Popen(
            inferd.command("launch", "once"), env=inferd.environment, stdin=terminal, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True,
        ) as process:  # fmt: skip
            assert process.stderr is not None
            assert "Ctrl+D" in process.stderr.readline()
            os.write(main, b"typed\n")
            out, _ = process.communicate(timeout=20)
            assert (out, process.returncode) == ('"typed"\n', 0), "it ends while the terminal is still open"
    os.close(main)
    os.close(terminal)
