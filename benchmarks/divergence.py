"""Where drafts change the text of a model in reduced precision: the first divergence, against how close the decision was.

    python benchmarks/divergence.py [--model tiny] [--device cpu] [--generations 40] [--tokens 96] [--threads 1]

In exact arithmetic a draft changes nothing. In floating point a row's logits depend on how many rows are computed with it,
so that a decision between two near-equal tokens can fall differently. For float32 and bfloat16, greedy and sampled: each
prompt is decoded plainly and with drafts that are mostly right, and the texts are compared. ``fixed`` computes the same number
of rows in every step of both runs, ``keys`` fills the keys that attention reads up to a multiple, ``in company`` has another
generation beside the one with drafts, too. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from measure import figure, interleaved, ratios
from named_options import listed, one_of

from inferd.protocol import Sampling
from inferd_runtime.engine.engine import Engine
from inferd_runtime.engine.sampling.host_sampling import RowSampler, candidates
from inferd_runtime.engine.sampling.noise import gumbel
from inferd_runtime.kv.table import PageTable
from inferd_runtime.models.batch import Batch, FloatRows, Outputs
from inferd_runtime.models.jinja_template import RenderBudget
from inferd_runtime.models.options import DTYPES, ModelOptions
from inferd_runtime.models.passes import attention
from inferd_runtime.models.template_input import TemplateInput
from inferd_runtime.server.engine_process.serving import serve_model
from inferd_runtime.settings.settings import EngineSettings
from inferd_runtime.speculation.drafter import Drafter
from inferd_runtime.speculation.drafts import Proposal
from inferd_runtime.testing.speculation import GenerationUnderTest, Request

NO_END = -1
WIDTHS = (2, 4, 8, 16)
FIXED = 8
KEYS = 512
"""As many as PyTorch's attention on the CPU adds up at a time."""
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
    """A driver that remembers, by position, the logits that a token of one context was last sampled from."""

    def __init__(self, driver: Any, table: PageTable) -> None:
        self._driver = driver
        self._table = table
        self.rows: dict[int, FloatRows] = {}
        self.widths: list[int] = []
        self.together = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._driver, name)

    def forward(self, batch: Batch) -> Outputs:
        """As the driver's own."""
        outputs: Outputs = self._driver.forward(batch)
        self.together = max(self.together, len(batch.spans))
        for span in batch.spans:
            if span.pages is self._table.pages:
                mine = (batch.logit_rows >= span.first) & (batch.logit_rows < span.first + span.count)
                positions = batch.positions[batch.logit_rows[mine]].tolist()
                self.rows |= {at + 1: row for at, row in zip(positions, outputs.logits[mine], strict=True)}
                self.widths.append(len(positions))
        return outputs


@dataclass
class Text:
    """What one generation brought: its tokens and the logits of each; how many rows its steps had, how many generations they
    served at most, and their median in seconds.
    """

    tokens: list[int]
    rows: dict[int, FloatRows]
    widths: list[int]
    together: int
    step: float
    accepted: int


