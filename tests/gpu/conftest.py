import pytest
import torch


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything here needs a device."""
    if not torch.cuda.is_available():
        skip = pytest.mark.skip(reason="no CUDA device")
        for item in items:
            if "gpu" in item.path.parts:
                item.add_marker(skip)
