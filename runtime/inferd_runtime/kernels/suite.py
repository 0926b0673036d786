"""The kernels of a step as one set: in plain torch, or in Triton. One signature each, so a driver does not see which."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

from inferd_runtime.kernels import attention, cache, confidence, elementwise, product, quantized, sampling, verify
from inferd_runtime.kernels.attention_rule import AttentionRule
from inferd_runtime.kernels.cache import CacheBlock
from inferd_runtime.kernels.quantized import QuantizedKernels
from inferd_runtime.kernels.rows import PagedRows
from inferd_runtime.kernels.sampling import SampleRows
from inferd_runtime.kernels.verify import DraftRows, Verifier


class KernelSuite(NamedTuple):
    """One function per operation. Each is documented at its reference in ``kernels/<module>.py``."""

    paged_attention: Callable[[Tensor, Tensor, Tensor, PagedRows, AttentionRule], Tensor]
    write_kv: Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], None]
    rotate_and_write: Callable[..., Tensor]
    silu_mul: Callable[[Tensor], Tensor]
    few_rows_product: Callable[[Tensor, Tensor, Tensor | None, Tensor | None], Tensor]
    quantized: QuantizedKernels
    sample: Callable[[Tensor, SampleRows], Tensor]
    agree: Callable[[Tensor, DraftRows], Tensor]
    rejection: Verifier
    move_tokens: Callable[[CacheBlock, Tensor, Tensor], None]
    copy_pages: Callable[[CacheBlock, Tensor, Tensor], None]
    gather_pages: Callable[[CacheBlock, Tensor], Tensor]
    scatter_pages: Callable[[CacheBlock, Tensor, Tensor], None]
    confidence: Callable[[Tensor, SampleRows, Tensor], Tensor]


def reference_kernels() -> KernelSuite:
    """Return the references in torch, for any device."""
    return KernelSuite(
        attention.paged_attention, cache.write_kv, elementwise.rotate_and_write, elementwise.silu_mul,
        product.few_rows_product, quantized.REFERENCE, sampling.sample, verify.agree, verify.rejection,
        cache.move_tokens, cache.copy_pages, cache.gather_pages, cache.scatter_pages, confidence.confidence,
    )  # fmt: skip


def triton_kernels() -> KernelSuite:
    """Return Triton's kernels. Without a device they need its interpreter: TRITON_INTERPRET=1 before the first import."""
    from inferd_runtime.kernels.triton import (
        attention,
        cache,
        confidence,
        elementwise,
        product,
        quantized,
        rejection,
        sampling,
        verify,
    )

    return KernelSuite(
        attention.paged_attention, cache.write_kv, elementwise.rotate_and_write, elementwise.silu_mul,
        product.few_rows_product, quantized.KERNELS, sampling.sample, verify.agree, rejection.rejection,
        cache.move_tokens, cache.copy_pages, cache.gather_pages, cache.scatter_pages, confidence.confidence,
    )  # fmt: skip
