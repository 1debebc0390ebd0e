"""torchrun, which ends when the process that started it has ended.

    python -m perfkit.script.ranks.torchrun PID ARGUMENTS_OF_TORCHRUN…

It is torchrun's own program; beside it a thread looks whether process PID is still its parent. If
it is gone, killed perhaps, torchrun gets a SIGTERM, on which it ends its ranks.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time

from perfkit.base import collector

_LOOK_EVERY_S = 0.5


def ends_with(parent: int) -> None:
    """SIGTERM for this process as soon as ``parent`` is its parent no more."""

    def look() -> None:
        while os.getppid() == parent:
            time.sleep(_LOOK_EVERY_S)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=look, name="perfkit-parent", daemon=True).start()


def main() -> None:
    try:
        with collector.at_rest():
            from torch.distributed.run import main as torchrun
    except KeyboardInterrupt:
        sys.exit("perfkit: interrupted before the ranks were started")

    ends_with(int(sys.argv[1]))
    torchrun(sys.argv[2:])


if __name__ == "__main__":
    main()
