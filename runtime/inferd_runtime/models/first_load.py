"""The first load of a model: through transformers, up to the point where it is known to be served exactly."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import GenerationConfig
from transformers.utils.logging import disable_progress_bar

from inferd_runtime.models.checkpoint import check_vocabulary, read_config, read_tokenizer, read_weights
from inferd_runtime.models.checks.probe import attach
from inferd_runtime.models.fitting.inspection import measure
from inferd_runtime.models.loaded import LoadedModel, fingerprint
from inferd_runtime.models.options import AUTO, ModelOptions
from inferd_runtime.models.parallel import check_plan, own_part
from inferd_runtime.models.passes.device import FIXED_ROPE
from inferd_runtime.models.passes.divided import fuse_part
from inferd_runtime.models.passes.fused import is_known
from inferd_runtime.models.passes.ranks import ranks_on
from inferd_runtime.models.proved.decoder import ProvedDecoder, RotaryEmbedding, read_weights as read_tensors
from inferd_runtime.models.proved.store import KeptDecoder, KeptProof, KeptRule, KeptTokenizer
from inferd_runtime.models.tokenizer import HubTokenizer
from inferd_runtime.models.weights.auto_dtype import cpu_dtype
from inferd_runtime.models.weights.on_device import DeviceHolding, capability

TRIED_POSITIONS = 4096


def load_first(
    name: str, source: str, device: str, dtype: torch.dtype | str, ranks: int, weights: str = ""
) -> LoadedModel:
    """Load weights and tokenizer, and prove that they are served exactly. See :func:`~inferd_runtime.models.loading.load`."""
    disable_progress_bar()  # type: ignore[no-untyped-call]
    config = read_config(name, source)
    tokenizer = read_tokenizer(name, source)
    if ranks > 1:
        check_plan(name, config, ranks)
    if dtype == AUTO and device == "cpu":
        dtype = cpu_dtype(config)
    read = read_weights(name, source, config, dtype, ranks)
    module: Any = read.module.eval()
    # What is held otherwise goes to the device weight by weight.
    apart = device != "cpu" and ranks == 1 and bool(weights or read.stored)
    if ranks == 1 and not apart:
        module.to(device)
    vocab_size = check_vocabulary(name, tokenizer, module)
    probed = attach(module, name)
    loaded = LoadedModel(
        name=name,
        module=module,
        tokenizer=HubTokenizer.of(tokenizer, eos_tokens(module.generation_config, tokenizer)),
        probe=probed,
        vocab_size=vocab_size,
        max_context=probed.context,
        fingerprint=fingerprint(config.to_dict(), module),
        stored=read.stored,
    )
    if ranks > 1:
        group = ranks_on(own_part(next(module.parameters())))
        return replace(loaded, part=fuse_part(module, probed.kv, probed.rules, group))
    return _held_on(loaded, torch.device(device), weights) if apart else loaded


def _held_on(loaded: LoadedModel, device: torch.device, weights: str) -> LoadedModel:
    """Return a model that the host has loaded, on its device, with weights as they are held there."""
    holding = DeviceHolding(loaded.name, weights, device, capability(device))
    held = holding.hold(loaded.module, loaded.probe, loaded.stored or {})
    if held is None:
        loaded.module.to(device)
    return replace(loaded, held=held, stored=None if loaded.stored is None else {})


def eos_tokens(generation: GenerationConfig | None, tokenizer: Any) -> tuple[int, ...]:
    """Return the ids that end a text, from the generation config, else from the tokenizer."""
    found = generation.eos_token_id if generation is not None else None
    if found is None:
        found = tokenizer.eos_token_id
    ids = found if isinstance(found, list) else [found]
    return tuple(sorted(int(token) for token in ids if token is not None))


def proof_of(loaded: LoadedModel, source: str, dtype: str) -> KeptProof | None:
    """Return what to keep of a model that was loaded on the CPU; None where its files alone do not give the same model.

    To be called before its weights are packed: they are compared with the files', number by number.
    """
    rules = loaded.probe.rules
    decoder = _decoder(loaded.module) if is_known(loaded.module, rules) else None
    if decoder is None or not _same_weights(loaded.module, decoder, Path(source)):
        return None
    size = measure(ModelOptions(loaded.name, dtype, "cpu"))
    return KeptProof(
        size=replace(size, name=""),
        kv=loaded.probe.kv,
        rules=tuple(KeptRule(rule.scaling, rule.window, rule.softcap, rule.chunk) for rule in rules),
        decoder=decoder,
        tokenizer=KeptTokenizer(loaded.tokenizer.json, loaded.tokenizer.chat_template, loaded.tokenizer.special),
        eos_tokens=loaded.tokenizer.eos_tokens,
        vocab_size=loaded.vocab_size,
        context=loaded.max_context,
        fingerprint=loaded.fingerprint,
    )


def _decoder(module: Any) -> KeptDecoder | None:
    """Return what the decoder computes with; None where its rotary embedding is not one of fixed frequencies."""
    rotary = module.model.rotary_emb
    if rotary.rope_type not in FIXED_ROPE:
        return None
    frequencies, scaling = rotary.inv_freq.float(), float(rotary.attention_scaling)
    own = RotaryEmbedding(rotary.rope_type, frequencies, scaling)
    at = torch.arange(TRIED_POSITIONS)[None]
    with torch.inference_mode():
        pairs = zip(own(module.lm_head.weight, at), rotary(module.lm_head.weight, at), strict=True)
        if not all(torch.equal(ours, theirs) for ours, theirs in pairs):
            return None
    layer = module.model.layers[0]
    return KeptDecoder(
        model_type=str(module.config.model_type),
        eps=float(layer.input_layernorm.variance_epsilon),
        heads=int(module.config.num_attention_heads),
        head_dim=int(layer.self_attn.head_dim),
        rope_type=rotary.rope_type,
        frequencies=tuple(frequencies.tolist()),
        rope_scaling=scaling,
    )


def _same_weights(module: nn.Module, facts: KeptDecoder, folder: Path) -> bool:
    """True if the folder's files hold exactly the module's weights, under its names."""
    try:
        own = ProvedDecoder(facts, read_tensors(folder, next(module.parameters()).dtype)).state_dict()
    except (OSError, KeyError, ValueError, AttributeError):
        return False
    theirs = module.state_dict()
    return own.keys() == theirs.keys() and all(torch.equal(own[name], theirs[name]) for name in own)
