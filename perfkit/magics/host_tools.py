"""``%lprun`` for host time, ``%memit`` and ``%mprun`` for host RAM, from their own packages.

These magics import line_profiler and memory_profiler at the first call, pass the line on to them,
and say what to do if they cannot run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from IPython.core.error import UsageError
from IPython.core.magic import Magics, line_cell_magic, line_magic, magics_class, no_var_expand

from perfkit.base.extras import remedy

if TYPE_CHECKING:
    from types import ModuleType


@magics_class
class HostToolsMagics(Magics):
    """Magics of other packages, loaded when they are first used."""

    @no_var_expand
    @line_magic
    def lprun(self, line: str = "") -> Any:
        """Time per line of Python functions, by line_profiler: ``%lprun -f func statement``.

        It shows host time, without what a GPU does meanwhile: see ``%%torchprof`` for that.
        All options: ``%lprun?`` after the first use, or line_profiler's documentation.
        """
        return self._theirs("line_profiler.ipython_extension", "LineProfilerMagics").lprun(line)

    @no_var_expand
    @line_cell_magic
    def memit(self, line: str = "", cell: str | None = None) -> Any:
        """Peak resident set of a statement or cell, by memory_profiler: ``%memit statement``.

        It shows the process's RAM as a whole. For tensors, and for a GPU, use ``%gpumem``.
        """
        return self._theirs("memory_profiler", "MemoryProfilerMagics").memit(line, cell)

    @no_var_expand
    @line_magic
    def mprun(self, line: str = "") -> Any:
        """Resident set per line of a function in a file: ``%mprun -f func statement``.

        By memory_profiler, which cannot see functions defined in a notebook; ``%gpumem -f func
        statement`` can, and counts tensors.
        """
        __tracebackhide__ = True
        theirs = self._theirs("memory_profiler", "MemoryProfilerMagics")
        try:
            return theirs.mprun(line)
        except ModuleNotFoundError as error:
            # memory_profiler 0.61 needs it; Python 3.12 and newer lack it
            if error.name != "distutils":
                raise
            raise UsageError(
                "%mprun: memory_profiler needs distutils, which this Python no longer has; "
                "`%pip install setuptools` restores it, or use `%gpumem -f func statement`"
            ) from error

    def _theirs(self, package: str, magics: str) -> Any:
        __tracebackhide__ = True
        import importlib

        try:
            module: ModuleType = importlib.import_module(package)
            return getattr(module, magics)(self.shell)
        except ImportError as error:
            name = package.partition(".")[0]
            raise UsageError(f"{name} cannot be imported here ({error}): {remedy(name)}") from error
