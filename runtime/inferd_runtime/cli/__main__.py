"""``python -m inferd_runtime.cli``."""

import os
import sys

if not sys.flags.safe_path and sys.path[:1] == [os.getcwd()]:
    del sys.path[0]  # what ``-m`` puts first: a program's own folder, perhaps, with a module that has one of our names

from inferd_runtime.cli import main

if __name__ == "__main__":
    sys.exit(main())
