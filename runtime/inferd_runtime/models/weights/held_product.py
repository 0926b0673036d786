"""What every product of a weight in a form of its own has in common."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import pad

OUTPUT_MULTIPLE = 16


class HeldProduct:
    """See :class:`~inferd_runtime.models.passes.products.Product`. ``bytes``: what the weight takes."""

    bytes: int

    def __call__(self, rows: Tensor) -> Tensor:
        """See :class:`~inferd_runtime.models.passes.products.Product`."""
        raise NotImplementedError

    def onto(self, rows: Tensor, residual: Tensor) -> Tensor:
        """See :class:`~inferd_runtime.models.passes.products.Product`."""
        return residual.add_(self(rows))


def filled(weight: Tensor) -> Tensor:
    """Return the weight with outputs of zeros behind its own, up to a multiple that products take."""
    more = -len(weight) % OUTPUT_MULTIPLE
    return pad(weight.detach(), (0, 0, 0, more)) if more else weight.detach()


def finished(out: Tensor, rows: Tensor, bias: Tensor | None) -> Tensor:
    """Return a product in the dtype of its rows, with the bias."""
    out = out.to(rows.dtype)
    return out if bias is None else out.add_(bias)
