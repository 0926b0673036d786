"""One tenant's stream beside a hostile tenant: how fast it is, and how long the longest pause between two of its tokens.

``python benchmarks/neighbours.py [--seconds 6] [--only forks]``. The engine process's own loop, requests and sockets, in one
thread with the clients. Time is the loop's processor time, so that what clients do, and whatever else runs on the machine,
counts for nothing. The ceiling is the fair share: half of the speed alone; the aim is 0.9 of that, and pauses below 250 ms.
The second figure of a line is the share of the time that the stream was given: where its speed is below that, its steps take
longer beside the other's work, which leaves less of the model in the processor's caches.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import msgspec
import zmq
from named_options import listed, one_of

from inferd import protocol as p
from inferd_grammar.trials.pool import TrialPool
from inferd_runtime.lanes import Lanes
from inferd_runtime.server.engine_process.boot import bind
from inferd_runtime.server.engine_process.loop import Beside, EngineLoop
from inferd_runtime.server.engine_process.serving import serve_models, tenants_clock
from inferd_runtime.session.constraints.compile_queue import CompileQueue
from inferd_runtime.session.grants import SessionGrants, new_key
from inferd_runtime.session.hub import SessionHub
from inferd_runtime.session.mailbox import Mailbox
from inferd_runtime.session.wire import CANCEL, MSGPACK, OK, OPEN, TICKET, OpenSession, request_frames
from inferd_runtime.settings.settings import EngineSettings

ENDPOINT = "inproc://engine"
TOKENS = 200
ROUNDS = 3
PROMPT = [5, 9, 300, 17]
WORDS = ("lorem", "ipsum", "dolor", "banana", "1234", "the", "a", "xyzzy")
Script = Iterator[Any]
"""A client's life: yields requests and gets their replies."""


class Served:
    """The engine process's loop with the embedded model, stepped by its caller."""

    def __init__(self) -> None:
        settings = EngineSettings(threads=1)
        self.context: zmq.Context[Any] = zmq.Context()
        self.grants = SessionGrants(new_key())
        socket = bind(self.context, ENDPOINT)
        trials = TrialPool()
        self.clock = clock = tenants_clock(settings.tenancy)
        (self.model,) = models = serve_models(settings, trials, clock=clock)
        self.model.engine.clock = time.thread_time

        def send(identity: bytes, frames: list[bytes]) -> None:
            socket.send_multipart([identity, *frames])

        beside = Beside(CompileQueue(trials, charge=clock.charge), Lanes(1, "text", clock.charge))
        hub = SessionHub({self.model.info.name: self.model}, send, self.grants, None, beside.compiles, beside.texts)
        self.loop = EngineLoop(socket, hub, models, Mailbox(hub, clock), beside, clock)
        self._socket = socket
        self.seconds = 0.0

    def close(self) -> None:
        """End the loop and what works beside it."""
        self.loop.close()
        self._socket.close()
        self.context.term()

    def turn(self) -> None:
        """One turn of the loop, never waiting."""
        started = time.thread_time()
        self.loop.turn(busy=True)
        self.seconds += time.thread_time() - started


class Client:
    """A session that runs scripts at the same time; each request is the next one's reply away."""

    def __init__(self, served: Served, tenant: str) -> None:
        self._socket = served.context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.connect(ENDPOINT)
        self._tickets = itertools.count(1)
        self._waiting: dict[int, tuple[Script, Any]] = {}
        self.answered = 0
        self.refused = 0
        grant = served.grants.issue(f"{tenant}/{random.random()}", tenant)
        self._socket.send_multipart(request_frames(0, OPEN, MSGPACK, msgspec.msgpack.encode(OpenSession(grant))))

    def run(self, script: Script) -> None:
        """Start a script."""
        self._send(script, next(script))

    def pump(self) -> None:
        """Go on with all scripts whose replies have come."""
        while self._socket.poll(0):
            head, mark, payload = self._socket.recv_multipart()
            ticket = TICKET.unpack(head)[0]
            if ticket not in self._waiting:
                continue
            script, request = self._waiting.pop(ticket)
            self.answered += 1
            self.refused += mark != OK
            reply = msgspec.msgpack.decode(payload, type=type(request).reply if mark == OK else p.ErrorInfo)
            following = next(script, None) if reply is None else _advance(script, reply)
            if following is not None:
                self._send(script, following)

    def close(self) -> None:
        """Close session and socket."""
        self._socket.send_multipart(request_frames(0, "session.close", MSGPACK, b"\x80"))
        self._socket.close(linger=1000)

    def _send(self, script: Script, request: Any) -> None:
        ticket = next(self._tickets)
        cancelled = isinstance(request, Cancelled)
        request = request.request if cancelled else request
        self._waiting[ticket] = (script, request)
        self._socket.send_multipart(request_frames(ticket, request.op, MSGPACK, msgspec.msgpack.encode(request)))
        if cancelled:
            self._socket.send_multipart(request_frames(ticket, CANCEL, MSGPACK, b"\x80"))


