"""Whether the GPU of this process is played: torch's CUDA build on stub libraries, without a GPU.

perfkit's tests run on such a device (``tests/played_cuda``). Its counts, bytes, order and waits
are torch's own, its times are not a GPU's, so nothing that it shows may pass as measured or
recorded. The device is recognised by what is loaded, not by its name: a name can be changed.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import os
from pathlib import Path

__all__ = ["is_played"]

_SYMBOL = "played_launch"  # how the stubs' runtime hands work to the device
_BOOT = "_played_cuda_boot"  # the module that loads them in every process of such an environment
_LIB = "_played_cuda_lib"  # where they are


def is_played() -> bool:
    """Whether CUDA, where this process has it, runs on the played device."""
    return _is_loaded() or _will_be_loaded()


def _is_loaded() -> bool:
    try:
        return hasattr(ctypes.CDLL(None), _SYMBOL)
    except (OSError, TypeError):  # Windows cannot open the program itself; nothing is played there
        return False


@functools.cache
def _will_be_loaded() -> bool:
    if os.environ.get("PLAYED_CUDA", "1") == "0":
        return False
    spec = importlib.util.find_spec(_BOOT)
    # without the libraries beside it the module does nothing
    return (
        spec is not None and spec.origin is not None and (Path(spec.origin).parent / _LIB).is_dir()
    )
