"""The seam to the device: what every driver does, and what one adds that samples where its logits are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from inferd_runtime.engine.sampling.device_sampling import SampledTokens, SamplingInputs
from inferd_runtime.kv.table import PageCopy
from inferd_runtime.models.batch import Batch, Outputs, PageData


class Driver(Protocol):
    """The seam to the device. Holds the weights and the KV tensors.

    ``page_bytes``: bytes of one page over all layers. ``kv_layout`` names what those bytes mean (dtype, page size, heads and
    widths per layer): pages move between drivers of one layout only. A page is one part per entry of ``token_bytes``, each
    ``page_size`` rows of so many bytes, a row per token.
    """

    vocab_size: int
    page_size: int
    pages: int
    max_context: int
    page_bytes: int
    token_bytes: Sequence[int]
    kv_layout: str

    def forward(self, batch: Batch) -> Outputs:
        """Write K and V of every token, and return what the wanted rows bring, on the host."""
        ...

    def copy_pages(self, copies: Sequence[PageCopy]) -> None:
        """Copy pages inside the cache, one after the other, before whatever comes next."""
        ...

    def move_tokens(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Copy the K and V of single tokens between slots (page * page_size + offset), all read before any is written."""
        ...

    def read_pages(self, pages: Sequence[int]) -> PageData:
        """The K and V of whole pages, uint8[len(pages), page_bytes] on the host. The caller owns the copy."""
        ...

    def bearable(self, data: PageData) -> bool:
        """Whether pages that were not read here hold nothing that could spoil what others compute.

        A page that is given back keeps its content, and the next holder's attention multiplies what it masks by zero: that
        is only zero for finite numbers.
        """
        ...

    def write_pages(self, pages: Sequence[int], data: PageData) -> None:
        """Put back what :meth:`read_pages` returned, into pages that the caller owns alone. Exact to the bit."""
        ...


class StepResult(NamedTuple):
    """What a step brought: ``outputs`` of the rows that were not drawn, and what was drawn (None: nothing on the device)."""

    outputs: Outputs
    drawn: SampledTokens | None = None


class Launched(Protocol):
    """A step on its way."""

    def wait(self) -> StepResult:
        """What it brought, once it is there. Raises what went wrong on the device."""
        ...


@runtime_checkable
class SamplingDriver(Driver, Protocol):
    """A driver that samples and verifies, too, so that no logits have to come to the host."""

    def launch(self, batch: Batch, drawing: SamplingInputs) -> Launched:
        """Start a forward pass, and draw from its rows. ``Outputs.logits`` will be those of ``drawing.host_rows``."""
        ...