@dataclass(frozen=True)
class Cancelled:
    """A request that is cancelled as soon as it is sent."""

    request: Any


def _advance(script: Script, reply: Any) -> Any:
    try:
        return script.send(reply)  # type: ignore[attr-defined]
    except StopIteration:
        return None


@dataclass
class Stream:
    """A well-behaved tenant: one generation after the other. ``gap``: the longest time between two deliveries."""

    served: Served
    tokens: int = 0
    gap: float = 0.0
    last: float = field(default=-1.0)

    def script(self) -> Script:
        """Generate for ever."""
        while True:
            context = (yield p.CreateContext()).context
            yield p.AppendContext(context, [p.Part("tokens", tokens=PROMPT)])
            yield from self._generate(context)
            yield p.ReleaseContext(context)

    def _generate(self, context: int) -> Script:
        generation = (
            yield p.StartGenerate(context, max_tokens=TOKENS, sampling=p.Sampling(temperature=1.0, seed=1))
        ).generation
        finish = ""
        while not finish:
            reply = yield p.NextSteps(generation)
            finish = reply.finish
            self.deliver(sum(len(step.tokens) for step in reply.steps))
        yield p.CloseGenerate(generation)

    def deliver(self, tokens: int) -> None:
        """Note that tokens have come."""
        now = self.served.seconds
        if self.last >= 0:
            self.gap = max(self.gap, now - self.last)
        self.last = now
        self.tokens += tokens


def streams(served: Served) -> list[Script]:
    """Fifty streams."""
    return [Stream(served).script() for _ in range(50)]


def prompts(served: Served) -> list[Script]:
    """Six prompts at a time that nearly fill the context, each different from all others."""

    def prompt() -> Script:
        while True:
            context = (yield p.CreateContext()).context
            yield p.AppendContext(context, [p.Part("tokens", tokens=[random.randrange(3, 4000) for _ in range(4000)])])
            generation = (yield p.StartGenerate(context, max_tokens=1)).generation
            yield p.NextSteps(generation)
            yield p.CloseGenerate(generation)
            yield p.ReleaseContext(context)

    return [prompt() for _ in range(6)]


def compiles(served: Served) -> list[Script]:
    """Eight loops of schemas that nobody has seen before."""

    def loop(number: int) -> Script:
        for turn in itertools.count():
            names = [f"k{number}_{turn}_{at}" for at in range(100)]
            schema = json.dumps({"type": "object", "properties": {name: {"type": "string"} for name in names}})
            reply = yield p.CompileGrammar(p.ConstraintSpec("json_schema", schema))
            if isinstance(reply, p.CompiledGrammar):
                yield p.ReleaseGrammar(reply.grammar)

    return [loop(number) for number in range(8)]


def cancels(served: Served) -> list[Script]:
    """Two hundred requests at a time, all cancelled as soon as they are sent."""

    def loop() -> Script:
        context = (yield p.CreateContext()).context
        while True:
            yield Cancelled(p.FlushContext(context))
            yield Cancelled(p.ListModels())

    return [loop() for _ in range(200)]


def texts(served: Served) -> list[Script]:
    """Half a megabyte to be tokenized, and as much as can fit to be appended, over and over in eight places."""
    random.seed(3)
    text = " ".join(random.choice(WORDS) for _ in range(100_000))[:500_000]

    def loop() -> Script:
        while True:
            yield p.Tokenize(text)
            context = (yield p.CreateContext()).context
            yield p.AppendContext(context, [p.Part("text", text=text[:150_000])])
            yield p.ReleaseContext(context)

    return [loop() for _ in range(8)]


def small_texts(served: Served) -> list[Script]:
    """Short texts, just short enough to be tokenized at once."""

    def loop() -> Script:
        while True:
            yield p.Tokenize("a banana " * 220)

    return [loop() for _ in range(100)]


def forks(served: Served) -> list[Script]:
    """Twenty places that fork a long context for ever."""

    def loop() -> Script:
        root = (yield p.CreateContext()).context
        yield p.AppendContext(root, [p.Part("tokens", tokens=[random.randrange(3, 4000) for _ in range(3000)])])
        yield p.FlushContext(root)
        while True:
            copy = yield p.ForkContext(root)
            if isinstance(copy, p.ContextState):
                yield p.ReleaseContext(copy.context)

    return [loop() for _ in range(20)]


