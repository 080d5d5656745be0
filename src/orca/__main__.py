"""`python -m orca` is the command `orca`."""

from __future__ import annotations

import sys

from orca.cli import main

if __name__ == "__main__":
    sys.exit(main())
