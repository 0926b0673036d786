"""Where drafts change the text of a model in reduced precision: the first divergence, against how close the decision was.

    python benchmarks/divergence.py [--model tiny] [--device cpu] [--generations 40] [--tokens 96] [--threads 1]

In exact arithmetic a draft changes nothing. In floating point a row's logits depend on how many rows are computed with it,
so that a decision between two near-equal tokens can fall differently. For float32 and bfloat16, greedy and sampled: each
prompt is decoded plainly and with drafts that are mostly right, and the texts are compared. ``fixed`` computes the same number
of rows in every step of both runs. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from measure import figure, interleaved

from inferd.protocol import Sampling
from inferd_runtime.engine.engine import Engine
from inferd_runtime.engine.noise import gumbel
from inferd_runtime.engine.sampling import RowSampler, candidates
from inferd_runtime.models.batch import Batch, Outputs, Rows
from inferd_runtime.server.engine_process import EngineSettings, serve_model
from inferd_runtime.speculation.drafter import Drafter
from inferd_runtime.speculation.drafts import Proposal
from inferd_runtime.testing.speculation import Request, Running

NO_END = -1
WIDTHS = (2, 4, 8, 16)
FIXED = 8
SLACK = 32
SAMPLERS = {"greedy": Sampling(), "temperature 1": Sampling(1.0)}


class Mostly(Drafter):
    """Drafts ``answer`` with an error at every seventh token, in drafts of 1 to ``most`` tokens.

    ``fixed``: filled up with whatever to that many tokens, so that every step computes as many rows.
    """

    source = "program"

    def __init__(self, prompt: Sequence[int], answer: Sequence[int], *, most: int, fixed: int = 0) -> None:
        self._all = [*prompt, *answer]
        self._most, self._fixed = most, fixed
        self._seen = 0
        self._random = random.Random(len(self._all))

    def observe(self, tokens: Sequence[int]) -> None:
        """See :class:`Drafter`."""
        self._seen += len(tokens)

    def propose(self, limit: int, ahead: Sequence[int] = ()) -> Proposal:
        """See :class:`Drafter`."""
        length = self._random.randint(1, self._most) if self._most else 0
        guess = enumerate(self._all[self._seen : self._seen + length], self._seen)
        tokens = [token if at % 7 else token ^ 1 for at, token in guess]
        tokens += [3] * (self._fixed - len(tokens))
        return Proposal(tokens[:limit], confidence=[1.0] * min(limit, len(tokens)))


class Recorder:
    """A driver that remembers, by position, the logits that a token was last sampled from."""

    def __init__(self, driver: Any) -> None:
        self._driver = driver
        self.rows: dict[int, Rows] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._driver, name)

    def forward(self, batch: Batch) -> Outputs:
        """As the driver's own."""
        outputs: Outputs = self._driver.forward(batch)
        for position, row in zip(batch.positions[batch.logit_rows].tolist(), outputs.logits, strict=True):
            self.rows[position + 1] = row
        return outputs


@dataclass
class Text:
    """What one generation brought: its tokens, the logits of each, and the median of its steps in seconds."""

    tokens: list[int]
    rows: dict[int, Rows]
    step: float
    accepted: int


def generate(engine: Engine, request: Request, drafter: Drafter | None, count: int) -> Text:
    """The first ``count`` tokens; the generation would go on, so that drafts do not get shorter towards the end."""
    recorder = Recorder(engine.driver)
    engine.driver = recorder
    context = engine.create_context("fresh")
    context.append(request.prompt)
    context.table.root = None  # Nothing is shared between runs.
    one = Running.submit(engine, context, request, [] if drafter is None else [drafter])
    steps: list[float] = []
    while len(one.tokens) < count:
        started = time.perf_counter()
        engine.step()
        steps.append(time.perf_counter() - started)
        one.take()
    one.generation.close()
    context.release()
    engine.driver = recorder._driver
    return Text(one.tokens[:count], recorder.rows, statistics.median(steps), one.accepted)


def margin(row: Rows, sampler: RowSampler, position: int) -> float:
    """By how much the sampled token won, in logits: against the runner-up, noise included."""
    if sampler.temperature == 0:
        scores = row.astype(np.float64)
    else:
        tokens, scaled = candidates(row, sampler)
        scores = (scaled + gumbel(sampler.key, position, tokens)) * sampler.temperature
    second, first = np.sort(scores)[-2:]
    return float(first - second)


def ulp(row: Rows) -> float:
    """The distance of neighbouring bfloat16 numbers at the largest logit."""
    return float(2.0 ** (math.floor(math.log2(np.abs(row).max())) - 7))


