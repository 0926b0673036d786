"""Weights in blocks by code of our own: what they hold exactly, what they are multiplied to, and that they are kept on disk."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest
import torch
from families import make

from inferd.protocol import InvalidRequest
from inferd_runtime.engine.drivers.build import DriverOptions, fused_pass
from inferd_runtime.kernels.native import blocks, compiler
from inferd_runtime.kernels.native.block_forms import (
    BY_SIZE,
    FORMS,
    LANES,
    BlockNumbers,
    form_of,
    pack,
    pack4,
    pack16,
    unpack,
)
from inferd_runtime.kernels.native.blocks import WHOLE, block_kernels
from inferd_runtime.kernels.native.compiler import compiled
from inferd_runtime.models.checks.probe import Probed, attach
from inferd_runtime.models.loaded import LoadedModel
from inferd_runtime.models.passes.fused import FusedPass, fuse
from inferd_runtime.models.passes.products import DenseProduct
from inferd_runtime.models.weights import held as held_module
from inferd_runtime.models.weights.block_products import BlockProduct
from inferd_runtime.models.weights.exact_blocks import exact_blocks, packed8
from inferd_runtime.models.weights.held import HoldingPlan, hold, hold_as, plan_holding, row_bits_of
from inferd_runtime.models.weights.host_products import DENSE, Way
from inferd_runtime.models.weights.packed_store import PackedStore

OUTPUTS, INPUTS = 80, 96
GROUPS = INPUTS // 32


def in_matrix_unit() -> bool:
    return block_kernels() is not None and blocks._product("blocks4").__name__ == blocks.TILED


needs_kernels = pytest.mark.skipif(block_kernels() is None, reason="no compiler, or a processor without AVX2")


def drawn(*shape: int, low: int = 0, high: int = 16) -> torch.Tensor:
    return torch.randint(low, high, shape, generator=torch.Generator().manual_seed(shape[0]))


def scales(count: int = OUTPUTS) -> torch.Tensor:
    return (torch.rand(count, GROUPS, generator=torch.Generator().manual_seed(1)) + 0.01).half().float() / 16


def q4_1() -> torch.Tensor:
    """Of each group the least and the greatest number are there."""
    numbers = drawn(OUTPUTS, GROUPS, 32)
    numbers[..., 0], numbers[..., 5] = 0, 15
    return (numbers * scales()[..., None] - scales()[..., None] * 8).reshape(OUTPUTS, INPUTS)


def q4_0() -> torch.Tensor:
    """Of each group -8 is there, the greatest number need not be."""
    numbers = drawn(OUTPUTS, GROUPS, 32, high=13)
    numbers[..., 3] = 0
    return ((numbers - 8) * scales()[..., None]).reshape(OUTPUTS, INPUTS)


def q8_0() -> torch.Tensor:
    numbers = drawn(OUTPUTS, GROUPS, 32, low=-126, high=127)
    numbers[..., 3] = -127
    return (numbers * scales()[..., None]).reshape(OUTPUTS, INPUTS)


# -- What blocks hold -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("made", "size"), [(q4_1, 320), (q4_0, 320), (q8_0, 544)])
def test_blocks_of_a_gguf_file_are_held_to_the_bit(made: object, size: int) -> None:
    weight = made()  # type: ignore[operator]
    packed = exact_blocks(weight)
    assert packed is not None
    assert packed.shape == (OUTPUTS // 16, GROUPS, size)
    assert torch.equal(unpack(packed), weight)


@pytest.mark.parametrize("smallest", [2.0**-24, 3 * 2.0**-24, 2.0**-14])
def test_sixteen_bits_hold_every_number_that_float16_holds(smallest: float) -> None:
    weight = torch.randn(OUTPUTS, INPUTS).half().float()
    weight[3, 5], weight[7, 90] = smallest, -65504.0
    assert torch.equal(unpack(pack16(weight)), weight)


def test_groups_of_one_number_and_of_zeros_are_held() -> None:
    weight = q4_1()
    weight[3, :32], weight[4] = 0.5, 0.0
    packed = exact_blocks(weight)
    assert packed is not None
    assert torch.equal(unpack(packed), weight)


OTHERS = {
    "no grid": lambda: torch.randn(64, 64),
    "70 outputs": lambda: q4_1()[:70],
    "50 inputs": lambda: q4_1()[:, :50],
    "bfloat16": lambda: q4_1().bfloat16(),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_weights_are_not(name: str) -> None:
    assert exact_blocks(OTHERS[name]()) is None


def test_one_number_beside_its_grid_is_noticed() -> None:
    weight = q4_1()
    weight[-1, -1] += 1e-4
    assert exact_blocks(weight) is None


def test_rounding_to_eight_bits_is_to_the_nearest_step() -> None:
    weight = torch.randn(OUTPUTS, INPUTS)
    off = (unpack(packed8(weight)) - weight).view(OUTPUTS, GROUPS, 32).abs().amax(-1)
    assert (off <= weight.view(OUTPUTS, GROUPS, 32).abs().amax(-1) / 127 * 0.57).all()


# -- What they are multiplied to --------------------------------------------------------------------------------------


WIDE = 512
MULTIPLIED = ("blocks4", "blocks8", "blocks16", "q2_k", "q4_k", "q5_0", "q6_k", "iq4_xs")
"""Forms that between them have every kind of plane, scale and offset; each takes seconds to compile."""


def packed_in(name: str, outputs: int) -> torch.Tensor:
    form = FORMS[name]
    low, high = (-127, 128) if form.bits == 8 else (0, 2**form.bits)
    numbers = drawn(outputs, WIDE, low=low, high=high).to(torch.int8 if form.bits == 8 else torch.uint8)
    if form.bits == 16:
        numbers = torch.randn(outputs, WIDE, generator=torch.Generator().manual_seed(2)).half()
    heads = [torch.randn(outputs, WIDE // form.span) / 99 for _ in range(form.heads)]
    factors = [drawn(outputs, WIDE // form.group, low=-32, high=64) for _ in heads if form.factors]
    return pack(name, BlockNumbers(numbers, tuple(heads), tuple(factors)))


def test_each_form_has_a_size_of_its_own() -> None:
    assert len(BY_SIZE) == len(FORMS)
    for name in FORMS:
        packed = packed_in(name, 32)
        assert form_of(packed) == name
        assert packed.nbytes == FORMS[name].weight_bytes(32 * WIDE)


@needs_kernels
@pytest.mark.parametrize("name", MULTIPLIED)
def test_a_kernel_unpacks_to_the_bit_what_its_twin_does(name: str) -> None:
    packed = packed_in(name, 80)
    assert torch.equal(BlockProduct((packed,))(torch.eye(WIDE)).t(), unpack(packed))
    assert torch.equal(BlockProduct((packed,))(torch.eye(WIDE)[300:301])[0], unpack(packed)[:, 300])


@needs_kernels
@pytest.mark.parametrize("name", MULTIPLIED)
@pytest.mark.parametrize("outputs", [16, 64, 80, 176])
def test_products_are_those_of_the_unpacked_weight(name: str, outputs: int) -> None:
    packed = packed_in(name, outputs)
    product, dense = BlockProduct((packed,)), unpack(packed)
    for count in (*range(1, 10), 21, 25, 32, 67):
        rows = torch.randn(count, WIDE)
        expected = rows.double() @ dense.double().t()
        assert (product(rows) - expected).abs().max() < 1e-5 * expected.abs().max()
        residual = torch.randn(count, outputs)
        assert torch.equal(product.onto(rows, residual.clone()), residual + product(rows))


@needs_kernels
@pytest.mark.parametrize("name", MULTIPLIED)
def test_no_bit_of_a_row_depends_on_the_rows_beside_it(name: str) -> None:
    product = BlockProduct((packed_in(name, 176),))
    rows = torch.randn(75, WIDE)
    alone = torch.cat([product(row[None]) for row in rows])
    for count in range(1, 76):
        assert torch.equal(product(rows[:count].contiguous()), alone[:count]), count


@needs_kernels
def test_parts_of_several_forms_are_one_product() -> None:
    parts = tuple(packed_in(name, outputs) for name, outputs in (("q4_k", 48), ("q6_k", 176), ("blocks8", 16)))
    dense, rows = torch.cat([unpack(part) for part in parts]), torch.randn(9, WIDE)
    whole, cut = BlockProduct(parts), BlockProduct(parts, 230)
    expected = torch.cat([BlockProduct((part,))(rows) for part in parts], 1)
    assert dense.shape[0] == 240 == 15 * LANES
    assert torch.equal(whole(rows), expected)
    assert torch.equal(cut(rows), expected[:, :230])
    residual = torch.randn(9, 240)
    assert torch.equal(whole.onto(rows, residual.clone()), residual + expected)
    assert whole.bytes == sum(part.nbytes for part in parts)


@needs_kernels
@pytest.mark.parametrize("bits", [WHOLE, 16, 8])
@pytest.mark.parametrize("count", [2, 3, 5, 6, 37])
def test_no_bit_of_a_product_depends_on_the_number_of_threads(count: int, bits: int) -> None:
    """Threads divide the outputs otherwise, of which as many as fit are multiplied side by side."""
    packed, rows = pack4(drawn(592, 512), torch.ones(592, 16), -torch.ones(592, 16)), torch.randn(count, 512)
    before = torch.get_num_threads()
    try:
        found = []
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            found.append(BlockProduct((packed,), row_bits=bits)(rows))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


def without_the_matrix_unit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "TILED", "nothing")
    compiled_for(monkeypatch)


def compiled_for(monkeypatch: pytest.MonkeyPatch, *without: str) -> None:
    """Have products compiled as for a processor that lacks something."""
    monkeypatch.setattr(compiler, "OPTIONS", (*compiler.OPTIONS, *without))
    monkeypatch.setattr(blocks, "_product", functools.cache(blocks._product.__wrapped__))


@needs_kernels
@pytest.mark.skipif("avx512f" not in compiler.processor().split(), reason="a processor without AVX-512")
@pytest.mark.parametrize("name", ["blocks4", "blocks16", "q3_k", "q6_k", "iq4_xs"])
def test_products_have_the_same_bits_without_avx512(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    packed, rows = packed_in(name, 80), torch.randn(45, WIDE)
    without_the_matrix_unit(monkeypatch)
    wide = [BlockProduct((packed,))(rows[:count]) for count in range(1, 46)]
    compiled_for(monkeypatch, "-mno-avx512f")
    product = BlockProduct((packed,))
    for count, expected in enumerate(wide, 1):
        assert torch.equal(product(rows[:count]), expected), count


needs_unit = pytest.mark.skipif(not in_matrix_unit(), reason="a processor without a matrix unit (AMX)")
IN_UNIT = [name for name in MULTIPLIED if name != "blocks16"]


@needs_unit
@pytest.mark.parametrize("name", IN_UNIT)
def test_the_matrix_unit_multiplies_as_exactly_as_plain_code(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    packed = packed_in(name, 176)
    rows = torch.randn(40, WIDE) * 10.0 ** torch.randint(-9, 9, (40, WIDE))
    exact = rows.double() @ unpack(packed).double().t()
    tiled = BlockProduct((packed,))(rows)
    without_the_matrix_unit(monkeypatch)
    plain = BlockProduct((packed,))(rows)
    assert not torch.equal(tiled, plain)
    assert (tiled - exact).norm() <= (plain - exact).norm()


@needs_unit
@pytest.mark.parametrize("name", IN_UNIT)
def test_a_row_alone_has_the_same_bits_in_and_without_the_matrix_unit(name: str) -> None:
    product = BlockProduct((packed_in(name, 80),))
    rows = (torch.randn(2, WIDE).double() * 10.0 ** torch.randint(-46, 20, (2, WIDE)).double()).float()
    expected = product(rows)[:1]
    for _ in range(600):  # each way is taken again and again, because its time is measured
        assert torch.equal(product(rows[:1]), expected)


WITHOUT = {
    "own": (),
    "avx2": ("-mno-avx512f",),
    "avx2 without vnni": ("-mno-avx512f", "-mno-avxvnni"),
    "avx512 without vnni": ("-mno-avx512vnni", "-mno-avx512vbmi"),
}
COMPILED = [
    *(("own", name) for name in MULTIPLIED if name != "blocks16"),
    *(("avx2", name) for name in ("blocks4", "blocks8", "q2_k", "q3_k", "q5_0", "q6_k", "iq4_xs")),
    *(("avx2 without vnni", name) for name in ("blocks4", "blocks8", "q6_k")),
    *(("avx512 without vnni", name) for name in ("blocks8", "q3_k")),
]
ROUNDED = [(*one, bits) for one in COMPILED for bits in (16, 8)]


@pytest.fixture
def without(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Products as they are compiled for a processor that lacks what the parameter says, and a matrix unit."""
    monkeypatch.setattr(blocks, "TILED", "nothing")
    compiled_for(monkeypatch, *WITHOUT[request.param])