def snapshots(served: Served) -> list[Script]:
    """Four long contexts that are exported and imported for ever."""

    def loop() -> Script:
        root = (yield p.CreateContext()).context
        yield p.AppendContext(root, [p.Part("tokens", tokens=[random.randrange(3, 4000) for _ in range(2000)])])
        yield p.FlushContext(root)
        while True:
            exported = yield p.ExportContext(root)
            if not isinstance(exported, p.Exported):
                raise SystemExit(exported)
            opened = yield p.ImportContext(exported.data)
            if isinstance(opened, p.Opened):
                yield p.ReleaseContext(opened.context)

    return [loop() for _ in range(4)]


def lookups(served: Served) -> list[Script]:
    """Short generations behind long texts, each of which has to be indexed for its drafts."""

    def loop() -> Script:
        while True:
            context = (yield p.CreateContext()).context
            yield p.AppendContext(context, [p.Part("tokens", tokens=[random.randrange(3, 4000)] + [7, 8, 9] * 1200)])
            started = yield p.StartGenerate(context, max_tokens=8, system_speculation=True)
            finish = ""
            while not finish:
                finish = (yield p.NextSteps(started.generation)).finish
            yield p.CloseGenerate(started.generation)
            yield p.ReleaseContext(context)

    return [loop() for _ in range(8)]


def contexts(served: Served) -> list[Script]:
    """A hundred places that make small contexts and drop them."""

    def loop() -> Script:
        while True:
            context = (yield p.CreateContext()).context
            yield p.AppendContext(context, [p.Part("message", "user", "hello"), p.Part("cue")])
            yield p.FlushContext(context)
            yield p.ReleaseContext(context)

    return [loop() for _ in range(100)]


KINDS: dict[str, Callable[[Served], list[Script]]] = {
    kind.__name__: kind
    for kind in (
        streams, prompts, compiles, cancels, texts, small_texts, forks, snapshots, lookups, contexts,
    )
}  # fmt: skip


@dataclass(frozen=True)
class Measured:
    """Tokens per second of the loop's time, the part of it that the stream was given, the longest pause in seconds, and what
    was answered to the others."""

    speed: float
    time: float
    gap: float
    answered: int = 0
    refused: int = 0


def measure(
    served: Served, seconds: float, hostile: Callable[[Served], list[Script]] | None = None, tenants: int = 1
) -> Measured:
    """Run one stream beside ``tenants`` hostile ones, first a while unmeasured."""
    stream = Stream(served)
    good, bad = Client(served, "good"), [Client(served, f"bad{number}") for number in range(tenants if hostile else 0)]
    good.run(stream.script())
    for client in bad:
        for script in hostile(served) if hostile else ():
            client.run(script)
    for part in (0.3 * seconds, seconds):
        stream.tokens, stream.gap, stream.last, start = 0, 0.0, -1.0, served.seconds
        served.clock.take_given()
        while served.seconds - start < part:
            served.turn()
            for client in (good, *bad):
                client.pump()
        took, given = served.seconds - start, served.clock.take_given()["good"]
    for client in (good, *bad):
        client.close()
    for _ in range(50):
        served.turn()
    answered, refused = sum(client.answered for client in bad), sum(client.refused for client in bad)
    return Measured(stream.tokens / took, given / took, stream.gap, answered, refused)


def main() -> None:
    """Alone, beside each kind, and beside two tenants of each."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--only", type=listed(one_of(KINDS)), default=list(KINDS), help="kinds, separated by commas")
    parser.add_argument("--tenants", type=int, default=1)
    options = parser.parse_args()
    served, figures = Served(), {}
    print(f"ceiling: 1/{options.tenants + 1} of the speed alone; the aim is 0.9 of it, and pauses below 250 ms")
    for name in options.only:
        shares, times, gaps, answered = [], [], [], 0
        before = measure(served, options.seconds / 2)
        for _ in range(ROUNDS):
            beside = measure(served, options.seconds, KINDS[name], options.tenants)
            after = measure(served, options.seconds / 2)
            shares.append(beside.speed / ((before.speed + after.speed) / 2) * (options.tenants + 1))
            times.append(beside.time * (options.tenants + 1))
            gaps.append(beside.gap)
            answered += beside.answered
            before = after
        figures[name] = round(median(shares), 2)
        spread = f"[{min(shares):.2f} .. {max(shares):.2f}]"
        pause = f"longest pause {1e3 * max(gaps):.0f} ms"
        print(
            f"{name:12} {median(shares):.2f} {spread} of the fair share, {median(times):.2f} of the time; "
            f"{pause}; others: {answered} answers",
            flush=True,
        )
    print(json.dumps({"benchmark": "neighbours", **figures}))


if __name__ == "__main__":
    main()
