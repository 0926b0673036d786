"""Import what programs may import: a module that is not imported when the component is built does not exist at run time."""

from __future__ import annotations

import gc
import importlib
import pkgutil
import sys
import warnings

UNWANTED = frozenset(
    {"__main__", "antigravity", "ensurepip", "idlelib", "lib2to3", "test", "this", "turtle", "turtledemo", "venv"}
)
"""Modules of the standard library that open windows, print when imported, test it, or install things."""


def standard_library() -> dict[str, str]:
    """Import every module of the standard library that exists here; returns those that do not, and why."""
    missing: dict[str, str] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecated modules say so to whoever builds the component
        for name in sorted(sys.stdlib_module_names - UNWANTED):
            missing.update(_import_all(name))
    return missing


def package(name: str, optional: frozenset[str]) -> None:
    """Import a package with all its submodules. One that needs a module of ``optional`` is left out; any other error ends
    the build.
    """
    for module, reason in _import_all(name).items():
        if not any(f"'{absent}" in reason for absent in optional):
            raise ImportError(f"{module} cannot be imported in the sandbox: {reason}")


def settle() -> None:
    """Make what is loaded part of the ground: collections at run time neither look at it nor touch its memory pages, and
    imports do not look for files.
    """
    sys.path.clear()
    sys.path_importer_cache.clear()
    gc.collect()
    gc.freeze()


def _import_all(name: str) -> dict[str, str]:
    try:
        module = importlib.import_module(name)
    except Exception as error:  # noqa: BLE001 - modules of other platforms fail as they like; the callers judge it
        return {name: f"{type(error).__name__}: {error}"}
    missing: dict[str, str] = {}
    for found in pkgutil.iter_modules(getattr(module, "__path__", ())):
        if found.name not in UNWANTED and not found.name.startswith("test"):
            missing.update(_import_all(f"{name}.{found.name}"))
    return missing
