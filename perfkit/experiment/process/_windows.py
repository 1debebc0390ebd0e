"""When the child sends its measurements: live and quiet windows alternate.

In a live window it sends points twice a second, the kernel forwards them and the browser draws, on
the same cores as the training. In a quiet window nothing is sent or drawn (except at most two
20-byte "still alive" messages a second, which the kernel does not forward); the points are sent at
its end. Only steps from quiet windows count in a run's summary.
"""

from __future__ import annotations

from typing import Literal

Action = Literal["nothing", "beat", "send"]

#: The shortest time between points, and the longest between signs of life.
SEND_EVERY_S = 0.5
LIVE_S = 1.0
QUIET_S = 1.5
# By then the browser has drawn the last points, which takes some 10 to 100 ms.
SETTLE_S = 0.15


class Windows:
    """Decides after each step what to send, and whether the step was quiet."""

    def __init__(self) -> None:
        self._quiet = False
        self._since_s: float | None = None
        self._said_s = 0.0
        self._has_quiet_step = False

    @property
    def is_live(self) -> bool:
        """Whether steps of now count in no figure, because the plot is drawn meanwhile."""
        return self._since_s is not None and not self._quiet

    def is_quiet(self, begin_s: float) -> bool:
        """Whether a step that began at this time is undisturbed."""
        since = self._since_s
        return self._quiet and since is not None and begin_s >= since + SETTLE_S

    def after_step(self, begin_s: float, end_s: float) -> Action:
        """What to do after a step; call :meth:`sent` after a ``"send"``."""
        if self._since_s is None:  # send the first step at once, to show that something happens
            return "send"
        if self._quiet:
            # a window of long steps lasts until one whole step was quiet
            self._has_quiet_step |= self.is_quiet(begin_s)
            if end_s - self._since_s >= QUIET_S and self._has_quiet_step:
                return "send"
            if end_s - self._said_s >= SEND_EVERY_S:
                self._said_s = end_s
                return "beat"
            return "nothing"
        if end_s - self._since_s >= LIVE_S or end_s - self._said_s >= SEND_EVERY_S:
            return "send"
        return "nothing"

    def sent(self, now_s: float) -> bool:
        """Note that points were sent; return whether a quiet window begins now."""
        self._said_s = now_s
        if self._since_s is None:
            self._since_s = now_s
        elif self._quiet:
            self._quiet, self._since_s = False, now_s
        elif now_s - self._since_s >= LIVE_S:
            self._quiet, self._since_s, self._has_quiet_step = True, now_s, False
            return True
        return False
