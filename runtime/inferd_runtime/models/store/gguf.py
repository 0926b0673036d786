"""A GGUF file as a folder in transformers' format, so that everything behind it knows one format only.

The weights are what transformers' reader makes of the file's blocks, in the smallest dtype that holds every one of them
exactly: mapped into memory when they are loaded. The blocks themselves are kept beside them, for the CPU's products.
"""

from __future__ import annotations

import contextlib
import errno
import io
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from gguf import MODEL_ARCH_NAMES, GGUFReader, ReaderTensor, get_tensor_name_map
from safetensors import SafetensorError
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoTokenizer

from inferd.protocol import InvalidRequest
from inferd_runtime.models.weights.file_blocks import Rows, keep_rows, rows_of
from inferd_runtime.models.weights.gguf_kinds import KINDS

LICENSE_KEY = "general.license"
ALONE = "model.gguf"
SYSTEM_ERROR = re.compile(r"os error (\d+)")


def convert(file: Path, folder: Path) -> None:
    """Write the model of a GGUF file into a folder. Raises InvalidRequest that says why it cannot be read, OSError where the
    folder cannot be written to.
    """
    # In a folder of its own, because transformers would read what else lies beside the file: another model's tokenizer.
    with (
        TemporaryDirectory(prefix="inferd-gguf-") as alone,
        contextlib.redirect_stderr(io.StringIO()),
    ):  # the readers' bars
        link = Path(alone) / ALONE
        link.symlink_to(file.resolve())
        with _readable(file):
            module, tokenizer = _read(link)
            blocks = _blocks(link, module)
        _write(module, tokenizer, blocks, folder)


@contextlib.contextmanager
def _readable(file: Path) -> Iterator[None]:
    """Turn what the readers raise about a file into InvalidRequest; tokenizers raises bare exceptions."""
    try:
        yield
    except Exception as error:
        raise InvalidRequest(f"{file.name} cannot be read as a GGUF file that transformers knows: {error}") from error


def _read(file: Path) -> tuple[Any, Any]:
    """Return model and tokenizer of a GGUF file, the model in the smallest dtype that loses nothing."""
    where: dict[str, Any] = {"pretrained_model_name_or_path": str(file.parent), "gguf_file": file.name}
    tokenizer = AutoTokenizer.from_pretrained(**where)
    loader: Any = AutoModelForCausalLM
    module, info = loader.from_pretrained(**where, dtype=torch.float32, output_loading_info=True)
    if info["missing_keys"]:
        raise ValueError(f"it lacks {len(info['missing_keys'])} weights, {sorted(info['missing_keys'])[0]} among them")
    del module.config.quantization_config  # the blocks are gone: what is left are plain numbers
    module.hf_quantizer, module.is_quantized = None, False
    return module.to(smallest_dtype(module)), tokenizer


def _blocks(file: Path, module: Any) -> dict[str, Rows]:
    """Return the blocks of those weights of linear modules that products in blocks hold, by the modules' names."""
    reader = GGUFReader(file)
    tensors = {tensor.name: tensor for tensor in reader.tensors if tensor.tensor_type.name in KINDS}
    field = reader.get_field("general.architecture")
    arch = next((key for key, name in MODEL_ARCH_NAMES.items() if field is not None and name == field.contents()), None)
    if arch is None:
        return {}
    names, found = get_tensor_name_map(arch, int(module.config.get_text_config().num_hidden_layers)), {}
    embedding = module.get_input_embeddings().weight
    for name, owner in module.named_modules():
        if isinstance(owner, nn.Linear):
            known = names.get_name("model.embed_tokens" if owner.weight is embedding else name)
            tensor = tensors.get(f"{known}.weight")
            rows = None if tensor is None else _rows(owner.weight, tensor)
            if tensor is not None and rows is not None:
                found[name] = (tensor.tensor_type.name, rows)
    return found


def _rows(weight: Tensor, tensor: ReaderTensor) -> Tensor | None:
    if tuple(reversed(tensor.shape)) != tuple(weight.shape):
        return None
    return rows_of(weight.detach().float(), tensor.tensor_type.name, torch.from_numpy(np.array(tensor.data)))


def _write(module: Any, tokenizer: Any, blocks: Mapping[str, Rows], folder: Path) -> None:
    try:
        module.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        keep_rows(folder, blocks)
    except SafetensorError as error:  # which says what the system said in words
        found = SYSTEM_ERROR.search(str(error))
        raise OSError(int(found[1]) if found else errno.EIO, str(error)) from error


def smallest_dtype(module: nn.Module) -> torch.dtype:
    """Return the first of bfloat16, float16 and float32 that holds every weight exactly."""
    weights = list(module.state_dict().values())
    small = (torch.bfloat16, torch.float16)
    fits = (dtype for dtype in small if all(torch.equal(w, w.to(dtype).to(w.dtype)) for w in weights))
    return next(fits, torch.float32)


def license_of(file: Path) -> str:
    """Return the licence that a GGUF file names, "" if it names none. Raises InvalidRequest."""
    with _readable(file):
        field = GGUFReader(file).get_field(LICENSE_KEY)
        return "" if field is None else str(field.contents())
