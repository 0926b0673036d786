"""Loading a model from a local transformers folder or a hub id, up to the point where it is known to be served exactly."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import GenerationConfig

from inferd.protocol import InvalidRequest, NotFound
from inferd_runtime.models.checkpoint import check_vocabulary, read_config, read_tokenizer, read_weights
from inferd_runtime.models.checks.probe import Probed, attach
from inferd_runtime.models.parallel import check_plan, first_numbers
from inferd_runtime.models.store.catalog import KNOWN
from inferd_runtime.models.store.pull import GGUF, Pull
from inferd_runtime.models.store.store import ModelStore
from inferd_runtime.models.tokenizer import HubTokenizer

EMBEDDED = {"tiny": "tiny/target", "tiny-draft": "tiny/draft"}
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


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


def resolve(name: str, store: ModelStore | None = None) -> str:
    """Return the folder of an embedded or pulled model, or of a GGUF file; any other name (a folder, a hub id) as it is.

    A GGUF file is converted the first time. Raises what that raises, NotFound for a known model that is not here.
    """
    if name in EMBEDDED:
        return str(Path(__file__).parent / EMBEDDED[name])
    store = store or ModelStore()
    path = Path(name).expanduser()
    pulled = store.find(name)
    if pulled is not None and not path.is_dir():
        return str(pulled.folder)
    if path.suffix == GGUF:
        return str(Pull(store, name).run().folder)
    if name in KNOWN and not path.is_dir():
        raise NotFound(f"model {name!r} is not here yet: `inferd pull {name}` brings it")
    return str(path) if name.startswith("~") else name


def load(name: str, *, device: str = "cpu", dtype: str = "", ranks: int = 1) -> LoadedModel:
    """Load weights and tokenizer. ``dtype`` "" is float32 on the CPU and the checkpoint's own elsewhere.

    With ``ranks`` above 1, every rank of the group that was joined (:func:`~inferd_runtime.models.parallel.join`) calls this, and
    gets its part of the weights; ``device`` is the kind.
    Raises NotFound when there is no such folder or hub model or a part of it is not there, InvalidRequest naming the reason
    when it cannot be served.
    """
    source, number = resolve(name), _dtype(dtype, device)
    config = read_config(name, source)
    tokenizer = read_tokenizer(name, source)
    if ranks > 1:
        check_plan(name, config, ranks)
    module: Any = read_weights(name, source, config, number, ranks).eval()
    if ranks == 1:
        module.to(device)
    vocab_size = check_vocabulary(name, tokenizer, module)
    probed = attach(module, name)
    return LoadedModel(
        name=name,
        module=module,
        tokenizer=HubTokenizer(tokenizer, eos_tokens(module.generation_config, tokenizer)),
        probe=probed,
        vocab_size=vocab_size,
        max_context=probed.context,
        fingerprint=fingerprint(config.to_dict(), module),
    )


def _dtype(name: str, device: str) -> torch.dtype | str:
    if not name:
        return torch.float32 if device == "cpu" else "auto"
    if name not in DTYPES:
        raise InvalidRequest(f"dtype {name!r} is not one of {', '.join(DTYPES)}")
    return DTYPES[name]


def eos_tokens(generation: GenerationConfig | None, tokenizer: Any) -> tuple[int, ...]:
    """Return the ids that end a text, from the generation config, else from the tokenizer."""
    found = generation.eos_token_id if generation is not None else None
    if found is None:
        found = tokenizer.eos_token_id
    ids = found if isinstance(found, list) else [found]
    return tuple(sorted(int(token) for token in ids if token is not None))


def fingerprint(config: dict[str, Any], module: nn.Module) -> str:
    """Return a short hash of the configuration and of a sample of the weights.

    Rank 0 of a divided model gives the whole model's fingerprint.
    """
    own = {key: value for key, value in config.items() if key != "distributed_config"}
    digest = hashlib.sha256(json.dumps(own, sort_keys=True, default=str).encode())
    for name, tensor in sorted(module.state_dict().items()):
        digest.update(name.encode())
        digest.update(first_numbers(tensor, 16).float().cpu().numpy().tobytes())
    return digest.hexdigest()[:16]
