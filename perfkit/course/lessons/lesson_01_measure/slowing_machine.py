"""A *simulated* machine that slowly gets slower: the effect of drift on a comparison.

Real drift (a chip that warms up, another program that starts) is unpredictable. Here it always
happens, in simulated time, so that a lesson can show it quickly and reproducibly.
"""

from __future__ import annotations

import numpy as np

from perfkit.base.errors import UsageError


class SlowingMachine:
    """Each call of :meth:`run` takes slightly longer than the last, in simulated time only.

    Args:
        rise: growth of a call's time over ``calls`` calls, as a share: 0.1 is 10 %.
        calls: see ``rise``.
        jitter: standard deviation of the logarithm of a call's time around its trend.
        seed: seed of the jitter.

    Raises:
        UsageError: ``rise`` or ``jitter`` is negative or ``calls`` is not positive.
    """

    base_ms = 10.0

    def __init__(
        self, rise: float = 0.1, *, calls: int = 80, jitter: float = 0.03, seed: int = 0
    ) -> None:
        if rise < 0 or jitter < 0 or calls < 1:
            raise UsageError("rise and jitter must not be negative, calls must be positive")
        self._rise_per_call = rise / calls
        self._jitter = jitter
        self._n = 0
        self._random = np.random.default_rng(seed)

    def run(self) -> float:
        """Run the same step once more.

        Returns:
            Its duration in milliseconds of simulated time.
        """
        trend = 1 + self._rise_per_call * self._n
        self._n += 1
        noise = float(np.exp(self._jitter * self._random.standard_normal()))
        return self.base_ms * trend * noise
