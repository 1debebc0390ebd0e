"""One variable scales every measuring budget: ``PERFKIT_BUDGET_SCALE``.

``perfkit record`` sets it above 1 for the kernels of the lessons that it runs; tests that compare
facts and no times set it below 1. Whatever takes ``budget_s`` or ``seconds`` from a user asks
:func:`scaled` once, at its entrance.
"""

from __future__ import annotations

import math
import os

VARIABLE = "PERFKIT_BUDGET_SCALE"


def budget_scale() -> float:
    """By what budgets are multiplied; 1 where the variable is unset or is no positive number."""
    try:
        scale = float(os.environ.get(VARIABLE, ""))
    except ValueError:
        return 1.0
    return scale if 0 < scale < math.inf else 1.0


def scaled(seconds: float) -> float:
    """A budget of so many seconds, scaled."""
    return seconds * budget_scale()
