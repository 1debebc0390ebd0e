"""A script or module, run in this process as ``python`` would run it.

``__main__``, ``sys.argv`` and ``sys.path[0]`` are the program's own, so that classes that it
defines can be pickled, workers of ``multiprocessing`` find it, and what it registers with
:mod:`atexit` runs in it. They stay so: the program is what this process is from then on. Whoever
runs it only for a while puts :func:`restored` around it.

Nothing but the standard library is imported: a program may set environment variables that a package
reads while it is imported.
"""

from __future__ import annotations

import builtins
import importlib.machinery
import itertools
import os
import runpy
import sys
import traceback
import types
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, TracebackType

from perfkit.base.errors import UsageError
from perfkit.base.short_traceback import exception_chain

_PERFKIT = str(Path(__file__).absolute().parents[1]) + os.sep


class NoProgramError(UsageError):
    """There is nothing to run: no such module, or a file that cannot be read."""


@dataclass(frozen=True)
class Program:
    """What to run, as typed after ``python``.

    Attributes:
        name: path of the script, or name of the module.
        is_module: as with ``python -m``.
    """

    name: str
    argv: tuple[str, ...] = ()
    is_module: bool = False

    @classmethod
    def script(cls, path: str | os.PathLike[str], argv: Sequence[str] = ()) -> Program:
        """``python path argv…``.

        Raises:
            UsageError: there is no such file.
        """
        name = os.fspath(path)
        if not os.path.isfile(name):  # noqa: PTH113 - "train.py" is typed, not "./train.py"
            what = "there is no such script"
            if os.path.exists(name):  # noqa: PTH110
                what = "is a folder" if os.path.isdir(name) else "is not a regular file"  # noqa: PTH112
            raise UsageError(f"{name}: {what}; give the path of a Python file")
        return cls(name, tuple(argv))

    @classmethod
    def module(cls, name: str, argv: Sequence[str] = ()) -> Program:
        """``python -m name argv…``.

        Raises:
            UsageError: that is no name of a module.
        """
        if name.endswith(".py"):
            raise UsageError(f"-m {name!r:.80} is a file: give a script without -m")
        if not all(part.isidentifier() for part in name.split(".")):
            raise UsageError(f"-m {name!r:.80}: that is no name of a module, such as package.train")
        return cls(name, tuple(argv), is_module=True)

    @property
    def title(self) -> str:
        """What to call it: ``train.py``, ``package.train``."""
        return self.name if self.is_module else os.path.basename(self.name)  # noqa: PTH119

    def run(self) -> None:
        """Become this program and run it to its end; what it raises propagates unchanged.

        Raises:
            NoProgramError: there is no such module, or the file cannot be read.
        """
        __tracebackhide__ = True
        main = types.ModuleType("__main__")
        code = self._module(main) if self.is_module else self._script(main)
        main.__dict__["__builtins__"] = builtins
        sys.modules["__main__"] = main
        exec(code, main.__dict__)

    def _script(self, main: types.ModuleType) -> CodeType:
        path = self.name
        if not os.path.isabs(path):  # noqa: PTH117
            path = os.path.join(os.getcwd(), path)  # noqa: PTH109, PTH118 - as Python joins it
        _enter([self.name, *self.argv], os.path.dirname(os.path.realpath(path)))  # noqa: PTH120
        try:
            source = Path(path).read_bytes()
        except OSError as error:
            reason = error.strerror or error
            raise NoProgramError(f"{self.name} cannot be read: {reason}") from None
        loader = importlib.machinery.SourceFileLoader("__main__", path)
        main.__dict__.update(
            __file__=path, __cached__=None, __loader__=loader, __package__=None, __spec__=None
        )
        code: CodeType = compile(source, path, "exec", dont_inherit=True)
        return code

    def _module(self, main: types.ModuleType) -> CodeType:
        _enter(["-m", *self.argv], os.getcwd())  # noqa: PTH109
        try:
            # what `python -m` calls; a package's __main__ is found, and its parents are imported
            code: CodeType
            _, spec, code = runpy._get_module_details(self.name)  # type: ignore[attr-defined]
        except ImportError as error:
            if _is_of_program(error):
                raise
            raise NoProgramError(f"-m {self.name}: {error}") from None
        sys.argv[0] = spec.origin
        main.__dict__.update(
            __file__=spec.origin,
            __cached__=spec.cached,
            __loader__=spec.loader,
            __package__=spec.parent,
            __spec__=spec,
        )
        return code


def _enter(argv: list[str], folder: str) -> None:
    sys.argv = argv
    if not sys.flags.safe_path:
        sys.path[:1] = [folder]  # in the place of that of our own command


def _is_of_program(error: ImportError) -> bool:
    """Whether a file of the program raised it, not the search for the program."""
    frames = traceback.extract_tb(error.__traceback__)
    return any(
        not f.filename.startswith("<frozen") and not _is_ours(f.filename) for f in frames
    ) and not isinstance(error, runpy._Error)  # type: ignore[attr-defined]


@contextmanager
def restored() -> Iterator[None]:
    """Put ``__main__``, ``sys.argv`` and ``sys.path`` back afterwards."""
    argv, path, main = sys.argv, list(sys.path), sys.modules.get("__main__")
    try:
        yield
    finally:
        sys.argv, sys.path[:] = argv, path
        if main is not None:
            sys.modules["__main__"] = main


def show_error_as_its_own() -> None:
    """When the interpreter shows the exception that ends it, leave perfkit's own frames out."""
    show = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        error.__traceback__ = trace
        _hide_own_frames(error)
        show(kind, error, error.__traceback__)

    sys.excepthook = hook


def _hide_own_frames(error: BaseException) -> None:
    for each in exception_chain(error):
        each.__traceback__ = _without_own(each.__traceback__)


def _without_own(trace: TracebackType | None) -> TracebackType | None:
    """The frames of the program, and of what it calls, without those of perfkit."""
    entries = []
    while trace is not None:
        entries.append(trace)
        if trace.tb_frame.f_code.co_filename == __file__:
            entries.clear()  # up to here it was us
        trace = trace.tb_next
    kept = [e for e in entries if not _is_ours(e.tb_frame.f_code.co_filename)]
    for above, below in itertools.pairwise(kept):
        above.tb_next = below
    if kept:
        kept[-1].tb_next = None
    return kept[0] if kept else None


def _is_ours(filename: str) -> bool:
    return filename.startswith(_PERFKIT)
