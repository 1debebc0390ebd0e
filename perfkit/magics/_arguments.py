"""Command-line arguments and output shared by perfkit's magics."""

from __future__ import annotations

import argparse
import keyword
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from IPython.core.error import UsageError
from IPython.core.magic_arguments import argument
from IPython.display import display
from IPython.utils.process import arg_split

from perfkit.base.errors import PerfkitError
from perfkit.base.files import why_not_writable

_Function = TypeVar("_Function", bound=Callable[..., Any])


def output_arguments(function: _Function) -> _Function:
    """Add ``-o``, ``-q``, ``-T``, ``-D`` and the statement to a magic's arguments.

    Put it below ``@magic_arguments()`` and the magic's own ``@argument`` lines.
    """
    for add in (
        argument(
            "statement",
            nargs=argparse.REMAINDER,
            help="The statement to run (line form). It is taken literally, quotes included.",
        ),
        argument(
            "-D",
            "--data",
            metavar="FILE",
            type=_path,
            help="Write the data behind the result to this file.",
        ),
        argument(
            "-T",
            "--text",
            metavar="FILE",
            type=_path,
            help="Write the plain text of the result to this file.",
        ),
        argument("-q", "--quiet", action="store_true", help="Show nothing."),
        argument(
            "-o", "--output", metavar="NAME", help="Store the result object in this variable."
        ),
    ):
        function = add(function)
    return function


def parse(magic: Any, line: str) -> argparse.Namespace:
    """Parse the flags of ``line``; ``statement`` is the rest, character for character.

    Raises:
        UsageError: a flag is unknown, or its value is invalid.
    """
    __tracebackhide__ = True
    # not strict: Python reports an open quote in the statement
    try:
        args: argparse.Namespace = magic.parser.parse_args(arg_split(line, strict=False))
    except UsageError as error:
        raise UsageError(f"{error}; %{magic.parser.prog}? shows the flags") from None
    if args.statement and args.statement[0] == "--":
        del args.statement[0]
    args.statement = _tail(line, len("".join("".join(args.statement).split())))
    return args


def _tail(line: str, n_visible: int) -> str:
    """The end of ``line`` with ``n_visible`` characters other than white space.

    argparse returns the statement as words; this recovers the spaces between them.
    """
    if n_visible == 0:
        return ""
    seen = 0
    for index in range(len(line) - 1, -1, -1):
        seen += not line[index].isspace()
        if seen == n_visible:
            return line[index:]
    return line


def check_flags(args: argparse.Namespace, *, data_suffixes: tuple[str, ...]) -> None:
    """Refuse flags that would fail only after the user's code has run; resolve ``-T`` and ``-D``.

    Relative paths are made absolute, because the code may change the directory.

    Raises:
        UsageError: ``-o`` is not a variable name; ``-T`` or ``-D`` cannot be written, or the data
            file's ending is not one of ``data_suffixes``.
    """
    name = args.output
    if name is not None and (not name.isidentifier() or keyword.iskeyword(name)):
        raise UsageError(f"-o {name}: not a variable name; write for example `-o result`")
    for flag, name in (("-T", "text"), ("-D", "data")):
        path = getattr(args, name)
        if path is None:
            continue
        setattr(args, name, path.absolute())
        if why := why_not_writable(path):
            raise UsageError(f"{flag} {path}: {why}")
    if args.data is not None and not args.data.name.endswith(data_suffixes):
        endings = " or ".join(data_suffixes)
        raise UsageError(f"-D {args.data}: the file's name must end in {endings}")


def _path(value: str) -> Path:
    if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"":
        value = value[1:-1]
    return Path(value).expanduser()


def show(bundle: dict[str, Any]) -> None:
    """Display a result in all its formats; the front end uses the richest it knows."""
    display(bundle, raw=True)


class Shown:
    """A result below the cell, whose place a later one takes."""

    def __init__(self) -> None:
        self._handle: Any = None

    def show(self, bundle: dict[str, Any]) -> None:
        """Display it in all its formats, or put it in the place of the one before."""
        if self._handle is None:
            self._handle = display(bundle, raw=True, display_id=True)
        else:
            self._handle.update(bundle, raw=True)


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Show perfkit's own errors as IPython's ``UsageError``: one line, no traceback.

    Never run user code inside it: user errors must keep their type and traceback.
    """
    __tracebackhide__ = True
    try:
        yield
    except PerfkitError as error:
        raise UsageError(str(error)) from error
