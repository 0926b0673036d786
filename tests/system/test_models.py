"""Several models in a real server: its command line, a script and a program that use both, metrics, and typed refusals."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest

import inferd
from inferd import Context, Model, NotFound, Sampler
from inferd_runtime.sandbox.runner_build.component import ensure_runner

PROMPT = "one two three one two three"
PROGRAM = """
from inferd import Context, Model, Sampler

async def main(prompt: str) -> dict:
    said = {}
    for model in await Model.list():
        ctx = Context(model.name).append(prompt)
        said[model.name] = await ctx.generate(Sampler.argmax(), max_tokens=8).collect_text()
    return said
"""


@dataclass(frozen=True)
class CommandLine:
    """``inferd`` with a home of its own."""

    environment: dict[str, str]

    def __call__(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "inferd_runtime.cli", *arguments]
        return subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=120)


@pytest.fixture(scope="module")
def command(tmp_path_factory: pytest.TempPathFactory) -> CommandLine:
    ensure_runner()
    home = tmp_path_factory.mktemp("home")
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("INFERD_", "XDG_"))}
    cache = {key: os.environ[key] for key in ("INFERD_CACHE_DIR", "XDG_CACHE_HOME") if key in os.environ}
    moved = {f"XDG_{kind}_HOME": str(home / kind.lower()) for kind in ("STATE", "DATA", "CONFIG")}
    return CommandLine({**kept, **cache, **moved, "OMP_NUM_THREADS": "1"})


@pytest.fixture(scope="module")
def server(command: CommandLine) -> Iterator[dict[str, Any]]:
    """A server with two models, one of them in bfloat16; what it said when it was ready."""
    arguments = ["--port", "0", "--json", "--model", "tiny,dtype=bfloat16", "--model", "tiny-draft", "--threads", "1"]
    with subprocess.Popen(
        [sys.executable, "-m", "inferd_runtime.cli", "serve", *arguments], env=command.environment,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        line = process.stdout.readline()
        try:
            assert "models" in json.loads(line), line
            yield json.loads(line)
        finally:
            process.send_signal(signal.SIGTERM)
            _, err = process.communicate(timeout=30)
    assert process.returncode == 0, err


def test_all_models_are_listed_the_default_first(command: CommandLine, server: dict[str, Any]) -> None:
    assert server["models"] == ["tiny", "tiny-draft"]
    listed = command("models", "served").stdout.splitlines()
    assert [line.split()[0] for line in listed] == ["MODEL", "tiny", "tiny-draft"]


def test_a_script_uses_both_models_at_once(server: dict[str, Any]) -> None:
    said: dict[str, list[int]] = {}

    token = Path(server["token_file"]).read_text().strip()

    async def generate(model: str) -> None:
        steps = Context(model).append(PROMPT).generate(Sampler.argmax(), max_tokens=8)
        said[model] = [token async for step in steps for token in step.tokens]

    async def script() -> None:
        async with inferd.connect(server["url"].replace("http", "ws"), token=token):
            assert [model.name for model in await Model.list()] == ["tiny", "tiny-draft"]
            async with anyio.create_task_group() as tasks:
                for model in ("", "tiny", "tiny-draft"):
                    tasks.start_soon(generate, model)
            with pytest.raises(NotFound, match=r"'other'.*tiny, tiny-draft"):
                await Context("other").append("x").flush()

    anyio.run(script)
    assert said[""] == said["tiny"]
    assert all(said.values())


def test_a_sandboxed_program_uses_both_models(command: CommandLine, server: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "both.py"
    path.write_text(PROGRAM)
    uploaded = json.loads(command("upload", str(path), "--json").stdout)
    done = command("launch", uploaded["id"], "--prompt", PROMPT, "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    said = json.loads(done.stdout)["result"]
    assert list(said) == ["tiny", "tiny-draft"]
    assert all(said.values())


def test_metrics_tell_the_models_apart(server: dict[str, Any]) -> None:
    token = Path(server["token_file"]).read_text().strip()
    answer = httpx.get(f"{server['url']}/metrics", headers={"Authorization": f"Bearer {token}"})
    figures = dict(line.rsplit(" ", 1) for line in answer.text.splitlines() if not line.startswith("#"))
    pages = [float(figures[f'inferd_model_kv_pages{{model="{name}"}}']) for name in ("tiny", "tiny-draft")]
    assert sum(pages) == float(figures["inferd_kv_pages"])
    assert min(pages) > 0
    for name in ("tiny", "tiny-draft"):
        assert float(figures[f'inferd_model_kv_pages_free{{model="{name}"}}']) <= max(pages)
        assert f'inferd_model_steps_total{{model="{name}"}}' in figures


@pytest.mark.parametrize(
    ("verb", "arguments", "code", "error", "named"),
    [
        ("serve", ["--model", "tiny", "--model", "tiny,dtype=bfloat16"], 2, "client.invalid", "'tiny' is given twice"),
        ("run", ["--dtype", "float12"], 2, "client.invalid", "'float12' is not one of float32"),
        ("serve", ["--device", "cuda:99"], 2, "client.invalid", "'cuda:99' is not there: torch sees cpu"),
        ("run", ["--pages", "999999999"], 3, "limit", "does not fit cpu: it needs"),
    ],
)
def test_what_cannot_be_served_is_refused_by_name(
    command: CommandLine, tmp_path: Path, verb: str, arguments: list[str], code: int, error: str, named: str
) -> None:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    own = ["--port", "0", "--state-dir", str(tmp_path / "state"), "--data-dir", str(tmp_path / "data")]
    rest = [str(path), "--prompt", "x"] if verb == "run" else own
    done = command(verb, *rest, *arguments, "--json")
    assert done.returncode == code, done.stdout + done.stderr
    told = json.loads(done.stdout)["error"]
    assert told["code"] == error
    assert named in told["message"]