def of_rounded_rows(packed: torch.Tensor, bits: int) -> BlockProduct:
    """Return a product. Numbers of 8 bits have rows of as many only where products are added up in 32 bits (VNNI)."""
    product, form = BlockProduct((packed,), row_bits=bits), FORMS[form_of(packed)]
    wide = form.bits == 8 or form.book
    own = compiler.processor().replace("_vnni", "vnni").split()
    kind = "avx512vnni" if "avx512bw" in own and "-mno-avx512f" not in compiler.OPTIONS else "avxvnni"
    vnni = kind in own and f"-mno-{kind}" not in compiler.OPTIONS
    assert product.row_bits == (16 if wide and not vnni else bits)
    return product


def rounded_to(bits: int, rows: torch.Tensor, group: int) -> torch.Tensor:
    """Return rows whose numbers are multiples of a part of the largest one of their group."""
    groups, most = rows.view(len(rows), -1, group), 2.0 ** (bits - 1) - 1
    largest = groups.abs().amax(-1, keepdim=True)
    scale = (torch.full_like(largest, most) / largest).where(
        largest > 0, 0
    )  # PyTorch divides a number by a tensor otherwise
    return (torch.round(groups * scale) * (largest / most)).flatten(1)


@needs_kernels
@pytest.mark.usefixtures("without")
@pytest.mark.parametrize(("without", "name", "bits"), ROUNDED, indirect=["without"])
def test_rows_of_few_bits_are_multiplied_as_if_they_had_been_rounded(name: str, bits: int) -> None:
    packed, form = packed_in(name, 176), FORMS[name]
    dense, product = unpack(packed).double(), of_rounded_rows(packed, bits)
    bits = product.row_bits
    for count in (*range(1, 14), 24, 25, 40):
        rows = torch.randn(count, WIDE)
        exact, near = rows.double() @ dense.t(), rounded_to(bits, rows, form.group).double() @ dense.t()
        largest = exact.abs().max()
        assert (product(rows) - exact).abs().max() < 8 / 2**bits * largest
        assert (product(rows) - near).abs().max() < 1e-5 * largest  # offsets are multiplied with rounded rows, too
        residual = torch.randn(count, 176)
        assert torch.equal(product.onto(rows, residual.clone()), residual + product(rows))


