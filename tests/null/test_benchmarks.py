"""The benchmarks' folder comes first on the import path of whatever runs in it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def test_the_benchmark_of_http_does_not_hide_the_library_of_that_name() -> None:
    code = "import http.client, http; print(http.HTTPStatus.OK.value, http.client.__file__)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=BENCHMARKS, capture_output=True, text=True, timeout=60, check=True
    )
    status, file = done.stdout.split(maxsplit=1)
    assert status == "200"
    assert BENCHMARKS not in Path(file.strip()).parents
