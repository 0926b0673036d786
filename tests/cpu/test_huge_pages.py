"""Which memory is offered to the kernel for huge pages, and that its contents stay."""

from __future__ import annotations

import pytest
import torch

from inferd_runtime.models.huge_pages import HUGE, SETTING, large_regions, use_huge_pages

MAPS = """\
00400000-00a00000 r-xp 00000000 fe:00 1234 /usr/bin/python
10000000-10900000 rw-p 00000000 00:00 0
20100000-20a00000 rw-p 00000000 00:00 0 [heap]
30000000-30300000 rw-p 00000000 00:00 0
40000000-41000000 rw-s 00000000 00:00 0
50000000-51000000 r--p 00000000 00:00 0
60000000-61000000 rw-p 00000000 00:00 0 [stack]
70000000-71000000 rw-p 00000000 fe:00 77 /tmp/weights
"""


def test_large_writable_anonymous_memory_is_offered_in_whole_huge_pages() -> None:
    assert list(large_regions(MAPS)) == [(0x10000000, 0x10800000), (0x20200000, 0x20A00000)]


@pytest.mark.skipif(not SETTING.exists() or "[never]" in SETTING.read_text(), reason="no huge pages here")
def test_memory_keeps_its_contents() -> None:
    weights = torch.arange(8 * HUGE // 4, dtype=torch.float32)
    use_huge_pages()
    assert torch.equal(weights, torch.arange(8 * HUGE // 4, dtype=torch.float32))
