"""Draws what the simulation of a cluster found. The only file that needs matplotlib, which is no dependency of inferd's."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib.pyplot as plt

if TYPE_CHECKING:
    from cluster_sim import Outcome

PANELS = {"hit_rate": "cached part of prompts", "p99_s": "first token, p99, s", "imbalance": "busiest replica / mean"}
LOGARITHMIC = ("p99_s",)


def draw(found: Sequence[Outcome], path: Path) -> None:
    """Write an SVG with a panel for each figure and a row for each load, a line for each rule, over the number of replicas."""
    plt.rcParams.update({"svg.hashsalt": "inferd", "svg.fonttype": "none"})
    loads = sorted({one.load for one in found})
    figure, rows = plt.subplots(len(loads), len(PANELS), figsize=(11, 3 * len(loads)), squeeze=False)
    for load, axes in zip(loads, rows, strict=True):
        for (name, label), axis in zip(PANELS.items(), axes, strict=True):
            for rule in dict.fromkeys(one.rule for one in found):
                points = [one for one in found if one.rule == rule and one.load == load]
                axis.plot([one.replicas for one in points], [getattr(one, name) for one in points], "o-", label=rule)
            axis.set(xscale="log", xlabel=f"replicas, at a load of {load}", ylabel=label)
            axis.set_yscale("log" if name in LOGARITHMIC else "linear")
            axis.grid(alpha=0.3)
    rows[0][0].legend()
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
