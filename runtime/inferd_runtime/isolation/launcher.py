"""The first file that runs in a child process: ``python -I launcher.py NAME``, with an order on standard input.

``-I`` keeps Python from reading the environment, the working directory, this file's folder and the user's own packages for
what to import. The order, one line of JSON (:mod:`inferd_runtime.isolation.order`), names the folders that are imported from
beside those; only then anything outside the standard library is imported.
"""

from __future__ import annotations

import json
import os
import sys

PACKAGE_FOLDERS = ("site-packages", "dist-packages")


def extended_path(own: list[str], order: list[str]) -> list[str]:
    """Return the import path: the standard library, the order's folders, then this Python's own packages."""
    packages = (index for index, folder in enumerate(own) if os.path.basename(folder) in PACKAGE_FOLDERS)
    first = next(packages, len(own))
    return [*own[:first], *(folder for folder in order if folder not in own), *own[first:]]


def main() -> None:
    """Read the order, then become the child that it describes."""
    order = json.loads(sys.stdin.buffer.readline())
    sys.path[:] = extended_path(sys.path, order["path"])
    os.environ.update(order["environment"])
    from inferd_runtime.isolation.child import run_child

    code = run_child(order)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # the child has closed what it had; taking torch's modules apart would take half a second


if __name__ == "__main__":
    main()
