"""A well-behaved tenant in a process of its own, which also asks ``/livez`` every 20 ms: ``watcher.py URL TOKEN``.

It generates the same two texts over and over, a greedy one and a sampled one with a seed. The line ``report`` on its standard
input asks for a :class:`Report` of what happened since the last one, as a line of JSON on its standard output; ``pause`` has it
rest after the text that it is at, ``resume`` go on. After ``ease`` it goes on, and from the ``BRISK``th text of a report on
rests between texts, so that an attack that lasts does not cost a processor. The end of the input ends it.
"""

from __future__ import annotations

import http.client
import itertools
import sys
import threading
import time
from collections.abc import Iterator
from urllib.parse import urlsplit

import msgspec
from websockets.exceptions import WebSocketException
from websockets.sync.client import ClientConnection, connect

PROBE_SECONDS = 0.02
PATIENCE_SECONDS = 60.0
PROMPT = "Once upon a time there was a server that many strangers used. "
TOKENS = 32
BRISK = 4
REST_SECONDS = 0.1
SAMPLINGS = ({}, {"temperature": 0.9, "top_p": 0.95, "seed": 20_26})


class Report(msgspec.Struct):
    """What the tenant saw. ``texts`` are all different texts, ``errors`` what it was refused or lost.

    ``seconds``: spent in generations, from their requests on; ``tokens``: what they brought. ``worst_gap_ms``: the longest time
    without a token. ``livez_ms``: every probe, in order.
    """

    texts: list[list[str]] = msgspec.field(default_factory=lambda: [[] for _ in SAMPLINGS])
    generations: int = 0
    tokens: int = 0
    seconds: float = 0.0
    worst_gap_ms: float = 0.0
    livez_ms: list[float] = []
    errors: list[str] = []

    @property
    def rate(self) -> float:
        """Tokens per second."""
        return self.tokens / self.seconds if self.seconds else 0.0


class Watch:
    """The report that is being written. Both threads write, the main one takes it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._report = Report()
        self._since = time.perf_counter()
        self.awake = threading.Event()
        self.awake.set()
        self.brisk = threading.Event()
        self.brisk.set()

    def take(self) -> Report:
        """Return the report, with the gap and the time that last until now, and start another."""
        with self._lock:
            self._advance(time.perf_counter(), 0)
            report, self._report = self._report, Report()
            return report

    def probed(self, seconds: float) -> None:
        """Note a probe of the gateway."""
        with self._lock:
            self._report.livez_ms.append(seconds * 1e3)

    def token(self, count: int) -> None:
        """Note tokens that came now."""
        with self._lock:
            self._advance(time.perf_counter(), count)

    def ended(self, which: int, text: str) -> None:
        """Note a whole text."""
        with self._lock:
            self._report.generations += 1
            if text not in self._report.texts[which]:
                self._report.texts[which].append(text)

    def rest(self) -> None:
        """Rest if it may, which counts as no time without a token."""
        if self._report.generations >= BRISK and not self.brisk.wait(REST_SECONDS):
            with self._lock:
                self._since = time.perf_counter()

    def failed(self, error: str) -> None:
        """Note what went wrong."""
        with self._lock:
            self._report.errors.append(error)

    def _advance(self, now: float, tokens: int) -> None:
        gap = now - self._since
        self._report.seconds += gap
        self._report.tokens += tokens
        self._report.worst_gap_ms = max(self._report.worst_gap_ms, gap * 1e3)
        self._since = now


class Neighbour:
    """One session over a WebSocket, as plain blocking calls."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self._tickets = itertools.count(1)

    def call(self, op: str, **arguments: object) -> dict[str, object]:
        """Return the reply. Raises RuntimeError for an error."""
        self._socket.send(msgspec.msgpack.encode({"t": next(self._tickets), "op": op, "a": arguments}))
        reply = msgspec.msgpack.decode(self._socket.recv(PATIENCE_SECONDS))
        if "err" in reply:
            raise RuntimeError(f"{op}: {reply['err']['code']}: {reply['err']['message']}")
        answer: dict[str, object] = reply["ok"]
        return answer

    def generate(self, sampling: dict[str, object]) -> Iterator[tuple[int, str]]:
        """Yield tokens and text of each reply, until the generation ends."""
        context = self.call("context.create")["context"]
        self.call("context.append", context=context, parts=[{"kind": "text", "text": PROMPT}])
        started = self.call("generate.start", context=context, max_tokens=TOKENS, sampling=sampling)
        finish: object = ""
        while not finish:
            steps = self.call("generate.next", generation=started["generation"])
            finish = steps.get("finish", "")  # what stands at its default is left out
            for step in steps["steps"]:  # type: ignore[attr-defined]
                yield len(step["tokens"]), step.get("text", "")
        self.call("generate.close", generation=started["generation"], keep=-1)
        self.call("context.release", context=context)


def probe(url: str, watch: Watch) -> None:
    """Ask ``/livez`` for ever, over one connection."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=PATIENCE_SECONDS)
    due = time.perf_counter()
    while True:
        if not watch.awake.is_set():
            connection.close()  # the server does not keep it so long
            watch.awake.wait()
        started = time.perf_counter()
        try:
            ask(connection)
        except OSError as error:
            watch.failed(f"livez: {error!r}")
        watch.probed(time.perf_counter() - started)
        due = max(due + PROBE_SECONDS, time.perf_counter())
        time.sleep(max(0.0, due - time.perf_counter()))


def ask(connection: http.client.HTTPConnection) -> None:
    """Ask once, over the connection that is kept: it is the server's promise that it stays. Raises OSError."""
    try:
        connection.request("GET", "/livez")
        connection.getresponse().read()
    except OSError:
        connection.close()
        raise


def generate_for_ever(neighbour: Neighbour, watch: Watch) -> None:
    """The same texts in turn."""
    for which, sampling in itertools.cycle(enumerate(SAMPLINGS)):
        pieces = []
        for count, text in neighbour.generate(sampling):
            watch.token(count)
            pieces.append(text)
        watch.ended(which, "".join(pieces))
        watch.rest()
        watch.awake.wait()


def stream(url: str, token: str, watch: Watch) -> None:
    """Generate for ever."""
    address, headers = url.replace("http", "ws", 1) + "/v1/session", {"Authorization": f"Bearer {token}"}
    while True:
        try:
            with connect(address, additional_headers=headers, compression=None, ping_interval=None) as socket:
                generate_for_ever(Neighbour(socket), watch)
        except (OSError, RuntimeError, TimeoutError, WebSocketException) as error:
            watch.failed(f"neighbour: {error!r}")
            time.sleep(0.1)


def main(url: str, token: str) -> None:
    """Report whenever a line asks for it."""
    watch = Watch()
    for work in (lambda: probe(url, watch), lambda: stream(url, token, watch)):
        threading.Thread(target=work, daemon=True).start()
    for line in sys.stdin:
        match line.strip():
            case "pause":
                watch.awake.clear()
            case "ease":
                watch.brisk.clear()
            case "resume":
                watch.brisk.set()
                watch.awake.set()
            case _:
                sys.stdout.buffer.write(msgspec.json.encode(watch.take()) + b"\n")
                sys.stdout.buffer.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
