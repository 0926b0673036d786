"""The programs and scripts that ship, each run as its users run it except the model."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import sys
from contextlib import closing
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from session_runtime import SayingDriver, SessionRuntime

from inferd import Context
from inferd.program.interface import coerce_arguments, to_result
from inferd.protocol import CompiledGrammar, CompileGrammar, ForkMatcher, OpenMatcher, ReleaseGrammar, StartGenerate
from inferd.testing import FakeRuntime, decode
from inferd_runtime.engine.sampling.host_sampling import LogitRows
from inferd_runtime.kv.snapshot_folder import SnapshotFolder
from inferd_runtime.kv.snapshots import SnapshotStore
from inferd_runtime.testing.byte_tokenizer import VOCAB_SIZE, ByteTokenizer
from inferd_runtime.testing.null_driver import NullDriver

ROOT = Path(__file__).parents[3]
COMPILES = {"grammar.compile": lambda _: CompiledGrammar(1, False), "grammar.release": lambda _: None}
EXAMPLES = sorted(path.name for path in (ROOT / "examples").glob("*.py"))


def load(name: str) -> ModuleType:
    """An inferlet as a module, the way the runner registers it."""
    label = f"inferlet_{name.replace('-', '_')}"
    spec = importlib.util.spec_from_file_location(label, ROOT / "inferlets" / name / "main.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[label] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


async def run(name: str, **arguments: Any) -> Any:
    main = load(name).main
    return to_result(await main(**coerce_arguments(main, arguments)))


async def test_text_completion(capsys: pytest.CaptureFixture[str]) -> None:
    with FakeRuntime(["Red, yellow, blue.", "Red"]) as runtime:
        assert await run("text-completion") == "Red, yellow, blue."
        assert capsys.readouterr().out == "Red, yellow, blue.\n"
        await run("text-completion", system="Be short.", temperature=0, seed=7, speculation=False, max_tokens=5)
    first, second = runtime.of_kind(StartGenerate)
    assert first.system_speculation
    assert (second.system_speculation, second.sampling.seed, second.sampling.temperature) == (False, 7, 0)
    assert runtime.contexts == {}


async def test_extract() -> None:
    with FakeRuntime(['{"name":"Ada Lovelace","age":36}']) as runtime:
        assert await run("extract", text="Ada Lovelace, 36") == {"name": "Ada Lovelace", "age": 36}
    assert runtime.of_kind(StartGenerate)[0].constraint.kind == "json_schema"
    assert runtime.contexts == {}


async def test_edit_predicts_its_input(capsys: pytest.CaptureFixture[str]) -> None:
    text = "one two three four five six"
    with FakeRuntime([text[:20] + "FIVE"]) as runtime:
        assert await run("edit", text=text, instruction="Shout:") == text[:20] + "FIVE"
    (request,) = runtime.of_kind(StartGenerate)
    assert (request.predicted_text, request.system_speculation) == (text, True)
    counts = capsys.readouterr().out.splitlines()[1]
    assert counts == "[24 tokens in 5 steps; 73% of 26 guesses stood]"
    assert runtime.contexts == {}


async def test_order_says_what_speculation_brought(capsys: pytest.CaptureFixture[str]) -> None:
    order = {
        "customer": "Ingrid", "address": {"street": "Harbour Road", "city": "Varnes"},
        "lamps": 3, "blankets": 2, "payment": {"euros": 118, "day": "Monday"},
    }  # fmt: skip
    answers = [json.dumps(order)] * 2 + ["paid on Tuesday"] * 2
    with FakeRuntime(answers) as runtime:
        runtime.answers |= COMPILES
        assert await run("order", text="paid on Monday", max_tokens=400) == order
    assert [request.system_speculation for request in runtime.of_kind(StartGenerate)] == [True, False] * 2
    assert [request.predicted_text for request in runtime.of_kind(StartGenerate)][2:] == ["paid on Monday", ""]
    _, record, edited, edit = capsys.readouterr().out.splitlines()
    assert edited == "paid on Tuesday"
    assert record.startswith("[record: ")
    assert edit.startswith("[edit: 15 tokens in ")
    assert runtime.contexts == {}


async def test_order_fails_if_an_answer_depends_on_speculation() -> None:
    order = (
        '{"customer":"","address":{"street":"","city":""},"lamps":1,"blankets":1,"payment":{"euros":1,"day":"Monday"}}'
    )
    with FakeRuntime([order, order, "Tuesday", "Monday"]) as runtime:
        runtime.answers |= COMPILES
        with pytest.raises(RuntimeError, match="changed an answer"):
            await run("order")


async def test_custom_speculator_accepts_what_repeats(capsys: pytest.CaptureFixture[str]) -> None:
    sentence = "the quick brown fox jumps over the lazy dog. "
    with FakeRuntime([sentence * 2]) as runtime:
        assert await run("custom-speculator", prompt=f"Repeat twice: {sentence}") == sentence * 2
    output = capsys.readouterr()
    assert output.err == ""
    counts = [int(word) for word in output.out.replace("[", " ").split() if word.isdigit()]
    tokens, steps, accepted, drafted = counts
    assert tokens == len(sentence) * 2
    assert steps < tokens / 3
    assert tokens - steps <= accepted <= drafted
    assert len(runtime.of_kind(StartGenerate)) == 1


class LetterDriver(NullDriver):
    """Writes small letters, each as likely as the others."""

    def __init__(self) -> None:
        super().__init__(vocab_size=VOCAB_SIZE, order=512)

    def logits(self, history: list[int]) -> LogitRows:
        row = np.full(self.vocab_size, -100.0, np.float32)
        row[ord("a") : ord("z") + 1] = 0.0
        return row


async def test_a_watermark_is_found_with_its_key_and_not_without() -> None:
    with SessionRuntime(LetterDriver()) as runtime:
        marked, again, plain = [
            await run("watermark", strength=each, max_tokens=80, seed=7) for each in (6.0, 6.0, 0.0)
        ]
        found, wrong = [await run("watermark", check=marked["text"], key=key) for key in ("a secret", "wrong")]
        assert runtime.contexts == 0
    assert found == marked == again
    assert marked["text"] != plain["text"]
    assert marked["z"] > 6 > 3 > max(plain["z"], wrong["z"])


async def test_a_passage_that_was_read_once_is_not_computed_again(tmp_path: Path) -> None:
    passages = ["The ferry leaves at noon.", "The pump is old."]
    store = SnapshotStore(SnapshotFolder(tmp_path, 1 << 24))
    with closing(store), SessionRuntime(snapshots=store):
        first, second = [await run("rag", question="When?", passages=passages, max_tokens=8) for _ in range(2)]
        assert second["reused"] == sum(saved.length - 1 for saved in await Context.saved()) > 40
    assert (first["reused"], second["text"], second["passage"]) == (0, first["text"], first["passage"])


def test_the_ngram_index_finds_the_newest_continuation_and_stays_small() -> None:
    speculator = load("custom-speculator").NgramSpeculator(max_draft=3, sizes=(3, 2), max_entries=30)
    speculator.accept([1, 2, 3, 4, 9, 2, 3, 5, 6, 7, 2, 3])
    assert speculator.draft() == ([5, 6, 7], [12, 13, 14])  # after the newest "2 3"
    speculator.accept([4])
    assert speculator.draft() == ([9, 2, 3], [13, 14, 15])  # after the older "2 3 4"
    speculator.accept(list(range(100, 200)))
    assert len(speculator._index) == 30
    assert speculator.draft() == ([], [])
    speculator.reset()
    assert speculator.draft() == ([], [])
    speculator.accept([1])
    assert speculator.draft() == ([], [])


async def script(name: str, *arguments: str, **environment: str) -> tuple[int, str, str]:
    """Run an example as a process of its own."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith("INFERD_")}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-W", "error", str(ROOT / "examples" / name), *arguments,
        env={**clean, **environment}, stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        async with asyncio.timeout(60):
            out, err = await process.communicate(b"typed\n\n")
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


