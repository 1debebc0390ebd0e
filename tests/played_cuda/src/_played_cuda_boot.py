"""Load the stub libraries before torch looks for CUDA's, and the computing bridge after it.

``build.py`` copies this file into site-packages; a .pth file imports it in every process of that
environment. ``PLAYED_CUDA=0`` loads nothing; ``PLAYED_CUDA_COMPUTE=0`` omits the bridge, so that
kernels are launched and recorded but compute nothing.
"""

from __future__ import annotations

import ctypes
import importlib.abc
import importlib.machinery
import os
import sys
from pathlib import Path

LIB = Path(__file__).resolve().parent / "_played_cuda_lib"
BRIDGE = "libplayed_aten.so"


def load_stubs() -> None:
    # the others are linked against these two
    first = ["libcudart.so.13", "libcuda.so.1"]
    rest = sorted(path.name for path in LIB.glob("*.so*"))
    for name in dict.fromkeys([*first, *rest]):
        if name != BRIDGE:
            ctypes.CDLL(str(LIB / name), ctypes.RTLD_GLOBAL)


class Finder(importlib.abc.MetaPathFinder):
    """Finds torch as usual, but executes it between the stubs and the bridge."""

    def find_spec(self, name, path=None, target=None):
        if name == "pynvml":
            load_stubs()
        if name != "torch":
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def exec_module(module):
            # not before: who only asks for the spec has not imported torch yet
            sys.meta_path.remove(self)
            load_stubs()
            execute(module)
            if os.environ.get("PLAYED_CUDA_COMPUTE", "1") != "0":
                ctypes.CDLL(str(LIB / BRIDGE))

        spec.loader.exec_module = exec_module
        return spec


if os.environ.get("PLAYED_CUDA", "1") != "0" and (LIB / BRIDGE).exists():
    os.environ.setdefault("TRITON_LIBCUDA_PATH", str(LIB))
    sys.meta_path.insert(0, Finder())
