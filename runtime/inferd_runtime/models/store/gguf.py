"""A GGUF file as a folder in transformers' format, so that everything behind it knows one format only.

The weights are what transformers' reader makes of the file's blocks, in the smallest dtype that holds every one of them
exactly: mapped into memory when they are loaded, and never read block by block again.
"""

from __future__ import annotations

import contextlib
import errno
import io
import re
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from gguf import GGUFReader
from safetensors import SafetensorError
from torch import nn
from transformers import AutoModelForCausalLM, AutoTokenizer

from inferd.protocol import InvalidRequest

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
        _write(module, tokenizer, folder)


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


def _write(module: Any, tokenizer: Any, folder: Path) -> None:
    try:
        module.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
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
