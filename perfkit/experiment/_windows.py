"""When the child sends what it measured: live windows and quiet ones in turn.

In a live window points go out twice a second, the kernel forwards them and the browser draws,
on the same cores as the training. In a quiet window nothing is sent or drawn (at most two
"still alive" messages of 20 bytes a second, which stop in the kernel); its points go out
together at its end. Only steps from quiet windows count in a run's summary.
"""

from __future__ import annotations

from typing import Literal

Action = Literal["nothing", "beat", "send"]

#: The most often that points are sent, and the least often that a life sign is.
SEND_EVERY_S = 0.5
LIVE_S = 1.0
QUIET_S = 1.5
# What the last points set off, a drawing of some 10 to 100 ms in the browser, is over by then.
SETTLE_S = 0.15


class Windows:
    """Says after each step what to send, and of each step whether it was quiet."""

    def __init__(self) -> None:
        self._quiet = False
        self._since_s: float | None = None
        self._said_s = 0.0
        self._has_quiet_step = False

    def is_quiet(self, begin_s: float) -> bool:
        """Whether a step that began at this time runs undisturbed."""
        since = self._since_s
        return self._quiet and since is not None and begin_s >= since + SETTLE_S

    def after_step(self, begin_s: float, end_s: float) -> Action:
        """What to do now that a step has ended; call :meth:`sent` after a ``"send"``."""
        if self._since_s is None:  # the first step shows at once that something happens
            return "send"
        if self._quiet:
            # a window of long steps lasts until one of them was quiet as a whole
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
        """Points have gone out; returns whether a quiet window begins with that."""
        self._said_s = now_s
        if self._since_s is None:
            self._since_s = now_s
        elif self._quiet:
            self._quiet, self._since_s = False, now_s
        elif now_s - self._since_s >= LIVE_S:
            self._quiet, self._since_s, self._has_quiet_step = True, now_s, False
            return True
        return False
