"""What a run uses is told when it is noticeably more, and its memory is not looked at all the time."""

from __future__ import annotations

import msgspec
import pytest

from inferd_runtime.sandbox.host.use_reports import CPU_SECONDS, LOOK_SECONDS, MEMORY_MB, OUTPUT_BYTES, UseReports
from inferd_runtime.sandbox.messages import Used


@pytest.mark.parametrize(
    ("field", "least"), [("cpu_s", CPU_SECONDS), ("memory_mb", MEMORY_MB), ("output_bytes", OUTPUT_BYTES)]
)
def test_growth_of_any_kind_is_told_once(field: str, least: float) -> None:
    reports = UseReports("run-1")
    assert not reports.due(msgspec.structs.replace(Used("run-1"), **{field: least * 0.9}))
    grown = msgspec.structs.replace(Used("run-1"), **{field: least})
    assert reports.due(grown)
    assert not reports.due(grown)
    assert reports.due(msgspec.structs.replace(grown, **{field: 2 * least}))


def test_the_memory_is_looked_at_only_after_some_processor_time() -> None:
    reports = UseReports("run-1")
    assert reports.looks(0.0)
    assert not reports.looks(LOOK_SECONDS / 2)
    assert reports.looks(LOOK_SECONDS)
