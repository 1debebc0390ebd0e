"""Simulated machines: their effect on the letters of a comparison, as factors around 1."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

MACHINES = (
    "quiet",
    "linear drift",
    "step change",
    "heavy tails",
    "autocorrelation",
    "two kinds",
)


def factors(
    random: np.random.Generator, machine: str, letters: int, noise: float = 0.03
) -> npt.NDArray[np.float64]:
    """One factor per letter, in time order."""
    t = np.linspace(0, 1, letters)
    factor = np.exp(random.normal(0, noise, letters))
    if machine == "linear drift":
        factor *= 1 + random.uniform(0.1, 0.6) * t
    elif machine == "step change":
        factor *= np.where(t > random.uniform(0.2, 0.8), random.uniform(1.1, 1.8), 1)
    elif machine == "heavy tails":
        factor *= 1 + np.where(random.random(letters) < 0.1, random.pareto(1.5, letters), 0)
    elif machine == "autocorrelation":
        level, levels = 0.0, []
        for push in random.normal(0, 0.05, letters):
            level = 0.9 * level + push
            levels.append(level)
        factor *= np.exp(levels)
    elif machine == "two kinds":  # some letters run undisturbed, others are preempted for long
        factor *= np.where(random.random(letters) < random.uniform(0.2, 0.6), 4, 1)
    return factor


def both_arms(
    random: np.random.Generator, machine: str, n: int, noise: float = 0.03
) -> npt.NDArray[np.float64]:
    """Times of two equal arms, blocks × 2 letters each, measured A B B A or B A A B."""
    arms = np.empty((2, n, 2))
    for block, four in enumerate(factors(random, machine, 4 * n, noise).reshape(n, 4)):
        outer = int(random.integers(2))
        arms[outer, block] = four[[0, 3]]
        arms[1 - outer, block] = four[[1, 2]]
    return arms
