"""What a product for few rows has to do, on any device: the reference and the Triton kernel run the same checks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

Product = Callable[[Tensor, Tensor, Tensor | None, Tensor | None], Tensor]
# Of the last place: rounding to nearest is half of one, but the interpreter cuts bfloat16 off, and the reference rounds twice.
RELATIVE = {torch.float32: 2e-6, torch.float16: 2**-10, torch.bfloat16: 2**-7}


@dataclass(frozen=True)
class Case:
    """A weight [out, size] in a dtype, and what is added."""

    out: int
    size: int
    dtype: torch.dtype
    bias: bool = False
    residual: bool = False
    device: str = "cpu"

    def tensors(self, count: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
        """Rows, weight, bias and residual; the rows of one seed are the first ones of more."""
        chance = torch.Generator(self.device).manual_seed(seed)

        def some(*shape: int) -> Tensor:
            return torch.randn(shape, generator=chance, device=self.device).to(self.dtype)

        weight, bias, rows, residual = (
            some(self.out, self.size), some(self.out), some(16, self.size), some(16, self.out)
        )  # fmt: skip
        return rows[:count], weight, bias if self.bias else None, residual[:count].clone() if self.residual else None

    def check(self, run: Product, count: int) -> None:
        """Against float64, to a share of what the sum's terms are as numbers, and to a place of the result."""
        rows, weight, bias, residual = self.tensors(count)
        expected = rows.double() @ weight.double().t()
        terms = rows.double().abs() @ weight.double().abs().t()
        for part in (bias, residual):
            if part is not None:
                expected, terms = expected + part.double(), terms + part.double().abs()
        got = run(rows, weight, bias, residual)
        assert got.shape == (count, self.out)
        assert got.dtype == self.dtype
        if residual is not None:
            assert got.data_ptr() == residual.data_ptr()
        # Float32 sums of n terms in any order are off by a few of their last places, not by n.
        allowed = (
            1e-6 * terms + 2 * RELATIVE[self.dtype] * expected.abs() + RELATIVE[self.dtype] * terms / self.size**0.5
        )
        assert bool(((got.double() - expected).abs() <= allowed).all()), float((got.double() - expected).abs().max())


def check_invariance(run: Product, case: Case, counts: range = range(1, 17)) -> None:
    """A row's bits are the same among any others, at any place."""
    rows, weight, bias, residual = case.tensors(16)
    whole = run(rows, weight, bias, None if residual is None else residual.clone())
    assert bool(whole.isfinite().all())
    for count in counts:
        part = run(rows[:count], weight, bias, None if residual is None else residual[:count].clone())
        assert torch.equal(part, whole[:count]), count
    turned = torch.arange(16, device=rows.device).roll(5)
    moved = run(rows[turned], weight, bias, None if residual is None else residual[turned].clone())
    assert torch.equal(moved, whole[turned])
    others = torch.full_like(rows, float("nan"))
    others[3] = rows[3]
    alone = run(others, weight, bias, None if residual is None else residual.clone())
    assert torch.equal(alone[3], whole[3])
