"""LoRA adapters in a real server: the operator's from the command line, a tenant's own from a script, both in a program."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import httpx
import numpy as np
import pytest
from command_line import CommandLine, own_home
from guide_pages import indented, run_block
from safetensors.numpy import save_file

import inferd
import inferd_runtime.models
from inferd import Adapter, Context, InvalidRequest, LimitExceeded, NotFound, Sampler
from inferd_runtime.sandbox.runner_build.component import ensure_runner

ANN, BOB = "token-of-ann-0123456789", "token-of-bob-0123456789"
PROMPT = "one two three one two three"
PROGRAM = """
from inferd import Adapter, Context, InvalidRequest, Sampler

async def main(prompt: str) -> dict:
    said = {}
    for name in [None, *[adapter.name for adapter in await Adapter.list()]]:
        said[name or ""] = await Context().append(prompt).generate(
            Sampler.argmax(), max_tokens=8, adapter=name
        ).collect_text()
    try:
        await Adapter.load_bytes("{}", b"weights", name="bad")
    except InvalidRequest as error:
        said["error"] = error.message
    return said
"""

OWN = """
from inferd import Adapter as Loaded
from inferlet import Adapter, Context, Model, NotOffered, Sampler

async def main(input: dict) -> list:
    model = Model.load()
    adapter = Adapter.open(model, "pies")
    assert adapter is None
    adapter = Adapter.create(model, "pies")
    adapter.load("lora")
    held = Adapter.open(model, "pies")
    plain = await Context(model).user("Hi").generate(Sampler.argmax(), max_tokens=8).collect_tokens()
    whole = await Context(model).user("Hi").generate(Sampler.argmax(), max_tokens=8, adapter=adapter).collect_tokens()
    stepped = []
    async for step in Context(model).user("Hi").generate(Sampler.argmax(), max_tokens=8).adapter(held):
        stepped += (await step.execute()).tokens
    tokens = Context(model).user("Hi").cue().buffer()
    fwd = Context(model).forward().input(tokens).adapter(adapter)
    drawn = fwd.sample([len(tokens) - 1], Sampler.argmax())
    first = (await fwd.execute()).token(drawn)
    refused = []
    for call in (held.fork, held.save):
        try:
            call("x")
        except NotOffered as error:
            refused.append(str(error).split(" is ")[0])
    await (await Loaded.load("lora", name="pies")).drop()
    return [plain != whole, stepped == whole, first == whole[0], refused]
