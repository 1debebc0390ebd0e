"""JupyterLab, but for its kernels: forked with torch loaded, as those of lessons are in the tests.

A kernel that says so in its environment is a program of its own, as a reader's is.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

OWN_PROGRAM = "PERFKIT_TEST_KERNEL_IS_A_PROGRAM"


def main() -> None:
    """Run it with the arguments of ``jupyter lab``."""
    sys.path[0] = str(Path(__file__).resolve().parents[1])
    from forked_kernels import Prepared

    del sys.path[0]
    prepared = Prepared()
    prepared.start()  # loads torch while the server itself starts
    from jupyter_client.provisioning import local_provisioner

    start_program = local_provisioner.launch_kernel

    def launch(cmd: list[str], **options: Any) -> Any:
        is_program = OWN_PROGRAM in options["env"]
        return (start_program if is_program else prepared.kernel)(cmd, **options)

    local_provisioner.launch_kernel = launch
    from jupyterlab.labapp import main as jupyterlab

    sys.exit(jupyterlab())


if __name__ == "__main__":
    main()
