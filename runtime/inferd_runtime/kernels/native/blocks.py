"""Products of rows in float32 with weights in blocks, by `blocks.c`: one library for each form of :mod:`.block_forms`."""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path
from typing import Any

from torch import Tensor

from inferd_runtime.kernels.native.block_forms import FORMS, LANES, form_of
from inferd_runtime.kernels.native.compiler import compiled, source_digest

SOURCE = Path(__file__).with_name("blocks.c")
FLOAT_BYTES = 4
PLAIN, TILED, ROWS16 = "product", "product_in_tiles", "product_of_rows16"
"""The functions of a library. The second one is taken where this process may use a matrix unit of the processor (AMX), the third
one for weights whose rows may be rounded to 16 bits."""


class BlockKernels:
    """The libraries, each compiled when its form is first asked for."""

    def can(self, form: str) -> bool:
        """Return True if weights of this form can be multiplied here."""
        return _product(form) is not None


class BlockWeight:
    """A packed weight with the function of its form: looked up once, because a step of a small model has hundreds of products.

    ``rows16``: rows may be rounded to 16 bits for each group of inputs, where that is faster; then whether they are.
    """

    def __init__(self, packed: Tensor, *, rows16: bool = False) -> None:
        product = _product(form_of(packed), rows16=rows16)
        assert product is not None, "blocks are chosen only where there are kernels"
        self.outputs = packed.shape[0] * LANES
        self._packed = packed
        self._product, self._at = product, packed.data_ptr()
        self.rows16 = rows16 and product.__name__ == ROWS16

    def multiply(self, rows: Tensor, onto: Tensor, first: int = 0, *, add: bool = False) -> None:
        """Write the products of rows float32[T, in] to ``onto`` float32[T, n], its columns from ``first`` on.

        ``add``: on to what is there. Both are contiguous.
        """
        count, inputs = rows.shape
        to = onto.data_ptr() + first * FLOAT_BYTES
        self._product(self._at, rows.data_ptr(), to, count, inputs, self.outputs, onto.shape[1], add)


@functools.cache
def _product(form: str, *, rows16: bool = False) -> Any:
    """Return the function of a form; None on a machine without a compiler or of another kind."""
    library = compiled(SOURCE, defines=FORMS[form].defines())
    if library is None:
        return None
    in_tiles = hasattr(library, TILED) and library.ask_for_tiles() == 0
    in_16_bits = rows16 and hasattr(library, ROWS16)
    product = getattr(library, TILED if in_tiles else ROWS16 if in_16_bits else PLAIN)
    product.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_long] * 4 + [ctypes.c_int]
    product.restype = None
    return product


@functools.cache
def block_kernels() -> BlockKernels | None:
    """Return the kernels; None where the commonest form cannot be compiled."""
    return None if _product("blocks4") is None else BlockKernels()


def kernels_version() -> str:
    """Return what results of these products depend on; "" where there are none."""
    product = _product("blocks4")
    return "" if product is None else f"{source_digest(SOURCE)} {product.__name__}"
