"""The step costs that the simulation of a cluster is fed with: measured by the engine's own cost model, and kept in a file.

python benchmarks/cluster_sim_costs.py --model smollm2-135m > docs/data/cluster_step_costs.json
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from inferd_runtime.speculation.times import Profile, StepTimes

FILE = Path(__file__).resolve().parents[1] / "docs" / "data" / "cluster_step_costs.json"
PAGES = 512
SECONDS = 120.0
"""How long is measured: of each shape the shortest time counts, so that neighbours on the processor disturb little."""


def kept_times(path: Path = FILE) -> StepTimes:
    """Return the step times of the file."""
    kept = json.loads(path.read_text())
    sizes = {name: kept[name] for name in ("sequences", "rows", "context", "reread", "tree", "uneven")}
    return StepTimes(Profile(seconds=np.asarray(kept["seconds"]), **sizes), learns=False)


def measured(model: str) -> dict[str, Any]:
    """Load a model on one thread of the CPU, time its steps, and return what :func:`kept_times` reads."""
    import torch

    from inferd_runtime.engine.drivers.build import DriverOptions, build_driver
    from inferd_runtime.engine.scheduling.costs import measure_times
    from inferd_runtime.models.loading import load

    torch.set_num_threads(1)
    driver = build_driver(load(model), DriverOptions(pages=PAGES, page_size=16, most_rows=1200))
    profile = measure_times(driver, SECONDS).profile
    found = {name: value for name, value in profile._asdict().items() if name != "seconds"}
    load_average = [round(load, 1) for load in os.getloadavg()]
    seconds = [[float(f"{one:.4g}") for one in row] for row in profile.seconds.tolist()]
    return {"model": model, "threads": 1, "load_average": load_average, **found, "seconds": seconds}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    print(json.dumps(measured(parser.parse_args().model), indent=1))
