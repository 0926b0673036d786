"""The probe: find out how every layer of a model attends, and refuse models that it does not understand.

Some families ignore the attention setting without a word, some pass arguments that change the result, some carry state from
token to token outside attention. Each would be served as plausible wrong text. So the probe runs the model with a stand-in
for the attention, once on a few tokens and once on a single one, and then :mod:`selfcheck` compares logits.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface

from inferd.protocol import InvalidRequest
from inferd_runtime.kernels.attention_rule import AttentionRule
from inferd_runtime.models.checks.reach import MaskFunction, Reach, UnsupportedAttention, read_reach
from inferd_runtime.models.checks.selfcheck import LogitCheck
from inferd_runtime.models.parallel_whole import is_divided, whole_twin
from inferd_runtime.models.passes.plain import LAYOUT, NAME, RULE, layout_attention
from inferd_runtime.models.shape import KvShape, Probed

PROBE = NAME + "_probe"
APPLIED = frozenset(("scaling", "softcap", "s_aux"))
# The mask tells the window; the rest changes nothing in an inference pass without padding.
OUTPUTS = ("output_attentions", "output_router_logits", "logits_to_keep")
HARMLESS = frozenset(
    ("sliding_window", "dropout", "is_causal", "position_ids", "use_cache", "cache_position", *OUTPUTS)
)


@dataclass(frozen=True, slots=True)
class AttentionCall:
    """One layer's call: (heads, width) of its keys and values, its rule, and the module to leave the rule on."""

    keys: tuple[int, int]
    values: tuple[int, int]
    rule: AttentionRule
    module: nn.Module


def context_length(config: Any) -> int:
    """Return how many positions a model has, in tokens. Raises InvalidRequest when its configuration does not say.

    LongRoPE changes the rotation of every earlier key once a text passes the original length, which cached keys cannot
    follow: such a model is served up to that length. Where queries are scaled by a position that the model counts by itself
    (Llama 4's temperature tuning), up to the first one that is scaled.
    """
    text = config.get_text_config()
    length = getattr(text, "max_position_embeddings", None) or getattr(text, "n_positions", None)
    if not isinstance(length, int):
        raise UnsupportedAttention("its configuration names no context length")
    rope = getattr(text, "rope_parameters", None) or {}
    for part in (rope, *(part for part in rope.values() if isinstance(part, dict))):
        if part.get("rope_type") == "longrope":
            length = min(length, int(part.get("original_max_position_embeddings") or length))
    if getattr(text, "attn_temperature_tuning", False):
        length = min(length, int(text.floor_scale) - 1)
    return length


def attach(module: nn.Module, name: str) -> Probed:
    """Switch the model to paged attention and make sure that every layer really uses it, exactly.

    Leaves on each attention module the rule by which it attends. Raises InvalidRequest that names the layers that do not
    call, or what they ask for that is not supported, or how far the logits are off.
    """
    model: Any = module
    try:
        calls = _probe(model)
        check = LogitCheck(model, whole_twin(model) if is_divided(model) else model)
        kv = KvShape(tuple(call.keys for call in calls), tuple(call.values for call in calls))
        for call in calls:
            setattr(call.module, RULE, call.rule)
        AttentionInterface.register(NAME, layout_attention)
        model.set_attn_implementation(NAME)
        check.compare(kv)
    except UnsupportedAttention as error:
        raise InvalidRequest(f"model {name!r} cannot be served: {error}") from error
    except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:
        # A family's own code runs here, in ways that it may not know; what it raises is its answer.
        raise InvalidRequest(f"model {name!r} cannot be served: it does not run as a decoder: {error}") from error
    return Probed(kv, tuple(call.rule for call in calls), context_length(model.config))


def _probe(model: Any) -> list[AttentionCall]:
    """Return every layer's call in order. Raises UnsupportedAttention if a single token's differs from a prompt's."""
    layers = int(model.config.get_text_config().num_hidden_layers)
    if model.config.is_encoder_decoder:
        raise UnsupportedAttention("it is an encoder-decoder model")
    prompt, single = (_record(model, positions) for positions in (range(3), range(3, 4)))
    silent = sorted(set(range(layers)) - set(prompt))
    if silent:
        raise UnsupportedAttention(f"{_named(model, silent)} do not use the attention interface")
    if sorted(prompt) != list(range(len(prompt))):
        raise UnsupportedAttention(f"its layers are numbered {sorted(prompt)}")
    for layer, call in prompt.items():
        if single.get(layer) != call or not _same_memory(single[layer].rule.sinks, call.rule.sinks):
            raise UnsupportedAttention(f"{_named(model, [layer])} attends to one token otherwise than to several")
    return [prompt[layer] for layer in sorted(prompt)]


