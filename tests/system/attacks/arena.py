"""A real server with the embedded model, hostile tenants that attack it, and a well-behaved one that is watched meanwhile."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import msgspec
import psutil
from websockets.sync.client import ClientConnection, connect

from .watcher import PATIENCE_SECONDS, Report

TRACEBACK = re.compile(r"Traceback \(most recent call last\):\n(?: .*\n)*(.*)")
HERE = Path(__file__).parent
START_SECONDS = 120.0
LEAVING_SECONDS = 1.0
"""How long a script that has much left to read waits for the end of its session; then it is gone."""
TOKENS = {
    "mallory": "token-of-mallory-0123456789abcdef",
    "trudy": "token-of-trudy-0123456789abcdef",
    "operator": "token-of-operator-0123456789abcdef",
    "neighbour": "token-of-neighbour-0123456789abcdef",
}


@dataclass(frozen=True)
class Bounds:
    """What the neighbour may notice: a ``share`` of the speed that it has alone, its longest time without a token, and how long
    so many (a share) of the probes of ``/livez`` may take, in milliseconds.
    """

    share: float = 0.03
    gap_ms: float = 5000.0
    livez_ms: float = 2500.0
    probes: float = 1.0


LOOSE = Bounds()
"""For machines whose two cores run something else too: it tells a server that stands still from one that is slow."""


def strict(tenants: int) -> Bounds:
    """The promise, for a machine that runs nothing else: 0.9 of the fair share beside so many hostile tenants."""
    return Bounds(share=0.9 / (1 + tenants), gap_ms=250.0, livez_ms=100.0, probes=0.99)


class Hostile:
    """A client of one tenant: what it says over HTTP, over WebSockets, and through programs."""

    def __init__(self, url: str, tenant: str) -> None:
        self.url = url
        self.tenant = tenant
        self.headers = {"Authorization": f"Bearer {TOKENS[tenant]}"}
        self.http = httpx.Client(base_url=url, headers=self.headers, timeout=PATIENCE_SECONDS)

    def upload(self, files: str | dict[str, str], name: str = "p") -> httpx.Response:
        """Send a program's source; return what was answered."""
        files = {"main.py": files} if isinstance(files, str) else files
        files = {path: textwrap.dedent(text) for path, text in files.items()}
        return self.http.post("/v1/programs", json={"files": files, "name": name})

    def launch(self, program: str, **body: Any) -> httpx.Response:
        """Launch an uploaded program; return what was answered."""
        return self.http.post("/v1/runs", json={"program": program, **body})

    def start(self, source: str | dict[str, str], **body: Any) -> str:
        """Upload and launch a program that both go well; return the run's id."""
        response = self.launch(checked(self.upload(source))["id"], **body)
        return str(checked(response)["id"])

    def over(self, run: str) -> dict[str, Any]:
        """Return a run once it has ended."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < deadline:
            value: dict[str, Any] = checked(self.http.get(f"/v1/runs/{run}"))
            if value["finished_at"] is not None:
                return value
            with self.http.stream("GET", f"/v1/runs/{run}/events", params={"from": value["next_event"]}) as events:
                for _ in events.iter_raw():
                    pass
        raise TimeoutError(run)

    def until(self, run: str, text: str) -> None:
        """Wait until a run has printed a text, or is over."""
        with self.http.stream("GET", f"/v1/runs/{run}/events") as events:
            for line in events.iter_lines():
                if text in line:
                    return

    def cancel(self, *runs: str) -> None:
        """Cancel runs, and wait for their ends."""
        for run in runs:
            self.http.post(f"/v1/runs/{run}/cancel")
        for run in runs:
            self.over(run)

    @contextmanager
    def session(self) -> Iterator[Wire]:
        """A session of a script that is closed at the end."""
        with open_socket(self.url, self.headers) as socket:
            yield Wire(socket)

    def close(self) -> None:
        """Close the connections."""
        self.http.close()


def open_socket(url: str, headers: dict[str, str]) -> ClientConnection:
    """Return a WebSocket for a script's session. Raises InvalidStatus if it is refused."""
    return connect(
        url.replace("http", "ws", 1) + "/v1/session", additional_headers=headers, compression=None, ping_interval=None,
        open_timeout=PATIENCE_SECONDS, close_timeout=LEAVING_SECONDS, max_size=None,
    )  # fmt: skip


