"""What the kernels need of a multiprocessor, compiled for an architecture at the sizes that are served; no device is needed.

    python -m inferd_runtime.kernels.triton.resources --arch 90

prints a table, and one line of JSON last. Status 1: a kernel keeps registers in memory (spills), or wants more shared memory
than a block can have. Every module of kernels says in ``variants()`` what it is compiled as.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, CompiledKernel

from inferd_runtime.kernels.triton.interpreted import INTERPRETED
from inferd_runtime.kernels.triton.variant import Variant

MODULES = (
    "cache", "elementwise", "product", "quantized", "attention", "sampling", "verify", "rejection", "confidence",
)  # fmt: skip
BY_CAPABILITY = ("attention", "elementwise", "product")
"""Whose ``variants(capability)`` depend on the device."""
SHARED_LIMITS = {80: 163 << 10, 90: 227 << 10, 100: 227 << 10}
"""Bytes of shared memory that one block can have (CUDA C++ programming guide, technical specifications)."""
WARP = 32
USAGE = re.compile(r"REG:(\d+) STACK:(\d+) SHARED:(\d+) LOCAL:(\d+)")


class KernelUsage(NamedTuple):
    """Per thread: ``registers``, and ``spilled`` bytes of memory instead of them. ``shared``: bytes per block."""

    name: str
    registers: int
    spilled: int
    shared: int
    warps: int


def compiled(variant: Variant, arch: int) -> CompiledKernel:
    """Return the kernel for compute capability arch / 10. Raises ValueError where its arguments are not those of the variant."""
    names = variant.kernel.arg_names
    unknown = {*variant.signature, *variant.constants} ^ set(names)
    if unknown or variant.signature.keys() & variant.constants.keys():
        raise ValueError(f"{variant.name}: not an argument, or not given once: {', '.join(sorted(unknown))}")
    types = {name: variant.signature.get(name, "constexpr") for name in names}
    aligned = [[index] for index, kind in enumerate(types.values()) if kind.startswith("*") or kind.endswith(":16")]
    source = ASTSource(
        variant.kernel,
        {name: kind.removesuffix(":16") for name, kind in types.items()},
        dict(variant.constants),
        {(index,): [["tt.divisibility", 16]] for (index,) in aligned},
    )
    options = {"num_warps": variant.num_warps, "num_stages": variant.num_stages}
    options |= {} if variant.most_registers is None else {"maxnreg": variant.most_registers}
    kernel: CompiledKernel = triton.compile(source, target=GPUTarget("cuda", arch, WARP), options=options)
    return kernel


def usage(variant: Variant, arch: int) -> KernelUsage:
    """Compile it and read off the binary what it uses."""
    kernel = compiled(variant, arch)
    with tempfile.TemporaryDirectory() as folder:
        binary = Path(folder) / "kernel.cubin"
        binary.write_bytes(kernel.asm["cubin"])
        tool = triton.knobs.nvidia.cuobjdump.path
        listing = subprocess.run([tool, "-res-usage", binary], check=True, capture_output=True, text=True).stdout
    found = USAGE.search(listing)
    if found is None:
        raise RuntimeError(f"{tool} says nothing about {variant.name}: {listing}")
    registers, stack, _, local = map(int, found.groups())
    return KernelUsage(variant.name, registers, stack + local, int(kernel.metadata.shared), variant.num_warps)


def variants(modules: Sequence[str], arch: int) -> Iterator[Variant]:
    """Yield the variants of all modules, the module's name before the variant's own."""
    for module in modules:
        given = (arch,) if module in BY_CAPABILITY else ()
        listed: Callable[..., Iterator[Variant]] = import_module(f"inferd_runtime.kernels.triton.{module}").variants
        yield from (variant._replace(name=f"{module}: {variant.name}") for variant in listed(*given))


def too_large(used: KernelUsage, arch: int) -> bool:
    """True if a kernel spills registers, or cannot be launched."""
    return used.spilled > 0 or used.shared > SHARED_LIMITS[arch]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its status."""
    parser = argparse.ArgumentParser(description="what the kernels need of a multiprocessor")
    parser.add_argument("--arch", type=int, choices=sorted(SHARED_LIMITS), default=90, help="compute capability * 10")
    parser.add_argument("--module", choices=MODULES, action="append", help="only this one; may be given again")
    chosen = parser.parse_args(arguments)
    if INTERPRETED:
        print("nothing can be compiled while Triton interprets: unset TRITON_INTERPRET", file=sys.stderr)
        return 2
    found = [usage(variant, chosen.arch) for variant in variants(chosen.module or MODULES, chosen.arch)]
    print(table(found, chosen.arch))
    kernels = [used._asdict() for used in found]
    print(json.dumps({"arch": chosen.arch, "shared_limit": SHARED_LIMITS[chosen.arch], "kernels": kernels}))
    return int(any(too_large(used, chosen.arch) for used in found))


def table(found: Sequence[KernelUsage], arch: int) -> str:
    """Return a line per kernel; what is too large is marked."""
    width = max(len(used.name) for used in found)
    lines = [f"{'kernel':{width}}  registers  spilled B  shared B  warps"]
    for used in found:
        mark = "  too large" if too_large(used, arch) else ""
        row = f"{used.name:{width}}  {used.registers:9}  {used.spilled:9}  {used.shared:8}  {used.warps:5}{mark}"
        lines.append(row)
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
