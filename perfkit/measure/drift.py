"""Did the machine change while two arms took turns: heat, other load, a jump?

Taking turns keeps such a change out of the ratio, but not out of the times. The test looks at both
arms together, because the machine affects both.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from perfkit.base.words import fmt_number, fmt_share
from perfkit.measure.trend import trend

# A smaller change does not alter any conclusion from the times.
_SLOPE = 0.05
_JUMP = 0.10
# As for a trend: the user did not ask for it, so false alarms must be very rare.
_CLEAR_P = 0.001
# A processor's clock varies by a few per cent all the time.
_CLOCK_FELL = 0.05
_CPUFREQ = Path("/sys/devices/system/cpu")

_Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Conditions:
    """The machine at one moment; None for what the system does not report.

    Attributes:
        load: the load average over the last minute, of all processes.
        clock_ghz: mean clock of the processors, in GHz.
    """

    load: float | None
    clock_ghz: float | None


def conditions(folder: Path = _CPUFREQ) -> Conditions:
    """Load average and processor clock now; takes well below 1 ms per processor."""
    try:
        load: float | None = os.getloadavg()[0]
    except (OSError, AttributeError):  # Windows has none
        load = None
    clocks = []
    for file in folder.glob("cpu[0-9]*/cpufreq/scaling_cur_freq"):
        try:
            clocks.append(int(file.read_text()) / 1e6)
        except (OSError, ValueError):
            continue
    return Conditions(load, float(np.mean(clocks)) if clocks else None)


def drift(
    slow: _Array,
    fast: _Array,
    *,
    before: Conditions | None = None,
    after: Conditions | None = None,
    cores: int | None = None,
) -> str:
    """How the machine's speed changed for both arms, in words; empty if nothing is clear.

    Reports a slope of 5 % or more over the whole measurement (:func:`perfkit.measure.trend.trend`),
    and a jump of 10 % or more: Pettitt's test (1979) at the point where it is clearest. Of fewer
    than 11 blocks it finds no jump clear, however high.

    Args:
        slow, fast: times in time order, shape blocks × letters.
        before, after: the machine's state, to name a cause if it shows one.
        cores: how many this process may use.
    """
    if slow.shape != fast.shape or not ((slow > 0).all() and (fast > 0).all()):
        return ""
    # the first letters of both arms form one half of a block, the second letters the other
    level = np.sqrt(slow * fast).ravel()
    found = trend(level)
    cause = _cause(before, after, cores)
    if found is not None and found.clear and abs(found.relative) > _SLOPE:
        way = "slower" if found.change > 0 else "faster"
        return (
            f"both got {fmt_share(abs(found.relative))} {way} while measured{cause}, which "
            f"cancels in the ratio"
        )
    jump = _jump(level)
    if jump is not None:
        at, share = jump
        way = "slower" if share > 0 else "faster"
        return (
            f"both became {fmt_share(abs(share))} {way} at once after {fmt_share(at)} of the "
            f"measurement{cause}, which cancels in the ratio"
        )
    return ""


def _jump(level: _Array) -> tuple[float, float] | None:
    """Where (as a share of the series) and by how much; None if no jump is clear."""
    n = len(level)
    if n < 2:
        return None
    signs = np.sign(level[:, None] - level[None, :])
    # U at t: how often a value up to t is above one after t, minus the opposite
    scores = np.array([signs[:t, t:].sum() for t in range(1, n)])
    at = int(np.argmax(np.abs(scores))) + 1
    chance = 2 * math.exp(-6 * float(scores[at - 1]) ** 2 / (n**3 + n**2))
    if chance >= _CLEAR_P:
        return None
    share = float(np.median(level[at:]) / np.median(level[:at])) - 1
    return (at / n, share) if abs(share) > _JUMP else None


def _cause(before: Conditions | None, after: Conditions | None, cores: int | None) -> str:
    if before is None or after is None:
        return ""
    said = []
    if before.clock_ghz and after.clock_ghz:
        change = after.clock_ghz / before.clock_ghz - 1
        if abs(change) > _CLOCK_FELL:
            way = "fell" if change < 0 else "rose"
            said.append(
                f"the processor's clock {way} from {fmt_number(before.clock_ghz)} to "
                f"{fmt_number(after.clock_ghz)} GHz"
            )
    if before.load is not None and after.load is not None and cores and after.load > cores:
        said.append(
            f"the load average went from {fmt_number(before.load)} to {fmt_number(after.load)} "
            f"on {cores} cores"
        )
    return f" ({'; '.join(said)})" if said else ""
