"""What a model's folder or hub page holds, read with the errors that its user needs. Code of a checkpoint is never run."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from huggingface_hub import try_to_load_from_cache
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from tokenizers import Tokenizer
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedConfig,
    PreTrainedTokenizerFast,
)
from transformers.distributed.configuration_utils import DistributedConfig
from transformers.models.auto import CONFIG_MAPPING, MODEL_FOR_CAUSAL_LM_MAPPING

from inferd.protocol import InvalidRequest, NotFound
from inferd_runtime.kernels.quantized import StoredWeight
from inferd_runtime.models.quantized.layout import StoredLayout, stored_layout
from inferd_runtime.models.quantized.reading import read_quantized
from inferd_runtime.models.store.catalog import KNOWN

SHOWN = 3
PARTS = re.compile(r"(?:num|n)_(?:\w+_)?(?:layers?|experts|blocks)")
MOST_PARTS = 4096
"""Layers or experts of a model: each is a module of its own, and known models have up to 512."""
GENERATION = "generation_config.json"
SAMPLE = "Hello world,  it's 2024!\n\ndef f(x1):\n    return x1 + 3.14  # naïve 東京\n"


def read_config(name: str, source: str) -> Any:
    """Return the configuration of a text decoder that transformers knows.

    Raises NotFound when there is no such folder, hub model or config.json, InvalidRequest that names the reason otherwise.
    """
    _check_folder(name, source)
    with reported(name, "its configuration cannot be read", _elsewhere(source)):
        raw, _ = PreTrainedConfig.get_config_dict(source)
    for part in _implementations(raw):
        raise InvalidRequest(
            f"model {name!r} cannot be served: it names kernels of {part!r}, and code of a hub is never run"
        )
    family = str(raw.get("model_type", ""))
    if family not in CONFIG_MAPPING:
        raise InvalidRequest(f"model {name!r} cannot be served: {_unknown(family, 'auto_map' in raw)}")
    with reported(name, "its configuration is not valid"):
        config = CONFIG_MAPPING[family].from_pretrained(source)
    if config.is_encoder_decoder:
        raise InvalidRequest(f"model {name!r} cannot be served: {family} is an encoder-decoder model")
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise InvalidRequest(f"model {name!r} cannot be served: {family} is not a text decoder")
    for key, count in config.get_text_config().to_dict().items():
        if PARTS.fullmatch(key) and isinstance(count, int) and count > MOST_PARTS:
            raise InvalidRequest(f"model {name!r} cannot be served: its {key} is {count}, more than {MOST_PARTS}")
    return config


def _implementations(said: Any, inside: bool = False) -> Iterator[str]:
    """Yield the repositories that a configuration names as implementations: transformers would run their code."""
    if isinstance(said, dict):
        for key, value in said.items():
            yield from _implementations(value, inside or str(key).endswith("_implementation"))
    elif inside and isinstance(said, str) and "/" in said:
        yield said


def _check_folder(name: str, source: str) -> None:
    """Raise NotFound, without asking the network, if the source is a path and no model's folder is there."""
    folder = Path(source).expanduser()
    if not folder.is_dir():
        if source.startswith((".", "/", "~")) or source.count("/") > 1:
            raise NotFound(f"model {name!r} cannot be loaded: there is no such folder")
    elif not (folder / "config.json").is_file():
        raise NotFound(f"model {name!r} cannot be loaded: the folder has no config.json")


def _elsewhere(source: str) -> str:
    """Return where to find the names of models, for one that has no owner and so may be a slip; else ""."""
    known = f"`inferd models` lists those that are here, `inferd pull` brings {', '.join(KNOWN)}"
    return "" if "/" in source else f"\n{known}"


def _unknown(family: str, own_code: bool) -> str:
    if own_code:
        return f"model type {family!r} needs code from its own repository, which is never run"
    if not family:
        return "its config.json names no model_type"
    return f"model type {family!r} is not known to transformers {transformers.__version__}"


@contextmanager
def reported(name: str, what: str, help_text: str = "") -> Iterator[None]:
    """Turn what transformers raises for a checkpoint into NotFound (a file that is not there) or InvalidRequest."""
    try:
        yield
    except OSError as error:
        raise NotFound(f"model {name!r} cannot be loaded: {error}{help_text}") from error
    except (ImportError, KeyError, RuntimeError, TypeError, ValueError, SafetensorError, StrictDataclassError) as error:
        raise InvalidRequest(f"model {name!r} cannot be loaded: {what}: {error}") from error


