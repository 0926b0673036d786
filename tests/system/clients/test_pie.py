"""Programs that are written for Pie, in the sandbox of a real server, as they would be uploaded there."""

from __future__ import annotations

import asyncio
import base64
from pathlib import Path
from typing import Any

import pytest

import inferd
import inferlet

from .conftest import ROOT, TOKEN, LiveServer

PROGRAMS = ROOT / "tests" / "support" / "pie"
SHOWN = {
    "text_completion": lambda found: isinstance(found, str) and found,
    "constrained": lambda found: {"name", "age"} <= set(found) and 0 <= found["age"] <= 150,
    "hierarchical_attention": lambda found: isinstance(found, str),
    "windowed_attention": lambda found: found["tokens"] == 6 and found["held"] > 8,
    "mcts": lambda found: found == {"visits": 3, "children": 2},
    "concurrency": lambda found: found["ended"] == ["a", "b"] and "ab" in "".join(found["log"]),
    "template_generation": lambda found: found.split()[1] in ("red", "blue"),
    "watermarking": lambda found: found["tokens"] == 8 and found["green"] >= 6,
    "jacobi": lambda found: found["same"] and found["passes"] <= 10,
    "cacheback": lambda found: found["same"] and found["steps"] < found["tokens"],
    "swarm": lambda found: found == ["start", "a:True", "b:True", "c:True"],
    "one_model": lambda found: found.startswith("tiny: "),
    "probes": lambda found: found["ids"] == found["vocabulary"],
}


def launched(server: LiveServer, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    server.upload((PROGRAMS / f"{name}.py").read_text(), name.replace("_", "-"))
    return ended_run(server, name.replace("_", "-"), arguments)


def ended_run(server: LiveServer, program: str, arguments: dict[str, Any]) -> dict[str, Any]:
    with server.http() as client:
        asked = client.post("/v1/runs", json={"program": program, "arguments": arguments})
        assert asked.status_code == 201, asked.text
        run = asked.json()["id"]
        client.get(f"/v1/runs/{run}/events")
        ended: dict[str, Any] = client.get(f"/v1/runs/{run}").json()
        return ended


@pytest.mark.parametrize("name", SHOWN)
def test_a_program_of_pies_shape_runs(server: LiveServer, name: str) -> None:
    ended = launched(server, name, {})
    assert ended["error"] is None, ended["error"]
    assert SHOWN[name](ended["result"]), ended["result"]


def test_modules_that_were_saved_are_found_again(server: LiveServer) -> None:
    first, second = launched(server, "modular_cache", {}), launched(server, "modular_cache", {})
    assert (first["error"], second["error"]) == (None, None)
    assert (first["result"]["found"], second["result"]["found"]) == (0, 3)
    assert first["result"]["text"] == second["result"]["text"]


def test_metadata_is_kept_for_later_runs(server: LiveServer) -> None:
    assert launched(server, "metadata", {"space": "a"})["result"] == {"count": 1, "before": None}
    assert launched(server, "metadata", {"space": "a"})["result"] == {"count": 2, "deleted": [True, False]}
    assert launched(server, "metadata", {"space": "a"})["result"]["count"] == 1


def test_arguments_are_the_input_whatever_they_are_called(server: LiveServer) -> None:
    ended = launched(server, "mcp_example", {"server": "nobody", "unknown": [1]})
    assert "MCP server 'nobody' is not registered (have: [])" in ended["error"]["message"]
    assert launched(server, "mcts", {"input": {"rounds": 1}})["result"]["visits"] == 1


def test_a_pie_toml_names_and_describes_a_program(server: LiveServer) -> None:
    toml = """
        [package]
        name = "pie-named"
        version = "1.2.0"
        description = "Says a word."
        [parameters]
        word = { type = "string", optional = true, description = "What to say." }
    """
    source = "import inferlet\nasync def main(input: dict):\n    return input.get('word', 'nothing')\n"
    data = {"Pie.toml": base64.b64encode(toml.encode()).decode()}
    with server.http() as client:
        uploaded = client.post("/v1/programs", json={"files": {"main.py": source}, "data": data})
        assert uploaded.status_code == 201, uploaded.text
        shown = uploaded.json()
        assert (shown["name"], shown["version"]) == ("pie-named", "1.2.0")
        run = client.post(
            "/v1/runs", json={"program": "pie-named@1.2.0", "arguments": {"word": "hi", "more": 1}}
        ).json()
        client.get(f"/v1/runs/{run['id']}/events")
        assert client.get(f"/v1/runs/{run['id']}").json()["result"] == "hi"


def test_cacheback_and_jacobi_write_what_the_model_writes(server: LiveServer) -> None:
    plain = (
        "from inferd import Context, Sampler\nasync def main(prompt: str, max_tokens: int) -> str:\n"
        "    return await Context().user(prompt).generate(Sampler.argmax(), max_tokens=max_tokens).collect_text()\n"
    )
    asked = {"prompt": "Repeat three times: the pump of the boat is dry.", "max_tokens": 32}
    texts = {}
    for name in ("plain", "cacheback", "jacobi"):
        server.upload(plain if name == "plain" else (ROOT / "inferlets" / name / "main.py").read_text(), name)
        ended = ended_run(server, name, asked)
        assert ended["error"] is None, ended["error"]
        texts[name] = ended["result"] if name == "plain" else ended["result"]["text"]
    assert texts["plain"] == texts["cacheback"] == texts["jacobi"]


def test_a_script_uses_the_same_names_over_a_connection(server: LiveServer) -> None:
    async def main(input: dict[str, Any]) -> list[Any]:
        model = inferlet.Model.load(inferlet.runtime.models()[0])
        ctx = inferlet.Context(model).user(input["prompt"])
        both = [ctx, ctx.fork()]
        tokens = await asyncio.gather(
            *(one.generate(inferlet.Sampler.argmax(), max_tokens=4).collect_tokens() for one in both)
        )
        return [*tokens, [ctx.seq_len for ctx in both]]

    with inferlet.connect(server.url.replace("http", "ws", 1), TOKEN):
        first, second, lengths = asyncio.run(main({"prompt": "hi"}))
    assert len(first) == 4
    assert first == second
    assert lengths[0] == lengths[1]
    with pytest.raises(inferd.Unauthorized), inferlet.connect(server.url.replace("http", "ws", 1), "wrong"):
        pass


FILES = """
import inferlet

async def main(input: dict) -> int:
    data = await inferlet.session.receive_file()
    inferlet.session.send_file(data[::-1])
    return len(data)
"""


def test_files_go_both_ways(server: LiveServer, tmp_path: Path) -> None:
    sent = tmp_path / "sent.bin"
    sent.write_bytes(bytes(range(256)) * 2000)  # more than one piece
    with inferd.SyncClient(server.url, TOKEN) as client:
        run = client.launch(client.upload({"main.py": FILES}, name="pie-files"), {})
        run.send_file(sent)
        assert run.result() == 512_000
        [file] = run.files()
        assert b"".join(run.read_file(file.file)) == sent.read_bytes()[::-1]
