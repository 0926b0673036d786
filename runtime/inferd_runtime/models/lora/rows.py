"""Several LoRA adapters in one forward pass: each adds ``B (A x)`` to the outputs of its modules, for its own rows alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

from torch import Tensor, nn

from inferd_runtime.models.lora.tensors import LinearModules, Lora, LoraPair, plain_modules
from inferd_runtime.models.passes.plain import ModelPass, PlainPass
from inferd_runtime.models.passes.step_layout import StepLayout
from inferd_runtime.models.shape import KvShape


@dataclass(frozen=True, slots=True)
class AdapterRows:
    """The rows of a batch that one adapter computes: int64[n]; None is all of them."""

    lora: Lora
    rows: Tensor | None


@dataclass(frozen=True, slots=True)
class LoraDelta:
    """What one adapter adds at one module: to which rows, and to the columns from ``first`` on."""

    pair: LoraPair
    rows: Tensor | None
    first: int

    def add(self, output: Tensor, states: Tensor) -> None:
        """Add to ``output`` [T, columns] in place; ``states`` [T, in] is the module's input."""
        columns = output[:, self.first : self.first + len(self.pair.up)]
        if self.rows is None:
            columns.addmm_(states @ self.pair.down.t(), self.pair.up.t())
        else:
            columns.index_add_(0, self.rows, states.index_select(0, self.rows) @ self.pair.down.t() @ self.pair.up.t())


def changes_of(parts: Sequence[AdapterRows], name: str, first: int = 0) -> Iterator[LoraDelta]:
    """Yield what the adapters of a batch add at one module, whose columns start at ``first``."""
    for part in parts:
        if name in part.lora:
            yield LoraDelta(part.lora[name], part.rows, first)


class Adaptable(Protocol):
    """A pass that adapters can be applied to."""

    @property
    def modules(self) -> LinearModules:
        """The modules that may carry LoRA."""

    def with_adapters(self, parts: Sequence[AdapterRows]) -> ModelPass:
        """Return the pass for one batch with these adapters. It is dropped with the batch."""


class AdaptablePlain:
    """Any model's own modules; hooks add the adapters' parts, and live as long as one pass."""

    def __init__(self, model: nn.Module, kv: KvShape) -> None:
        self._model = model
        self._kv = kv

    @cached_property
    def modules(self) -> LinearModules:
        """See :class:`Adaptable`. Found out by one pass over a few tokens."""
        return plain_modules(self._model, self._kv)

    def with_adapters(self, parts: Sequence[AdapterRows]) -> ModelPass:
        """See :class:`Adaptable`."""
        return _HookedPass(self._model, parts)


class _HookedPass:
    def __init__(self, model: nn.Module, parts: Sequence[AdapterRows]) -> None:
        self._model = model
        self._parts = parts

    def __call__(self, tokens: Tensor, positions: Tensor, layout: StepLayout, rows: Tensor) -> Tensor:
        """See :class:`~inferd_runtime.models.passes.plain.ModelPass`."""
        with ExitStack() as hooks:
            for name in dict.fromkeys(name for part in self._parts for name in part.lora):
                hook = _hook(list(changes_of(self._parts, name)), len(tokens))
                hooks.callback(self._model.get_submodule(name).register_forward_hook(hook).remove)
            return PlainPass(self._model)(tokens, positions, layout, rows)


def _hook(changes: Sequence[LoraDelta], count: int) -> Callable[[nn.Module, tuple[Any, ...], Tensor], None]:
    def after(module: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> None:
        states = inputs[0].reshape(-1, inputs[0].shape[-1])
        if len(states) != count:
            raise RuntimeError(f"{type(module).__name__} ran on {len(states)} of {count} rows: no LoRA there")
        for change in changes:
            change.add(output.view(count, -1), states)

    return after
