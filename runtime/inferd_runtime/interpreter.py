"""How the threads of a process share the interpreter."""

from __future__ import annotations

import sys

SWITCH_SECONDS = 2e-4
"""Python lets a thread that computes keep the interpreter for 5 ms while others wait. The step loop and the gateway's loop give
it up around every operation of PyTorch or a socket, and would wait as long as that again and again. Workers, where programs
wait for replies one after the other, keep Python's: so many turns make a round trip a fifth longer.
"""


def share_interpreter() -> None:
    """Have this process's threads take turns more often."""
    sys.setswitchinterval(SWITCH_SECONDS)
