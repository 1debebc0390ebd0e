"""``python -m perfkit.cli``."""

import sys

from perfkit.cli import main

sys.exit(main())
