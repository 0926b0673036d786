"""A real server under load whose engine, workers, parsers, compilers and draft model are killed: each run ends, and rightly.

The embedded model, greedy and sampled texts and JSON under a schema, half of the runs safe to retry. What undisturbed runs
return is noted first: a run that does not end in that has to end in a typed error.
"""

from __future__ import annotations

import json
import random
import re
import resource
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from inferd_runtime.sandbox.runner_build.component import ensure_runner

PROGRAM = """
from dataclasses import dataclass
from inferd import Context, JsonSchema, Sampler

@dataclass
class Fact:
    name: str
    number: int

async def main(kind: int, text: str = "Once upon a time") -> str:
    async with Context() as ctx:
        ctx.user(f"{text} {kind}")
        if kind % 3 == 2:
            schema = {"type": "object", "properties": {f"a{kind}": {"type": "integer"}}, "required": [f"a{kind}"]}
            got = await ctx.generate(Sampler.argmax(), max_tokens=40, constrain=JsonSchema(schema)).collect_text()
        else:
            sampler = Sampler.argmax() if kind % 3 == 0 else Sampler.multinomial(0.9, seed=kind)
            got = ""
            async for step in ctx.generate(sampler, max_tokens=40, system_speculation=True):
                print(step.text, end="")
                got += step.text
        return got
"""
KINDS = 12
"""Different runs; each is launched many times."""
CHILDREN = {
    "engine": "engine_main", "worker": "sandbox.worker", "parser": "parser_child", "compiler": "compile_process",
    "draft": "draft_process",
}  # fmt: skip
TYPED = frozenset({"unavailable", "limit", "cancelled", "client"})
"""What a run may end in, or a request be refused with, while children are killed."""
TOKEN = "token-of-the-load-0123456789abcdef"
TRACEBACK = re.compile(r"Traceback \(most recent call last\)")
PATIENCE = 180.0


@dataclass
class RealServer:
    """``inferd serve`` as a process, and a client for it."""

    folder: Path
    options: tuple[str, ...] = ()
    file_bytes: int = 0
    """The most that a file may have, of this process and its children; 0: no limit."""

    @contextmanager
    def running(self) -> Iterator[Running]:
        """Start it, and kill it at the end if it is still there."""
        tokens = self.folder / "tokens"
        tokens.write_text(f"{TOKEN} load role=admin\n")
        tokens.chmod(0o600)
        command = [
            sys.executable, "-m", "inferd_runtime.cli", "serve", "--port", "0", "--json", "--tokens-file", str(tokens),
            "--data-dir", str(self.folder / "data"), "--state-dir", str(self.folder / "state"), "--threads", "1",
            "--pages", "2048", "--drain-seconds", "1", *self.options,
        ]  # fmt: skip
        with (self.folder / "log").open("ab") as log:
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, preexec_fn=self._limit)
        try:
            assert process.stdout is not None
            url = json.loads(process.stdout.readline() or b"{}").get("url", "")
            headers = {"Authorization": f"Bearer {TOKEN}"}
            with httpx.Client(base_url=url, headers=headers, timeout=PATIENCE) as client:
                yield Running(process, client)
        finally:
            process.kill()
            process.communicate()

    def _limit(self) -> None:
        if self.file_bytes:
            resource.setrlimit(resource.RLIMIT_FSIZE, (self.file_bytes, resource.RLIM_INFINITY))

    @property
    def log(self) -> str:
        """What all of its processes have said."""
        return (self.folder / "log").read_text(errors="replace")


