"""The process that tries constraints (:mod:`inferd_grammar.trials`), as an engine process starts it."""

from __future__ import annotations

import subprocess

from inferd_grammar.trials.child import main
from inferd_runtime.isolation.child import Child
from inferd_runtime.isolation.kinds import ChildKind
from inferd_runtime.isolation.order import Launch
from inferd_runtime.server.processes.piped_child import piped_child

COMPILE_MODULE = "inferd_runtime.server.engine_process.compile_process"


def start_compiler() -> subprocess.Popen[bytes]:
    """Start such a process: attempts go to its standard input, answers come from its output."""
    return piped_child(Launch(COMPILE_MODULE, ChildKind.COMPILER))


def child_main(child: Child) -> int:
    """Answer until the parent closes its end. Returns the exit code."""
    child.settings(type(None))
    child.seal()
    main()
    return 0
