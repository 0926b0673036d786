import sys
from pathlib import Path

import pytest
import torch

# The checks are the CPU's: what a device computes is held against the same references.
sys.path.insert(0, str(Path(__file__).parents[1] / "cpu"))


def pytest_configure(config: pytest.Config) -> None:
    """Another PyTorch or Triton than the one that is developed with may warn: that is not what is tested here."""
    config.addinivalue_line("filterwarnings", "default")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything here needs a device."""
    if not torch.cuda.is_available():
        skip = pytest.mark.skip(reason="no CUDA device")
        for item in items:
            if "gpu" in item.path.parts:
                item.add_marker(skip)
