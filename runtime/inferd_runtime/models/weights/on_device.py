"""Weights in 8 or 4 bits on a device: each goes there alone, is rounded there or taken as it was stored, and leaves the host.

So the device never holds the dense model. What the host holds does not change before the fused pass was compared with the
model's own modules on it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from inferd.protocol import InvalidRequest
from inferd_runtime.kernels.quantized import FP8, Grouped, RowScaled, StoredWeight
from inferd_runtime.models.passes.fused import PRODUCTS, FusedPass, assembled, fuse, probe_logits
from inferd_runtime.models.passes.products import DenseProduct
from inferd_runtime.models.passes.quantized_product import QuantizedProduct
from inferd_runtime.models.shape import Probed
from inferd_runtime.models.weights.device_forms import FORMS
from inferd_runtime.models.weights.held import named_products
from inferd_runtime.models.weights.stored import HEAD, stored_products

logger = logging.getLogger(__name__)
HEAD_FORMS = {"fp8": "fp8", "int8": "int8", "int4": "int8"}
"""As on the CPU: a head in 4 bits would cost more text than it saves time."""
MULTIPLES = {"fp8": 16, "int8": 16, "int4": 32}
"""What the inputs of a weight have to be a multiple of."""
FIRST_FP8 = (8, 9)
"""The first compute capability that multiplies float8."""
DTYPES = (torch.bfloat16, torch.float16)
Capability = tuple[int, int]


def capability(device: torch.device) -> Capability:
    """Return a CUDA device's compute capability."""
    return torch.cuda.get_device_capability(device)


@dataclass(frozen=True)
class DeviceHolding:
    """How a model's large weights are to be held on a device. ``name``: the model's, for errors. ``weights``: the form, "" for
    dense. ``able``: the device's compute capability.
    """

    name: str
    weights: str
    device: torch.device
    able: Capability

    def hold(self, module: nn.Module, probe: Probed, stored: Mapping[str, StoredWeight]) -> FusedPass | None:
        """Move a model to the device and return its fused pass; ``module`` lets go of its large weights.

        Those in ``stored`` are held as they are. None, and nothing moved, where nothing is held otherwise. Raises
        InvalidRequest, which says what to do, for what the model or the device cannot do.
        """
        dtype = next(module.parameters()).dtype
        self._check(dtype)
        if dtype not in DTYPES:
            return None
        fused = fuse(module, probe.kv, probe.rules)
        if fused is None:
            if self.weights:
                only = "by the fused pass, which it has not"
                raise InvalidRequest(f"model {self.name!r}: weights can be held as {self.weights} only {only}")
            return None
        return self.hold_fused(fused, module, probe, stored)

    def hold_fused(
        self, fused: FusedPass, module: nn.Module, probe: Probed, stored: Mapping[str, StoredWeight]
    ) -> FusedPass | None:
        """As :meth:`hold`, of a model whose fused pass is known to give its logits."""
        before = probe_logits(fused, probe.kv, fused.embedding).cpu()
        usable = {
            key: one for key, one in stored_products(len(fused.layers), stored).items() if _usable(one, self.able)
        }
        made = self._made(fused, module, usable)
        if not made:
            return None
        module.to(self.device)
        held = _with_products(assembled(module, probe.rules), made)
        self._report(before, probe_logits(held, probe.kv, held.embedding).cpu())
        return held

    def _check(self, dtype: torch.dtype) -> None:
        if self.weights and dtype not in DTYPES:
            kind = str(dtype).removeprefix("torch.")
            raise InvalidRequest(
                f"model {self.name!r}: on a GPU weights are held as {self.weights} only beside bfloat16 or float16, "
                f"not {kind}: --dtype bfloat16"
            )
        if self.weights == "fp8" and self.able < FIRST_FP8:
            raise InvalidRequest(
                f"model {self.name!r}: weights in fp8 need compute capability 8.9, this device has "
                f"{self.able[0]}.{self.able[1]}: --weights int8 or --weights int4"
            )

    def _made(
        self, fused: FusedPass, module: nn.Module, stored: Mapping[str, StoredWeight]
    ) -> dict[str, QuantizedProduct]:
        """Return the products that are held otherwise, on the device. Their modules let go of the weights."""
        made = {}
        for key, product in named_products(fused).items():
            form = HEAD_FORMS[self.weights] if self.weights and key == HEAD else self.weights
            if key in stored:
                weight = _moved(stored[key], self.device)
            elif form:
                weight = self._rounded(product, form)
            else:
                continue
            bias = None if product.bias is None else product.bias.to(self.device)
            made[key] = QuantizedProduct(weight, product.shape[0], bias)
            _let_go(module, key)
        return made

    def _rounded(self, product: DenseProduct, form: str) -> StoredWeight:
        if product.shape[1] % MULTIPLES[form]:
            raise InvalidRequest(
                f"model {self.name!r}: weights of {list(product.shape)} cannot be held as {form} on a GPU: "
                f"their inputs are no multiple of {MULTIPLES[form]}"
            )
        return FORMS[form](product.weight.detach().to(self.device))

    def _report(self, before: Tensor, after: Tensor) -> None:
        """Say how far the logits of random tokens moved. Raises InvalidRequest where they are no numbers any more."""
        form = self.weights or "stored"
        if not bool(after.isfinite().all()):
            raise InvalidRequest(f"model {self.name!r}: with weights held as {form} its logits are no numbers")
        spread = (before - before.mean(dim=1, keepdim=True)).abs().amax(dim=1).clamp_min(1e-6)
        moved = float(((after - before).abs().amax(dim=1) / spread).median())
        logger.info("model %s: weights held as %s move logits by %.3f of their spread", self.name, form, moved)


def _usable(weight: StoredWeight, able: Capability) -> bool:
    return isinstance(weight, Grouped) or weight.numbers.dtype != FP8 or able >= FIRST_FP8


def _moved(weight: StoredWeight, device: torch.device) -> StoredWeight:
    if isinstance(weight, RowScaled):
        return RowScaled(weight.numbers.to(device), weight.scales.to(device))
    middles = None if weight.middles is None else weight.middles.to(device)
    return Grouped(weight.numbers.to(device), weight.scales.to(device), middles, weight.outputs)


def _let_go(module: nn.Module, key: str) -> None:
    """Take a product's weights from the modules that own them; of a head that shares the embedding's, the head alone."""
    model: Any = module
    if key == HEAD:
        if model.lm_head.weight is model.model.embed_tokens.weight:
            model.lm_head.weight = nn.Parameter(model.lm_head.weight.data, requires_grad=False)
        owners = [model.lm_head]
    else:
        index, product = key.split(".")
        owners = [model.model.layers[int(index)].get_submodule(end) for end in PRODUCTS[product]]
    for owner in owners:
        owner.weight.data = owner.weight.data.new_empty(0)


def _with_products(fused: FusedPass, made: Mapping[str, QuantizedProduct]) -> FusedPass:
    layers = [
        layer.with_products({name: made.get(f"{index}.{name}", each) for name, each in layer.products().items()})
        for index, layer in enumerate(fused.layers)
    ]
    return fused.with_layers(layers, made.get(HEAD, fused.head))
