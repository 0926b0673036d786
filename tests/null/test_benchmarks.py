"""The benchmarks: each runs, and their folder comes first on the import path of whatever runs in it."""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
CHILDREN = ("cluster_sim_costs", "llamacpp_child", "programs_network")
"""Parts of others, which print no figures of their own."""
SCRIPTS = [
    path for path in sorted(BENCHMARKS.glob("*.py"))
    if path.stem == "http" or ('"__main__"' in path.read_text() and path.stem not in CHILDREN)
]  # fmt: skip


def test_the_benchmark_of_http_does_not_hide_the_library_of_that_name() -> None:
    code = "import http.client, http; print(http.HTTPStatus.OK.value, http.client.__file__)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=BENCHMARKS, capture_output=True, text=True, timeout=60, check=True
    )
    status, file = done.stdout.split(maxsplit=1)
    assert status == "200"
    assert BENCHMARKS not in Path(file.strip()).parents


@pytest.mark.parametrize("path", sorted(BENCHMARKS.glob("*.py")), ids=lambda path: path.stem)
def test_a_list_on_a_benchmarks_command_line_is_read_where_unknown_names_are_refused(path: Path) -> None:
    """``--only`` with a name that did not exist was a KeyError in one benchmark, and measured nothing in others."""
    assert path.stem == "gpu" or not re.search(r"options\.\w+\.split\(", path.read_text())


def test_an_unknown_name_in_a_list_is_refused_with_the_known_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    from named_options import listed, one_of

    parts = listed(one_of(("load", 8)))
    assert parts("load, 8") == ["load", 8]
    for text in ("laod", "load,", "", "load,9"):
        with pytest.raises(argparse.ArgumentTypeError, match="there are load, 8"):
            parts(text)
    with pytest.raises(argparse.ArgumentTypeError, match="could not convert"):
        listed(float)("0.5,x")


@pytest.mark.long
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_every_benchmark_runs_and_prints_its_figures_last(script: Path) -> None:
    quick = ["--quick"] if '"--quick"' in script.read_text() else []
    done = subprocess.run([sys.executable, str(script), *quick], capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout.splitlines()[-1])