def checked(response: httpx.Response) -> dict[str, Any]:
    """Return what went well. Raises AssertionError for an error."""
    assert response.status_code < 300, response.text
    value: dict[str, Any] = response.json()
    return value


class Wire:
    """The frames of a script's session."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self.ticket = 0

    def send(self, op: str, **arguments: Any) -> int:
        """Send a call; return its ticket."""
        self.ticket += 1
        self.socket.send(msgspec.msgpack.encode({"t": self.ticket, "op": op, "a": arguments}))
        return self.ticket

    def receive(self) -> dict[str, Any]:
        """Return the next reply, whichever call it is to."""
        reply: dict[str, Any] = msgspec.msgpack.decode(self.socket.recv(PATIENCE_SECONDS))
        return reply

    def call(self, op: str, **arguments: Any) -> dict[str, Any]:
        """Return the reply to a call: its value, or ``{"err": ...}``."""
        ticket = self.send(op, **arguments)
        while True:
            reply = self.receive()
            if reply["t"] == ticket:
                value: dict[str, Any] = reply.get("ok", reply)
                return value

    def context(self, text: str = "") -> int:
        """Return a new context, which holds a text."""
        context = int(self.call("context.create")["context"])
        if text:
            self.call("context.append", context=context, parts=[{"kind": "text", "text": text}])
        return context


class Watcher:
    """The neighbour's process."""

    def __init__(self, url: str) -> None:
        command = [sys.executable, str(HERE / "watcher.py"), url, TOKENS["neighbour"]]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def tell(self, line: str) -> None:
        """Say ``pause``, ``ease`` or ``resume``."""
        assert self._process.stdin is not None
        self._process.stdin.write(line.encode() + b"\n")
        self._process.stdin.flush()

    def report(self) -> Report:
        """Return what the neighbour saw since the last report."""
        assert self._process.stdout is not None
        self.tell("report")
        return msgspec.json.decode(self._process.stdout.readline(), type=Report)

    def after(self, generations: int) -> Report:
        """Return a report of at least so many whole generations."""
        report = self.report()
        deadline = time.monotonic() + PATIENCE_SECONDS
        while report.generations < generations and time.monotonic() < deadline:
            time.sleep(0.05)
            report = merged(report, self.report())
        return report

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()


def merged(first: Report, second: Report) -> Report:
    """Return one report over both times."""
    return Report(
        [sorted({*a, *b}) for a, b in zip(first.texts, second.texts, strict=True)],
        first.generations + second.generations,
        first.tokens + second.tokens,
        first.seconds + second.seconds,
        max(first.worst_gap_ms, second.worst_gap_ms),
        first.livez_ms + second.livez_ms,
        first.errors + second.errors,
    )


