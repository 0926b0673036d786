"""Several models in a real server: its command line, a script and a program that use both, metrics, and typed refusals."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
from command_line import CommandLine, own_home

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


@pytest.fixture(scope="module")
def command(tmp_path_factory: pytest.TempPathFactory) -> CommandLine:
    ensure_runner()
    return CommandLine(own_home(tmp_path_factory.mktemp("home")))


@pytest.fixture(scope="module")
def server(command: CommandLine) -> Iterator[dict[str, Any]]:
    """A server with two models, one of them in bfloat16."""
    with command.serve("--model", "tiny,dtype=bfloat16", "--model", "tiny-draft", "--threads", "1") as ready:
        yield ready


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
    said = command.json("launch", command.json("upload", str(path))["id"], "--prompt", PROMPT)["result"]
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
    ("arguments", "named"),
    [
        (["--model", "tiny", "--model", "tiny,dtype=bfloat16"], "'tiny' is given twice"),
        (["--dtype", "float12"], "'float12' is not one of float32"),
    ],
)
def test_what_cannot_be_served_is_refused_by_name(command: CommandLine, arguments: list[str], named: str) -> None:
    told = command.error(2, "serve", "--port", "0", *arguments)
    assert told["code"] == "client.invalid"
    assert named in told["message"]
