"""A package index in a folder, with wheels that are made for it, and pip told to look nowhere else."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest


def use_index(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have pip find packages in ``folder`` alone, and answers be kept in another cache than this user's."""
    folder.mkdir(parents=True, exist_ok=True)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")


def make_wheel(
    folder: Path,
    name: str,
    files: Mapping[str, str | bytes],
    *,
    version: str = "1.0",
    requires: Sequence[str] = (),
    tag: str = "py3-none-any",
) -> Path:
    """Write a wheel."""
    path = folder / f"{name}-{version}-{tag}.whl"
    wheel = f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {tag}\n"
    declared = "".join(f"Requires-Dist: {one}\n" for one in requires)
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{declared}"
    info = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        for file, content in {
            **files,
            f"{info}/METADATA": metadata,
            f"{info}/WHEEL": wheel,
            f"{info}/RECORD": "",
        }.items():
            archive.writestr(file, content)
    return path
