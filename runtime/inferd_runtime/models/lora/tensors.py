"""Reading the weights of a LoRA adapter for one model: every tensor is accounted for, or the adapter is refused by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from inferd.protocol import InvalidRequest
from inferd_runtime.models.batch import Batch, Span
from inferd_runtime.models.lora.files import ALL_LINEAR, WEIGHTS, AdapterFiles, LoraConfig
from inferd_runtime.models.lora.tensor_file import tensors_of
from inferd_runtime.models.passes.attention import lay_out
from inferd_runtime.models.passes.plain import PlainPass
from inferd_runtime.models.shape import KvShape

PREFIX = "base_model.model."
NOT_EVERY_ROW = (
    "LoRA is not supported on a module that does not run once on every token, such as an expert or the output head"
)
DOWN, UP = ".lora_A.weight", ".lora_B.weight"
PROBE_TOKENS = 12
MODULE_BYTES = 1 << 10
"""Of a file's header, for each of the model's modules: more names tensors of none, and tens of thousands take half a second."""
CONV1D = "transformers.pytorch_utils.Conv1D"
"""By its name: a start that finds the model's proof does not import transformers."""


@dataclass(frozen=True, slots=True)
class LoraPair:
    """One module's change: ``down`` [r, in] is A, ``up`` [out, r] is B with the scaling in it."""

    down: Tensor
    up: Tensor

    @property
    def bytes(self) -> int:
        """Bytes of both."""
        return self.down.nbytes + self.up.nbytes


Lora = Mapping[str, LoraPair]
"""An adapter: what it changes, by the module's path."""


@dataclass(frozen=True, slots=True)
class LinearModules:
    """The linear modules of a model: ``usable`` ones may carry LoRA, (inputs, outputs) by path; ``others`` cannot, and why."""

    usable: Mapping[str, tuple[int, int]]
    others: Mapping[str, str]

    def check(self, name: str) -> tuple[int, int]:
        """Return the widths of a usable module. Raises InvalidRequest."""
        if name not in self.usable:
            why = self.others.get(name, "this model has no such linear module")
            raise InvalidRequest(f"{WEIGHTS}: module {name!r}: {why}")
        return self.usable[name]


def linear_modules(model: nn.Module) -> dict[str, nn.Module]:
    """Return linear modules by path: nn.Linear and transformers' Conv1D. Subclasses may compute something else."""
    return {name: part for name, part in model.named_modules() if type(part) is nn.Linear or _is_conv1d(part)}


def plain_modules(model: nn.Module, kv: KvShape) -> LinearModules:
    """Return the modules of the plain pass: linear modules that run once per pass on every row of the batch, in order.

    Experts, which see some rows only, and the output head, which sees the wanted rows only, are none.
    """
    linear = linear_modules(model)
    counts = _trace(model, kv, linear)
    usable = {name: _widths(part) for name, part in linear.items() if counts[name] == [PROBE_TOKENS]}
    return LinearModules(usable, {name: NOT_EVERY_ROW for name in linear if name not in usable})


def _is_conv1d(module: nn.Module) -> bool:
    return f"{type(module).__module__}.{type(module).__qualname__}" == CONV1D


def _widths(module: nn.Module) -> tuple[int, int]:
    """Return (inputs, outputs): transformers' Conv1D keeps its weight as [in, out], Linear as [out, in]."""
    weight = module.weight
    assert isinstance(weight, Tensor)
    return (weight.shape[0], weight.shape[1]) if _is_conv1d(module) else (weight.shape[1], weight.shape[0])


