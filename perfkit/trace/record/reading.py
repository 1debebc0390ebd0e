"""What takes seconds after a recording, told on standard error.

Torch lets no other thread run while it ends a recording or writes it down, so that each line comes
before what it tells of.
"""

from __future__ import annotations

from perfkit.base.progress import Progress, left

# For each event torch takes about 4 µs to end its recording. To read it takes as long again, half
# of it in torch, which writes a file.
_END_US = 4.0
_WRITTEN = 0.5
# What takes less is not told.
_SILENT_S = 1.0
_WIDTH = 30


def tell_end(n_events: float) -> None:
    """Say that torch ends a recording of about so many events, if that takes over a second."""
    about_s = n_events * _END_US / 1e6
    if about_s > _SILENT_S:
        progress = Progress()
        progress.line(
            f"perfkit: torch ends its recording of about {n_events / 1e6:.1f} million events; "
            f"{left(about_s)}"
        )
        progress.close()


class Reading:
    """A bar while a recording is read, if that takes over a second.

    Args:
        end_s: how long torch took to end it.
    """

    def __init__(self, end_s: float) -> None:
        self._about_s = end_s
        self._progress = Progress(None if end_s > _SILENT_S else False)
        self._tell(0.0)

    def read(self, share: float) -> None:
        """So much of what torch wrote has been read, 0 … 1."""
        self._tell(_WRITTEN + (1 - _WRITTEN) * share)

    def done(self) -> None:
        """All is read."""
        self._tell(1.0)
        self._progress.close()

    def _tell(self, share: float) -> None:
        then = f", {left(self._about_s * (1 - share))}" if share < 1 else ""
        self._progress.line(
            f"perfkit: reading the recording |{'#' * round(share * _WIDTH):.<{_WIDTH}}| "
            f"{share:.0%}{then}"
        )
