"""A GGUF file as a folder in transformers' format, so that everything behind it knows one format only.

The weights are what transformers' reader makes of the file's blocks, in the smallest dtype that holds every one of them
exactly: mapped into memory when they are loaded, and never read block by block again.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from gguf import GGUFReader
from torch import nn
from transformers import AutoModelForCausalLM, AutoTokenizer

from inferd.protocol import InvalidRequest

LICENSE_KEY = "general.license"


def convert(file: Path, folder: Path) -> None:
    """Write the model of a GGUF file into a folder. Raises InvalidRequest that says why it cannot be read."""
    with _readable(file), contextlib.redirect_stderr(io.StringIO()):  # the reader's own bars
        _convert(file, folder)


@contextlib.contextmanager
def _readable(file: Path) -> Iterator[None]:
    """Turn what the readers raise about a file into InvalidRequest; tokenizers raises bare exceptions."""
    try:
        yield
    except Exception as error:
        raise InvalidRequest(f"{file.name} cannot be read as a GGUF file that transformers knows: {error}") from error


def _convert(file: Path, folder: Path) -> None:
    where: dict[str, Any] = {"pretrained_model_name_or_path": str(file.parent), "gguf_file": file.name}
    tokenizer = AutoTokenizer.from_pretrained(**where)
    loader: Any = AutoModelForCausalLM
    module, info = loader.from_pretrained(**where, dtype=torch.float32, output_loading_info=True)
    if info["missing_keys"]:
        raise ValueError(f"it lacks {len(info['missing_keys'])} weights, {sorted(info['missing_keys'])[0]} among them")
    del module.config.quantization_config  # the blocks are gone: what is left are plain numbers
    module.hf_quantizer, module.is_quantized = None, False
    dtype = smallest_dtype(module)
    module.to(dtype).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


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
