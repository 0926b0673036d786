"""A GGUF file as a folder in transformers' format, so that everything behind it knows one format only.

The weights are the numbers of the file's blocks, in the smallest dtype that holds every one of them exactly: mapped into memory
when they are loaded. The blocks themselves are kept beside them, for the CPU's products. One weight is in memory at a time,
and the blocks.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from gguf import MODEL_ARCH_NAMES, get_tensor_name_map
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig

from inferd.protocol import InvalidRequest
from inferd_runtime.models.store.gguf_config import LONG, SAME, SHORT, FileConfig
from inferd_runtime.models.store.gguf_file import GgufModel
from inferd_runtime.models.store.gguf_tokenizer import FileTokenizer
from inferd_runtime.models.weights.file_blocks import Rows, keep_rows, rows_of
from inferd_runtime.models.weights.gguf_kinds import KINDS

LICENSE_KEY = "general.license"
TEMPLATE_KEY = "tokenizer.chat_template"
NAMES = {torch.bfloat16: "BF16", torch.float16: "F16", torch.float32: "F32"}
"""What safetensors calls the dtypes."""


def convert(file: Path, folder: Path) -> None:
    """Write the model of a GGUF file into a folder. Raises InvalidRequest that says why it cannot be read, OSError where the
    folder cannot be written to.
    """
    model = _open(file)
    try:
        factors = {name: model.numbers(name).tolist() for name in (SAME, LONG, SHORT) if name in model.tensors}
        said = FileConfig(model.metadata, model.shapes, factors)
        tokenizer, settings = FileTokenizer(model.metadata), said.read()
        if len(tokenizer.tokens) > settings["vocab_size"]:
            raise InvalidRequest("its vocabulary is wider than its embedding")
        config = AutoConfig.for_model(**{**settings, **tokenizer.roles()})
        weights = FileWeights(model, said, config)
        config.architectures = [weights.architecture]
        built = tokenizer.build()
    except InvalidRequest as error:
        raise InvalidRequest(f"{file.name} cannot be read: {error}") from error
    built.save(str(folder / "tokenizer.json"))
    _write_settings(folder, config, tokenizer, str(model.metadata.get(TEMPLATE_KEY, "")))
    weights.write(folder)


def license_of(file: Path) -> str:
    """Return the licence that a GGUF file names, "" if it names none. Raises InvalidRequest."""
    return str(_open(file).metadata.get(LICENSE_KEY, ""))


def _open(file: Path) -> GgufModel:
    try:
        return GgufModel(file)
    except (ValueError, IndexError, KeyError, OverflowError, UnicodeDecodeError, InvalidRequest) as error:
        raise InvalidRequest(f"{file.name} cannot be read as a GGUF file: {error}") from error


def _write_settings(folder: Path, config: PreTrainedConfig, tokenizer: FileTokenizer, template: str) -> None:
    config.save_pretrained(folder)
    ends, begin = tokenizer.ends() or None, tokenizer.roles()["bos_token_id"]
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": ends, "bos_token_id": begin}, indent=2))
    said = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False, **tokenizer.special()}
    (folder / "tokenizer_config.json").write_text(json.dumps(said, indent=2))
    if template:
        (folder / "chat_template.jinja").write_text(template)


class FileWeights:
    """The weights of a model by transformers' names. Raises InvalidRequest where a file has others than the model."""

    def __init__(self, model: GgufModel, said: FileConfig, config: Any) -> None:
        self._model, self._family, self._config = model, said.family, config
        loader: Any = AutoModelForCausalLM
        with torch.device("meta"):
            module: nn.Module = loader.from_config(config)
        self.architecture = type(module).__name__
        self._linear = {name for name, owner in module.named_modules() if isinstance(owner, nn.Linear)}
        self._shapes = {name: tuple(weight.shape) for name, weight in module.named_parameters()}
        arch = next(key for key, name in MODEL_ARCH_NAMES.items() if name == said.architecture)
        self._map = get_tensor_name_map(arch, config.num_hidden_layers)
        self._sources = {name: self._source(name) for name in self._shapes}
        self._check(set(model.tensors) - {SAME, LONG, SHORT})

    def _source(self, name: str) -> list[str]:
        """Return the names that a weight's parts have in the file, which are one below the other."""
        if name.endswith(".mlp.experts.gate_up_proj"):
            start = f"blk.{name.split('.')[2]}."
            return [f"{start}ffn_gate_exps.weight", f"{start}ffn_up_exps.weight"]
        found = self._map.get_name(name, try_suffixes=(".weight", ".bias"))
        if found is None:
            raise InvalidRequest(f"its weight {name} has no name in GGUF files")
        return [found if found.endswith((".weight", ".bias")) else f"{found}.weight"]

    def _check(self, there: set[str]) -> None:
        wanted = {source for sources in self._sources.values() for source in sources}
        for lacking in sorted(wanted - there)[:1]:
            raise InvalidRequest(f"it lacks {len(wanted - there)} weights, {lacking} among them")
        for more in sorted(there - wanted)[:1]:
            raise InvalidRequest(f"its weight {more} is not one of a {self._family.model_type} model")
        for name, shape in self._shapes.items():
            parts = [self._model.shapes[source] for source in self._sources[name]]
            at = len(shape) - 2
            got = parts[0] if len(parts) == 1 else (*shape[:at], sum(part[at] for part in parts), shape[-1])
            if tuple(got) != shape:
                raise InvalidRequest(f"its weight {self._sources[name][0]} has the shape {tuple(got)}, not {shape}")

    def _weight(self, name: str) -> Tensor:
        parts = [self._model.numbers(source) for source in self._sources[name]]
        found = parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)
        if self._family.paired and "_proj" in name and name.split(".")[-2] in ("q_proj", "k_proj"):
            heads = self._config.num_attention_heads if ".q_proj." in name else self._config.num_key_value_heads
            return found.reshape(heads, -1, 2, *found.shape[1:]).transpose(1, 2).reshape(found.shape)
        return found - self._family.offset if name.split(".")[-2].endswith("norm") else found

    def _all(self) -> Iterator[tuple[str, Tensor]]:
        return ((name, self._weight(name)) for name in self._shapes)

    def dtype(self) -> torch.dtype:
        """Return the first of bfloat16, float16 and float32 that holds every weight exactly."""
        left = [torch.bfloat16, torch.float16]
        for _, weight in self._all():
            left = [dtype for dtype in left if torch.equal(weight, weight.to(dtype).float())]
            if not left:
                return torch.float32
        return left[0]

    def write(self, folder: Path) -> None:
        """Write the weights, and the blocks of those of linear modules that products in blocks hold."""
        dtype, kept = self.dtype(), dict[str, Rows]()
        with (folder / "model.safetensors").open("wb") as file:
            file.write(_header(self._shapes, dtype))
            for name, weight in self._all():
                weight.to(dtype).contiguous().view(torch.uint8).numpy().tofile(file)
                kept |= self._kept(name, weight)
        keep_rows(folder, kept)

    def _kept(self, name: str, weight: Tensor) -> dict[str, Rows]:
        owner, (source, *others) = name.removesuffix(".weight"), self._sources[name]
        if self._config.tie_word_embeddings and source == "token_embd.weight":
            owner = "lm_head"
        if owner not in self._linear or others or self._model.tensors[source].tensor_type.name not in KINDS:
            return {}
        kind, blocks = self._model.blocks(source)
        rows = rows_of(weight, kind, blocks)
        return {} if rows is None else {owner: (kind, rows)}


def _header(shapes: Mapping[str, tuple[int, ...]], dtype: torch.dtype) -> bytes:
    """Return the beginning of a safetensors file of these weights, one behind the other."""
    at, said = 0, dict[str, Any]({"__metadata__": {"format": "pt"}})
    for name, shape in shapes.items():
        size = torch.Size(shape).numel() * dtype.itemsize
        said[name] = {"dtype": NAMES[dtype], "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(said).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text
