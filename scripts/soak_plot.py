"""The plot of ``soak.py``: every process's memory, descriptors and threads over time, and the queues, as an SVG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

WIDTH, HEIGHT, LEFT, TOP = 640, 150, 70, 24
COLOURS = ("#1565c0", "#c62828", "#2e7d32", "#6a1b9a", "#ef6c00")
PANELS = (("memory_mb", "MiB"), ("fds", "descriptors"), ("threads", "threads"), ("", "queues"))
Samples = Sequence[Mapping[str, float]]


def plot(samples: Samples) -> str:
    """Return one panel below the other."""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT * len(PANELS)}" '
        f'style="font-family:sans-serif;font-size:11px;background:white">'
    ]
    for number, (suffix, title) in enumerate(PANELS):
        parts.append(f'<g transform="translate(0 {number * HEIGHT})">{_panel(samples, suffix, title)}</g>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def _panel(samples: Samples, suffix: str, title: str) -> str:
    names = sorted({name for one in samples for name in one if name != "second" and _of(name, suffix)})
    highest = max([one.get(name, 0.0) for one in samples for name in names], default=0.0) or 1.0
    last = samples[-1]["second"] if samples else 1.0
    base = HEIGHT - TOP
    parts = [f'<text x="8" y="14">{title}, 0 to {highest:g}, over {last / 60:.1f} minutes</text>']
    parts.append(f'<path d="M{LEFT} {base}H{WIDTH - 10}" stroke="#999"/>')
    for name, colour in zip(names, COLOURS, strict=False):
        points = " ".join(
            f"{LEFT + one['second'] / last * (WIDTH - LEFT - 10):.1f},{base - one.get(name, 0.0) / highest * (base - TOP):.1f}"
            for one in samples
        )
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.2"/>')
    for at, (name, colour) in enumerate(zip(names, COLOURS, strict=False)):
        label = name.removesuffix(f" {suffix}")
        parts.append(f'<text x="{LEFT + at * 130}" y="{base + 16}" fill="{colour}">{label}</text>')
    return "".join(parts)


def _of(name: str, suffix: str) -> bool:
    return name.endswith(f" {suffix}") if suffix else " " not in name
