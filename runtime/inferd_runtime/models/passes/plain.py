"""The plain way through a model: transformers' own modules. It works for every model that the probe accepts."""

from __future__ import annotations

from typing import Any, Protocol

from torch import Tensor, nn

from inferd_runtime.models.passes.attention import LAYOUT, Layout, StepLayout


class ModelPass(Protocol):
    """One forward pass from token ids to logits."""

    def __call__(self, tokens: Tensor, positions: Tensor, layout: StepLayout, rows: Tensor) -> Tensor:
        """``tokens`` and ``positions`` int64[T], ``rows`` int64[R]: the logits [R, V] of those rows.

        Leaves hidden states in ``layout.hidden`` where ``layout.hidden_rows`` asks for them.
        """
        ...


class PlainPass:
    """Runs the model as transformers wrote it."""

    def __init__(self, model: nn.Module) -> None:
        self._model: Any = model

    def __call__(self, tokens: Tensor, positions: Tensor, layout: Layout, rows: Tensor) -> Tensor:
        """See :class:`ModelPass`."""
        if layout.hidden_rows is None:
            return self._logits(tokens, positions, layout, rows)

        def keep(module: nn.Module, inputs: object, output: Any) -> None:
            if hasattr(output, "last_hidden_state"):
                layout.hidden = output.last_hidden_state[0, layout.hidden_rows]

        watched = [module.register_forward_hook(keep) for module in _decoders(self._model)]
        try:
            return self._logits(tokens, positions, layout, rows)
        finally:
            for watch in watched:
                watch.remove()

    def _logits(self, tokens: Tensor, positions: Tensor, layout: Layout, rows: Tensor) -> Tensor:
        output = self._model(
            input_ids=tokens[None],
            position_ids=positions[None],
            use_cache=False,
            logits_to_keep=rows,
            **{LAYOUT: layout},
        )
        logits: Tensor = output.logits[0]
        return logits


def _decoders(model: Any) -> set[nn.Module]:
    """The modules that may be the one between the embedding and the head; its output has passed the final norm.

    Where transformers keeps it differs: some heads go around the base model, some base models are not where they say.
    """
    found = (model.base_model, model.get_decoder(), getattr(model, "model", None))
    return {module for module in found if isinstance(module, nn.Module) and module is not model}
