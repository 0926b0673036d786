"""The driver's interface: what every driver does on its device, and what one adds that also samples there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from inferd_runtime.engine.sampling.device_sampling import SampledRows, SampledTokens, SamplingInputs
from inferd_runtime.kv.table import PageCopy
from inferd_runtime.models.batch import Batch, Outputs, PageData


class Driver(Protocol):
    """The interface to the device. Holds the weights and the KV tensors.

    ``page_bytes``: bytes of one page over all layers. ``kv_layout`` names what those bytes mean (dtype, page size, heads and
    widths per layer): pages move between drivers of one layout only. A page has one part per entry of ``token_bytes``, each
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
        """Write K and V of every token, and return logits and hidden states of the requested rows, on the host."""

    def copy_pages(self, copies: Sequence[PageCopy]) -> None:
        """Copy pages inside the cache, one after the other, before the next forward pass."""

    def move_tokens(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Copy K and V of single tokens between slots (page * page_size + offset). All are read before any is written."""

    def read_pages(self, pages: Sequence[int]) -> PageData:
        """Return the K and V of whole pages, uint8[len(pages), page_bytes] on the host. The caller owns the copy."""

    def bearable(self, data: PageData) -> bool:
        """True if pages that were not read here hold only finite numbers of usual size.

        A freed page keeps its content, and the attention of its next holder multiplies what it masks by zero: that is zero for
        finite numbers only.
        """

    def write_pages(self, pages: Sequence[int], data: PageData) -> None:
        """Write what :meth:`read_pages` returned, exact to the bit, into pages that the caller alone owns."""


class StepResult(NamedTuple):
    """A step's result: ``outputs`` of the rows that the host samples, and what the device sampled (None: nothing)."""

    outputs: Outputs
    sampled: SampledTokens | None = None


class Launched(Protocol):
    """A launched step."""

    def wait(self) -> StepResult:
        """Block until the device is done, and return the result. Raises whatever went wrong on the device."""


@runtime_checkable
class Begun(Protocol):
    """A forward pass that has been launched; its rows are sampled later."""

    def sample(self, inputs: SamplingInputs) -> Launched:
        """Start the sampling of its rows, before another step is launched."""


class DeviceLost(Exception):
    """The device does nothing any more for this process, as a CUDA device after an illegal access: the process has to end.

    Not one job's error: it passes through :meth:`Engine.step`.
    """


@runtime_checkable
class SamplingDriver(Driver, Protocol):
    """A driver that also samples and verifies on the device, so that no logits have to come to the host."""

    def launch(self, batch: Batch, inputs: SamplingInputs) -> Launched:
        """Start a forward pass and the sampling of its rows. ``Outputs.logits`` holds the rows ``inputs.host_rows`` only."""

    def begin(self, batch: Batch, rows: SampledRows) -> Begun:
        """Start a forward pass alone. ``rows``: which of its rows will be sampled, as the inputs of the sampling say later."""
