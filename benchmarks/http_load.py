"""Rounds of the same questions to several servers, one arm after the other, and what came of them."""

from __future__ import annotations

import asyncio
import itertools
import statistics
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

from http_clients import Answer, ChatClient, HttpClient, Question, script_clients
from http_servers import OurServer, PeerServer, Seconds

HTTP, SCRIPT, PROGRAM = "http", "sdk", "program"
OURS = (HTTP, SCRIPT, PROGRAM)
WORDS = ("river", "stone", "lamp", "green", "seven", "market", "under", "glass", "window", "quiet", "paper", "north")
PROMPT_WORDS = 16
LEAST_ROUNDS = 2
Clients = Mapping[str, Sequence[ChatClient]]


@dataclass(frozen=True)
class Load:
    """So many clients, each with so many questions one after the other, answered with so many tokens each."""

    clients: int
    questions: int
    tokens: int


@dataclass(frozen=True)
class Rounds:
    """So many rounds behind the warm-up; LEAST_ROUNDS of them where ``until``, of time.monotonic(), has come."""

    most: int
    until: float

    def over(self, done: int) -> bool:
        """Return True after so many that no more follow."""
        return done >= self.most or (done >= LEAST_ROUNDS and time.monotonic() > self.until)


@dataclass
class ArmResult:
    """What one arm did, round by round: seconds to the first text of every question, tokens per second, and the processor
    seconds of its server's processes.
    """

    first_s: list[list[float]] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    used: list[Seconds] = field(default_factory=list)

    @property
    def all_first_ms(self) -> list[float]:
        """Milliseconds to the first text, of all rounds."""
        return [1e3 * one for round_ in self.first_s for one in round_]

    def share(self, role: str) -> float:
        """Return the part of the server's processor time that one of its processes took."""
        return sum(one[role] for one in self.used) / self.used_s if self.used_s else 0.0

    @property
    def used_s(self) -> float:
        """The server's processor seconds, of all rounds."""
        return sum(sum(one.values()) for one in self.used)

    def used_ms(self, role: str, tokens: int) -> float:
        """Return the processor milliseconds that a role's processes took for each token of a round with so many."""
        return 1e3 * statistics.median(one[role] for one in self.used) / tokens


Results = dict[str, ArmResult]


def questions(load: Load, round_: int, salt: str) -> list[list[Question]]:
    """Return each client's questions: other ones in each round, of about the same length, with lengths that differ."""
    count = itertools.count(round_ * load.clients * load.questions)
    return [
        [Question(_prompt(next(count), PROMPT_WORDS + client), load.tokens, salt) for _ in range(load.questions)]
        for client in range(load.clients)
    ]


def _prompt(number: int, words: int) -> str:
    return f"{number}: " + " ".join(WORDS[(number * 7 + at * (number % 5 + 1)) % len(WORDS)] for at in range(words))


@asynccontextmanager
async def arms(server: OurServer, peers: Mapping[str, PeerServer], clients: int) -> AsyncIterator[Clients]:
    """Open the clients of all arms."""
    async with AsyncExitStack() as stack:
        scripts = await stack.enter_async_context(script_clients(server.direct, clients))
        targets = {HTTP: server.direct, PROGRAM: server.program} | {name: one.target for name, one in peers.items()}
        https = {name: [HttpClient(target) for _ in range(clients)] for name, target in targets.items()}
        for client in itertools.chain.from_iterable(https.values()):
            stack.callback(client.leave)
        yield {HTTP: https.pop(HTTP), SCRIPT: scripts, **https}


async def measure(clients: Clients, load: Load, rounds: Rounds, clocks: Mapping[str, Callable[[], Seconds]]) -> Results:
    """Run all arms in every round, each time another first; the first round is warm-up. ``clocks``: the processor seconds of
    each arm's server. Raises RuntimeError if our arms bring different texts.
    """
    results: Results = {name: ArmResult() for name in clients}
    for round_ in range(rounds.most + 1):
        texts: dict[str, list[str]] = {}
        for name in _turned(list(clients), round_):
            asked = questions(load, round_, f"{name}/{load.clients}")
            before, start = clocks[name](), time.perf_counter()
            answers = await _answered(clients[name], asked)
            seconds, after = time.perf_counter() - start, clocks[name]()
            texts[name] = [answer.text for answer in answers]
            if round_:
                results[name].first_s.append([answer.first_s for answer in answers])
                results[name].rates.append(load.clients * load.questions * load.tokens / seconds)
                results[name].used.append({role: after[role] - before[role] for role in after})
        if any(texts[name] != texts[HTTP] for name in OURS if name in texts):
            raise RuntimeError("the ways to our server brought different texts")
        if rounds.over(round_):
            break
    return results


def _turned(names: list[str], by: int) -> list[str]:
    by %= len(names)
    return names[by:] + names[:by]


async def _answered(clients: Sequence[ChatClient], asked: Sequence[Sequence[Question]]) -> list[Answer]:
    async def one(client: ChatClient, own: Sequence[Question]) -> list[Answer]:
        return [await client.ask(question) for question in own]

    answers = await asyncio.gather(*(one(client, own) for client, own in zip(clients, asked, strict=True)))
    return list(itertools.chain.from_iterable(answers))