@needs_kernels
@pytest.mark.usefixtures("without")
@pytest.mark.parametrize(("without", "name", "bits"), ROUNDED, indirect=["without"])
def test_no_bit_of_a_row_of_few_bits_depends_on_the_rows_beside_it(name: str, bits: int) -> None:
    product = of_rounded_rows(packed_in(name, 176), bits)
    rows = torch.randn(40, WIDE) * 10.0 ** torch.randint(-9, 9, (40, WIDE))
    alone = torch.cat([product(row[None]) for row in rows])
    for count in range(1, 41):
        assert torch.equal(product(rows[:count].contiguous()), alone[:count]), count


@needs_kernels
@pytest.mark.usefixtures("without")
@pytest.mark.parametrize("bits", [16, 8])
@pytest.mark.parametrize("without", ["own", "avx2"], indirect=True)
def test_what_is_no_number_in_a_row_of_few_bits_is_in_its_product(bits: int) -> None:
    """A model that computes nonsense must not look as if it did not."""
    rows = torch.randn(5, WIDE)
    rows[1, 40], rows[2, 300], rows[3] = float("nan"), float("inf"), 1e-38
    for name in ("blocks4", "blocks8"):
        found = of_rounded_rows(packed_in(name, 16), bits)(rows)
        assert found[[1, 2]].isnan().all()
        assert found[[0, 4]].isfinite().all()
        assert (found[3].abs() < 1e-30).all()


