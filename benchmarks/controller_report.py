"""The controller's comparison as a table and a plot."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

WIDTH, HEIGHT, MARGIN = 240, 220, 36
COLORS = {
    "fixed 4": "#bdbdbd", "fixed 16": "#757575", "EMA tiers": "#8d6e63", "UCB1": "#ab47bc",
    "cost model": "#1565c0", "oracle": "#2e7d32",
}  # fmt: skip
Cells = Mapping[tuple[int, str], Mapping[str, float]]
START, END = "<!-- table -->", "<!-- end of table -->"


def table(cells: Cells) -> str:
    """Markdown: the speed of every policy, 1 being no speculation, and the cost model's share of the oracle's."""
    names = list(next(iter(cells.values())))
    lines = ["| B | load | " + " | ".join(names) + " | of oracle |", "|---" * (len(names) + 3) + "|"]
    for (lanes, kind), figures in cells.items():
        shown = [f"**{value:.2f}**" if name == "cost model" else f"{value:.2f}" for name, value in figures.items()]
        share = figures["cost model"] / figures["oracle"]
        lines.append(f"| {lanes} | {kind} | {' | '.join(shown)} | {share:.3f} |")
    return "\n".join(lines)


def write(folder: Path, cells: Cells, figures: Mapping[str, float]) -> None:
    """``speculation-controller.svg``, and the tables in the middle of ``speculation-controller.md``."""
    (folder / "speculation-controller.svg").write_text(plot(cells))
    page = folder / "speculation-controller.md"
    before, _, rest = page.read_text().partition(START)
    rows = "\n".join(f"| `{name}` | {value:.3f} |" for name, value in figures.items())
    tables = f"{table(cells)}\n\n| figure | |\n|---|---|\n{rows}\n"
    page.write_text(f"{before}{START}\n\n{tables}\n{END}{rest.partition(END)[2]}")


def plot(cells: Cells) -> str:
    """One panel a workload: each policy's share of the oracle's speed over the batch."""
    kinds = list(dict.fromkeys(kind for _, kind in cells))
    panels = "".join(_panel(index * WIDTH, kind, cells) for index, kind in enumerate(kinds))
    size = f'width="{len(kinds) * WIDTH}" height="{HEIGHT + 24}" viewBox="0 0 {len(kinds) * WIDTH} {HEIGHT + 24}"'
    legend = "".join(
        f'<text x="{MARGIN + index * 100}" y="{HEIGHT + 16}" fill="{color}">{name}</text>\n'
        for index, (name, color) in enumerate(COLORS.items())
    )
    style = "font-family:sans-serif;font-size:11px;background:white"
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} style="{style}">\n{panels}{legend}</svg>\n'


def _panel(left: int, kind: str, cells: Cells) -> str:
    batches = list(dict.fromkeys(lanes for lanes, _ in cells))
    step = (WIDTH - 1.5 * MARGIN) / (len(batches) - 1)

    def y(share: float) -> float:
        return HEIGHT - MARGIN - min(1.05, share) / 1.05 * (HEIGHT - 2 * MARGIN)

    parts = [f'<text x="{left + WIDTH / 2}" y="20" text-anchor="middle">{kind}: share of the oracle</text>']
    for share in (0.0, 0.5, 1.0):
        parts.append(f'<path d="M{left + MARGIN} {y(share):.1f}H{left + WIDTH - MARGIN / 2}" stroke="#ddd"/>')
        parts.append(f'<text x="{left + MARGIN - 4}" y="{y(share) + 4:.1f}" text-anchor="end">{share:g}</text>')
    for index, lanes in enumerate(batches):
        at = left + MARGIN + index * step
        parts.append(f'<text x="{at:.1f}" y="{HEIGHT - MARGIN + 16}" text-anchor="middle">B={lanes}</text>')
    for name, color in COLORS.items():
        line = " ".join(
            f"{left + MARGIN + index * step:.1f},{y(cells[lanes, kind][name] / cells[lanes, kind]['oracle']):.1f}"
            for index, lanes in enumerate(batches)
        )
        parts.append(f'<polyline points="{line}" fill="none" stroke="{color}" stroke-width="1.5"/>')
    return "\n".join(parts) + "\n"