@dataclass
class Running:
    """A server that is up."""

    process: subprocess.Popen[bytes]
    client: httpx.Client
    ends: Counter[str] = field(default_factory=Counter)
    """Runs by how they ended."""
    killed: Counter[str] = field(default_factory=Counter)
    """Children by what they were."""

    def upload(self) -> str:
        """Upload the program; returns its hash."""
        answer = self.client.post("/v1/programs", json={"files": {"main.py": PROGRAM}, "name": "load"})
        assert answer.status_code in (200, 201), answer.text
        return str(answer.json()["id"])

    def launch(self, kind: int, **body: Any) -> dict[str, Any] | None:
        """Launch a run; None if it was refused with a typed error that says to come again."""
        answer = self.client.post("/v1/runs", json={"program": "load", "arguments": {"kind": kind}, **body})
        if answer.status_code != 201:
            assert answer.json()["error"]["code"].partition(".")[0] in ("unavailable", "limit"), answer.text
            return None
        value: dict[str, Any] = answer.json()
        return value

    def over(self, run: Mapping[str, Any]) -> dict[str, Any]:
        """Return a run once it has ended. Raises TimeoutError if it hangs."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            answer = self.client.get(f"/v1/runs/{run['id']}")
            value: dict[str, Any] = answer.json()
            if answer.status_code == 200 and value["finished_at"] is not None:
                return value
            time.sleep(0.05)
        raise TimeoutError(f"{run['id']} hangs")

    def judge(self, kind: int, over: Mapping[str, Any], expected: Mapping[int, str]) -> None:
        """Fail unless a run ended in its result or in a typed error."""
        error = over["error"]
        self.ends["result" if error is None else error["code"]] += 1
        if error is None:
            assert over["result"] == expected[kind], f"kind {kind}: a wrong token"
        else:
            assert error["code"].partition(".")[0] in TYPED, error

    def children(self, what: str) -> list[psutil.Process]:
        """Return the children of a kind."""
        found = []
        for child in psutil.Process(self.process.pid).children(recursive=True):
            with suppress(psutil.Error):
                if CHILDREN[what] in " ".join(child.cmdline()):
                    found.append(child)
        return found


def kill_at_random(running: Running, kills: int, draw: random.Random, stop: threading.Event) -> None:
    """Kill so many children, of each kind in turn as far as there are some."""
    kinds = list(CHILDREN)
    while kills and not stop.is_set():
        what = draw.choice(kinds)
        ready = running.client.get("/readyz").status_code == 200  # else much would hit an engine that only starts
        children = running.children(what) if ready else []
        if children:
            with suppress(psutil.Error):
                draw.choice(children).kill()
                running.killed[what] += 1
                kills -= 1
        stop.wait(draw.uniform(0.3, 2.0))
    stop.set()


def load(running: Running, runs: int, kills: int, expected: Mapping[int, str]) -> None:
    """Have runs end, eight at a time, until there were enough of them and so many children were killed."""
    killed, numbers, lock = threading.Event(), iter(range(1_000_000)), threading.Lock()

    def client() -> None:
        while running.ends.total() < runs or not killed.is_set():
            with lock:
                number = next(numbers)
            run = running.launch(number % KINDS, retry_safe=number % 2 == 0)
            if run is None:
                time.sleep(0.2)
                continue
            running.judge(number % KINDS, running.over(run), expected)
            if not number % 10:  # a parser and a compiler have something to do
                source = f"{PROGRAM}#{number}"
                upload = running.client.post("/v1/programs", json={"files": {"main.py": source}, "name": "other"})
                assert upload.status_code < 500 or upload.status_code == 503, upload.text

    with ThreadPoolExecutor(9) as pool:
        killer = pool.submit(kill_at_random, running, kills, random.Random(12), killed)
        clients = [pool.submit(client) for _ in range(8)]
        try:
            for one in clients:
                one.result()
        finally:
            killed.set()
        killer.result()


def undisturbed(running: Running) -> dict[int, str]:
    """Return what each kind of run returns."""
    found = {}
    for kind in range(KINDS):
        run = running.launch(kind)
        assert run is not None
        over = running.over(run)
        assert over["error"] is None, over["error"]
        found[kind] = over["result"]
    return found


def no_bugs(log: str) -> None:
    """Fail if a process has said something that only a bug says. What was killed while it worked may have had more to say."""
    assert not TRACEBACK.search(log), log[-4000:]


@pytest.mark.long
def test_two_hundred_runs_of_a_real_server_with_fifty_kills_and_a_sigterm(tmp_path: Path) -> None:
    """Prints how the runs ended, and what was killed."""
    ensure_runner()
    server = RealServer(tmp_path, ("--draft", "tiny,process=true", "--workers", "2"))
    with server.running() as first:
        first.upload()
        expected = undisturbed(first)
        load(first, 200, 50, expected)
        print(dict(first.ends), dict(first.killed))
        assert first.ends["result"] >= 50
        left = [(kind, first.launch(kind, retry_safe=True)) for kind in range(KINDS)]
        lost = [first.launch(kind) for kind in range(KINDS)]
        first.process.send_signal(signal.SIGTERM)
        assert first.process.wait(PATIENCE) == 0
    with server.running() as second:
        for kind, run in left:
            if run is not None:
                second.judge(kind, second.over(run), expected)
        for run in lost:
            if run is not None:
                over = second.over(run)
                assert over["error"] is None or over["error"]["code"] in ("cancelled", "unavailable"), over["error"]
        print("after SIGTERM:", dict(second.ends))
        assert second.ends["result"] == sum(run is not None for _, run in left)
    no_bugs(server.log)


SAVES = """
from inferd import Context, Sampler
async def main(name: str) -> int:
    async with Context() as ctx:
        ctx.user("a" * 400)
        await ctx.save(name)
        return len(await ctx.generate(Sampler.argmax(), max_tokens=4).collect_text()) and 1