# -- The compiler -----------------------------------------------------------------------------------------------------


def test_without_a_compiler_there_are_no_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, "COMPILER", "no-such-compiler")
    assert compiled(blocks.SOURCE, tmp_path) is None


def test_a_source_that_does_not_compile_gives_none(tmp_path: Path) -> None:
    source = tmp_path / "wrong.c"
    source.write_text("this is no C")
    assert compiled(source, tmp_path / "kept") is None


@needs_kernels
def test_a_library_is_compiled_once_and_again_where_it_is_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, folder = tmp_path / "one.c", tmp_path / "kept"
    source.write_text("int one(void) { return 1; }")
    assert compiled(source, folder) is not None
    with monkeypatch.context() as patch:
        patch.setattr(compiler, "COMPILER", "no-such-compiler")
        assert compiled(source, folder) is not None
    (library,) = folder.glob("*.so")
    library.with_name("other").write_bytes(library.read_bytes() + b"more")
    library.with_name("other").replace(library)
    monkeypatch.setattr(compiler, "COMPILER", "no-such-compiler")
    assert compiled(source, folder) is None


def test_a_processor_without_the_instructions_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, "processor", lambda: "linux x86_64 fpu sse avx")
    assert compiled(blocks.SOURCE, tmp_path) is None
    assert not list(tmp_path.iterdir())


