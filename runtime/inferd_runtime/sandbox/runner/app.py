"""The component's export, and what happens while it is built: all of this module's top level is done once and snapshotted.

What is snapshotted is the same in every run: the seed of ``hash`` for strings too, so sets of them have the same order in each.
Random numbers are not: componentize-py seeds them anew in each instance.
"""

from __future__ import annotations

import atexit
import sys
from collections.abc import Callable
from types import ModuleType

import wit_world  # type: ignore[import-not-found]  # made by componentize-py from world.wit
from componentize_py_types import Err  # type: ignore[import-not-found]

from inferd_runtime.sandbox.runner import blocking


def _sleep(seconds: float) -> None:
    RUNNER.completions.sleep(seconds)


blocking.install(_sleep)  # before anything is imported that takes the names that it replaces

from inferd_runtime.sandbox.runner import absent, anyio_library, entry, preload, rehearsal, stand_ins  # noqa: E402
from inferd_runtime.sandbox.runner.http_libraries import HttpLibraries  # noqa: E402
from inferd_runtime.sandbox.runner.lending import Lender  # noqa: E402
from inferd_runtime.sandbox.runner.library_sources import keep_sources  # noqa: E402
from inferd_runtime.sandbox.runner.own_files import OwnFiles  # noqa: E402
from inferd_runtime.sandbox.runner.program import PACKAGES, LoadedProgram  # noqa: E402
from inferd_runtime.sandbox.runner.transport import GuestTransport  # noqa: E402

ABSENT_IN_GUEST = frozenset({"_ssl", "anyio", "httpx", "msgpack", "websockets"})
"""What the SDK's client needs and the sandbox does not have."""


def _execute(module: ModuleType, code: Callable[[], None]) -> None:
    if (module.__file__ or "").lstrip("/").startswith(f"{PACKAGES}/"):
        LENDER.run(code)
    else:  # its author is told now what to do instead
        code()
    anyio_library.adapt(module)
    LIBRARIES.adapt(module)


def _prepare(program: LoadedProgram) -> None:
    sys.argv = [program.entry]  # argparse and others take the first for granted
    OwnFiles(program).install()


RUNNER = entry.Runner(wit_world, _prepare, atexit._run_exitfuncs, _execute)
entry.use_everywhere(RUNNER)
LENDER = Lender(preload.standard_library())
preload.package("inferd", ABSENT_IN_GUEST)
preload.package("inferlet", ABSENT_IN_GUEST)
keep_sources()  # before the rehearsal: behind it, what this leaves of the heap made each start 0.4 ms longer
rehearsal.rehearse()
ASK = GuestTransport(RUNNER.completions).call_blocking
absent.install()
stand_ins.install(ASK)
LIBRARIES = HttpLibraries(ASK)
LIBRARIES.adapt_urllib()
RUNNER.streams.install(input)
FILLERS = preload.settle()


class WitWorld(wit_world.WitWorld):  # type: ignore[misc]
    """The name and the base class are what componentize-py looks for."""

    def run(self, bundle: str, arguments: str) -> str:
        """Run a program; an ``Err`` is how the world's ``result`` carries an error."""
        outcome = RUNNER.run(bundle, arguments)
        if not outcome.ok:
            raise Err(outcome.text)
        return outcome.text
