"""Loading a model from a local transformers folder or a hub id, and the probe that decides whether it can be served."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from inferd.protocol import InvalidRequest, NotFound
from inferd_runtime.models.attention import (
    LAYOUT,
    NAME,
    AttentionRule,
    UnsupportedAttention,
    check_arguments,
    paged_attention,
)
from inferd_runtime.models.shape import KvShape
from inferd_runtime.models.tokenizer import HubTokenizer

EMBEDDED = {"tiny": "tiny/target", "tiny-draft": "tiny/draft"}
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True)
class Probed:
    """What the probe learned: the KV shape, and how each layer attends."""

    kv: KvShape
    rules: tuple[AttentionRule, ...]


@dataclass(frozen=True)
class LoadedModel:
    """A model that is ready to be driven, with its tokenizer."""

    name: str
    module: nn.Module
    tokenizer: HubTokenizer
    probe: Probed
    vocab_size: int
    max_context: int
    fingerprint: str


def resolve(name: str) -> str:
    """The folder of an embedded model; any other name (a folder, a hub id) as it is."""
    if name in EMBEDDED:
        return str(Path(__file__).parent / EMBEDDED[name])
    return name


def load(name: str, *, device: str = "cpu", dtype: str = "") -> LoadedModel:
    """Load weights and tokenizer. ``dtype`` "" is float32 on the CPU and the checkpoint's own elsewhere.

    Raises NotFound when there is no such folder or hub model, InvalidRequest naming the reason when it cannot be served.
    """
    source = resolve(name)
    try:
        config = AutoConfig.from_pretrained(source)
        tokenizer = AutoTokenizer.from_pretrained(source)
        module: Any = AutoModelForCausalLM.from_pretrained(source, dtype=_dtype(dtype, device))
    except (OSError, ValueError) as error:
        raise NotFound(f"model {name!r} cannot be loaded: {error}") from error
    module = module.to(device).eval()
    text_config = config.get_text_config()
    return LoadedModel(
        name=name,
        module=module,
        tokenizer=HubTokenizer(tokenizer, eos_tokens(module.generation_config, tokenizer)),
        probe=attach(module, name),
        vocab_size=int(module.get_output_embeddings().weight.shape[0]),
        max_context=int(getattr(text_config, "max_position_embeddings", 0) or text_config.n_positions),
        fingerprint=fingerprint(config.to_dict(), module),
    )


def _dtype(name: str, device: str) -> torch.dtype | str:
    if not name:
        return torch.float32 if device == "cpu" else "auto"
    if name not in DTYPES:
        raise InvalidRequest(f"dtype {name!r} is not one of {', '.join(DTYPES)}")
    return DTYPES[name]


def eos_tokens(generation: GenerationConfig | None, tokenizer: Any) -> tuple[int, ...]:
    """The ids that end a text, from the generation config, else from the tokenizer."""
    found = generation.eos_token_id if generation is not None else None
    if found is None:
        found = tokenizer.eos_token_id
    ids = found if isinstance(found, list) else [found]
    return tuple(sorted(int(token) for token in ids if token is not None))


def attach(module: nn.Module, name: str) -> Probed:
    """Switch the model to paged attention and make sure that every layer really uses it.

    Some families ignore the setting without a word, so a probe records which layers call and what they bring. Raises
    InvalidRequest that names the layers that did not call, or what they ask for that is not supported.
    """
    probe = _Probe()
    AttentionInterface.register(NAME + "_probe", probe)
    AttentionInterface.register(NAME, paged_attention)
    config: Any = module.config
    layers = int(config.get_text_config().num_hidden_layers)
    try:
        module.set_attn_implementation(NAME + "_probe")  # type: ignore[operator]
        with torch.inference_mode():
            ids = torch.zeros(1, 2, dtype=torch.int64, device=next(module.parameters()).device)
            module(input_ids=ids, position_ids=torch.arange(2)[None].to(ids.device), use_cache=False, **{LAYOUT: probe})
    except (UnsupportedAttention, ValueError, TypeError) as error:
        raise InvalidRequest(f"model {name!r} cannot be served: {error}") from error
    silent = sorted(set(range(layers)) - set(probe.keys))
    if silent or config.is_encoder_decoder:
        raise InvalidRequest(f"model {name!r} cannot be served: layers {silent} do not use the attention interface")
    module.set_attn_implementation(NAME)  # type: ignore[operator]
    order = range(layers)
    kv = KvShape(tuple(probe.keys[i] for i in order), tuple(probe.values[i] for i in order))
    return Probed(kv, tuple(probe.rules[i] for i in order))


class _Probe:
    """Stands in for the attention once, to see who calls it and with what."""

    def __init__(self) -> None:
        self.keys: dict[int, tuple[int, int]] = {}
        self.values: dict[int, tuple[int, int]] = {}
        self.rules: dict[int, AttentionRule] = {}

    def __call__(
        self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kwargs: Any
    ) -> tuple[Tensor, None]:
        if kwargs.pop(LAYOUT, None) is not self:
            raise UnsupportedAttention("keyword arguments do not reach the attention")
        check_arguments(attention_mask, kwargs)
        layer = int(module.layer_idx)  # type: ignore[arg-type]
        self.keys[layer] = (int(key.shape[1]), int(key.shape[3]))
        self.values[layer] = (int(value.shape[1]), int(value.shape[3]))
        self.rules[layer] = AttentionRule(kwargs.get("scaling"), kwargs.get("sliding_window"), kwargs.get("softcap"))
        return query.new_zeros(1, query.shape[2], query.shape[1], value.shape[3]), None


def fingerprint(config: dict[str, Any], module: nn.Module) -> str:
    """A short hash of the configuration and of a sample of the weights."""
    digest = hashlib.sha256(json.dumps(config, sort_keys=True, default=str).encode())
    for name, tensor in sorted(module.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.reshape(-1)[:16].float().cpu().numpy().tobytes())
    return digest.hexdigest()[:16]
