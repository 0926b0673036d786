"""Measure a model by its configuration alone: it is built on the meta device, where tensors have shapes and no data.

No weights are read and no code of the model's repository is run.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AutoModelForCausalLM

from inferd.protocol import InvalidRequest
from inferd_runtime.kernels.native.blocks import block_kernels
from inferd_runtime.models.checkpoint import read_config, reported
from inferd_runtime.models.checks.probe import context_length
from inferd_runtime.models.checks.reach import UnsupportedAttention
from inferd_runtime.models.devices import check_device
from inferd_runtime.models.fitting.fit import MatrixSizes, ModelSize
from inferd_runtime.models.fitting.sizing import STREAMS
from inferd_runtime.models.loaded import DTYPES
from inferd_runtime.models.options import AUTO, ModelOptions
from inferd_runtime.models.passes.fused import FAMILIES
from inferd_runtime.models.quantized.layout import stored_layout
from inferd_runtime.models.shape import KvShape
from inferd_runtime.models.store.pull import resolve
from inferd_runtime.models.weights.auto_dtype import cpu_dtype

RECORDER = "inferd_recorder"
STEP_TOKENS = 512
LIVE_ACTIVATIONS = 4
FLOAT32_BYTES = 4


def measure(options: ModelOptions) -> ModelSize:
    """Return the sizes of a model in the dtype and on the device of ``options``.

    Raises NotFound when there is no such folder or hub model, InvalidRequest for a dtype, device or model that cannot be
    served here.
    """
    name, device = options.name, check_device(options.device or "cpu")
    config = read_config(name, resolve(name))
    dtype = _dtype(options.dtype, device, config)
    with torch.device("meta"), reported(name, "its configuration is that of no model"):
        loader: Any = AutoModelForCausalLM
        module = loader.from_config(config, dtype=dtype, trust_remote_code=False)
    try:
        kv, source = kv_shape(module)
        max_context = context_length(config)
    except UnsupportedAttention as error:
        raise InvalidRequest(f"model {name!r} cannot be served: {error}") from error
    size = ModelSize(
        name=name,
        dtype=str(dtype).removeprefix("torch."),
        parameters=sum(parameter.numel() for parameter in module.parameters()),
        weight_bytes=tensor_bytes(module),
        kv_token_bytes=kv.bytes_per_token(dtype.itemsize),
        kv_source=source,
        step_bytes=_step_bytes(module, dtype.itemsize),
        max_context=max_context,
        matrices=matrix_sizes(module),
    )
    return _quantized(size, config, options, device)


def matrix_sizes(module: Any) -> MatrixSizes | None:
    """Return what the weights are of a model that may have a fused pass; None of any other."""
    if module.config.model_type not in FAMILIES:
        return None
    head = module.get_output_embeddings().weight
    layers = [weight for name, weight in module.named_parameters() if weight.dim() == 2 and ".layers." in name]
    return MatrixSizes(
        layers=sum(weight.numel() for weight in layers),
        head=head.numel(),
        tied=head is module.get_input_embeddings().weight,
    )


def _quantized(size: ModelSize, config: Any, options: ModelOptions, device: str) -> ModelSize:
    """Return the size as the weights are held: as ``options`` say, or as a quantized checkpoint stores them."""
    found = getattr(config, "quantization_config", None) or {}
    if not found:
        return size.held(options.weights, device)
    layout = stored_layout(size.name, config.to_dict())
    method = str(found.get("quant_method", "unknown"))
    counted = (0, 0) if layout is None else (layout.held_bits, layout.group)
    # The CPU's blocks need its own kernels.
    if device == "cpu" and block_kernels() is None:
        counted = (0, 0)
    return size.as_stored(method, *counted, device)


def _dtype(name: str, device: str, config: Any) -> torch.dtype:
    """As :func:`~inferd_runtime.models.loading.load` chooses it; a checkpoint that does not say counts as float32."""
    if name == AUTO and device == "cpu":
        return cpu_dtype(config)
    if name and name != AUTO:
        return DTYPES[name]
    own = getattr(config.get_text_config(), "dtype", None)
    return own if device != "cpu" and isinstance(own, torch.dtype) else torch.float32


def tensor_bytes(module: nn.Module) -> int:
    """Return bytes of a module's parameters and buffers, shared ones once."""
    return sum(tensor.numel() * tensor.element_size() for tensor in (*module.parameters(), *module.buffers()))


def _step_bytes(module: Any, item_size: int) -> int:
    """Return a bound on one step's activations: a few of the widest rows per token of the budget, and the streams' logits."""
    vocabulary = int(module.get_input_embeddings().weight.shape[0])
    shapes = [weight.shape[-2:] for weight in module.parameters() if weight.dim() > 1]
    widest = max((max(shape) for shape in shapes if vocabulary not in shape), default=0)
    logits = STREAMS * vocabulary * (item_size + FLOAT32_BYTES)
    return STEP_TOKENS * LIVE_ACTIVATIONS * widest * item_size + logits


def kv_shape(module: Any) -> tuple[KvShape, str]:
    """Return the KV shape of a model on the meta device, and where it comes from (:attr:`ModelSize.kv_source`).

    Every layer's keys and values are seen in one pass without data. A model whose code needs data, or whose layers do not
    attend through transformers' interface, counts with the heads and width of its configuration. Raises UnsupportedAttention
    when that names none.
    """
    recorder = _ShapeRecorder()
    AttentionInterface.register(RECORDER, recorder)
    text = module.config.get_text_config()
    layers = range(int(text.num_hidden_layers))
    try:
        module.set_attn_implementation(RECORDER)
        module.set_experts_implementation("batched_mm")  # the other ways read which expert was chosen
        at = torch.arange(2, device="meta")[None]
        with torch.inference_mode():
            module(input_ids=at, position_ids=at, use_cache=False)
    except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError):
        recorder.keys.clear()  # its code reads values, which are not there
    if set(recorder.keys) >= set(layers):
        order = sorted(recorder.keys)
        return KvShape(*(tuple(seen[layer] for layer in order) for seen in (recorder.keys, recorder.values))), "layers"
    return KvShape((_configured(text),) * len(layers), (_configured(text),) * len(layers)), "config"


def _configured(text: Any) -> tuple[int, int]:
    """Return (heads, width) of keys and values by a configuration. Raises UnsupportedAttention when it names none."""
    heads = getattr(text, "num_attention_heads", None)
    if not isinstance(heads, int) or heads < 1:
        raise UnsupportedAttention("its configuration names no attention heads")
    width = getattr(text, "head_dim", None) or text.hidden_size // heads
    return int(getattr(text, "num_key_value_heads", None) or heads), int(width)


class _ShapeRecorder:
    """Stands in for the attention during one pass, and records (heads, width) of each layer's keys and values."""

    def __init__(self) -> None:
        self.keys: dict[int, tuple[int, int]] = {}
        self.values: dict[int, tuple[int, int]] = {}

    def __call__(
        self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, **kwargs: Any
    ) -> tuple[Tensor, None]:
        """transformers' attention contract."""
        layer = int(module.layer_idx)  # type: ignore[arg-type]
        self.keys[layer] = (int(key.shape[1]), int(key.shape[3]))
        self.values[layer] = (int(value.shape[1]), int(value.shape[3]))
        return query.new_zeros(query.shape[0], query.shape[2], query.shape[1], value.shape[3]), None
