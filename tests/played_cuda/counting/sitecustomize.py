"""Python imports this as it starts, where this folder is in PYTHONPATH: ``make cuda-coverage``."""

from __future__ import annotations

import os
from pathlib import Path

from counted_lines import count

if "PERFKIT_COUNT_INTO" in os.environ:  # a test may clear the environment
    count(Path(os.environ["PERFKIT_COUNT_INTO"]), Path(__file__).parents[3] / "perfkit")
