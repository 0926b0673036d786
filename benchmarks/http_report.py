"""The parts of ``benchmarks/http.py``, and what they print."""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from math import inf

from http_leaving import leave
from http_load import HTTP, OURS, PROGRAM, SCRIPT, Load, Results, Rounds, arms, measure
from http_servers import BATCHED, OurServer, PeerServer, our_server, peer_server
from measure import figure, percentile, ratios
from named_options import listed, one_of

LOADS = (Load(1, 6, 48), Load(8, 1, 96), Load(32, 1, 96))
QUICK = (Load(1, 3, 16), Load(8, 1, 48), Load(32, 1, 48))
QUICK_SECONDS = 42.0
"""Then a quick run measures no further round: the rest is clients that leave."""
PEER_CLIENTS = (1, 8)
PEERS = {"batched": BATCHED, "plain": ()}
PROBES = 100
ROLES = ("gateway", "engine", "workers")
Figures = dict[str, float]


def main() -> None:
    """Run the parts and print."""
    options = parse()
    with servers(options) as (server, peers):
        figures = asyncio.run(parts(options, server, peers))
    print(json.dumps({"benchmark": "http", "model": options.model, **figures}))


def parse() -> argparse.Namespace:
    """Return the command line."""
    parser = argparse.ArgumentParser(description="Chat requests over HTTP.")
    parser.add_argument("--quick", action="store_true", help="end within 50 s: fewer tokens, and fewer rounds if busy")
    parser.add_argument("--model", default="tiny", help="tiny, or a model that was pulled")
    parser.add_argument("--rounds", type=int, default=5, help="rounds behind the warm-up")
    peers, clients = listed(one_of((*PEERS, "none"))), [load.clients for load in LOADS]
    text = "of transformers serve: batched, plain, none; default: both, or with --quick batched"
    parser.add_argument("--peers", type=peers, default=[], help=text)
    parser.add_argument(
        "--clients", type=listed(one_of(clients)), default=clients, help="which loads, by their clients"
    )
    parts = listed(one_of(("load", "leaving")))
    parser.add_argument("--only", type=parts, default="load,leaving", help="parts, separated by commas")
    options = parser.parse_args()
    options.end = time.monotonic() + QUICK_SECONDS if options.quick else inf
    options.peers = options.peers or (["batched"] if options.quick else list(PEERS))
    return options


@contextmanager
def servers(options: argparse.Namespace) -> Iterator[tuple[OurServer, dict[str, PeerServer]]]:
    """Start all servers at once: most of the wait is imports."""
    wanted = [name for name in PEERS if name in options.peers and "load" in options.only]
    if wanted and find_spec("fastapi") is None:
        print("without `transformers serve`: it needs `pip install fastapi`")
        wanted = []
    with ExitStack() as stack, ThreadPoolExecutor() as threads:
        started = {
            name: threads.submit(stack.enter_context, peer_server(options.model, *PEERS[name])) for name in wanted
        }
        server = stack.enter_context(our_server(options.model))
        yield server, {f"transformers serve, {name}": each.result() for name, each in started.items()}


async def parts(options: argparse.Namespace, server: OurServer, peers: Mapping[str, PeerServer]) -> Figures:
    """Run what is wanted."""
    figures: Figures = {}
    if "load" in options.only:
        loads = [each for each in (QUICK if options.quick else LOADS) if each.clients in options.clients]
        for left, load in zip(range(len(loads), 0, -1), loads, strict=True):
            now = time.monotonic()
            rounds = Rounds(options.rounds, now + (options.end - now) / left)
            figures |= await loaded(server, peers if load.clients in PEER_CLIENTS else {}, load, rounds)
    if "leaving" in options.only:
        figures |= await leaving(server, 20 if options.quick else 200)
    return figures


