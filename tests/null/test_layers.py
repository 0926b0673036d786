"""The rooms and their layers: imports point one way, heavy libraries stay in their rooms, the public names exist."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
RUNTIME = ROOT / "runtime" / "inferd_runtime"
MAY_IMPORT = {
    "cluster": {
        "cluster", "server", "settings", "isolation", "sandbox", "session", "draft_models", "engine", "models", "kv",
    },
    "server": {
        "isolation", "server", "settings", "sandbox", "session", "draft_models", "engine", "models", "kv", "speculation",
    },
    "settings": {"settings", "sandbox", "draft_models", "engine", "models"},
    "sandbox": {"isolation", "sandbox", "session"},
    "session": {"session", "draft_models", "engine", "models", "kv", "speculation"},
    "draft_models": {"draft_models", "engine", "models", "kv", "speculation"},
    "engine": {"engine", "kv", "models", "speculation", "kernels"},
    "models": {"models", "kv", "kernels"},
    "speculation": {"speculation"},
    "isolation": {"isolation"},
    "kv": {"kv"},
    "kernels": {"kernels", "kv"},
}  # fmt: skip
TORCH_ROOMS = (
    "engine/drivers/",
    "kernels/",
    "models/",
    "server/engine_process/follower_process.py",
    "server/engine_process/model_loading.py",
    "testing/recorded_host.py",
)


def imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def sources(folder: Path) -> list[Path]:
    found = sorted(folder.rglob("*.py"))
    assert found, f"no source in {folder}"
    return found


@pytest.mark.parametrize("part", MAY_IMPORT)
def test_runtime_imports_point_one_way(part: str) -> None:
    wrong = [
        f"{path.relative_to(ROOT)} imports {module}"
        for path in sources(RUNTIME / part)
        for module in imports(path)
        if module.startswith("inferd_runtime.")
        and module.split(".")[1] in MAY_IMPORT
        and module.split(".")[1] not in MAY_IMPORT[part]
    ]
    assert not wrong


@pytest.mark.parametrize("package", ["sdk/inferd", "sdk/inferlet", "grammar/inferd_grammar"])
def test_sdk_and_grammar_stand_alone(package: str) -> None:
    other = {"inferd_runtime", "torch", "wasmtime", "inferd_grammar" if package.startswith("sdk") else "inferd"}
    wrong = [(path.name, m) for path in sources(ROOT / package) for m in imports(path) if m.split(".")[0] in other]
    assert not wrong


def test_wasmtime_is_imported_by_the_sandbox_alone() -> None:
    users = {path for path in sources(RUNTIME) if any(m.split(".")[0] == "wasmtime" for m in imports(path))}
    assert users
    assert all("sandbox" in path.parts for path in users)


def test_ray_is_imported_by_the_cluster_on_it_alone() -> None:
    users = {path for path in sources(RUNTIME) if any(m.split(".")[0] == "ray" for m in imports(path))}
    assert users
    assert all("ray_serve" in path.parts for path in users)


def test_torch_stays_in_its_rooms() -> None:
    users = {
        path.relative_to(RUNTIME).as_posix()
        for path in sources(RUNTIME)
        if any(m.split(".")[0] in ("torch", "transformers") for m in imports(path))
    }
    assert users
    assert all(user.startswith(TORCH_ROOMS) for user in users)


def test_each_source_folder_holds_its_packages_alone() -> None:
    packages = {"sdk": {"inferd", "inferlet"}, "runtime": {"inferd_runtime"}, "grammar": {"inferd_grammar"}}
    for top, names in packages.items():
        inside = {p.name for p in (ROOT / top).iterdir() if p.is_dir() and p.name != "__pycache__"}
        assert inside == names, f"{top}/ would put {inside} on the import path"
