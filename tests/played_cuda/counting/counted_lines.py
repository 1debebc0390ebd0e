"""Which statements of a package ran, in any process: a byte of a shared file for each line.

A statement of a module that was imported under :func:`count` sets the byte of its first line, then
runs. The file is mapped into each process, so nothing has to be written at the end: a process may
be killed, fork or leave by ``os._exit``. Other code runs at its own speed; coverage.py's tracer is
called for every line of torch and IPython, too, which takes hours where this takes minutes.

What runs as a script, not as a module, is not counted.
"""

from __future__ import annotations

import ast
import builtins
import marshal
import mmap
import os
from collections.abc import Iterator
from importlib.machinery import SourceFileLoader
from itertools import accumulate
from pathlib import Path
from types import CodeType

_BLOCKS = ("body", "orelse", "finalbody")
_NAME = "__ran__"


def with_counters(source: str, first: int = 0) -> ast.Module:
    """The module, with ``__ran__[first + line] = 1`` before each statement."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        for name in _BLOCKS:
            block = getattr(node, name, None)
            if isinstance(block, list):  # a lambda's body is none
                setattr(node, name, list(_counted(block, first)))
    return tree


def _counted(block: list[ast.stmt], first: int) -> Iterator[ast.stmt]:
    for n, statement in enumerate(block):
        if not (_is_docstring(statement, n) or _is_from_future(statement)):
            [mark] = ast.parse(f"{_NAME}[{first + statement.lineno}] = 1").body
            for node in ast.walk(mark):
                ast.copy_location(node, statement)
            yield mark
        yield statement


def _is_docstring(statement: ast.stmt, n: int) -> bool:
    return n == 0 and isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _is_from_future(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.ImportFrom) and statement.module == "__future__"


def places(package: Path) -> dict[Path, slice]:
    """Each module's part of the file: as many bytes as it has itself, enough for its lines."""
    modules = sorted(package.resolve().rglob("*.py"))
    ends = list(accumulate(module.stat().st_size + 1 for module in modules))
    return {
        module: slice(begin, end)
        for module, begin, end in zip(modules, [0, *ends], ends, strict=False)
    }


def ran(file: Path, package: Path) -> dict[str, set[int]]:
    """Lines that ran, by the path of their module, without modules that nobody imported."""
    found, root = file.read_bytes(), package.resolve()
    lines = {
        module.relative_to(root).as_posix(): {n for n, hit in enumerate(found[place]) if hit}
        for module, place in places(package).items()
    }
    return {name: numbers for name, numbers in lines.items() if numbers}


def count(file: Path, package: Path) -> None:
    """Count modules of this package that this process imports from now on, and its forks."""
    place = places(package)
    size = max((part.stop for part in place.values()), default=1)
    file.parent.mkdir(parents=True, exist_ok=True)
    fd = os.open(file, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        os.ftruncate(fd, size)
        setattr(builtins, _NAME, mmap.mmap(fd, size))
    finally:
        os.close(fd)
    plain = SourceFileLoader.get_code

    def get_code(loader: SourceFileLoader, name: str) -> CodeType | None:
        if name.partition(".")[0] == package.name:
            path = Path(loader.get_filename(name)).resolve()
            if path in place:
                return _code(path, place[path].start, file.parent / "code" / name)
        return plain(loader, name)

    # each finder of modules in folders has this very class
    SourceFileLoader.get_code = get_code  # type: ignore[method-assign,assignment]


def _code(path: Path, first: int, kept: Path) -> CodeType:
    """The compiled module, kept between processes: perfkit is compiled once, not in each."""
    try:
        found: CodeType = marshal.loads(kept.read_bytes())
        return found
    except (OSError, ValueError, EOFError):
        pass
    counting = with_counters(path.read_text(encoding="utf-8"), first)
    code = compile(counting, str(path), "exec", dont_inherit=True)
    kept.parent.mkdir(exist_ok=True)
    half = kept.with_name(f"{kept.name}.{os.getpid()}")
    half.write_bytes(marshal.dumps(code))
    half.replace(kept)
    return code
