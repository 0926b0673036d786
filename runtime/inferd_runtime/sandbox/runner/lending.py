"""Stand-ins for modules that the sandbox does not have, for packages that import them and mostly do without."""

from __future__ import annotations

import sys
from collections.abc import Callable, Container, Iterable
from types import ModuleType

from inferd_runtime.sandbox.runner.absent import NO_SOCKETS, RefusingModule
from inferd_runtime.sandbox.runner.failure import NOT_IN_SANDBOX

REASONS = {"ssl": NO_SOCKETS}


class Lender:
    """Lends stand-ins for the modules of ``absent``, which refuse when they are called."""

    def __init__(self, absent: Container[str]) -> None:
        self._absent = absent
        self._lent: dict[str, ModuleType] = {}

    def run(self, code: Callable[[], None]) -> None:
        """Run a module's code. If it fails to import an absent module, run it again with a stand-in, which is taken back then.

        Code that catches the ImportError never gets a stand-in. Modules that it imports do not see those lent to it.
        """
        outer, self._lent = self._lent, {}
        _take_back(outer)
        try:
            self._run(code)
        finally:
            _take_back(self._lent)
            self._lent = outer
            sys.modules.update(outer)

    def _run(self, code: Callable[[], None]) -> None:
        first: ImportError | None = None
        while True:
            try:
                return code()
            except ImportError as error:
                name = self._wanted(error)
                if name is None or name in self._lent:
                    if first is None:
                        raise
                    raise first from None
                first = first or error
                sys.modules[name] = self._lent[name] = RefusingModule(name, REASONS.get(name, NOT_IN_SANDBOX))
            except Exception:
                if first is None:
                    raise
                raise first from None  # it needs the module at once

    def _wanted(self, error: ImportError) -> str | None:
        """Return the absent module that an import asked for: ``import name``, or ``from owner import name``."""
        name, part = error.name or "", f"{error.name}.{getattr(error, 'name_from', None)}"
        if name in self._absent or name.rpartition(".")[0] in self._absent:
            return name
        return part if part in self._absent else None


def _take_back(lent: Iterable[str]) -> None:
    for name in lent:
        sys.modules.pop(name, None)
