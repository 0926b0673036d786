"""The plain way through a model: transformers' own modules. It works for every model that the probe accepts."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor, nn

from inferd_runtime.models.attention import LAYOUT, StepLayout


class ModelPass(Protocol):
    """One forward pass from token ids to logits."""

    def __call__(self, tokens: Tensor, positions: Tensor, layout: StepLayout, rows: Tensor) -> Tensor:
        """``tokens`` and ``positions`` int64[T], ``rows`` int64[R]: the logits [R, V] of those rows."""
        ...


class PlainPass:
    """Runs the model as transformers wrote it."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model

    def __call__(self, tokens: Tensor, positions: Tensor, layout: StepLayout, rows: Tensor) -> Tensor:
        """See :class:`ModelPass`."""
        output = self._model(
            input_ids=tokens[None],
            position_ids=positions[None],
            use_cache=False,
            logits_to_keep=rows,
            **{LAYOUT: layout},
        )
        logits: Tensor = output.logits[0]
        return logits