def padded(group: attention.Group, keys: int, page_size: int) -> attention.Group:
    """The group with masked keys behind it, so that there is a multiple of ``keys``."""
    length = -(-group.length // keys) * keys
    more = group.pages.new_zeros(len(group.pages), length // page_size - group.pages.shape[1])
    pages = torch.cat([group.pages, more], 1)
    return replace(group, pages=pages, length=length, causal_only=False, inplace=None, masks={})


@dataclass(frozen=True)
class Arm:
    """``width`` 0: drafts of any length; else every step computes that many rows of every sequence, in both runs.

    ``keys``: attention reads a multiple of that many keys, the rest of them masked (0: those that there are).
    ``company``: another generation shares the batch of the run with drafts, and not of the plain one.
    """

    width: int = 0
    keys: int = 0
    company: bool = False

    def __str__(self) -> str:
        rows = f"fixed {self.width} rows" if self.width else "any rows"
        return rows + (f", {self.keys} keys" if self.keys else "") + (", in company" if self.company else "")

    @contextmanager
    def attention(self) -> Iterator[None]:
        """Have attention read so many keys."""
        honest = attention._group
        if self.keys:
            attention._group = lambda *given: padded(honest(*given), self.keys, given[2])
        yield
        attention._group = honest

    def filler(self, request: Request) -> list[Drafter]:
        """No guesses, but as many rows."""
        return [Mostly(request.prompt, (), most=0, fixed=self.width - 1)] if self.width else []

    def drafter(self, request: Request, answer: Sequence[int]) -> list[Drafter]:
        """Guesses that are mostly right."""
        most = self.width - 1 if self.width else max(WIDTHS) - 1
        return [Mostly(request.prompt, answer, most=most, fixed=max(0, self.width - 1))]


def submit(engine: Engine, request: Request, drafters: list[Drafter]) -> GenerationUnderTest:
    """Start a request in a context that shares nothing with others."""
    context = engine.create_context()
    context.append(request.prompt)
    context.table.root = None
    one = GenerationUnderTest.submit(engine, context, request, drafters)
    for source in one.generation.spec.sources._sources if one.generation.spec.sources is not None else ():
        # Verified whatever became of the drafts before.
        source.count_miss = source.breaker.report = lambda *_: None
        source.breaker.affords = lambda costs: max(WIDTHS)
    return one


def generate(
    engine: Engine, request: Request, drafters: list[Drafter], count: int, beside: list[Drafter] | None = None
) -> Text:
    """The first ``count`` tokens; the generation would go on, so that drafts do not get shorter towards the end.

    ``beside``: the drafters of another generation that runs with it; None for none.
    """
    one = submit(engine, request, drafters)
    others = [] if beside is None else [submit(engine, replace(request, prompt=request.prompt[1:]), beside)]
    recorder = Recorder(engine.driver, one.generation.context.table)
    engine.driver = recorder
    steps: list[float] = []
    while len(one.tokens) < count:
        started = time.perf_counter()
        engine.step()
        steps.append(time.perf_counter() - started)
        for running in (one, *others):
            running.take()
    engine.driver = recorder._driver
    for running in (one, *others):
        running.generation.close()
        running.generation.context.release()
    return Text(
        one.tokens[:count], recorder.rows, recorder.widths, recorder.together, statistics.median(steps), one.accepted
    )


def margin(row: FloatRows, sampler: RowSampler, position: int) -> float:
    """By how much the sampled token won, in logits: against the runner-up, noise included."""
    if sampler.temperature == 0:
        scores = row.astype(np.float64)
    else:
        tokens, scaled = candidates(row, sampler)
        scores = (scaled + gumbel(sampler.key, position, tokens)) * sampler.temperature
    second, first = np.sort(scores)[-2:]
    return float(first - second)


def ulp(row: FloatRows) -> float:
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
        "boat", "harbour", "engine", "green", "17", "goats", "window", "morning", "letter", "river", "5:45", "stone",
    ]  # fmt: skip
    kinds = ("Repeat the text.", "Extract the person.", "Answer the question.", "Continue the code.")
    found = []
    for at in range(count):
        user = " ".join(chance.choices(words, k=12))
        messages = [{"role": "system", "content": kinds[at % 4]}, {"role": "user", "content": user}]
        rendered = model.tokenizer.render(TemplateInput(messages, cue=True), RenderBudget(1.0, 100_000))
        found.append(tuple(model.tokenizer.encode_rendered(rendered)))
    return found


def compare(model: Any, sampling: Sampling, texts: Sequence[tuple[int, ...]], count: int, arm: Arm) -> Outcome:
    """Plain decoding against drafts, prompt by prompt."""
    outcome = Outcome()
    for seed, prompt in enumerate(texts):
        request = Request(prompt, RowSampler.resolve(sampling, seed=seed, lineage=0), count + SLACK, NO_END)
        with arm.attention():
            plain = generate(model.engine, request, arm.filler(request), count)
            beside = arm.filler(request) if arm.company else None
            other = generate(model.engine, request, arm.drafter(request, plain.tokens), count, beside)
        assert not arm.width or set(plain.widths[1:] + other.widths[1:]) == {arm.width}
        assert other.together == 1 + arm.company
        outcome.add(plain, other, request)
    return outcome


def cost(model: Any, prompt: tuple[int, ...], count: int, rounds: int) -> dict[str, float]:
    """How long a step takes, relative to one row and the keys that there are."""
    request = Request(prompt, RowSampler.resolve(Sampling(), seed=0, lineage=0), count + SLACK, NO_END)
    arms = [Arm(), *map(Arm, WIDTHS), Arm(FIXED, KEYS)]

    def step(arm: Arm) -> float:
        with arm.attention():
            return generate(model.engine, request, arm.filler(request), count).step

    samples = interleaved({str(arm): partial(step, arm) for arm in arms}, rounds)
    return {str(arm): round(figure(ratios(samples[str(arm)], samples[str(arms[0])])).median, 2) for arm in arms[1:]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtypes", type=listed(one_of(DTYPES)), default="float32,bfloat16")
    parser.add_argument("--generations", type=int, default=40)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    found: dict[str, Any] = {"model": options.model, "device": options.device, "tokens": options.tokens}
    for dtype in options.dtypes:
        model = serve_model(
            EngineSettings(
                model=(ModelOptions(options.model),), device=options.device, dtype=dtype, threads=options.threads
            )
        )
        texts = prompts(model, options.generations)
        for arm in (Arm(), Arm(FIXED), Arm(FIXED, KEYS), Arm(FIXED, KEYS, company=True)):
            for name, sampling in SAMPLERS.items():
                key = f"{dtype}, {name}, {arm}"
                found[key] = compare(model, sampling, texts, options.tokens, arm).figures()
                print(key, json.dumps({name: round(value, 5) for name, value in found[key].items()}), flush=True)
        found[f"{dtype}, step cost"] = cost(model, texts[0], options.tokens, options.rounds)
        print(f"{dtype}: a step / a step of one row:", found[f"{dtype}, step cost"], flush=True)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
