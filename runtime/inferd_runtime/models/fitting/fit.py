"""Estimate from a model's sizes if it fits a device: what it needs, how many pages it gets, what would make it fit.

The need is a lower bound: weights, one step's activations and the KV pages asked for. No torch here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from inferd.protocol import LimitExceeded
from inferd_runtime.models.fitting.sizing import LEAST_PAGES, default_pages, kv_budget
from inferd_runtime.models.options import DEVICE_WEIGHTS, WEIGHTS

HALF = "bfloat16"
ITEM_SIZES = {"float32": 4, "bfloat16": 2, "float16": 2}
GROUP = 32
"""Numbers that share a scale, and an offset in 4 bits, of two bytes each."""


@dataclass(frozen=True)
class MatrixSizes:
    """Numbers in the weights that products and the embedding read.

    ``tied``: the head's are the embedding's.
    """

    layers: int
    head: int
    tied: bool

    def full(self, item_size: int) -> int:
        """Return the bytes as a checkpoint holds them."""
        return (self.layers + self.head * (1 if self.tied else 2)) * item_size

    def stored(self, bits: int, group: int, item_size: int, device: str) -> int:
        """Return the bytes of a quantized checkpoint's weights, the embedding and the head of which are dense.

        ``group``: the numbers that share a scale and a middle of two bytes each, 0 for a row. The CPU has its own blocks of 4
        bits, and holds those of 8 dense.
        """
        whole = self.full(item_size) - self.layers * item_size
        if device == "cpu":
            return whole + (self.layers // 2 + 4 * (self.layers // GROUP) if bits == 4 else self.layers * item_size)
        return whole + self.layers * bits // 8 + (4 * (self.layers // group) if group else 0)

    def held(self, weights: str, device: str = "cpu") -> int:
        """Return the bytes in a form of :mod:`inferd_runtime.models.options`; the embedding is beside the head.

        In 8 bits a device has a scale for each output, which are too few to count; in 4 bits, and on the CPU, for each group.
        """
        embedding = 2 * self.head
        if device != "cpu" and weights in ("fp8", "int8"):
            return self.layers + self.head + embedding
        if weights == "half":
            return 2 * (self.layers + self.head) + embedding
        head = self.head + (2 * (self.head // GROUP) if device == "cpu" else 0)
        if weights == "int8":
            return self.layers + 2 * (self.layers // GROUP) + head + embedding
        return self.layers // 2 + 4 * (self.layers // GROUP) + head + embedding


@dataclass(frozen=True)
class ModelSize:
    """What a model takes. Sizes in bytes; ``max_context`` in tokens.

    ``kv_token_bytes``: one token's keys and values in all layers. ``kv_source``: "layers" when every layer's own shapes were
    seen, "config" when they are the configuration's heads and width. ``step_bytes``: activations of the widest step.
    ``quantized``: the method of a quantized checkpoint whose weights are counted as if they were not. ``matrices``: of a model
    whose weights can be held otherwise, and are not yet. ``held_as``: the form that they are counted in, "" for the dtype.
    """

    name: str
    dtype: str
    parameters: int
    weight_bytes: int
    kv_token_bytes: int
    kv_source: str
    step_bytes: int
    max_context: int
    quantized: str = ""
    matrices: MatrixSizes | None = None
    held_as: str = ""

    def held(self, weights: str, device: str = "cpu") -> ModelSize:
        """Return the size with weights held in a form of :mod:`inferd_runtime.models.options`; "": as it is."""
        if not weights or self.matrices is None:
            return self
        saved = self.matrices.full(ITEM_SIZES[self.dtype]) - self.matrices.held(weights, device)
        return dataclasses.replace(self, weight_bytes=self.weight_bytes - saved, matrices=None, held_as=weights)

    def in_blocks(self, saved: int) -> ModelSize:
        """Return the size with weights in the blocks of a GGUF file, which take so many bytes fewer than in float32."""
        if not saved or self.matrices is None:
            return self
        held = dataclasses.replace(self, weight_bytes=self.weight_bytes - saved)
        return dataclasses.replace(held, matrices=None, held_as="the file's blocks")

    def as_stored(self, method: str, bits: int, group: int, device: str) -> ModelSize:
        """Return the size of a quantized checkpoint whose weights are held as they are stored, where that is known."""
        dense = not bits or (bits == 8 if device == "cpu" else self.dtype == "float32")
        if dense or self.matrices is None:
            return dataclasses.replace(self, quantized=method)
        item = ITEM_SIZES[self.dtype]
        size = self.weight_bytes - self.matrices.full(item) + self.matrices.stored(bits, group, item, device)
        return dataclasses.replace(self, weight_bytes=size, matrices=None, held_as=f"{method}, {bits} bits")


@dataclass(frozen=True)
class CacheRequest:
    """The KV cache that is wanted: ``pages``, or ``streams`` contexts of ``context`` tokens; 0: what the runtime chooses."""

    context: int = 0
    streams: int = 0
    pages: int = 0
    page_size: int = 16

    def least_pages(self, max_context: int) -> int:
        """Return the fewest pages that hold what was asked for."""
        if self.pages:
            return self.pages
        if not self.context and not self.streams:
            return LEAST_PAGES
        return max(LEAST_PAGES, (self.streams or 1) * -(-(self.context or max_context) // self.page_size))


@dataclass(frozen=True)
class Fit:
    """An estimate. ``available`` and ``needs`` in bytes; ``pages``: how many the model gets, if it fits."""

    model: ModelSize
    device: str
    asked: CacheRequest
    available: int

    @property
    def page_bytes(self) -> int:
        """Bytes of one KV page."""
        return self.model.kv_token_bytes * self.asked.page_size

    @property
    def needs(self) -> int:
        """The bytes of weights, activations, and the fewest pages."""
        return self._fixed + self.asked.least_pages(self.model.max_context) * self.page_bytes

    @property
    def fits(self) -> bool:
        """True if the device has what the model needs."""
        return self.needs <= self.available

    @property
    def default_pages(self) -> int:
        """The pages that the runtime chooses where none are given."""
        budget = kv_budget(self.device, max(0, self.available - self._fixed))
        return default_pages(self.page_bytes, self.model.max_context, self.asked.page_size, budget)

    @property
    def pages(self) -> int:
        """The pages that the model gets: those given, else the runtime's choice, but enough for the contexts asked for."""
        return self.asked.pages or max(self.default_pages, self.asked.least_pages(self.model.max_context))

    @property
    def contexts(self) -> int:
        """Return how many contexts (of the length asked for, else full ones) those pages hold at once."""
        return self.pages // -(-(self.asked.context or self.model.max_context) // self.asked.page_size)

    @property
    def advice(self) -> tuple[str, ...]:
        """What would make it fit, as options; each entry suffices alone. Empty when it fits, or nothing here helps."""
        if self.fits:
            return ()
        half = self._in_half()
        alone = [*(["--dtype " + HALF] if half is not None and half.fits else []), *self._smaller_caches()]
        ways = WEIGHTS if self.device == "cpu" else DEVICE_WEIGHTS
        alone += [f"--weights {way}" for way in ways if self._held(way).fits]
        if alone or half is None:
            return tuple(alone)
        return tuple(f"--dtype {HALF} {option}" for option in half._smaller_caches())

    @property
    def _fixed(self) -> int:
        return self.model.weight_bytes + self.model.step_bytes

    def _held(self, weights: str) -> Fit:
        """Return the estimate with weights held otherwise; itself where they cannot be, or are already."""
        return dataclasses.replace(self, model=self.model.held(weights, self.device))

    def _in_half(self) -> Fit | None:
        """Return the estimate in half precision; None where it is that already."""
        if self.model.dtype != "float32":
            return None
        sizes = {name: getattr(self.model, name) // 2 for name in ("weight_bytes", "kv_token_bytes", "step_bytes")}
        return dataclasses.replace(self, model=dataclasses.replace(self.model, dtype=HALF, **sizes))

    def _smaller_caches(self) -> Iterator[str]:
        """Yield the largest caches of the kind asked for that fit."""
        room = (self.available - self._fixed) // self.page_bytes
        asked = self.asked
        if room < LEAST_PAGES:
            return
        if asked.pages:
            yield f"--pages {room}"
            return
        streams, context = asked.streams or 1, asked.context or self.model.max_context
        if room // streams:
            yield f"--context {room // streams * asked.page_size}"
        if streams > 1 and room // -(-context // asked.page_size):
            yield f"--streams {room // -(-context // asked.page_size)}"


@dataclass(frozen=True)
class Placed:
    """A model on its device, with the pages it was given; 0: what the runtime chooses."""

    size: ModelSize
    device: str
    pages: int = 0

    def with_kv(self, token_bytes: int) -> Placed:
        """Return a copy with the KV bytes per token that the loaded model has."""
        return dataclasses.replace(self, size=dataclasses.replace(self.size, kv_token_bytes=token_bytes))


def check_fit(models: Sequence[Placed], available: Callable[[str], int], page_size: int) -> None:
    """Refuse models that do not fit their devices together. ``available(device)``: bytes before any of them is loaded.

    Raises LimitExceeded that names the first model that does not fit beside those before it. A quantized model is never
    refused: how small it will be is not known.
    """
    taken: dict[str, list[Fit]] = {}
    for model in models:
        before = taken.setdefault(model.device, [])
        room = available(model.device) - sum(fit.needs for fit in before)
        fit = Fit(model.size, model.device, CacheRequest(pages=model.pages, page_size=page_size), room)
        if not fit.fits and not model.size.quantized:
            raise _refusal(fit, [other.model.name for other in before])
        before.append(fit)


def _refusal(fit: Fit, others: Sequence[str]) -> LimitExceeded:
    beside = f" beside {', '.join(others)}" if others else ""
    size, asked = fit.model, fit.asked
    pages = asked.least_pages(size.max_context)
    message = (
        f"model {size.name!r} in {size.dtype} does not fit {fit.device}{beside}: it needs {readable(fit.needs)} "
        f"({readable(size.weight_bytes)} of weights, {readable(size.step_bytes)} of activations, "
        f"{readable(pages * fit.page_bytes)} for {pages} KV pages), and {readable(fit.available)} are available"
    )
    raise_with = " or ".join(fit.advice) or "a device with more memory, or a smaller model"
    return LimitExceeded(message, limit="memory", value=fit.available, raise_with=raise_with)


def divide_pages(models: Sequence[Placed], free: Callable[[str], int], page_size: int) -> list[int]:
    """Return the pages of each model, once all weights are loaded. ``free(device)``: bytes.

    What is left beside the pages that were given is divided evenly, by bytes, between the models that leave it to us.
    """
    budgets = {
        device: _open_budget(models, device, free(device), page_size)
        for device in {one.device for one in models if not one.pages}
    }
    return [
        model.pages
        or default_pages(_page_bytes(model, page_size), model.size.max_context, page_size, budgets[model.device])
        for model in models
    ]


def divide_with_drafts(
    models: Sequence[Placed], owners: Sequence[int], free: Callable[[str], int], page_size: int
) -> list[int]:
    """As :func:`divide_pages`, where the last ``len(owners)`` models draft for those at the indices ``owners``.

    A draft model that leaves it to us gets as many pages as its target: they hold the same tokens, and each target's share
    of the bytes pays for both.
    """
    count = len(models) - len(owners)
    targets, alone = list(models[:count]), []
    for draft, owner in zip(models[count:], owners, strict=True):
        target = targets[owner]
        if draft.pages or draft.device != target.device:
            alone.append(draft)
        else:
            targets[owner] = target.with_kv(target.size.kv_token_bytes + draft.size.kv_token_bytes)
    pages = divide_pages([*targets, *alone], free, page_size)
    own = {id(draft): given for draft, given in zip(alone, pages[count:], strict=True)}
    return pages[:count] + [
        own.get(id(draft), pages[owner]) for draft, owner in zip(models[count:], owners, strict=True)
    ]


def _open_budget(models: Sequence[Placed], device: str, free: int, page_size: int) -> int:
    """Return the bytes for each of the models on ``device`` whose pages were not given."""
    here = [model for model in models if model.device == device]
    given = sum(model.pages * _page_bytes(model, page_size) for model in here)
    return kv_budget(device, max(0, free - given)) // sum(not model.pages for model in here)


def _page_bytes(model: Placed, page_size: int) -> int:
    return model.size.kv_token_bytes * page_size


def readable(size: int) -> str:
    """Return a size in bytes as text: 3.2 MiB."""
    value, unit = float(size), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(value) < 1024 or unit == "TiB":
            break
        value /= 1024
    return f"{int(value)} B" if unit == "B" else f"{value:.1f} {unit}"
