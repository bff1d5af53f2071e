"""``python -m unitvar`` is ``unitvar``."""

import sys

from unitvar.cli import main

if __name__ == "__main__":
    sys.exit(main())
