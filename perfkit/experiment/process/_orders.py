"""What the kernel orders the guard of a run to do, and the signal that the guard passes on."""

from __future__ import annotations

import signal
import sys

#: Kernel → guard, one byte each.
KILL, STOP, CONTINUE, WHERE = b"K", b"S", b"C", b"W"
#: The signal that makes the child print where it is (faulthandler), for the message about a hang.
WHERE_SIGNAL = signal.SIGRTMAX - 3 if sys.platform == "linux" else None
