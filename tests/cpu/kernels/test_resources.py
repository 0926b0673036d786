"""What the kernels need of a multiprocessor: compiled for real architectures, in processes where Triton does not interpret."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from inferd_runtime.kernels.triton.cache import variants
from inferd_runtime.kernels.triton.elementwise import variants as elementwise_variants
from inferd_runtime.kernels.triton.resources import SHARED_LIMITS, KernelUsage, table, too_large

pytestmark = pytest.mark.long
MODULE = "inferd_runtime.kernels.triton.resources"
OWN = ("--module", "cache", "--module", "elementwise")


def run(*arguments: str, interpret: bool = False) -> subprocess.CompletedProcess[str]:
    settings = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    settings |= {"TRITON_INTERPRET": "1"} if interpret else {}
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, env=settings, timeout=240)


@pytest.mark.parametrize("arch", sorted(SHARED_LIMITS))
def test_every_variant_fits(arch: int) -> None:
    done = run("-m", MODULE, "--arch", str(arch), *OWN)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout.splitlines()[-1])
    assert report["arch"] == arch
    names = [f"cache: {variant.name}" for variant in variants()]
    names += [f"elementwise: {variant.name}" for variant in elementwise_variants()]
    assert [used["name"] for used in report["kernels"]] == names
    assert all(0 < used["registers"] <= 255 and used["spilled"] == 0 for used in report["kernels"])
    assert all(name in done.stdout.splitlines()[1 + at] for at, name in enumerate(names))


def test_nothing_is_compiled_where_triton_interprets() -> None:
    done = run("-m", MODULE, *OWN, interpret=True)
    assert done.returncode == 2
    assert "TRITON_INTERPRET" in done.stderr
    assert not done.stdout


SPILLING = """
from inferd_runtime.kernels.triton.cache import variants
from inferd_runtime.kernels.triton.resources import too_large, usage
variant = next(variant for variant in variants() if variant.name == "move_tokens 64")
small = usage(variant, 90)
large = usage(variant._replace(num_warps=1, constants={**variant.constants, "columns": 256}), 90)
assert small.spilled == 0 and not too_large(small, 90), small
assert large.spilled > 0 and too_large(large, 90), large
"""


def test_spilled_registers_are_found() -> None:
    done = run("-c", SPILLING)
    assert done.returncode == 0, done.stderr


def test_too_much_shared_memory_is_marked() -> None:
    used = KernelUsage("kernel", 32, 0, SHARED_LIMITS[80] + 1, 4)
    assert too_large(used, 80)
    assert not too_large(used, 90)
    assert table([used], 80).endswith("too large")


ORDER = """
from inferd_runtime.kernels.triton.cache import variants
from inferd_runtime.kernels.triton.resources import compiled
for variant in variants():
    if variant.name.startswith(("move_tokens", "copy_pages")) and not variant.constants["staged"]:
        lines = compiled(variant, 90).asm["ptx"].splitlines()
        loads, stores, barriers = (
            [at for at, line in enumerate(lines) if name in line] for name in ("ld.global", "st.global", "bar.sync")
        )
        assert loads and stores and len(barriers) == 1, (variant.name, loads, stores, barriers)
        assert max(loads) < barriers[0] < min(stores), variant.name
        print(variant.name)
"""


def test_moves_read_everything_before_the_barrier_and_write_behind_it() -> None:
    """The interpreter runs one program at a time as one thread, and cannot tell."""
    done = run("-c", ORDER)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 6


SETTLING = """
from inferd_runtime.kernels.triton.resources import usage
from inferd_runtime.kernels.triton.sampling import variants
for variant in variants():
    if variant.name.startswith("settle of 72 rows, bf16"):
        assert usage(variant, 100).spilled == 0, variant.name
        print(variant.name, usage(variant._replace(most_registers=None), 100).spilled > 0)
"""


def test_settling_a_row_keeps_its_registers_on_10_0() -> None:
    """Without a limit of its own the two larger vocabularies' spill."""
    done = run("-c", SETTLING)
    assert done.returncode == 0, done.stderr
    assert sorted(line.rsplit()[-1] for line in done.stdout.splitlines()) == ["False", "True", "True"]