async def loaded(server: OurServer, peers: Mapping[str, PeerServer], load: Load, rounds: Rounds) -> Figures:
    """Measure one load, and say what bounds it."""
    if load.clients == 1:
        print(f"bound: an empty request takes {empty_ms(server):.2f} ms there and back")
    async with arms(server, peers, load.clients) as clients:
        clocks = dict.fromkeys(OURS, server.processor_seconds) | {
            name: peer.processor_seconds for name, peer in peers.items()
        }
        results = await measure(clients, load, rounds, clocks)
    done = len(results[HTTP].rates)
    print(f"{load.clients} clients, {load.questions} questions each, {load.tokens} tokens an answer, {done} rounds")
    for name, result in results.items():
        first = result.all_first_ms
        print(f"  {name:26} {figure(result.rates)} tokens/s, first text p50 {percentile(first, 0.5):.1f} ms, ", end="")
        print(f"p99 {percentile(first, 0.99):.1f} ms")
    return compared(results, load) | processors(results, load)


def compared(results: Results, load: Load) -> Figures:
    """Return the figures of one load."""
    many, over = load.clients, ratios
    http, script, program = (results[name] for name in (HTTP, SCRIPT, PROGRAM))
    found = {
        f"ttft_ms_p50_{many}": percentile(http.all_first_ms, 0.5),
        f"ttft_ms_p99_{many}": percentile(http.all_first_ms, 0.99),
        f"tokens_per_s_{many}": statistics.median(http.rates),
        f"throughput_vs_sdk_{many}": said(f"{HTTP} over {SCRIPT}", over(http.rates, script.rates)),
        f"program_vs_direct_{many}": said(f"{PROGRAM} over {HTTP}", over(program.rates, http.rates)),
    }
    peers = {name: result for name, result in results.items() if name.startswith("transformers")}
    if peers:
        best = [max(rates) for rates in zip(*(peer.rates for peer in peers.values()), strict=True)]
        name = f"throughput_vs_transformers_serve_{many}"
        found[name] = said(f"{HTTP} over transformers serve", over(http.rates, best))
        found[f"{name}_processor"] = less = min(peer.used_s for peer in peers.values()) / http.used_s
        print(f"  the same by the servers' processor time      {less:9.2f}")
    if many == 1:
        pairs = zip(http.first_s, script.first_s, strict=True)
        more = [1e3 * (statistics.median(ours) - statistics.median(theirs)) for ours, theirs in pairs]
        found["ttft_overhead_ms_p50"] = said("first text over HTTP, less the script's, ms", more)
    return {name: round(value, 3) for name, value in found.items()}


def said(what: str, samples: list[float]) -> float:
    """Print a figure, and return its median."""
    print(f"  {what:44} {figure(samples)}")
    return statistics.median(samples)


def processors(results: Results, load: Load) -> Figures:
    """Print and return where our server's processor time goes."""
    tokens = load.clients * load.questions * load.tokens
    for name in (HTTP, SCRIPT, PROGRAM):
        each = ", ".join(
            f"{role} {results[name].used_ms(role, tokens):.3f} ({results[name].share(role):.0%})" for role in ROLES
        )
        print(f"  processor ms a token, {name:8} {each}")
    shares = {f"cpu_{role}_{load.clients}": results[HTTP].share(role) for role in ROLES[:2]}
    shares[f"cpu_workers_program_{load.clients}"] = results[PROGRAM].share("workers")
    return {name: round(value, 3) for name, value in shares.items()}


def empty_ms(server: OurServer) -> float:
    """Return the median milliseconds of a request that does nothing."""
    times = []
    for _ in range(PROBES):
        start = time.perf_counter()
        server.client.ask("GET", "/livez")
        times.append(1e3 * (time.perf_counter() - start))
    return statistics.median(times)


async def leaving(server: OurServer, rounds: int) -> Figures:
    """Measure clients that leave."""
    alone, eight = await leave(server, 1, rounds), await leave(server, 8, max(5, rounds // 10))
    print(
        f"bound: a step of one stream takes {alone.step_ms:.1f} ms, of eight {eight.step_ms:.1f} ms; asking the engine adds to it"
    )
    found = {
        "disconnect_ms_p50": percentile(alone.gone_ms, 0.5),
        "disconnect_ms_p99": percentile(alone.gone_ms, 0.99),
        "disconnect_ms_p99_8": percentile(eight.gone_ms, 0.99),
        "step_ms": alone.step_ms,
    }
    print(f"one client leaves: {figure(alone.gone_ms)} ms; eight at once: {figure(eight.gone_ms)} ms")
    return {name: round(value, 2) for name, value in found.items()}