@dataclass
class Outcome:
    """What became of all generations of one arm. ``margins`` and ``ulps``: at each first divergence."""

    generations: int = 0
    accepted: int = 0
    places: list[int] = field(default_factory=list)
    margins: list[float] = field(default_factory=list)
    ulps: list[float] = field(default_factory=list)
    noise: float = 0.0

    def add(self, plain: Text, other: Text, request: Request) -> None:
        """Compare two texts of one request."""
        pairs = enumerate(zip(plain.tokens, other.tokens, strict=True))
        place = next((at for at, (one, two) in pairs if one != two), None)
        start = len(request.prompt)
        last = start + (len(plain.tokens) - 1 if place is None else place)
        self.generations += 1
        self.accepted += other.accepted
        for position in range(start, last + 1):
            self.noise = max(self.noise, float(np.abs(plain.rows[position] - other.rows[position]).max()))
        if place is not None:
            self.places.append(place)
            self.margins.append(margin(plain.rows[last], request.sampler, last))
            self.ulps.append(self.margins[-1] / ulp(plain.rows[last]))

    def figures(self) -> dict[str, float]:
        """For the table and for the JSON line."""
        found = {
            "generations": self.generations,
            "diverged": len(self.places),
            "noise": self.noise,
            "accepted": self.accepted,
        }
        if self.places:
            found |= {
                "first_median": statistics.median(self.places),
                "margin_max": max(self.margins),
                "ulps_median": statistics.median(self.ulps),
                "ulps_max": max(self.ulps),
            }
        return found


def prompts(model: Any, count: int) -> list[tuple[int, ...]]:
    """Copying, extraction and prose, as the toy model knows them."""
    chance = random.Random(1)
    words = [
        "boat",
        "harbour",
        "engine",
        "green",
        "17",
        "goats",
        "window",
        "morning",
        "letter",
        "river",
        "5:45",
        "stone",
    ]
    kinds = ("Repeat the text.", "Extract the person.", "Answer the question.", "Continue the code.")
    found = []
    for at in range(count):
        user = " ".join(chance.choices(words, k=12))
        messages = [{"role": "system", "content": kinds[at % 4]}, {"role": "user", "content": user}]
        found.append(tuple(model.tokenizer.encode(model.tokenizer.render(messages, cue=True), special=True)))
    return found


def compare(model: Any, sampling: Sampling, texts: Sequence[tuple[int, ...]], count: int, fixed: int) -> Outcome:
    """Plain decoding against drafts, prompt by prompt."""
    outcome = Outcome()
    for seed, prompt in enumerate(texts):
        request = Request(prompt, RowSampler.resolve(sampling, seed=seed, lineage=0), count + SLACK, NO_END)
        filler = Mostly(prompt, (), most=0, fixed=fixed) if fixed else None
        plain = generate(model.engine, request, filler, count)
        most = fixed or max(WIDTHS) - 1
        drafted = Mostly(prompt, plain.tokens, most=most, fixed=fixed)
        outcome.add(plain, generate(model.engine, request, drafted, count), request)
    return outcome


def cost(model: Any, prompt: tuple[int, ...], count: int, rounds: int) -> dict[int, float]:
    """How long a step of so many rows takes, relative to one row."""
    request = Request(prompt, RowSampler.resolve(Sampling(), seed=0, lineage=0), count + SLACK, NO_END)

    def arm(width: int) -> Any:
        def run() -> float:
            drafter = Mostly(prompt, (), most=0, fixed=width - 1) if width > 1 else None
            return generate(model.engine, request, drafter, count).step

        return run

    samples = interleaved({str(width): arm(width) for width in (1, *WIDTHS)}, rounds)
    one = samples["1"]
    return {width: figure([a / b for a, b in zip(samples[str(width)], one, strict=True)]).median for width in WIDTHS}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--generations", type=int, default=40)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    found: dict[str, Any] = {"model": options.model, "device": options.device, "tokens": options.tokens}
    for dtype in ("float32", "bfloat16"):
        model = serve_model(
            EngineSettings("", options.model, device=options.device, dtype=dtype, threads=options.threads)
        )
        texts = prompts(model, options.generations)
        for name, sampling in SAMPLERS.items():
            for fixed in (0, FIXED - 1):
                arm = f"{dtype}, {name}, {f'fixed {fixed + 1} rows' if fixed else 'any rows'}"
                found[arm] = compare(model, sampling, texts, options.tokens, fixed).figures()
                print(arm, json.dumps({key: round(value, 5) for key, value in found[arm].items()}), flush=True)
        found[f"{dtype}, step cost"] = cost(model, texts[0], options.tokens, options.rounds)
        print(f"{dtype}: a step of n rows / of one row:", found[f"{dtype}, step cost"], flush=True)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