def _same_memory(one: Tensor | None, other: Tensor | None) -> bool:
    """True if two calls handed over one tensor; a rank's part of it is another object each time."""
    return one is other or (one is not None and other is not None and one.data_ptr() == other.data_ptr())


def _named(model: nn.Module, layers: Iterable[int]) -> str:
    """Return layers by number, with the classes that carry these numbers."""
    numbers = list(layers)
    innermost = {getattr(part, "layer_idx", None): type(part).__name__ for part in model.modules()}
    classes = sorted({innermost[layer] for layer in numbers if layer in innermost})
    text = f"layer {numbers[0]}" if len(numbers) == 1 else f"layers {', '.join(map(str, numbers))}"
    return f"{text} ({', '.join(classes)})" if classes else text


def _record(model: Any, positions: range) -> dict[int, AttentionCall]:
    """Run the model once with the stand-in: which layers call, and with what."""
    stand_in = _RecordingAttention(model.config)
    AttentionInterface.register(PROBE, stand_in)
    AttentionMaskInterface.register(PROBE, stand_in.mask)
    device = next(model.parameters()).device
    at = torch.tensor([list(positions)], device=device)
    model.set_attn_implementation(PROBE)
    with torch.inference_mode():
        model(input_ids=torch.ones_like(at), position_ids=at, use_cache=False, **{LAYOUT: stand_in})
    return stand_in.calls


class _RecordingAttention:
    """Stands in for the attention during one pass, and records which layers call it and with what."""

    def __init__(self, config: Any) -> None:
        self.calls: dict[int, AttentionCall] = {}
        self._config = config
        self._masks: dict[int, tuple[Tensor, MaskFunction]] = {}
        self._reaches: dict[int, Reach] = {}

    def mask(
        self, *, batch_size: int, q_length: int, kv_length: int, mask_function: MaskFunction, device: torch.device,
        **kwargs: Any,
    ) -> Tensor:  # fmt: skip
        """transformers' mask contract: return a mask [B, 1, q, L] whose address identifies the function that it stands for."""
        mask = torch.ones(batch_size, 1, q_length, kv_length, dtype=torch.bool, device=device)
        self._masks[mask.data_ptr()] = mask, mask_function
        return mask

    def __call__(
        self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kwargs: Any
    ) -> tuple[Tensor, None]:
        """transformers' attention contract; the output is zeros."""
        who = f"layer {getattr(module, 'layer_idx', '?')} ({type(module).__name__})"
        layer = getattr(module, "layer_idx", None)
        if not isinstance(layer, int):
            raise UnsupportedAttention(f"{who} has no number of its own")
        if layer in self.calls:
            raise UnsupportedAttention(f"{who} attends twice, or shares its number with another layer")
        if kwargs.pop(LAYOUT, None) is not self:
            raise UnsupportedAttention(f"{who} does not get the keyword arguments of the forward pass")
        try:
            reach = self._reach(attention_mask)
            _check_arguments(kwargs, query.shape[1])
        except UnsupportedAttention as error:
            raise UnsupportedAttention(f"{who}: {error}") from error
        rule = AttentionRule(
            kwargs.get("scaling"), reach.window, kwargs.get("softcap"), reach.chunk, kwargs.get("s_aux")
        )
        self.calls[layer] = AttentionCall(_shape(key), _shape(value), rule, module)
        return query.new_zeros(1, query.shape[2], query.shape[1], value.shape[3]), None

    def _reach(self, mask: Tensor | None) -> Reach:
        if mask is None:
            raise UnsupportedAttention("it attends without a mask")
        if mask.data_ptr() not in self._masks:
            raise UnsupportedAttention("it makes an attention_mask of its own")
        function = self._masks[mask.data_ptr()][1]
        if id(function) not in self._reaches:
            self._reaches[id(function)] = read_reach(function, context_length(self._config), mask.device)
        return self._reaches[id(function)]


def _shape(states: Tensor) -> tuple[int, int]:
    """Return (heads, width) of k or v [1, Hkv, T, D]."""
    return int(states.shape[1]), int(states.shape[3])


def _check_arguments(kwargs: dict[str, Any], heads: int) -> None:
    """Raise UnsupportedAttention for an argument that would change the result and is not applied here."""
    given = {name: argument for name, argument in kwargs.items() if argument is not None}
    unknown = sorted(given.keys() - APPLIED - HARMLESS)
    if unknown:
        raise UnsupportedAttention(f"attention arguments {', '.join(unknown)} are not supported")
    if given.get("dropout"):
        raise UnsupportedAttention("dropout is not zero")
    for name in ("scaling", "softcap"):
        if not isinstance(given.get(name, 1.0), int | float):
            raise UnsupportedAttention(f"{name} is not a plain number")
    sinks = given.get("s_aux")
    if sinks is not None and sinks.shape != (heads,):
        raise UnsupportedAttention(f"s_aux of shape {list(sinks.shape)} is not one logit per head")
