"""``python -m inferd_runtime.cli``."""

import sys

from inferd_runtime.cli import main

if __name__ == "__main__":
    sys.exit(main())
