"""How the interval of a ratio narrows while it is measured: a small picture for a notebook."""

from __future__ import annotations

import math
from collections.abc import Sequence

from perfkit.base.words import fmt_interval, fmt_ratio

_WIDTH, _HEIGHT, _RIGHT = 480, 84, 100
_MOST = 120


def svg(intervals: Sequence[tuple[float, float]]) -> str:
    """A band from left (earliest) to right (now), with a line at 1, which is "as fast".

    Args:
        intervals: low and high of the ratio, in the order in which they were found; two at least.
    """
    every = math.ceil(len(intervals) / _MOST)
    shown = [*intervals[-1::-every]][::-1]
    # what came first may be so wide that nothing else is seen
    settled = shown[len(shown) // 4 :]
    least = math.log(min(1.0, *(low for low, _ in settled))) - 0.02
    most = math.log(max(1.0, *(high for _, high in settled))) + 0.02

    def y(ratio: float) -> float:
        at = (math.log(max(ratio, 1e-9)) - least) / (most - least)
        return 8 + (_HEIGHT - 16) * (1 - min(max(at, 0.0), 1.0))

    step = (_WIDTH - _RIGHT) / (len(shown) - 1)
    upper = [f"{i * step:.1f},{y(high):.1f}" for i, (_, high) in enumerate(shown)]
    lower = [f"{i * step:.1f},{y(low):.1f}" for i, (low, _) in enumerate(shown)]
    band = " ".join([*upper, *reversed(lower)])
    low, high = shown[-1]
    middle = math.sqrt(low * high)
    labels = [(y(1.0), "1×"), (y(middle), fmt_interval(low, high))]
    if abs(labels[0][0] - labels[1][0]) < 12:
        del labels[0]
    words = "".join(
        f'<text x="{_WIDTH - _RIGHT + 6}" y="{at + 4:.1f}" font-size="12" fill="currentColor">'
        f"{text}</text>"
        for at, text in labels
    )
    said = f"The interval of the ratio so far: {fmt_ratio(low)} to {fmt_ratio(high)}"
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" style="display:block;width:{_WIDTH}px;'
        f'max-width:100%;color:var(--jp-ui-font-color1,currentColor)" role="img" '
        f'aria-label="{said}"><polygon points="{band}" fill="var(--jp-brand-color1,#1976d2)" '
        f'fill-opacity="0.35" stroke="var(--jp-brand-color1,#1976d2)"/><line x1="0" '
        f'x2="{_WIDTH - _RIGHT}" y1="{y(1.0):.1f}" y2="{y(1.0):.1f}" stroke="currentColor" '
        f'stroke-dasharray="4 3"/>{words}</svg>'
    )
