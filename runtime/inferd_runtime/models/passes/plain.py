"""The plain pass: transformers' own modules, for every model that the probe accepts.

A layer calls :func:`layout_attention` through transformers' ``AttentionInterface``, with q, k, v after RoPE. The step's layout
travels through the modules as a keyword argument. The reference is the model's own attention.
"""

from __future__ import annotations

from typing import Any, Protocol

from torch import Tensor, nn

from inferd_runtime.kernels.attention_rule import AttentionRule
from inferd_runtime.models.passes.step_layout import StepLayout

NAME = "inferd_paged"
LAYOUT = "inferd_layout"
RULE = "inferd_rule"


class ModelPass(Protocol):
    """One forward pass from token ids to logits."""

    def __call__(self, tokens: Tensor, positions: Tensor, layout: StepLayout, rows: Tensor) -> Tensor:
        """Return the logits [R, V] of ``rows`` int64[R], of ``tokens`` and ``positions`` int64[T].

        Leaves hidden states in ``layout.hidden`` where ``layout.hidden_rows`` asks for them.
        """


class PlainPass:
    """Runs the model as transformers wrote it."""

    def __init__(self, model: nn.Module) -> None:
        self._model: Any = model

    def __call__(self, tokens: Tensor, positions: Tensor, layout: StepLayout, rows: Tensor) -> Tensor:
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

    def _logits(self, tokens: Tensor, positions: Tensor, layout: StepLayout, rows: Tensor) -> Tensor:
        output = self._model(
            input_ids=tokens[None],
            position_ids=positions[None],
            use_cache=False,
            logits_to_keep=rows,
            **{LAYOUT: layout},
        )
        logits: Tensor = output.logits[0]
        return logits


def layout_attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None,
    **kwargs: Any,
) -> tuple[Tensor, None]:  # fmt: skip
    """transformers' attention contract: q [1, H, T, D], k and v [1, Hkv, T, D] -> ([1, T, H, Dv], None).

    How the layer attends is what the probe found out and left on the module; the arguments here were checked there.
    """
    rule: AttentionRule = getattr(module, RULE)
    layer: int = module.layer_idx  # type: ignore[assignment]
    layout: StepLayout = kwargs[LAYOUT]
    out = layout.attend(layer, query, key[0].transpose(0, 1), value[0].transpose(0, 1), rule)
    return out.contiguous(), None


def _decoders(model: Any) -> set[nn.Module]:
    """Return the modules that may be the one between the embedding and the head; its output has passed the final norm.

    Where transformers keeps it differs: some heads go around the base model, some base models are not where they say.
    """
    found = (model.base_model, model.get_decoder(), getattr(model, "model", None))
    return {module for module in found if isinstance(module, nn.Module) and module is not model}
