"""What a product for few rows has to do, on any device: the reference and the Triton kernel run the same checks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from inferd_runtime.kernels.product import RowNorm

Product = Callable[..., Tensor]
EPS = 1e-5
# Of the last place: rounding to nearest is half of one, but the interpreter cuts bfloat16 off, and the reference rounds twice.
RELATIVE = {torch.float32: 2e-6, torch.float16: 2**-10, torch.bfloat16: 2**-7}


@dataclass(frozen=True)
class Case:
    """A weight [out, size] in a dtype, what is added, whether rows are normed, and whether the outputs are gate and up."""

    out: int
    size: int
    dtype: torch.dtype
    bias: bool = False
    residual: bool = False
    device: str = "cpu"
    normed: bool = False
    gated: bool = False

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
        norm, wide = self.norm(), rows.double()
        if norm is not None:
            wide = wide * (wide.square().mean(-1, keepdim=True) + EPS).rsqrt() * norm.weight.double()
        expected = wide @ weight.double().t()
        terms = wide.abs() @ weight.double().abs().t()
        for part in (bias, residual):
            if part is not None:
                expected, terms = expected + part.double(), terms + part.double().abs()
        if self.gated:
            return self._check_gated(run(rows, weight, None, None, norm, True), expected, terms)
        got = run(rows, weight, bias, residual, norm)
        assert got.shape == (count, self.out)
        assert got.dtype == self.dtype
        if residual is not None:
            assert got.data_ptr() == residual.data_ptr()
        allowed = self._allowed(expected, terms)
        assert bool(((got.double() - expected).abs() <= allowed).all()), float((got.double() - expected).abs().max())

    def norm(self) -> RowNorm | None:
        """What the rows go through first."""
        if not self.normed:
            return None
        scale = torch.rand(self.size, generator=torch.Generator(self.device).manual_seed(1), device=self.device)
        return RowNorm((scale + 0.5).to(self.dtype), EPS)

    def _allowed(self, expected: Tensor, terms: Tensor) -> Tensor:
        """How far sums may be off: float32 sums of n terms in any order by a few of their last places, not by n."""
        # A normed row is rounded once more, each of its numbers on its own.
        rounded = (6 if self.normed else 1) * RELATIVE[self.dtype] * terms / self.size**0.5
        return 1e-6 * terms + 2 * RELATIVE[self.dtype] * expected.abs() + rounded

    def _check_gated(self, got: Tensor, expected: Tensor, terms: Tensor) -> None:
        (gate, up), (off_gate, off_up) = expected.chunk(2, 1), self._allowed(expected, terms).chunk(2, 1)
        assert got.shape == gate.shape
        assert got.dtype == self.dtype
        opened = gate * torch.sigmoid(gate)
        # Nowhere does silu climb faster than 1.1.
        allowed = 1.1 * off_gate * (up.abs() + off_up) + opened.abs() * off_up
        allowed += 2 * RELATIVE[self.dtype] * (opened * up).abs()
        assert bool(((got.double() - opened * up).abs() <= allowed).all()), float((got - opened * up).abs().max())


def check_invariance(multiply: Product, case: Case, counts: range = range(1, 17)) -> None:
    """A row's bits are the same among any others, at any place."""
    rows, weight, bias, residual = case.tensors(16)
    norm = case.norm()

    def run(*given: Tensor | None) -> Tensor:
        return multiply(*given, norm, case.gated)

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
