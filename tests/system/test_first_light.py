"""The whole house as its users see it: the real command line, a real server, the sandbox, the engine, the embedded model."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import lying_tool_server
import psutil
import pytest
from command_line import ROOT, CommandLine, own_home

from inferd_runtime.sandbox.runner_build.component import ensure_runner

INFERLETS = ("text-completion", "extract", "custom-speculator", "order", "rag", "watermark")
USAGE = {
    "tokens", "steps", "drafted", "accepted", "wall_ms", "cpu_ms", "peak_memory_mb", "prompt_tokens", "cached_tokens"
}  # fmt: skip


@pytest.fixture(scope="module")
def inferd(tmp_path_factory: pytest.TempPathFactory) -> CommandLine:
    ensure_runner()
    return CommandLine(own_home(tmp_path_factory.mktemp("home")))


@pytest.fixture(scope="module")
def server(inferd: CommandLine) -> Iterator[dict[str, Any]]:
    """A server with the embedded model."""
    with inferd.serve() as ready:
        yield ready


@pytest.fixture
def launch(inferd: CommandLine, server: dict[str, Any], tmp_path: Path) -> Any:
    """Upload a source and return the arguments that launch it."""

    def upload(source: str) -> tuple[str, ...]:
        path = tmp_path / "program.py"
        path.write_text(source)
        return ("launch", inferd.json("upload", str(path))["id"])

    return upload


def test_run_prints_the_result_and_a_line_of_figures(inferd: CommandLine) -> None:
    done = inferd("run", "inferlets/custom-speculator/main.py")
    assert done.returncode == 0, done.stderr
    figures = done.stdout + done.stderr
    assert all(word in figures for word in ("tokens", "steps", "tokens/step", "drafted", "accepted", " s"))


def test_a_program_that_is_run_launches_itself_and_is_told_what_launching_others_takes(
    inferd: CommandLine, tmp_path: Path
) -> None:
    told = inferd.json("run", "inferlets/swarm/main.py", "--about", "a boat", "--max-tokens", "8")["result"]
    assert sum(told["written"]) == len(told["text"]) == 3
    (tmp_path / "alone.py").write_text("import inferd\nasync def main():\n    await inferd.launch('other')\n")
    refused = inferd("run", str(tmp_path / "alone.py"))
    assert refused.returncode == 2
    assert "no program but 'alone'" in refused.stderr
    assert "inferd upload" in refused.stderr


@pytest.mark.parametrize("name", INFERLETS)
def test_upload_and_launch_on_a_running_server(inferd: CommandLine, server: dict[str, Any], name: str) -> None:
    inferd.json("upload", f"inferlets/{name}/main.py")
    assert inferd.json("launch", name)["usage"]["tokens"] > 0


def test_an_agent_uses_a_server_of_tools(inferd: CommandLine, tmp_path: Path) -> None:
    script = str(Path(lying_tool_server.__file__))
    tools = {"command": sys.executable, "args": ["-S", script], "read": [str(Path(script).parent)]}
    servers = tmp_path / "mcp.json"
    servers.write_text(json.dumps({"mcpServers": {"tools": tools}}))
    servers.chmod(0o600)
    agent = ("run", "inferlets/mcp-agent/main.py", "--mcp-file", str(servers), "--most-calls", "2")
    done = inferd.json(*agent, "--tool-choice", "required")
    assert done["usage"]["tokens"] > 0
    assert done["result"]["calls"]
    for call in done["result"]["calls"]:
        assert call["tool"] in ("add", "echo")
        assert set(json.loads(call["arguments"])) >= ({"a", "b"} if call["tool"] == "add" else {"text"})
    assert isinstance(done["result"]["answer"], str)


def test_a_run_prints_one_json_object_and_the_result_that_a_server_gives(
    inferd: CommandLine, server: dict[str, Any]
) -> None:
    inferd.json("upload", "inferlets/extract/main.py")
    text = ("--text", "Bo Underhill, 7")
    ran = inferd.json("run", "inferlets/extract/main.py", *text)
    assert set(ran) == {"result", "usage"}
    assert set(ran["usage"]) >= USAGE
    assert ran["usage"]["tokens"] > 0
    assert ran["usage"]["steps"] <= ran["usage"]["tokens"] + 1
    assert set(ran["result"]) == {"name", "age"}
    assert isinstance(ran["result"]["age"], int)
    assert ran["result"] == inferd.json("launch", "extract", *text)["result"]


def test_the_examples_drive_the_server_from_a_script(inferd: CommandLine, server: dict[str, Any]) -> None:
    token = Path(server["token_file"]).read_text().strip()
    url = server["url"].replace("http://", "ws://")
    words = {"stream_chat.py": ["Repeat: a b c", "And again."]}
    for example in ("stream_chat.py", "custom_speculator.py", "own_decoding.py"):
        command = [sys.executable, str(ROOT / "examples" / example), "--url", url, "--token", token]
        command += words.get(example, [])
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        assert done.stdout.strip()


BAD_PROGRAMS = {
    "syntax error": ("async def main():\n    return (1\n", 1, "program.syntax", "line 2"),
    "exception": ("async def main():\n    x = {}\n    return x['missing']\n", 1, "program", "return x['missing']"),
    "unknown model": (
        "from inferd import Context\nasync def main():\n    await Context('gpt-9').user('x').flush()\n",
        2, "client.not_found", "gpt-9",
    ),
    "long prompt": (
        "from inferd import Context, Sampler\nasync def main():\n"
        "    await Context().append('word ' * 9000).generate(Sampler.argmax()).collect_text()\n",
        3, "limit", "context",
    ),
    "invalid schema": (
        "from inferd import Context, JsonSchema, Sampler\nasync def main():\n"
        "    g = Context().user('x').generate(Sampler.argmax(), constrain=JsonSchema({'type': 'nonsense'}))\n"
        "    await g.collect_text()\n",
        2, "client.constraint", "nonsense",
    ),
    "infinite loop": ("async def main():\n    while True:\n        pass\n", 3, "limit", "cpu_s"),
    "memory bomb": ("async def main():\n    x = []\n    while True:\n        x.append('y' * 1000000)\n", 3, "limit", "memory"),
}  # fmt: skip


@pytest.mark.parametrize("name", [name for name in BAD_PROGRAMS if name != "syntax error"])
def test_bad_programs_end_with_a_typed_error_and_the_server_goes_on(
    inferd: CommandLine, launch: Any, api: httpx.Client, name: str
) -> None:
    source, code, wire, words = BAD_PROGRAMS[name]
    error = inferd.error(code, *launch(source), "--limit-cpu", "2")
    assert error["code"] == wire, error
    assert words in json.dumps(error).replace("\\\\", "\\")
    assert result_of(api, "async def main():\n    return 'fine'\n") == "fine"


@pytest.mark.parametrize("verb", ["run", "upload"])
def test_a_syntax_error_is_refused_with_line_and_caret(
    inferd: CommandLine, server: dict[str, Any], tmp_path: Path, verb: str
) -> None:
    source, code, wire, words = BAD_PROGRAMS["syntax error"]
    path = tmp_path / "broken.py"
    path.write_text(source)
    error = inferd.error(code, verb, str(path))
    assert error["code"] == wire
    assert words in json.dumps(error)
    assert "^" in inferd(verb, str(path)).stderr


def test_an_exception_shows_the_users_file_line_and_caret(inferd: CommandLine, launch: Any) -> None:
    done = inferd(*launch("async def main():\n    x = {}\n    return x['missing'] + 1\n"))
    assert done.returncode == 1
    assert "line 3, in main\n    return x['missing'] + 1\n           ~^^^^^^^^^^^\n" in done.stderr
    assert "KeyError: 'missing'" in done.stderr


def test_an_unknown_model_is_refused_by_name(inferd: CommandLine) -> None:
    done = inferd("run", "inferlets/extract/main.py", "--model", "./no-such-model")
    assert done.returncode != 0
    assert "no-such-model" in done.stderr


TOGETHER = """
from inferd import Context, Regex, Sampler, session

