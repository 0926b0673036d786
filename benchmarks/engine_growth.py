"""How a decode step grows with the number of streams and with the context, as a table and a plot."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from engine_arms import TOKEN_BUDGET, EngineArm, Run, median_ms, random_model, random_prompts

STREAMS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
CONTEXTS = (128, 256, 512, 1024, 2048, 4096, 8192)
STEPS = 24
PROMPT = 32
WIDTH, HEIGHT, MARGIN = 360, 240, 48


class Point(NamedTuple):
    """One measurement: what grew, milliseconds of a whole step and of its forward pass, share spent on planning."""

    at: int
    step: float
    forward: float
    planning: float


def measured(at: int, run: Run) -> Point:
    """A point from a run with stages; the step is the median over its decode steps."""
    steps = [sum(times) for times in zip(*run.stages.values(), strict=True)]
    stages = median_ms(run)
    step = statistics.median(steps) * 1e3
    return Point(at, step, stages["forward"], planning_share(run))


def planning_share(run: Run) -> float:
    """The median share of a decode step that goes into ``scheduler.plan()`` and ``prepare``."""
    names = list(run.stages)
    shares = []
    for times in zip(*run.stages.values(), strict=True):
        by_name = dict(zip(names, times, strict=True))
        shares.append((by_name["plan"] + by_name["prepare"]) / sum(times))
    return statistics.median(shares)


def growth_by_streams(arm: EngineArm, vocab_size: int) -> list[Point]:
    """Decode steps of 1 to 256 streams with short contexts."""
    points = []
    for count in STREAMS:
        prompts = random_prompts(vocab_size, [PROMPT] * count, seed=count)
        points.append(measured(count, arm.run_in_stages(prompts, STEPS + warm_steps(count, PROMPT))))
    return points


def warm_steps(streams: int, prompt: int) -> int:
    """Steps until the last of the prompts is computed, at most: half of the token budget is left for prompts."""
    return streams * prompt // (TOKEN_BUDGET // 2)


def growth_by_context() -> list[Point]:
    """Decode steps of one stream behind 128 to 8,192 tokens; random weights of about the embedded model's size."""
    model = random_model(layers=4, hidden=192, max_length=2 * CONTEXTS[-1])
    arm = EngineArm.over(model, streams=2, length=CONTEXTS[-1] + STEPS)
    points = []
    for length in CONTEXTS:
        prompts = random_prompts(model.config.vocab_size, [length], seed=length)
        points.append(measured(length, arm.run_in_stages(prompts, STEPS)))
    return points


def table(streams: Sequence[Point], contexts: Sequence[Point]) -> str:
    """Both series in Markdown."""
    lines = ["| streams | step, ms | forward, ms | planning | tokens/s |", "|---|---|---|---|---|"]
    lines += [
        f"| {p.at} | {p.step:.2f} | {p.forward:.2f} | {p.planning:.1%} | {p.at / p.step * 1e3:,.0f} |" for p in streams
    ]
    lines += ["", "| context | step, ms | forward, ms | tokens/s |", "|---|---|---|---|"]
    lines += [f"| {p.at:,} | {p.step:.2f} | {p.forward:.2f} | {1e3 / p.step:,.0f} |" for p in contexts]
    return "\n".join(lines)


def write(folder: Path, streams: Sequence[Point], contexts: Sequence[Point], title: str) -> None:
    """``engine-growth.md`` and ``engine-growth.svg`` in ``folder``."""
    panels = _panel(0, "streams", streams) + _panel(WIDTH, "tokens of context, one stream", contexts)
    style = "font-family:sans-serif;font-size:11px"
    size = f'width="{2 * WIDTH}" height="{HEIGHT}" viewBox="0 0 {2 * WIDTH} {HEIGHT}"'
    svg = f'<svg xmlns="http://www.w3.org/2000/svg" {size} style="{style};background:white">\n{panels}</svg>\n'
    (folder / "engine-growth.svg").write_text(svg)
    text = f"# How a step grows\n\n{title}\n\n![Milliseconds of a decode step](engine-growth.svg)\n\n"
    (folder / "engine-growth.md").write_text(text + table(streams, contexts) + "\n")


def _panel(left: int, label: str, points: Sequence[Point]) -> str:
    """Milliseconds of a step over what grows, both axes logarithmic: solid the step, dashed its forward pass."""
    low, high = (
        math.floor(math.log10(min(p.forward for p in points))),
        math.ceil(math.log10(max(p.step for p in points))),
    )
    first, last = math.log2(points[0].at), math.log2(points[-1].at)

    def x(at: float) -> float:
        return left + MARGIN + (math.log2(at) - first) / (last - first) * (WIDTH - 1.5 * MARGIN)

    def y(value: float) -> float:
        return HEIGHT - MARGIN - (math.log10(value) - low) / max(1, high - low) * (HEIGHT - 1.5 * MARGIN)

    parts = [f'<text x="{left + WIDTH / 2}" y="{HEIGHT - 10}" text-anchor="middle">{label}</text>']
    for power in range(low, high + 1):
        at = y(10**power)
        parts.append(f'<path d="M{x(points[0].at)} {at}H{x(points[-1].at)}" stroke="#ddd"/>')
        parts.append(f'<text x="{left + MARGIN - 6}" y="{at + 4}" text-anchor="end">{10.0**power:g} ms</text>')
    for point in points:
        place = f'x="{x(point.at):.1f}" y="{HEIGHT - MARGIN + 16}"'
        parts.append(
            f'<text {place} text-anchor="middle">{point.at if point.at < 1024 else f"{point.at >> 10}k"}</text>'
        )
    for name, dash in (("step", ""), ("forward", ' stroke-dasharray="4 3"')):
        line = " ".join(f"{x(p.at):.1f},{y(getattr(p, name)):.1f}" for p in points)
        parts.append(f'<polyline points="{line}" fill="none" stroke="#1565c0" stroke-width="1.5"{dash}/>')
    return "\n".join(parts) + "\n"
