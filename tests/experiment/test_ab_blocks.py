"""Why a block is a fresh pair of processes: simulated comparisons with the luck of processes."""

from __future__ import annotations

import numpy as np
import pytest

from perfkit.measure.compare import doubts
from perfkit.measure.paired import ratio_interval

N = 400


def letters(rng, n_blocks, *, fresh, drift, effect=1.0):
    """Times of n blocks: step time with drift, jitter of a letter, luck of a process (2 %)."""
    luck = rng.normal(0, 0.02, (2, n_blocks if fresh else 1)) + np.zeros((2, n_blocks))
    arms = []
    # A B B A and B A A B: where in the block each arm's two letters stand
    outer = rng.integers(0, 2, n_blocks)
    for arm in (0, 1):
        places = np.where((outer == arm)[:, None], [0, 3], [1, 2])
        at = 4 * np.arange(n_blocks)[:, None] + places
        slow = drift * at / (4 * n_blocks)
        jitter = rng.normal(0, 0.01, (n_blocks, 2))
        arms.append(np.exp(slow + luck[arm][:, None] + jitter).mean(axis=1, keepdims=True))
    return arms[0] * effect, arms[1]


def alarms(n_blocks, **kind):
    rng = np.random.default_rng(1)
    return sum(ratio_interval(*letters(rng, n_blocks, **kind)).different for _ in range(N))


@pytest.mark.parametrize("n_blocks", [6, 12, 30])
@pytest.mark.parametrize("drift", [0.0, 0.3])
def test_fresh_processes_in_each_block_give_few_false_alarms(n_blocks, drift):
    assert alarms(n_blocks, fresh=True, drift=drift) <= 0.05 * N + 9  # two standard deviations


def test_one_pair_of_processes_for_all_blocks_would_be_sure_of_its_luck():
    assert alarms(12, fresh=False, drift=0.0) > 0.4 * N


def test_an_effect_of_3_percent_is_seen_with_enough_blocks():
    assert alarms(30, fresh=True, drift=0.3, effect=1.03) > 0.9 * N


def test_drift_is_told():
    rng = np.random.default_rng(2)
    a, b = letters(rng, 30, fresh=True, drift=0.3)
    told = doubts(a, b, ratio_interval(a, b))
    assert [line for line in told if "slower while measured" in line]
    a, b = letters(rng, 30, fresh=True, drift=0.0)
    assert not [line for line in doubts(a, b, ratio_interval(a, b)) if "while measured" in line]
