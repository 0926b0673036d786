"""The whole of a divided model, to compare with: the plan by which it was divided may be wrong.

What a plan leaves out (a sum over features that are spread over the ranks, say) makes plausible wrong text, alike in all ranks.
So the proof at load (:mod:`selfcheck`) takes its expected logits from the whole model, which no rank has room for: a twin without
weights, whose modules fetch theirs from the ranks when they run and drop them behind. One block's weights at a time are whole: an
attention's, a feed-forward's, the head's. All ranks run it together. It moves all weights once: a load takes longer, the slower
the ranks' connection is.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor


def is_divided(model: nn.Module) -> bool:
    """True if the model is spread over ranks."""
    return any(isinstance(parameter, DTensor) for parameter in model.parameters())


def whole_twin(model: Any) -> Any:
    """Return the twin of a divided model; it works as long as the model does, and in all ranks at once."""
    config = copy.deepcopy(model.config)
    config.distributed_config = None
    with torch.device("meta"):
        twin = type(model)._from_config(config, dtype=next(model.parameters()).dtype).eval()
    absent: dict[int, Tensor] = {}
    for name, module in twin.named_modules():
        source = model.get_submodule(name)
        module._buffers.update(source._buffers)
        for key, part in source._parameters.items():
            if part is not None:
                module._parameters[key] = stand_in = _stand_in(part)
                absent[id(stand_in)] = stand_in
    for name, module in twin.named_modules():
        _Fetcher(module, model.get_submodule(name), absent)
    return twin


def _stand_in(part: Tensor) -> nn.Parameter:
    """Return a placeholder of a weight: its shape and device without its memory, and not a number everywhere."""
    nothing = torch.full((), float("nan"), dtype=part.dtype, device=part.device)
    return nn.Parameter(nothing.expand(part.shape), requires_grad=False)


def _whole(part: Tensor) -> Tensor:
    whole: Tensor = part.full_tensor() if isinstance(part, DTensor) else part
    return whole


class _Fetcher:
    """Gives a module of the twin its parameters for the time of its forward pass, and their own to the modules in it where
    these are the innermost: some families read the weights of those without calling them.
    """

    def __init__(self, module: nn.Module, source: nn.Module, absent: dict[int, Tensor]) -> None:
        inner = [(child, source.get_submodule(name)) for name, child in module.named_children()]
        block = not any(list(child.children()) for child, _ in inner)
        self._places = [(module, source), *(inner if block else [])]
        self._absent = absent
        self._fetched: list[tuple[nn.Module, str, nn.Parameter]] = []
        if any(part._parameters for part, _ in self._places):
            module.register_forward_pre_hook(self._fetch)
            module.register_forward_hook(self._drop)

    def _fetch(self, module: nn.Module, inputs: object) -> None:
        for part, source in self._places:
            for name, held in list(part._parameters.items()):
                if held is not None and id(held) in self._absent:
                    part._parameters[name] = nn.Parameter(_whole(source.get_parameter(name)), requires_grad=False)
                    self._fetched.append((part, name, held))

    def _drop(self, module: nn.Module, inputs: object, output: object) -> None:
        for part, name, absent in self._fetched:
            part._parameters[name] = absent
        self._fetched.clear()
