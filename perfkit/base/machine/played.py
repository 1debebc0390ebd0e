"""Whether this process's GPU is played: torch's CUDA build on stub libraries, without a GPU.

perfkit's tests run on such a device (``tests/played_cuda``). Its counts, bytes, order and waits are
torch's own, but its times are not a GPU's, so nothing from it may be labelled measured or recorded.
It is recognised by the loaded libraries, not by its name, which can be changed.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import os
from pathlib import Path

_SYMBOL = "played_launch"  # the function through which the stub runtime sends work to the device
_BOOT = "_played_cuda_boot"  # the module that loads the stubs in every process there
_LIB = "_played_cuda_lib"  # the folder of the stubs


def is_played() -> bool:
    """Whether this process's CUDA, if any, runs on the played device."""
    return _is_loaded() or _will_be_loaded()


def _is_loaded() -> bool:
    try:
        return hasattr(ctypes.CDLL(None), _SYMBOL)
    except (OSError, TypeError):  # Windows cannot open the program itself, but has no played device
        return False


@functools.cache
def _will_be_loaded() -> bool:
    if os.environ.get("PLAYED_CUDA", "1") == "0":
        return False
    spec = importlib.util.find_spec(_BOOT)
    # the module does nothing without the libraries beside it
    return (
        spec is not None and spec.origin is not None and (Path(spec.origin).parent / _LIB).is_dir()
    )
