"""``python -m perfkit``: the ``perfkit`` command, for launchers that take a module (torchrun)."""

import sys

from perfkit.cli import main

if __name__ == "__main__":
    sys.exit(main())
