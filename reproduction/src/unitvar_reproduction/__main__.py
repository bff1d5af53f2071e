"""``python -m unitvar_reproduction`` is ``unitvar-paper``."""

import sys

from unitvar_reproduction.cli import main

if __name__ == "__main__":
    sys.exit(main())