async def test_stream_chat(wire: Any) -> None:
    runtime = FakeRuntime(["Hi!", "Fine, thanks.", "Typed."], steps=[2])
    async with wire(runtime, token="secret") as server:
        done = await script("stream_chat.py", "--url", server.url, "--token", "secret", "Hello", "How are you?")
        assert done == (0, "Hi!\nFine, thanks.\n", "")
        code, out, _ = await script("stream_chat.py", INFERD_URL=server.url, INFERD_TOKEN="secret")
        assert (code, out) == (0, "> Typed.\n> ")
        code, _, err = await script("stream_chat.py", "--url", server.url, "Hello")
        assert (code, "token" in err, "Traceback" in err) == (1, True, False)


async def test_custom_speculator_script(wire: Any) -> None:
    def answer(tokens: list[int]) -> str:
        return decode(tokens).partition(":\n")[2].replace("Monday", "Tuesday")

    async with wire(FakeRuntime(answer)) as server:
        code, out, err = await script("custom_speculator.py", "--url", server.url)
    assert (code, err) == (0, "")
    plain, drafted, text, verdict = out.splitlines()
    assert verdict == "the texts are the same"
    assert "on Tuesday at 10:00" in text
    assert int(drafted.split()[3]) < int(plain.split()[3]) / 3


async def test_verify_loop_script(wire: Any) -> None:
    def answer(prompt: list[int]) -> bytes:
        return ByteTokenizer().decode(prompt).partition(":\n")[2].replace("Monday", "Tuesday").encode()

    runtime = SessionRuntime(SayingDriver(answer))
    async with wire(runtime) as server:
        code, out, err = await script("verify_loop.py", "--url", server.url)
    assert (code, err) == (0, "")
    counts, text, verdict = out.splitlines()
    assert verdict == "the texts are the same"
    assert "on Tuesday at 10:00" in text
    tokens, steps = int(counts.split()[0]), int(counts.split()[3])
    assert steps < tokens / 3
    assert runtime.contexts == 0


async def test_own_decoding_script(wire: Any) -> None:
    runtime = SessionRuntime()
    async with wire(runtime) as server:
        code, out, err = await script("own_decoding.py", "--url", server.url, "--width", "2")
    assert (code, err) == (0, "")
    assert out.split()[0] in {"Paris", "Porto", "Prague", "Palermo", "Pisa"}
    made = [len(runtime.of_kind(kind)) for kind in (CompileGrammar, OpenMatcher, ForkMatcher)]
    assert (runtime.contexts, len(runtime.of_kind(ReleaseGrammar))) == (0, sum(made))


def test_every_example_has_a_test() -> None:
    clients = ROOT / "tests" / "system" / "clients"
    sources = [path.read_text() for path in (Path(__file__), *clients.glob("test_*.py"))]
    assert EXAMPLES
    assert all(any(f'"{name}"' in source for source in sources) for name in EXAMPLES)
