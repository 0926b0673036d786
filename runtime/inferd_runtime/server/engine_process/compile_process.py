"""The process that tries constraints (:mod:`inferd_grammar.trials`), as an engine process starts it."""

from __future__ import annotations

import subprocess

from inferd_grammar.trials.child import main
from inferd_runtime.isolation.child import Child
from inferd_runtime.isolation.kinds import ChildKind
from inferd_runtime.isolation.order import Launch, ResourceLimits
from inferd_runtime.isolation.start import piped_child

COMPILE_MODULE = "inferd_runtime.server.engine_process.compile_process"
THREADS, FILES = 64, 64


def start_compiler(require_isolation: bool) -> subprocess.Popen[bytes]:
    """Start such a process: attempts go to its standard input, answers come from its output."""
    limits = ResourceLimits(threads=THREADS, open_files=FILES)
    return piped_child(Launch(COMPILE_MODULE, ChildKind.COMPILER, limits=limits, require_all=require_isolation))


def child_main(child: Child) -> int:
    """Answer until the parent closes its end. Returns the exit code."""
    child.settings(type(None))
    child.seal()
    main()
    return 0
