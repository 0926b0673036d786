"""Constants of the WebAssembly engine, for those who need them without loading it."""

from __future__ import annotations

MIB = 1 << 20
WASM_STACK_BYTES = 16 * MIB
"""Deep enough that Python's own recursion limits come first in almost every case."""
THREAD_STACK_BYTES = 24 * MIB
"""What a thread that runs a guest needs: the guest's stack, and room for the host's callbacks on top of it."""
TICK_SECONDS = 0.02
"""How often a guest that computes is looked at."""
COMPILED_WITH = "epochs, immortal objects"
"""What changes the compiled file beside its sources."""