"""


def write_adapter(folder: Path, seed: int, **options: Any) -> Path:
    """A random adapter for the embedded model, on two modules of every layer."""
    facts = json.loads((Path(inferd_runtime.models.__path__[0]) / "tiny" / "target" / "config.json").read_text())
    width, inner = facts["hidden_size"], facts["intermediate_size"]
    shapes = {
        "self_attn.o_proj": (facts["num_attention_heads"] * facts["head_dim"], width),
        "mlp.up_proj": (width, inner),
    }
    random = np.random.default_rng(seed)
    tensors = {}
    for layer in range(facts["num_hidden_layers"]):
        for module, (inputs, outputs) in shapes.items():
            key = f"base_model.model.model.layers.{layer}.{module}"
            tensors[f"{key}.lora_A.weight"] = random.normal(0, 0.3, (4, inputs)).astype(np.float32)
            tensors[f"{key}.lora_B.weight"] = random.normal(0, 0.3, (outputs, 4)).astype(np.float32)
    folder.mkdir()
    save_file(tensors, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["o_proj", "up_proj"], **options}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    ensure_runner()
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def command(home: Path) -> CommandLine:
    return CommandLine(own_home(home))


@pytest.fixture(scope="module")
def url(home: Path, command: CommandLine) -> Iterator[str]:
    """A server with one adapter of its own, and two tenants."""
    (home / "tokens").write_text(f"{ANN} ann\n{BOB} bob\n")
    (home / "tokens").chmod(0o600)
    adapters = ("--adapter", f"house={write_adapter(home / 'house', 1)}", "--max-adapters", "1")
    with command.serve("--threads", "1", "--tokens-file", str(home / "tokens"), *adapters) as ready:
        yield ready["url"].replace("http", "ws", 1)


async def say(adapter: str | Adapter | None = None) -> str:
    async with Context().append(PROMPT) as ctx:
        return await ctx.generate(Sampler.argmax(), max_tokens=8, adapter=adapter).collect_text()


def test_a_script_generates_with_and_without(url: str, home: Path) -> None:
    mine = write_adapter(home / "mine", 2)

    async def as_ann() -> None:
        async with inferd.connect(url, ANN):
            adapter = await Adapter.load(mine)
            assert [(each.name, each.shared) for each in await Adapter.list()] == [("house", True), ("mine", False)]
            said = [await say(each) for each in (None, "house", adapter)]
            assert len(set(said)) == 3
            again: dict[int, str] = {}

            async def one(at: int, each: str | Adapter | None) -> None:
                again[at] = await say(each)

            async with anyio.create_task_group() as tasks:
                for at, each in enumerate((None, "house", adapter)):
                    tasks.start_soon(one, at, each)
            assert [again[at] for at in range(3)] == said
            with pytest.raises(LimitExceeded, match="loaded or still in use: 1") as caught:
                await Adapter.load(mine, name="second")
            assert caught.value.detail == {"limit": "adapters", "value": 1, "raise_with": "--max-adapters"}
            with pytest.raises(InvalidRequest, match="belongs to the server"):
                await (await Adapter.list())[0].drop()

    async def as_bob() -> None:
        async with inferd.connect(url, BOB):
            assert [each.name for each in await Adapter.list()] == ["house"]
            with pytest.raises(NotFound):
                await say("mine")

    async def as_ann_again() -> None:
        async with inferd.connect(url, ANN):
            await (await Adapter.list())[1].drop()
            with pytest.raises(NotFound):
                await say("mine")

    for part in (as_ann, as_bob, as_ann_again):
        anyio.run(part)


def test_what_the_guide_shows_runs(url: str, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(home)
    Path("out").mkdir()
    write_adapter(Path("out/my-adapter"), 4)
    names: dict[str, Any] = {}
    (block,) = indented("adapters.md")

    async def script() -> None:
        async with inferd.connect(url, BOB):
            await run_block("adapters.md", block, names)
            assert [each.name for each in await Adapter.list()] == ["house"]

    anyio.run(script)
    assert (names["adapter"].name, type(names["text"])) == ("my-adapter", str)


def test_an_adapter_is_a_model_of_http_clients(url: str, home: Path) -> None:
    """By its name, in every dialect: the server's for all tenants, a tenant's own for nobody else."""
    folder = write_adapter(home / "named", 4)

    async def load() -> dict[str, str]:
        async with inferd.connect(url, ANN):
            return {"named": await say(await Adapter.load(folder)), "tiny": await say(), "house": await say("house")}

    async def drop() -> None:
        async with inferd.connect(url, ANN):
            (own,) = [each for each in await Adapter.list() if not each.shared]
            await own.drop()

    said = anyio.run(load)
    with http_client(url, ANN) as ann, http_client(url, BOB) as bob:
        assert {name: completed(ann, name) for name in said} == said
        assert len({chatted(ann, name) for name in said}) == 3
        assert all(streamed(ann, name) == messaged(ann, name) == chatted(ann, name) for name in said)
        assert embedded(ann, "house") != embedded(ann, "tiny")
        assert {each["id"]: each["parent"] for each in ann.get("/v1/models").json()["data"]} == {
            "tiny": None, "house": "tiny", "named": "tiny",
        }  # fmt: skip
        assert (chatted(bob, "house"), bob.get("/v1/models/named").status_code) == (chatted(ann, "house"), 404)
        refused = bob.post("/v1/chat/completions", json={**CHAT, "model": "named"})
        assert (refused.status_code, refused.json()["error"]["code"]) == (404, "model_not_found")
        anyio.run(drop)
        assert ann.post("/v1/chat/completions", json={**CHAT, "model": "named"}).status_code == 404


CHAT = {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": 8, "temperature": 0}


def http_client(url: str, token: str) -> httpx.Client:
    headers = {"Authorization": f"Bearer {token}"}
    return httpx.Client(base_url=url.replace("ws", "http", 1), headers=headers, timeout=60)


def answered(client: httpx.Client, path: str, body: dict[str, Any]) -> Any:
    return client.post(path, json=body).raise_for_status().json()


def completed(client: httpx.Client, model: str) -> str:
    body = {"model": model, "prompt": PROMPT, "max_tokens": 8, "temperature": 0}
    return str(answered(client, "/v1/completions", body)["choices"][0]["text"])


def chatted(client: httpx.Client, model: str) -> str:
    return str(answered(client, "/v1/chat/completions", {**CHAT, "model": model})["choices"][0]["message"]["content"])


def streamed(client: httpx.Client, model: str) -> str:
    text = client.post("/v1/chat/completions", json={**CHAT, "model": model, "stream": True}).raise_for_status().text
    data = [json.loads(line.removeprefix("data: ")) for line in text.splitlines() if line.startswith("data: {")]
    return "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in data)


def messaged(client: httpx.Client, model: str) -> str:
    blocks = answered(client, "/v1/messages", {**CHAT, "model": model})["content"]
    return "".join(block["text"] for block in blocks)


def embedded(client: httpx.Client, model: str) -> list[float]:
    found: list[float] = answered(client, "/v1/embeddings", {"model": model, "input": PROMPT})["data"][0]["embedding"]
    return found


def test_a_program_chooses_an_adapter(url: str, home: Path, command: CommandLine) -> None:
    (home / "program.py").write_text(PROGRAM)
    bob = CommandLine({**command.environment, "INFERD_URL": url, "INFERD_TOKEN": BOB})
    uploaded = bob.json("upload", str(home / "program.py"))["id"]
    said = bob.json("launch", uploaded, "--prompt", PROMPT)["result"]

    async def script() -> dict[str, str]:
        async with inferd.connect(url, BOB):
            return {"": await say(), "house": await say("house")}

    assert "peft_type" in said.pop("error")
    assert said == anyio.run(script)
    assert said[""] != said["house"]


def test_a_program_loads_an_adapter_of_its_own_folder_by_pies_names(url: str, home: Path) -> None:
    folder = home / "own-adapter"
    folder.mkdir()
    (folder / "main.py").write_text(OWN)
    write_adapter(folder / "lora", 5)
    with inferd.SyncClient(url.replace("ws", "http", 1), ANN) as client:
        found = client.launch(client.upload(folder), {}).result()
    assert found == [True, True, True, ["inferlet: Adapter.fork", "inferlet: Adapter.save"]]


def test_a_server_does_not_start_with_a_bad_adapter(home: Path, command: CommandLine) -> None:
    bad = write_adapter(home / "bad", 3, use_dora=True)
    own = ("--state-dir", str(home / "own-state"), "--data-dir", str(home / "own-data"))
    told = command.error(2, "serve", "--port", "0", "--threads", "1", *own, "--adapter", f"x={bad}")
    assert told["code"] == "client.invalid"
    assert told["message"].startswith("adapter 'x': adapter_config.json: use_dora")