@torch.inference_mode()
def _trace(model: nn.Module, kv: KvShape, linear: Mapping[str, nn.Module]) -> dict[str, list[int]]:
    """Return how many rows each linear module saw, call by call, in one pass over PROBE_TOKENS tokens."""
    counts: dict[str, list[int]] = {name: [] for name in linear}

    def note(name: str, inputs: Tensor) -> None:
        counts[name].append(inputs.numel() // inputs.shape[-1])

    handles = [
        part.register_forward_pre_hook(lambda _, inputs, name=name: note(name, inputs[0]))
        for name, part in linear.items()
    ]
    try:
        _probe_pass(model, kv)
    finally:
        for handle in handles:
            handle.remove()
    return counts


def _probe_pass(model: nn.Module, kv: KvShape) -> None:
    like = next(model.parameters())
    at = torch.arange(PROBE_TOKENS)
    batch = Batch(at.numpy(), at.numpy(), at.numpy(), at[:1].numpy(), [Span(0, PROBE_TOKENS, 0, [0])])
    keys, values = (
        [torch.zeros(1, PROBE_TOKENS, heads, width, dtype=like.dtype, device=like.device) for heads, width in shapes]
        for shapes in (kv.keys, kv.values)
    )
    at = at.to(like.device)
    PlainPass(model)(at, at, lay_out(batch, keys, values, PROBE_TOKENS), at[:1])


@torch.inference_mode()
def read_lora(files: AdapterFiles, modules: LinearModules, dtype: torch.dtype) -> Lora:
    """Return the adapter's weights, on the CPU.

    Raises InvalidRequest that names the option, the tensor or the module that does not fit.
    """
    config = LoraConfig.parse(files)
    most = MODULE_BYTES * (1 + len(modules.usable) + len(modules.others))
    tensors = tensors_of(files.weights, WEIGHTS, most)
    found = {module: _read_pair(tensors, module, modules.check(module), config) for module in _modules(tensors)}
    if not found:
        raise InvalidRequest(f"{WEIGHTS} holds no weights")
    for name in (*modules.usable, *modules.others):
        if config.names(name) and name not in found and (config.targets != ALL_LINEAR or name in modules.usable):
            raise InvalidRequest(f"{WEIGHTS}: target_modules names {name!r}, and there are no weights for it")
    return {name: _scaled(pair, config.scaling_of(name), name, dtype) for name, pair in found.items()}


def _modules(tensors: Mapping[str, Tensor]) -> list[str]:
    """Return the paths of the modules that have weights. Raises InvalidRequest for a tensor that is neither an A nor a B."""
    modules: dict[str, None] = {}
    for key in sorted(tensors):
        if not key.startswith(PREFIX) or not key.endswith((DOWN, UP)):
            raise InvalidRequest(f"{WEIGHTS}: {key!r} is not supported, only {PREFIX}*{DOWN} and *{UP}")
        modules[key.removeprefix(PREFIX).removesuffix(DOWN).removesuffix(UP)] = None
    return list(modules)


def _read_pair(
    tensors: Mapping[str, Tensor], module: str, site: tuple[int, int], config: LoraConfig
) -> tuple[Tensor, Tensor]:
    """Return A [r, in] and B [out, r] of a module, checked."""
    if not config.names(module):
        raise InvalidRequest(f"{WEIGHTS} holds weights for {module!r}, which target_modules does not name")
    rank = config.rank_of(module)
    wanted = {DOWN: (rank, site[0]), UP: (site[1], rank)}
    pair: list[Tensor] = []
    for suffix, shape in wanted.items():
        key = PREFIX + module + suffix
        if key not in tensors:
            raise InvalidRequest(f"{WEIGHTS}: {key!r} is missing")
        tensor = tensors[key]
        if tuple(tensor.shape) != shape:
            raise InvalidRequest(f"{WEIGHTS}: {key!r} is {list(tensor.shape)}, this model and rank need {list(shape)}")
        pair.append(tensor)
    return pair[0], pair[1]


def _scaled(pair: tuple[Tensor, Tensor], scaling: float, module: str, dtype: torch.dtype) -> LoraPair:
    """Return the pair in the model's dtype, scaled. Raises InvalidRequest if it is not finite or overflows that dtype."""
    down = pair[0].to(dtype, copy=True)  # not a view, which would keep the file
    up = (pair[1].to(torch.float32) * scaling).to(dtype)
    if not (torch.isfinite(down).all() and torch.isfinite(up).all()):
        raise InvalidRequest(f"{WEIGHTS}: the weights for {module!r} are not finite numbers in {dtype}")
    return LoraPair(down.contiguous(), up.contiguous())
