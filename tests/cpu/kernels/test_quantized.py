"""Products of weights in 8 and 4 bits: the references and the Triton kernels, in Triton's interpreter, against float64."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
from packaging.version import Version
from quantized_cases import FORMS, Case, check_invariance, random, weight_in

from inferd_runtime.kernels import quantized as reference
from inferd_runtime.kernels.quantized import FP8, Grouped, QuantizedKernels, RowScaled, float8_rows, grouped
from inferd_runtime.kernels.triton import quantized as kernel
from inferd_runtime.kernels.triton.quantized import SERVED, grouped_blocks, scaled_blocks
from inferd_runtime.kernels.triton.unpacking import E4M3_TO_BF16, NIBBLES_TO_BF16

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
# With parts, the last of them short; a block that is not full, and outputs that are no multiple of a program's.
CASES = [(40, 1280, torch.bfloat16), (33, 128, torch.float32), (33, 128, torch.float16)]


@pytest.fixture(params=["reference", "triton"])
def kernels(request: pytest.FixtureRequest) -> QuantizedKernels:
    if request.param == "reference":
        return reference.REFERENCE
    if torch.cuda.is_available():
        pytest.skip("kernels are compiled here: tests/gpu")
    return kernel.KERNELS


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("out", "size", "dtype"), CASES, ids=str)
def test_it_is_the_product(kernels: QuantizedKernels, form: str, out: int, size: int, dtype: torch.dtype) -> None:
    if dtype == torch.float16 and form.endswith(("int8", "128")):
        pytest.skip("as in bfloat16")
    for count, added in ((1, "bias"), (19, "residual")) if size < 1000 else ((5, "residual"),):
        Case(form, out, size, dtype).check(kernels, count, added)


@pytest.mark.parametrize("form", ["fp8", "int4 of 128"])
def test_a_row_does_not_depend_on_the_others(form: str) -> None:
    if torch.cuda.is_available():
        pytest.skip("kernels are compiled here: tests/gpu")
    check_invariance(kernel.KERNELS, Case(form, 32, 128, torch.bfloat16))


def test_numbers_of_four_bits_are_found_where_they_were_put() -> None:
    numbers = torch.randint(0, 16, (40, 256), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    scales, middles = (random(40, 4).abs() + 0.1).half(), random(40, 4, seed=1).half()
    weight = grouped(numbers, scales, middles)
    wide = (numbers.view(40, 4, 64).float() - 8 + middles.float()[..., None]) * scales.float()[..., None]
    assert torch.equal(weight.dense()[:40], wide.reshape(40, 256))
    assert weight.shape == (64, 256)
    assert not weight.dense()[40:].any()


def test_a_weight_is_unpacked_as_it_is(kernels: QuantizedKernels) -> None:
    for form in FORMS[2:]:
        weight = weight_in(form, 40, 384)
        assert isinstance(weight, Grouped)
        assert torch.equal(kernels.unpacked(weight, torch.float32), weight.dense())
        # The interpreter cuts bfloat16 off.
        off = (kernels.unpacked(weight, torch.bfloat16).float() - weight.dense()).abs()
        assert bool((off <= 2**-7 * weight.dense().abs()).all())


def test_rows_are_rounded_to_float8_alike() -> None:
    rows = torch.cat([random(6, 1300) * 10.0 ** torch.arange(-3, 3)[:, None], torch.zeros(1, 1300)])
    rows[0, 3], rows[1, 5] = 300.0, -1e-9
    for dtype in DTYPES:
        ours, wanted = kernel.float8_rows(rows.to(dtype)), float8_rows(rows.to(dtype))
        assert torch.equal(ours.scales, wanted.scales)
        assert torch.equal(ours.numbers.view(torch.uint8), wanted.numbers.view(torch.uint8))
    assert float((wanted.dense() - rows).abs().max() / rows.abs().max()) < 0.04


def test_many_rows_are_multiplied_in_float8(kernels: QuantizedKernels) -> None:
    if kernels is kernel.KERNELS and Version(torch.__version__) < Version("2.12"):
        pytest.skip("PyTorch 2.11 multiplies float8 with a scale for each row on a device alone")
    weight, rows = weight_in("fp8", 64, 96), random(40, 96).bfloat16()
    assert isinstance(weight, RowScaled)
    got, exact = kernels.many_rows_product(rows, weight).float(), rows.float() @ weight.dense().t()
    assert got.shape == (40, 64)
    assert float((got - exact).square().mean() / exact.square().mean()) ** 0.5 < 0.04
    made = float8_rows(rows)
    rounded = made.dense() @ weight.dense().t()
    assert float((got - rounded).abs().max()) <= 2**-7 * float(rounded.abs().max())


def test_no_rows(kernels: QuantizedKernels) -> None:
    for form in FORMS:
        assert Case(form, 64, 128, torch.float32).run(kernels, torch.zeros(0, 128)).shape == (0, 64)


def test_what_does_not_fit_is_refused(kernels: QuantizedKernels) -> None:
    case = Case("int4 of 32", 64, 64, torch.float32)
    with pytest.raises(ValueError, match="65 rows"):
        case.run(kernels, torch.zeros(65, 64))
    with pytest.raises(ValueError, match="rows"):
        case.run(kernels, torch.zeros(2, 32))
    with pytest.raises(ValueError, match="bias"):
        case.run(kernels, torch.zeros(2, 64), torch.zeros(3))
    with pytest.raises(ValueError, match=r"residual are torch\.float16"):
        case.run(kernels, torch.zeros(2, 64), None, torch.zeros(2, 64).half())
    with pytest.raises(ValueError, match="float64"):
        case.run(kernels, torch.zeros(2, 64).double())
    same = torch.zeros(2, 64)
    with pytest.raises(ValueError, match="the rows are the residual"):
        case.run(kernels, same, None, same)


# -- What the interpreter does not run ---------------------------------------------------------------------------------


def emulated(assembly: str, word: int) -> list[int]:
    """The two words that a block of PTX makes of one. What is multiplied and added is bfloat16, two at a time."""
    words = {"$2": word}

    def value(name: str) -> int:
        return words[name] if name in words else int(name, 0)

    for line in assembly.replace("}", "").splitlines():
        if not line.rstrip().endswith(";") or line.startswith(".reg"):
            continue
        operation, rest = line.rstrip(" ;").split(maxsplit=1)
        target, *given = (part.strip() for part in rest.split(","))
        a = [value(part) for part in given]
        if operation == "prmt.b32":
            pool = a[0].to_bytes(4, "little") + a[1].to_bytes(4, "little")
            words[target] = int.from_bytes(bytes(pool[a[2] >> 4 * at & 7] for at in range(4)), "little")
        elif operation == "fma.rn.bf16x2":
            words[target] = sum(_fma([part >> shift & 0xFFFF for part in a]) << shift for shift in (0, 16))
        else:
            done = {"and.b32": lambda x, y: x & y, "or.b32": lambda x, y: x | y, "shr.u32": lambda x, y: x >> y}
            words[target] = a[0] if operation == "mov.b32" else done[operation](*a)
    return [words["$0"], words["$1"]]


def _fma(bits: list[int]) -> int:
    a, b, c = (torch.tensor(part, dtype=torch.int32).to(torch.uint16).view(torch.bfloat16).double() for part in bits)
    return int((a * b + c).bfloat16().view(torch.uint16))


def floats(words: list[int]) -> list[float]:
    halves = [word >> shift & 0xFFFF for word in words for shift in (0, 16)]
    return torch.tensor(halves, dtype=torch.int32).to(torch.uint16).view(torch.bfloat16).tolist()


def test_the_instructions_make_every_float8_the_number_it_is() -> None:
    for first in range(0, 256, 4):
        codes = torch.arange(first, first + 4).to(torch.uint8)
        wanted = codes.view(FP8).float()
        got = torch.tensor(floats(emulated(E4M3_TO_BF16, int.from_bytes(bytes(codes.tolist()), "little"))))
        kept = ~wanted.isnan()  # no weight has these
        assert torch.equal(got[kept], wanted[kept])
        assert torch.equal(got[kept].signbit(), wanted[kept].signbit())


def test_the_instructions_make_every_half_byte_the_number_it_is() -> None:
    for first in range(0, 256, 4):
        codes = list(range(first, first + 4))
        word = int.from_bytes(bytes(codes), "little")
        assert floats(emulated(NIBBLES_TO_BF16 % "mov.b32 n, $2;", word)) == [code % 16 - 8 for code in codes]
        assert floats(emulated(NIBBLES_TO_BF16 % "shr.u32 n, $2, 4;", word)) == [code // 16 - 8 for code in codes]


@pytest.mark.parametrize(("out", "size"), SERVED, ids=str)
def test_parts_cover_the_inputs_once(out: int, size: int) -> None:
    for blocks, step in ((scaled_blocks(out, size), 256), (grouped_blocks(out, size // 32), 256)):
        assert blocks.parts * blocks.steps * step >= size
        assert (blocks.parts - 1) * blocks.steps * step < size


COPIES = """
import re, sys
from inferd_runtime.kernels.triton.quantized import variants
from inferd_runtime.kernels.triton.resources import compiled, usage
arch, form = int(sys.argv[1]), sys.argv[2]
for variant in variants():
    if form not in variant.name or ("fp16" in variant.name and arch != 90):
        continue
    used, ptx = usage(variant, arch), compiled(variant, arch).asm["ptx"]
    assert used.spilled == 0 and used.shared <= 99 << 10, used
    if variant.name.startswith("multiply"):
        copies = re.findall(r"cp\\.async\\.c[ag]\\.shared[^;]*;", ptx)
        wide = [copy for copy in copies if "0x10," in copy]
        # What is narrower are scales.
        assert wide and (len(wide) == len(copies) or "int4" in variant.name), (variant.name, copies)
        assert "mma.sync" in ptx, variant.name
    print(variant.name, arch)
"""


@pytest.mark.long
@pytest.mark.parametrize(
    "form", ["fp8", "int8", "int4 of 32", "int4 of 128 with", "int4 of 128 bf16", "add ", "pack", "rows"]
)
@pytest.mark.parametrize("arch", [80, 90, 100])
def test_weights_are_copied_by_16_bytes_ahead_of_the_arithmetic(arch: int, form: str) -> None:
    settings = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-c", COPIES, str(arch), form]
    done = subprocess.run(command, capture_output=True, text=True, env=settings, timeout=220)
    assert done.returncode == 0, done.stderr
    assert done.stdout