def read_tokenizer(name: str, source: str) -> Any:
    """Return the tokenizer, as its tokenizer.json says where there is one.

    Some families' classes rebuild it from its vocabulary by rules of their own, which give other tokens when the model was
    trained with another tokenizer than its family. Raises NotFound when there is none: transformers makes an empty one up
    for many families.
    """
    try:
        tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=False)
        if not _as_written(tokenizer, source):
            tokenizer = PreTrainedTokenizerFast.from_pretrained(source)
    except (OSError, ImportError, KeyError, TypeError, ValueError) as error:
        raise NotFound(f"model {name!r} cannot be loaded: it has no tokenizer that can be read: {error}") from error
    if set(tokenizer.get_vocab()) <= set(tokenizer.all_special_tokens):
        raise NotFound(f"model {name!r} cannot be loaded: it has no tokenizer files")
    return tokenizer


def _as_written(tokenizer: Any, source: str) -> bool:
    """True if a sample text gets the tokens that the tokenizer.json gives it."""
    local = Path(source, "tokenizer.json")
    path = local if Path(source).is_dir() else try_to_load_from_cache(source, local.name)
    if not isinstance(path, str | Path) or not Path(path).is_file():
        return True
    written = Tokenizer.from_file(str(path)).encode(SAMPLE, add_special_tokens=False).ids
    return bool(tokenizer.encode(SAMPLE, add_special_tokens=False) == written)


@dataclass(frozen=True)
class ReadWeights:
    """``stored``: of a quantized checkpoint what its weights were stored as, by their modules' names; None of any other."""

    module: nn.Module
    stored: dict[str, StoredWeight] | None = None


def read_weights(name: str, source: str, config: Any, dtype: torch.dtype | str, ranks: int = 1) -> ReadWeights:
    """Return the model with all its weights on the CPU; of several ranks, with the rank's part of them on its device.

    Raises NotFound when there are none, InvalidRequest when some are missing (transformers fills them with random numbers),
    of another shape, damaged, or quantized in a way that is not read.
    """
    layout = stored_layout(name, config.to_dict())
    if layout is not None and ranks == 1:
        return _read_quantized(name, source, config, dtype, layout)
    loader: Any = AutoModelForCausalLM
    divided = {"distributed_config": DistributedConfig(tp_size=ranks, tp_plan="auto")} if ranks > 1 else {}
    with reported(name, "its weights do not fit its configuration"):
        module, info = loader.from_pretrained(
            source, config=config, dtype=dtype, trust_remote_code=False, output_loading_info=True, **divided
        )
    return ReadWeights(_complete(name, module, info))


def _read_quantized(name: str, source: str, config: Any, dtype: torch.dtype | str, layout: StoredLayout) -> ReadWeights:
    """Return the model over dense weights, as transformers would build it, and beside it what they were stored as."""
    own = getattr(config.get_text_config(), "dtype", None)
    wanted = dtype if isinstance(dtype, torch.dtype) else own if isinstance(own, torch.dtype) else torch.float32
    plain = copy.deepcopy(config)
    del plain.quantization_config
    with reported(name, f"its weights, quantized by {layout.method}, do not fit its configuration"):
        read = read_quantized(source, layout, wanted)
        loader: Any = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
        module, info = loader.from_pretrained(
            None, config=plain, state_dict=read.dense, dtype=wanted, output_loading_info=True
        )
        if (read.folder / GENERATION).is_file():
            module.generation_config = GenerationConfig.from_pretrained(read.folder)
    return ReadWeights(_complete(name, module, info), read.stored)


def _complete(name: str, module: nn.Module, info: dict[str, Any]) -> nn.Module:
    missing = sorted(info["missing_keys"])
    if missing:
        shown = ", ".join(missing[:SHOWN]) + (", ..." if len(missing) > SHOWN else "")
        raise InvalidRequest(f"model {name!r} cannot be loaded: its checkpoint lacks {len(missing)} weights: {shown}")
    return module


def check_vocabulary(name: str, tokenizer: Any, module: Any) -> int:
    """Return the width of the logits. Raises InvalidRequest when the tokenizer makes ids that the model has no row for."""
    output = module.get_output_embeddings()
    if output is None:
        raise InvalidRequest(f"model {name!r} cannot be served: it has no output embedding")
    rows = int(module.get_input_embeddings().weight.shape[0])
    highest = max(tokenizer.get_vocab().values())
    if highest >= rows:
        raise InvalidRequest(
            f"model {name!r} cannot be served: its tokenizer makes ids up to {highest}, its embedding has {rows} rows"
        )
    return int(output.weight.shape[0])
