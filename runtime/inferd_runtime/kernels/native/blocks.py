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
PLAIN, TILED = "product", "product_in_tiles"
"""The functions of a library that round no row. The second one is taken where this process may use a matrix unit of the processor
(AMX)."""
ROUNDED = {16: "product_of_rows16", 8: "product_of_rows8"}
"""Those that round rows, by the bits of their numbers. A library has the last one where the processor can multiply so."""
WHOLE = 32
"""The bits of rows that are not rounded."""


class BlockKernels:
    """The libraries, each compiled when its form is first asked for."""

    def can(self, form: str) -> bool:
        """Return True if weights of this form can be multiplied here."""
        return _product(form) is not None


class BlockWeight:
    """A packed weight with the function of its form: looked up once, because a step of a small model has hundreds of products.

    ``row_bits``: how many of a row's numbers are enough, for each group of inputs; then how many there are: more, where that is
    as fast.
    """

    def __init__(self, packed: Tensor, row_bits: int = WHOLE) -> None:
        product = _product(form_of(packed), row_bits)
        assert product is not None, "blocks are chosen only where there are kernels"
        self.outputs = packed.shape[0] * LANES
        self._packed = packed
        self._product, self._at = product, packed.data_ptr()
        self.row_bits = next((bits for bits, name in ROUNDED.items() if product.__name__ == name), WHOLE)

    def addresses(self) -> tuple[int | None, int]:
        """Return where the function is, and the weight."""
        return ctypes.cast(self._product, ctypes.c_void_p).value, self._at

    def multiply(self, rows: Tensor, onto: Tensor, first: int = 0, *, add: bool = False) -> None:
        """Write the products of rows float32[T, in] to ``onto`` float32[T, n], its columns from ``first`` on.

        ``add``: on to what is there. Both are contiguous.
        """
        count, inputs = rows.shape
        to = onto.data_ptr() + first * FLOAT_BYTES
        self._product(self._at, rows.data_ptr(), to, count, inputs, self.outputs, onto.shape[1], add)


@functools.cache
def _product(form: str, row_bits: int = WHOLE) -> Any:
    """Return the function of a form; None on a machine without a compiler or of another kind."""
    library = compiled(SOURCE, defines=FORMS[form].defines())
    if library is None:
        return None
    product = getattr(library, _name_of_product(library, row_bits))
    product.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_long] * 4 + [ctypes.c_int]
    product.restype = None
    return product


def _name_of_product(library: ctypes.CDLL, row_bits: int) -> str:
    if row_bits <= 8 and hasattr(library, ROUNDED[8]):
        return ROUNDED[8]
    if hasattr(library, TILED) and library.ask_for_tiles() == 0:
        return TILED
    return ROUNDED[16] if row_bits <= 16 and hasattr(library, ROUNDED[16]) else PLAIN


@functools.cache
def block_kernels() -> BlockKernels | None:
    """Return the kernels; None where the commonest form cannot be compiled."""
    return None if _product("blocks4") is None else BlockKernels()


def kernels_version() -> str:
    """Return what results of these products depend on; "" where there are none."""
    product = _product("blocks4")
    return "" if product is None else f"{source_digest(SOURCE)} {product.__name__}"