"""
ASKS: tuple[Callable[[httpx.Client, int], httpx.Response], ...] = (
    lambda client, n: client.post("/v1/programs", json={"files": {"main.py": SAVES}, "name": f"saves{n}"}),
    lambda client, n: client.post("/v1/programs", json={"files": {"main.py": SAVES + "#" * 30_000 * n}}),
    lambda client, n: client.post("/v1/runs", json={"program": "load", "arguments": {"kind": n}, "retry_safe": True}),
    lambda client, n: client.post(
        "/v1/runs", json={"program": f"saves{n}", "arguments": {"name": f"n{n}"}}, headers={"Idempotency-Key": f"k{n}"}
    ),
    lambda client, n: client.get("/v1/runs"),
    lambda client, n: client.get("/v1/programs"),
    lambda client, n: client.get("/readyz"),
)


def fill(running: Running, rounds: int) -> Counter[str]:
    """Ask for everything that writes; returns how often what was answered. Nothing may be a bug."""
    found: Counter[str] = Counter()
    runs = []
    for n in range(rounds):
        for ask in ASKS:
            answer = ask(running.client, n)
            error = answer.json().get("error") if answer.status_code >= 400 else None
            code = error["code"] if isinstance(error, dict) else "ok"
            assert not code.startswith("internal"), answer.text
            found[code] += 1
            if answer.status_code == 201 and "state" in answer.json():
                runs.append(answer.json())
    for run in runs:
        error = running.over(run)["error"]
        found["run " + ("ok" if error is None else error["code"])] += 1
        assert error is None or error["code"].partition(".")[0] in TYPED, error
    return found


@pytest.mark.long
@pytest.mark.parametrize("file_kb", [4, 16, 64, 128, 256, 1024])
def test_files_that_cannot_grow_end_in_typed_errors_wherever_that_is(tmp_path: Path, file_kb: int) -> None:
    """As on a full disk, but at another write with each size: of programs, runs, keys, saved contexts, caches."""
    ensure_runner()
    whole = RealServer(tmp_path)
    with whole.running() as running:
        running.upload()
    with RealServer(tmp_path, file_bytes=file_kb << 10).running() as running:
        if running.process.poll() is None and running.client.base_url.host:
            print(file_kb, "KiB:", dict(fill(running, 6)))
            assert running.client.get("/livez").status_code == 200
            running.process.send_signal(signal.SIGTERM)
            assert running.process.wait(PATIENCE) == 0
        else:
            print(file_kb, "KiB: does not start,", running.process.wait(PATIENCE))
            assert running.process.returncode in (3, 5)
    with whole.running() as running:
        assert "ok" in fill(running, 1)
        assert running.client.get("/readyz").json()["store"]["works"]
    no_bugs(whole.log)
