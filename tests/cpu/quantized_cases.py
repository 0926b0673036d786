"""What products of weights in 8 and 4 bits have to do, on any device: the references and Triton's kernels run the same checks."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from product_cases import RELATIVE
from torch import Tensor

from inferd_runtime.kernels.quantized import Grouped, QuantizedKernels, RowScaled, grouped
from inferd_runtime.models.weights.device_forms import in_float8, in_int8

FORMS = ("fp8", "int8", "int4 of 32", "int4 of 128", "int4 of 128, symmetric")


def random(*shape: int, device: str = "cpu", seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(device)


def weight_in(form: str, out: int, size: int, device: str = "cpu") -> RowScaled | Grouped:
    """A random weight."""
    if form in ("fp8", "int8"):
        return (in_float8 if form == "fp8" else in_int8)(random(out, size, device=device))
    groups = size // (32 if form.endswith(" 32") else 128)
    chance = torch.Generator().manual_seed(1)
    numbers = torch.randint(0, 16, (out, size), generator=chance, dtype=torch.uint8).to(device)
    scales = (random(out, groups, device=device, seed=2).abs() / 8).half()
    middles = None if "symmetric" in form else random(out, groups, device=device, seed=3) * 4
    return grouped(numbers, scales, middles)


@dataclass(frozen=True)
class Case:
    """A weight in a form, and rows in a dtype."""

    form: str
    out: int
    size: int
    dtype: torch.dtype
    device: str = "cpu"

    def weight(self) -> RowScaled | Grouped:
        return weight_in(self.form, self.out, self.size, self.device)

    def rows(self, count: int) -> Tensor:
        """The rows of one count are the first ones of more."""
        return random(64, self.size, device=self.device, seed=4).to(self.dtype)[:count]

    def run(
        self, kernels: QuantizedKernels, rows: Tensor, bias: Tensor | None = None, residual: Tensor | None = None
    ) -> Tensor:
        weight = self.weight()
        if isinstance(weight, Grouped):
            return kernels.grouped_product(rows, weight, bias, residual)
        return kernels.row_scaled_product(rows, weight, bias, residual)

    def check(self, kernels: QuantizedKernels, count: int, added: str = "") -> None:
        """Against float64, as :meth:`product_cases.Case.check`."""
        dense, rows = self.weight().dense().double(), self.rows(count)
        more = random(count if added == "residual" else 1, len(dense), device=self.device, seed=5).to(self.dtype)
        expected, terms = rows.double() @ dense.t(), rows.double().abs() @ dense.abs().t()
        bias = more[0] if added == "bias" else None
        residual = more.clone() if added == "residual" else None
        if added:
            expected, terms = expected + more.double(), terms + more.double().abs()
        got = self.run(kernels, rows, bias, residual)
        assert got.dtype == self.dtype
        if residual is not None:
            assert got.data_ptr() == residual.data_ptr()
        relative = RELATIVE[self.dtype]
        allowed = 2e-6 * terms + 2 * relative * expected.abs() + relative * terms / self.size**0.5
        assert bool(((got.double() - expected).abs() <= allowed).all()), float((got.double() - expected).abs().max())


def check_invariance(kernels: QuantizedKernels, case: Case) -> None:
    """A row's bits are the same among any others, at any place, on both sides of a tile's end."""
    rows = case.rows(40)
    whole = case.run(kernels, rows)
    assert bool(whole.isfinite().all())
    for count in (1, 2, 7, 16, 17, 33):
        assert torch.equal(case.run(kernels, rows[:count]), whole[:count]), count
    turned = torch.arange(40, device=rows.device).roll(11)
    assert torch.equal(case.run(kernels, rows[turned]), whole[turned])
    others = torch.full_like(rows, float("nan"))
    others[3] = rows[3]
    assert torch.equal(case.run(kernels, others)[3], whole[3])
