"""The recorded step on another device, predicted.

Each operator keeps its distance from the roofline: what takes twice its lower bound here takes
twice its lower bound there. How far that can be wrong is measured on the recorded operators
themselves: the band is what the step takes there if all of them were as close to their lower bound
as a tenth of their time is here, or as far from it as nine tenths are. What is not the device's
(data, Python, launches, waits) stays as recorded, and the host's own work is a floor: a step that
waits for its data is as long on every GPU.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfkit.base.errors import UsageError
from perfkit.trace.ask.limit import Limit
from perfkit.trace.ask.waterfall import Waterfall
from perfkit.trace.read.columns import Float64

_CLOSE, _FAR = 0.1, 0.9
_ON_A_CPU = (
    "recorded on a CPU: what the host needs to launch on a GPU is not in it, so the predictions "
    "are too fast"
)
_TWO_KINDS = (
    "rates of the recorded device are measured, those of the others are data sheets', which "
    "nothing reaches: the predictions are too fast"
)


@dataclass(frozen=True)
class StepElsewhere:
    """The recorded step on another device; all predicted.

    Attributes:
        ms: length of the step, each operator as far from its lower bound as recorded.
        low_ms, high_ms: all as close to it, or as far from it, as the closest tenth and the
            farthest tenth of the recorded operators' time.
        share_kept: share of the recorded step that does not depend on the device.
        doubts: what the band does not cover.
    """

    device: str
    ms: float
    low_ms: float
    high_ms: float
    share_kept: float
    doubts: tuple[str, ...] = ()


def predicted(
    here: Limit, there: Limit, falls: Waterfall, device: str, step_ms: float | None
) -> StepElsewhere:
    """The step on ``device``, by the lower bounds of its operators here and there."""
    if not here.is_known or not there.is_known:
        raise UsageError(
            f"a step on {device} is predicted from the recorded operators: record shapes "
            "(`shapes=True`), on a device whose rates are known (`perfkit doctor --peaks`)"
        )
    working_ms = falls.floor_ms + falls.working_above_ms
    mine = np.array([o.measured_us for o in here.ops])
    low_here = np.array([o.least_us or 0.0 for o in here.ops])
    low_there = np.array([o.least_us or 0.0 for o in there.ops])
    known = (low_here > 0) & (mine > 0)
    mine, low_here, low_there = mine[known], low_here[known], low_there[known]
    if not len(mine):
        raise UsageError(f"no operator was counted: a step on {device} cannot be predicted")
    apart = np.maximum(mine / low_here, 1.0)
    close, far = _weighted(apart, mine, (_CLOSE, _FAR))
    if step_ms and not here.on_device:  # the profiler made operators and all else longer alike
        working_ms *= step_ms / falls.step_ms
    kept_ms = max((step_ms or falls.step_ms) - working_ms, 0.0)
    scale = working_ms / float(mine.sum())  # with what was not counted, and overlaps
    ms = [
        max(
            kept_ms + scale * float(us.sum()),
            min(falls.host_ms, step_ms or falls.step_ms),
            falls.step_ms if falls.workers_set_the_pace else 0.0,
        )
        for us in (close * low_there, mine * low_there / low_here, far * low_there)
    ]
    doubts = [] if here.on_device else [_ON_A_CPU]
    if here.kind != there.kind:
        doubts.append(_TWO_KINDS)
    return StepElsewhere(
        device=there.device,
        ms=ms[1],
        low_ms=min(ms),
        high_ms=max(ms),
        share_kept=kept_ms / (kept_ms + working_ms) if kept_ms + working_ms else 0.0,
        doubts=tuple(doubts),
    )


def _weighted(values: Float64, weights: Float64, at: tuple[float, ...]) -> list[float]:
    """Quantiles of values with weights."""
    order = np.argsort(values)
    reached = np.cumsum(weights[order]) / weights.sum()
    return [float(values[order][min(int(np.searchsorted(reached, q)), len(order) - 1)]) for q in at]