@dataclass
class Arena:
    """One server and all who use it."""

    server: subprocess.Popen[bytes]
    url: str
    log: Path
    watcher: Watcher
    operator: Hostile
    hostile: dict[str, Hostile]
    alone: Report = field(default_factory=Report)
    reports: dict[str, Report] = field(default_factory=dict)

    @property
    def mallory(self) -> Hostile:
        """The tenant that most attacks come from."""
        return self.hostile["mallory"]

    def warm(self) -> None:
        """Use what is made at first use, then note what the neighbour has alone."""
        for hostile in self.hostile.values():
            for _ in range(3):
                hostile.over(hostile.start("async def main():\n    print('hello')\n    return len(bytes(40 << 20))"))
            with hostile.session() as session:
                session.call("grammar.compile", constraint={"kind": "regex", "value": "[a-z]+"})
        self.watcher.after(4)
        self.alone = self.watcher.after(12)
        assert not self.alone.errors, self.alone.errors
        assert [len(texts) for texts in self.alone.texts] == [1, 1]

    def withstands(
        self, name: str, attack: Callable[[Arena], str], ends: frozenset[str], seconds: float, own_worker: bool
    ) -> None:
        """Carry out an attack. Fails unless it ends as it should, in time, and the neighbour is none the worse."""
        before = self.restarts()
        self.watcher.report()
        self.watcher.tell("ease")
        started = time.monotonic()
        try:
            end = attack(self)
        finally:
            took = time.monotonic() - started
            assert self.server.poll() is None, f"the server ended: {self.log.read_text()[-3000:]}"
            self.watcher.tell("resume")
            report = self.watcher.after(2)  # the first may have had its tokens before
            self.reports[name] = report
        assert ends & {end, end.partition(":")[0]}, f"{name} ended in {end!r}, not in {sorted(ends)}"
        assert took <= seconds, f"{name} took {took:.1f} s"
        after = self.restarts()
        assert after == before or (own_worker and after[0] == before[0]), "a process was replaced"
        self.check(report, LOOSE)

    def check(self, report: Report, bounds: Bounds) -> None:
        """Fail if the neighbour got another text, an error, or less than the bounds promise."""
        assert not report.errors, report.errors
        for texts, undisturbed in zip(report.texts, self.alone.texts, strict=True):
            assert set(texts) <= set(undisturbed), "the neighbour's text changed"
        assert report.rate >= bounds.share * self.alone.rate, f"{report.rate:.0f} of {self.alone.rate:.0f} tokens/s"
        assert report.worst_gap_ms <= bounds.gap_ms, f"a gap of {report.worst_gap_ms:.0f} ms"
        slowest = percentile(report.livez_ms, bounds.probes)
        assert slowest <= bounds.livez_ms, f"/livez took {slowest:.0f} ms"

    def restarts(self) -> tuple[int, int]:
        """Return how often engine and workers were replaced. Raises AssertionError if the server does not live."""
        assert self.server.poll() is None, f"the server ended: {self.log.read_text()[-3000:]}"
        ready = self.operator.http.get("/readyz").json()
        return ready["engine"]["restarts"], ready["workers"]["restarts"]

    def memory(self) -> dict[str, float]:
        """Return the memory of the gateway, and of the largest engine, worker and other child, in MiB.

        Not of all workers together: how many there are follows the runs of the moment.
        """
        server = psutil.Process(self.server.pid)
        found = {"gateway": mebibytes(server)}
        for child in server.children(recursive=True):
            kind = kind_of(child)
            found[kind] = max(found.get(kind, 0.0), mebibytes(child))
        return found

    def tracebacks(self) -> list[str]:
        """Return the last line of every traceback in the server's log."""
        return TRACEBACK.findall(self.log.read_text(errors="replace"))


def kind_of(process: psutil.Process) -> str:
    """Return what a child of the server is."""
    try:
        command = " ".join(process.cmdline())
    except psutil.Error:
        return "ended"
    return next((kind for kind in ("worker", "engine") if kind in command), "other")


def mebibytes(process: psutil.Process) -> float:
    """Return a process's memory that is its own; 0 if it has ended."""
    try:
        return float(process.memory_info().rss) / (1 << 20)
    except psutil.Error:
        return 0.0


@contextmanager
def bounded_gateway(arena: Arena, most_grown_mb: float) -> Iterator[None]:
    """Fail if the gateway's memory has grown by more than this at the end of the block."""
    gateway = psutil.Process(arena.server.pid)
    before = mebibytes(gateway)
    yield
    grown = mebibytes(gateway) - before
    assert grown < most_grown_mb, f"the gateway grew by {grown:.0f} MiB"


def percentile(samples: list[float], share: float) -> float:
    """Return the sample that so large a share is not above."""
    ordered = sorted(samples) or [0.0]
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


@contextmanager
def open_arena(folder: Path, *options: str) -> Iterator[Arena]:
    """A server with all its tenants, which ends with the block."""
    tokens = folder / "tokens"
    tokens.touch(0o600)
    roles = {"operator": "admin"}
    tokens.write_text("".join(f"{t} {name} role={roles.get(name, 'user')}\n" for name, t in TOKENS.items()))
    command = [
        sys.executable, "-m", "inferd_runtime.cli", "serve", "--port", "0", "--json", "--tokens-file", str(tokens),
        "--data-dir", str(folder / "data"), "--state-dir", str(folder / "state"), "--threads", "1",
        "--pages", "4096", "--quota", "tenant:mallory,programs=3000,launches_per_minute=0",
        "--metrics-for", "all", *options,
    ]  # fmt: skip
    log = folder / "server.log"
    with log.open("wb") as errors:
        server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, cwd=folder)
    try:
        assert server.stdout is not None
        url = json.loads(server.stdout.readline() or b"{}").get("url")
        assert url, log.read_text()
        watcher = Watcher(url)
        hostile = {tenant: Hostile(url, tenant) for tenant in ("mallory", "trudy")}
        arena = Arena(server, url, log, watcher, Hostile(url, "operator"), hostile)
        try:
            arena.warm()
            yield arena
        finally:
            watcher.close()
            for client in (arena.operator, *hostile.values()):
                client.close()
    finally:
        server.terminate()
        server.communicate(timeout=30)
