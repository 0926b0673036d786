"""The code of the guides on a real server: programs in its sandbox, scripts and clients over its connections."""

from __future__ import annotations

import asyncio
import base64
from pathlib import Path
from typing import Any

import pytest
from guide_pages import fenced, indented, run_block

import inferd

from .conftest import TOKEN, LiveServer

README = "../../README.md"
SUMMARIZE = """
# /// script
# [tool.inferd]
# name = "summarize"
# version = "1.2.0"
# ///
from inferd import session
async def main(text: str) -> str:
    await session.send((await session.receive())["more"])
    return text
"""


def run_as_script(server: LiveServer, guide: str, blocks: list[tuple[int, str]]) -> dict[str, Any]:
    """Run blocks in a script that is connected; a block's ``main`` at once."""
    names: dict[str, Any] = {}

    async def script() -> None:
        async with inferd.connect(server.url.replace("http", "ws", 1), TOKEN):
            for block in blocks:
                await run_block(guide, block, names)
                if "async def main(" in block[1]:
                    names["returned"] = await names["main"]()

    asyncio.run(script())
    return names


def test_the_readme(server: LiveServer, capsys: pytest.CaptureFixture[str]) -> None:
    (program,) = [block for block in indented(README) if "async def main" in block[1]]
    (line, script), *_ = [block for block in indented(README) if "inferd.connect" in block[1]]
    returned = run_as_script(server, README, [program])["returned"]
    assert (type(returned).__name__, returned.age) == ("Person", 36)
    here = script.replace("ws://127.0.0.1:7070", server.url).replace("token=...", f"token={TOKEN!r}")
    asyncio.run(
        run_block(README, (line, here), {**{name: getattr(inferd, name) for name in inferd.__all__}, "inferd": inferd})
    )
    assert capsys.readouterr().out


def test_tools(server: LiveServer) -> None:
    assert isinstance(run_as_script(server, "tools.md", fenced("tools.md"))["returned"], str)


def test_saved_contexts(server: LiveServer) -> None:
    texts = [run_as_script(server, "snapshots.md", fenced("snapshots.md"))["returned"] for _ in range(2)]
    assert all(isinstance(text, str) for text in texts)


def test_programs_together(server: LiveServer, capsys: pytest.CaptureFixture[str]) -> None:
    server.upload(SUMMARIZE, "summarize")
    names = run_as_script(server, "programs-together.md", fenced("programs-together.md"))
    assert (names["job"], names["some"]) == ({"number": 0}, [{"number": 1}, {"number": 2}])
    assert capsys.readouterr().out == "{'any': 'JSON value'}\n1\n...\n"


def test_clients_of_runs(
    server: LiveServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("INFERD_TOKEN", TOKEN)
    greet, client, files = (source for _, source in fenced("clients-of-runs.md"))
    Path("greet.py").write_text(greet)
    exec(client.replace("http://127.0.0.1:7070", server.url), {})
    assert capsys.readouterr().out == "Ann says that they heard 'Hello, Ann!'.\n"
    Path("plots", "templates").mkdir(parents=True)
    Path("plots", "main.py").write_text(files)
    Path("plots", "templates", "letter.txt").write_text("Dear")
    with inferd.SyncClient(server.url, TOKEN) as link:
        run = link.launch(link.upload("plots"))
        run.send_file("greet.py")
        run.result()
        assert [file.name for file in run.files()] == ["plot.svg", "letter.txt"]


def test_files_of_a_program(server: LiveServer) -> None:
    (_, source), *_ = [block for block in indented("dependencies.md") if "import files" in block[1]]
    lines = source.replace("\n", "\n    ")
    files = {"main.py": f"async def main():\n    {lines}\n    return [prompt, table, files.names()]\n"}
    data = {"prompts/first.txt": b"Hi", "table.json": b"[1]", "logo.png": b"\x89"}
    encoded = {path: base64.b64encode(content).decode() for path, content in data.items()}
    with server.http() as client:
        uploaded = client.post("/v1/programs", json={"files": files, "data": encoded, "name": "with-files"})
        assert uploaded.status_code == 201, uploaded.text
    with inferd.SyncClient(server.url, TOKEN) as link:
        assert link.launch("with-files").result() == [
            "Hi",
            [1],
            ["logo.png", "main.py", "prompts/first.txt", "table.json"],
        ]
