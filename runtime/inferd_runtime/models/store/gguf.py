"""A GGUF file as a folder in transformers' format, so that everything behind it knows one format only.

The weights are the numbers of the file's blocks, in the smallest dtype that holds every one of them exactly: mapped into memory
when they are loaded. The blocks themselves are kept beside them, for the CPU's products. One weight is in memory at a time,
and the blocks.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from gguf import MODEL_ARCH_NAMES, get_tensor_name_map
from huggingface_hub.errors import StrictDataclassError
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig

from inferd.protocol import InvalidRequest
from inferd_runtime.models.store.gguf_config import LONG, SAME, SHORT, FileConfig
from inferd_runtime.models.store.gguf_families import Place
from inferd_runtime.models.store.gguf_file import GgufModel
from inferd_runtime.models.store.gguf_tokenizer import FileTokenizer
from inferd_runtime.models.weights.file_blocks import Rows, keep_rows, rows_of
from inferd_runtime.models.weights.gguf_kinds import KINDS

LICENSE_KEY = "general.license"
TEMPLATE_KEY = "tokenizer.chat_template"
NAMES = {torch.bfloat16: "BF16", torch.float16: "F16", torch.float32: "F32"}
"""What safetensors calls the dtypes."""
NO_MODEL = (ArithmeticError, AttributeError, LookupError, RuntimeError, StrictDataclassError, TypeError, ValueError)
"""What transformers raises for settings that do not fit together."""
LAYER = re.compile(r"(?:^|\.)(?:layers|h)\.(\d+)\.(.+)")


def convert(file: Path, folder: Path) -> None:
    """Write the model of a GGUF file into a folder. Raises InvalidRequest that says why it cannot be read, OSError where the
    folder cannot be written to.
    """
    model = _open(file)
    try:
        factors = {name: model.numbers(name).tolist() for name in (SAME, LONG, SHORT) if name in model.tensors}
        said, tokenizer = FileConfig(model.metadata, model.shapes, factors), FileTokenizer(model.metadata)
        config, module = _built(said, tokenizer)
        weights = FileWeights(model, said, config, module)
        config.architectures = [type(module).__name__]
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


def _built(said: FileConfig, tokenizer: FileTokenizer) -> tuple[PreTrainedConfig, nn.Module]:
    """Return the configuration and the modules that a file describes, without weights."""
    loader: Any = AutoModelForCausalLM
    try:
        settings = said.read()
        if len(tokenizer.tokens) > settings["vocab_size"]:
            raise InvalidRequest("its vocabulary is wider than its embedding")
        config = AutoConfig.for_model(**{**settings, **tokenizer.roles()})
        with torch.device("meta"):
            return config, loader.from_config(config)
    except NO_MODEL as error:
        raise InvalidRequest(f"its settings are those of no model: {error}") from error


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

    def __init__(self, model: GgufModel, said: FileConfig, config: Any, module: nn.Module) -> None:
        self._model, self._family, self._config = model, said.family, config
        self._linear = {name for name, owner in module.named_modules() if isinstance(owner, nn.Linear)}
        kept = module.state_dict().keys()
        buffers = ((name, buffer) for name, buffer in module.named_buffers() if name in kept)
        self._shapes = {name: tuple(weight.shape) for name, weight in (*module.named_parameters(), *buffers)}
        arch = next(key for key, name in MODEL_ARCH_NAMES.items() if name == said.architecture)
        self._map = get_tensor_name_map(arch, config.num_hidden_layers)
        self._places = {name: self._place(name) for name in self._shapes}
        self._sources = {name: self._source(name) for name in self._shapes}
        self._check(set(model.tensors) - said.unread)

    def _place(self, name: str) -> Place:
        layer = LAYER.search(name)
        return self._family.places.get(layer[2], Place()) if layer else Place()

    def _source(self, name: str) -> list[str]:
        """Return the names that a weight's parts have in the file."""
        layer, place = LAYER.search(name), self._places[name]
        if layer and place.parts:
            return [f"blk.{layer[1]}.{part}" for part in place.parts]
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
        for name, sources in self._sources.items():
            shape = self._part_shape(name)
            for source in sources:
                # A weight of one output may be written without that dimension.
                if shape not in (got := tuple(self._model.shapes[source]), (1, *got)):
                    raise InvalidRequest(f"its weight {source} has the shape {got}, not {shape}")

    def _part_shape(self, name: str) -> tuple[int, ...]:
        """Return the shape that each part of a weight has in the file."""
        shape, place, count = list(self._shapes[name]), self._places[name], len(self._sources[name])
        if place.turned:
            shape[-2:] = shape[-1], shape[-2]
        if count > 1:
            shape[_outputs(self._sources[name][0])] //= count
        return tuple(shape)

    def _weight(self, name: str) -> Tensor:
        place, sources, shape = self._places[name], self._sources[name], self._part_shape(name)
        found = _joined([self._model.numbers(source).reshape(shape) for source in sources], sources[0], place.woven)
        if place.turned:
            found = found.transpose(-1, -2)
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
        rows = rows_of(weight, kind, blocks.reshape(len(weight), -1))
        return {} if rows is None else {owner: (kind, rows)}


def _outputs(source: str) -> int:
    """Return the dimension of a weight's outputs in a file, counted from the end."""
    return -1 if source.endswith(".bias") else -2


def _joined(parts: Sequence[Tensor], source: str, woven: bool) -> Tensor:
    """Return parts as one, the outputs of one below those of the other, or in turns."""
    if len(parts) == 1:
        return parts[0]
    at = parts[0].ndim + _outputs(source)
    return torch.stack(list(parts), at + 1).flatten(at, at + 1) if woven else torch.cat(list(parts), at)


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
