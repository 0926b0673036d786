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

LARGEST_GAP = 4 << 20
"""Bytes that no gap in the heap has, so that a block of them comes from its end."""
SMALLEST_GAP = sys.getsizeof(object())
MOST_FILLERS = 1 << 18
"""More than there are: a bound, in case the allocator does not work as this expects."""


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


def settle() -> list[object]:
    """Make what is loaded part of the ground: imports do not look for files, and collections at run time neither look at it
    nor touch its memory pages. Keep what is returned: it fills the gaps in the heap, so that what a run allocates lies
    together on fresh pages, instead of in gaps on hundreds of old ones, each of which costs a page fault in every run.
    """
    sys.path.clear()
    sys.path_importer_cache.clear()
    gc.collect()
    fillers = _fill_gaps()
    gc.freeze()
    return fillers


def _fill_gaps() -> list[object]:
    """Allocate from large to small until each size comes from the end of the heap."""
    fillers: list[object] = [None] * MOST_FILLERS
    end = id(_filler(LARGEST_GAP))
    count, size = 0, LARGEST_GAP // 4
    while size >= SMALLEST_GAP and count < MOST_FILLERS:
        block = _filler(size)
        if id(block) < end:
            fillers[count] = block
            count += 1
        else:
            size -= max(size // 16 & -8, 8)
    del fillers[count:]
    return fillers


def _filler(size: int) -> object:
    """Return a block of ``size`` bytes. Not of zeros: componentize-py makes a data segment of each stretch between zeros."""
    return object() if size <= SMALLEST_GAP else b"." * (size - sys.getsizeof(b""))


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
