"""What takes seconds after a recording, told on standard error.

Torch lets no other thread run while it ends a recording or writes it down, so that each line comes
before what it tells of.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from perfkit.base.progress import Progress, left

# For each event torch takes about 4 µs to end its recording. To read it takes as long again, half
# of it in torch, which writes a file.
_END_US = 4.0
_WRITTEN = 0.5
# What takes less is not told.
_SILENT_S = 1.0


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


@contextmanager
def telling_how_far(end_s: float) -> Iterator[Callable[[float], None]]:
    """Around the reading of a recording: a line that says how far it is, if it takes over a second.

    Args:
        end_s: how long torch took to end it.

    Yields:
        A function that takes the share of what torch wrote that has been read, 0 … 1.
    """
    progress = Progress(None if end_s > _SILENT_S else False)

    def read(share: float) -> None:
        share = _WRITTEN + (1 - _WRITTEN) * share
        progress.line(f"perfkit: reading the recording, {share:.0%}, {left(end_s * (1 - share))}")

    progress.line(f"perfkit: reading the recording, {left(end_s)}")
    yield read
    read(1.0)
    progress.close()