async def main(prompt: str) -> str:
    endless = Regex("[a-z ]{900}")
    ctx = await Context().append(prompt).flush()
    await session.send("ready")
    await session.receive()
    return await ctx.generate(Sampler.argmax(), max_tokens=800, constrain=endless).collect_text()
"""


@pytest.fixture
def api(inferd: CommandLine, server: dict[str, Any]) -> Iterator[httpx.Client]:
    token = Path(server["token_file"]).read_text().strip()
    with httpx.Client(base_url=server["url"], headers={"Authorization": f"Bearer {token}"}, timeout=60) as client:
        yield client


def result_of(api: httpx.Client, source: str) -> Any:
    """The result of a program that is uploaded and launched over HTTP."""
    program = api.post("/v1/programs", json={"files": {"main.py": source}, "name": "program"}).json()["id"]
    run = api.post("/v1/runs", json={"program": program}).json()["id"]
    api.get(f"/v1/runs/{run}/events")
    return api.get(f"/v1/runs/{run}").json()["result"]


def engine_steps(api: httpx.Client) -> int:
    (line,) = [line for line in api.get("/metrics").text.splitlines() if line.startswith("inferd_engine_steps_total ")]
    return int(float(line.split()[1]))


def steps_of(api: httpx.Client, program: str, prompts: Sequence[str]) -> tuple[int, list[str]]:
    """Launch the program once per prompt, let all of them generate at the same time; engine steps and results."""
    runs = [api.post("/v1/runs", json={"program": program, "arguments": {"prompt": p}}).json()["id"] for p in prompts]
    for run in runs:
        with api.stream("GET", f"/v1/runs/{run}/events") as events:
            assert any(json.loads(line).get("message") == "ready" for line in events.iter_lines())
    before = engine_steps(api)
    for run in runs:
        api.post(f"/v1/runs/{run}/messages", json={"message": "go"})
    for run in runs:
        api.get(f"/v1/runs/{run}/events")
    return engine_steps(api) - before, [api.get(f"/v1/runs/{run}").json()["result"] for run in runs]


def test_two_programs_at_once_share_one_batch(inferd: CommandLine, launch: Any, api: httpx.Client) -> None:
    """Together they take fewer engine steps than one after the other, and give the same results."""
    _, program = launch(TOGETHER)
    prompts = ("def one(", "import os")
    (first, one), (second, other) = [steps_of(api, program, [prompt]) for prompt in prompts]
    both, results = steps_of(api, program, prompts)
    assert results == one + other
    assert min(first, second) > 200
    assert both < first + second


@pytest.mark.parametrize(
    "prints", ["print('x' * 2_999_999)", "for line in range(30_000):\n        print(f'{line:099d}')"]
)
def test_what_a_program_prints_faster_than_it_is_read_comes_whole(
    inferd: CommandLine, launch: Any, tmp_path: Path, prints: str
) -> None:
    """Two of three megabytes were lost, with a line on standard error and exit code 0."""
    launched = launch(f"async def main():\n    {prints}\n")
    for command in (("run", str(tmp_path / "program.py")), launched):
        done = inferd(*command)
        assert done.returncode == 0, done.stderr
        assert len(done.stdout) == 3_000_000, done.stderr


def test_a_killed_engine_ends_the_run_and_the_server_goes_on(
    inferd: CommandLine, server: dict[str, Any], launch: Any
) -> None:
    waits = "import asyncio\nasync def main():\n    print('here', flush=True)\n    await asyncio.sleep(600)\n"
    with inferd.start(*launch(waits), "--json") as process:
        assert process.stderr is not None
        assert process.stderr.readline() == "here\n"
        children = psutil.Process(server["pid"]).children()
        engines = [child for child in children if any("engine_process" in part for part in child.cmdline())]
        for engine in engines:
            engine.kill()
        assert len(engines) == 1
        out, _ = process.communicate(timeout=60)
    assert process.returncode == 5
    assert json.loads(out)["error"]["code"] == "unavailable"
    command = launch("async def main():\n    return 'back'\n")
    done = inferd(*command, "--json")
    while done.returncode == 5:
        done = inferd(*command, "--json")
    assert json.loads(done.stdout)["result"] == "back"