# -- A whole model ----------------------------------------------------------------------------------------------------


def in_four_bits(shape: torch.Size) -> torch.Tensor:
    groups = torch.randint(0, 16, (shape[0], shape[1] // 32, 32))
    groups[..., 0], groups[..., 5] = 0, 15
    return ((groups - 8) * 0.015625).reshape(shape)


def probed_in_blocks() -> tuple[torch.nn.Module, Probed]:
    """A small model whose layers hold numbers of 4 bits and whose head any."""
    model = make("llama", hidden_size=64, intermediate_size=128, head_dim=32, tie_word_embeddings=False)
    for name, weight in model.named_parameters():
        if "layers" in name and weight.ndim == 2:
            weight.data = in_four_bits(weight.shape)
    return model, attach(model, "blocks")


def model_in_blocks() -> tuple[FusedPass, torch.nn.Module]:
    model, probed = probed_in_blocks()
    dense = fuse(model, probed.kv, probed.rules)
    assert isinstance(dense, FusedPass)
    return dense, model


@pytest.fixture
def blocks_win(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last way of those that a weight can be held in is the fastest."""

    def fastest(shapes: object, dtype: object, names: tuple[str, ...]) -> dict[object, Way]:
        return {shape: Way(names[-1]) if names[-1].startswith(("blocks", "w")) else DENSE for shape in shapes}  # type: ignore[attr-defined]

    monkeypatch.setattr(held_module, "ways_of", fastest)


@needs_kernels
@pytest.mark.usefixtures("blocks_win")
def test_of_weights_in_four_bits_the_head_has_eight_but_where_it_came_in_four() -> None:
    dense, _ = model_in_blocks()
    assert plan_holding(dense, "int4").ways["head"].name == "w8a16"
    assert isinstance(dense.head, DenseProduct)
    dense.head.weight.data.copy_(in_four_bits(dense.head.weight.shape))
    plan = plan_holding(dense, "int4")
    assert {way.name for way in plan.ways.values()} == {"w4a16"}
    assert [form_of(part) for part in plan.packed["head"]] == ["blocks4"]
    assert torch.equal(unpack(plan.packed["head"][0])[: len(dense.head.weight)], dense.head.weight)
    assert plan.row_bits == 16
    assert plan_holding(dense, "int8").ways["head"].name == "w8a16"
    assert plan_holding(dense).row_bits == WHOLE
    assert plan_holding(dense, row_bits=16).row_bits == 16
    eight = plan_holding(dense, "int4", row_bits=8)
    assert {way.name for way in eight.ways.values()} == {"w4a8"}
    assert eight.row_bits == 8


@needs_kernels
@pytest.mark.usefixtures("blocks_win")
def test_weights_that_blocks_hold_exactly_are_held_so_and_others_are_not() -> None:
    plan = plan_holding(model_in_blocks()[0])
    assert plan.ways["head"] == DENSE
    assert set(plan.packed) == set(plan.ways) - {"head"}
    assert {form_of(part) for parts in plan.packed.values() for part in parts} == {"blocks4"}


@needs_kernels
@pytest.mark.usefixtures("blocks_win")
@pytest.mark.parametrize("weights", ["", "int8", "int4"])
def test_what_was_packed_is_found_by_the_next_start(
    weights: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"stands for the checkpoint")
    store = PackedStore(str(tmp_path), torch.float32, weights, tmp_path / "kept")
    first = hold_as(*model_in_blocks(), weights, store)
    kept = store.find()
    assert kept is not None
    monkeypatch.setattr(held_module, "exact_blocks", lambda weight: pytest.fail("looked at again"))
    monkeypatch.setattr(held_module, "held", lambda *given: pytest.fail("packed again"))
    again = hold_as(*model_in_blocks(), weights, store)
    for one, other in zip(first.layers, again.layers, strict=True):
        for name, product in one.products().items():
            assert isinstance(product, BlockProduct)
            found = other.products()[name]
            assert isinstance(found, BlockProduct)
            assert torch.equal(product.packed[0], found.packed[0])


@needs_kernels
def test_what_was_kept_for_other_rows_does_not_keep_weights_out_of_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A start in float32 had kept none, and the next one was told that no weight can be in blocks."""
    monkeypatch.setenv("INFERD_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "model.safetensors").write_bytes(b"stands for the checkpoint")
    monkeypatch.setattr(held_module, "ways_of", lambda shapes, dtype, names: dict.fromkeys(shapes, Way(names[0])))
    found = []
    for bits in (16, 8, 16):
        model, probed = probed_in_blocks()
        loaded = LoadedModel("small", model, None, probed, 64, 64, "", source=str(tmp_path))  # type: ignore[arg-type]
        run = fused_pass(loaded, DriverOptions(pages=4, page_size=16, most_rows=64, row_bits=bits))
        assert isinstance(run, FusedPass)
        found.append(row_bits_of(run))
    assert found == [0, 8, 0]


@needs_kernels
@pytest.mark.usefixtures("without")
@pytest.mark.parametrize("without", ["avx2 without vnni"], indirect=True)
def test_who_asked_for_weights_of_eight_bits_is_not_told_to_ask_for_them() -> None:
    """Without instructions for rows of 8 bits before such weights."""
    model, probed = probed_in_blocks()
    loaded = LoadedModel("small", model, None, probed, 64, 64, "")  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match=r"activations cannot be int8: for weights of 8 bits .* \(VNNI\)"):
        fused_pass(loaded, DriverOptions(pages=4, page_size=16, most_rows=64, weights="int8", row_bits=8))


@needs_kernels
@pytest.mark.usefixtures("blocks_win")
def test_a_start_with_kept_weights_does_not_read_the_files() -> None:
    plan = plan_holding(model_in_blocks()[0])
    dense, model = model_in_blocks()
    hold(dense, model, HoldingPlan(plan.ways, plan.packed))
    assert all(weight.numel() == 0 for name, weight in model.named_parameters() if "proj" in name)
    for layer in dense.layers:
        assert "weight" not in vars(layer.qkv)


@needs_kernels
def test_what_is_kept_belongs_to_one_state_of_the_files(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    file.write_bytes(b"one")
    made = {"head": (pack16(torch.ones(16, 32)), pack16(torch.zeros(16, 32)))}
    PackedStore(str(tmp_path), torch.float32, "int8", tmp_path / "kept").keep(made)
    found = PackedStore(str(tmp_path), torch.float32, "int8", tmp_path / "kept").find()
    assert found is not None
    assert [unpack(part).unique().item() for part in found["head"]] == [1, 0]
    assert PackedStore(str(tmp_path), torch.float32, "int4", tmp_path / "kept").find() is None
    assert PackedStore(str(tmp_path), torch.bfloat16, "int8", tmp_path / "kept").find() is None
    file.write_bytes(b"other")
    assert PackedStore(str(tmp_path), torch.float32, "int8", tmp_path / "kept").find() is None


def test_damaged_weights_are_not_found(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"one")
    store = PackedStore(str(tmp_path), torch.float32, "int8", tmp_path / "kept")
    store.keep({"head": (pack16(torch.ones(16, 32)),)})
    (file,) = (tmp_path / "kept").glob("*.blocks")
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    assert store.find() is None


def test_of_a_model_without_files_nothing_is_kept(tmp_path: Path) -> None:
    for source in ("", str(tmp_path / "missing")):
        store = PackedStore(source, torch.float32, "int8", tmp_path)
        store.keep({"head": (pack16(torch.ones(16, 32)),)})
        assert store.find() is None
    assert not list(tmp_path.iterdir())
