"""The tiers of the tests: which marker a test file carries, and what the quick tier does less of. See docs/testing.md."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
TIERS = {
    "system": (
        "system", "packaging", "cpu/test_draft_models.py", "cpu/test_tensor_parallel.py", "cpu/test_tensor_parallel_kernels.py",
    ),
    "interpreter": (
        "cpu/kernels", "cpu/test_cuda_driver.py", "cpu/test_cuda_served.py", "cpu/test_device_pass.py",
        "cpu/test_gpu_benchmark.py",
    ),
    "families": ("cpu/test_families.py", "cpu/test_fit.py", "cpu/test_loading.py", "cpu/test_reach.py"),
    "statistics": ("null/speculation/test_distribution.py", "null/speculation/test_bandit.py", "null/draft_models/test_bias.py"),
}  # fmt: skip
"""The files and folders of each marker. What is named nowhere, and has no marker of its own, is the quick tier."""
QUICK_SHARE = 5


@cache
def tier_of(file: Path) -> str | None:
    """Return the marker that a test file carries, None for the quick tier."""
    path = file.relative_to(TESTS)
    return next((tier for tier, places in TIERS.items() for place in places if path.is_relative_to(place)), None)


def examples(count: int) -> int:
    """Return how many examples a property test tries: ``count``, in the quick tier one part in QUICK_SHARE of it."""
    return max(5, count // QUICK_SHARE) if os.environ.get("INFERD_TESTS") == "quick" else count
