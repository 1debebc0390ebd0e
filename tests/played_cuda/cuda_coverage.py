"""Which of the statements that only a CUDA machine executes run on the played GPU: a table by room.

    python -m coverage run -m pytest tests/memory                # without a GPU, into one file
    .venv-cuda/bin/python -m coverage run -m pytest tests/memory # on the played GPU, into another
    python tests/played_cuda/cuda_coverage.py --room memory CPU.data... -- PLAYED.data...

A statement is CUDA's if it did not run without a GPU and stands under an if that speaks of CUDA or
GPUs, or in a function that does and that either did not run at all without a GPU or did more on the
played one. That is a guess for those which ran nowhere: they are listed, to be looked at. What else
ran on the played GPU alone stands in a column of its own: some of it needs a GPU, some was reached
by chance. Statements of modules that neither run imported are not counted.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import re
import sqlite3
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from coverage.numbits import numbits_to_nums, numbits_union

ROOT = Path(__file__).resolve().parents[2]
ABOUT_CUDA = re.compile(r"cuda|gpu|nvml|nccl", re.IGNORECASE)


def ran(files: list[str]) -> dict[str, set[int]]:
    """Lines that ran, by path within the package; data of several runs are added up.

    There is a file of data for each process. Asking each for the lines of each module by
    ``CoverageData.lines`` takes ten minutes, so their tables are read whole.
    """
    found: dict[str, bytes] = defaultdict(bytes)
    for name in files:
        for path, bits in _rows(name):
            _, package, rest = path.rpartition("/perfkit/")
            if package:
                found[rest] = numbits_union(found[rest], bits)
    return {name: set(numbits_to_nums(bits)) for name, bits in found.items()}


def _rows(name: str) -> list[tuple[str, bytes]]:
    try:
        with contextlib.closing(sqlite3.connect(name)) as data:
            return data.execute(
                "select path, numbits from line_bits join file on file.id = file_id"
            ).fetchall()
    except sqlite3.DatabaseError as error:  # of a process that was killed while it wrote
        print(f"left out: {name}: {error}", file=sys.stderr)
        return []


@dataclass(frozen=True)
class Module:
    """One file: its lines, and the numbers of those that ran, without a GPU and with it."""

    lines: list[str]
    without: set[int]
    with_gpu: set[int]

    def is_about_cuda(self, statement: ast.stmt, head: range) -> bool:
        """Whether what stands inside of a function or an if is CUDA's."""
        text = range(statement.lineno, (statement.end_lineno or statement.lineno) + 1)
        if isinstance(statement, ast.If):
            return self._speaks(head)
        if not isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
            return False
        inside = set(text) - set(head)
        did_more = bool(inside & (self.with_gpu - self.without))
        return self._speaks(text) and (did_more or not inside & self.without)

    def _speaks(self, numbers: range) -> bool:
        return any(ABOUT_CUDA.search(self.lines[n - 1]) for n in numbers)


def statements(module: Module) -> Iterator[tuple[int, int, bool]]:
    """First line, last line of the statement or its head, and whether it stands in CUDA's code."""
    yield from _inside(ast.parse("\n".join(module.lines)).body, module, about=False)


def _inside(body: list[ast.stmt], module: Module, about: bool) -> Iterator[tuple[int, int, bool]]:
    for statement in body:
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
            continue  # a docstring
        if isinstance(statement, ast.Global | ast.Nonlocal):
            continue  # no code
        blocks = [
            block
            for block in (*_blocks(statement), *map(_body, getattr(statement, "handlers", ())))
            if block
        ]
        first = statement.lineno
        last = (statement.end_lineno or first) if not blocks else max(
            first, min(block[0].lineno for block in blocks) - 1
        )  # fmt: skip
        yield first, last, about
        inner = about or module.is_about_cuda(statement, range(first, last + 1))
        for block in blocks:
            yield from _inside(block, module, inner)


def _blocks(statement: ast.stmt) -> Iterator[list[ast.stmt]]:
    for name in ("body", "orelse", "finalbody"):
        yield getattr(statement, name, [])


def _body(handler: ast.ExceptHandler) -> list[ast.stmt]:
    return handler.body


def main(cpu: list[str], played: list[str], wanted: list[str]) -> None:
    """Print the table of these rooms, or of all, and the statements that ran nowhere."""
    without, with_gpu = ran(cpu), ran(played)
    rooms: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    nowhere: list[str] = []
    for name in sorted(set(without) & set(with_gpu)):
        room = name.partition("/")[0]
        if wanted and room not in wanted:
            continue
        lines = (ROOT / "perfkit" / name).read_text(encoding="utf-8").splitlines()
        module = Module(lines, without[name], with_gpu[name])
        for first, last, about in statements(module):
            span = set(range(first, last + 1))
            here = bool(span & with_gpu[name])
            if span & without[name] or not (here or about):
                continue
            if not about:
                rooms[room][2] += 1
                continue
            rooms[room][0] += 1
            rooms[room][1] += here
            if not here:
                nowhere.append(f"{name}:{first}: {lines[first - 1].strip()}")
    print("| room | CUDA's | of these on the played GPU | others on it alone |\n|---|---|---|---|")
    for room, (n, n_here, others) in sorted(rooms.items()):
        print(f"| {room} | {n} | {n_here} ({n_here / max(n, 1):.0%}) | {others} |")
    print("\nRan nowhere:\n" + "\n".join(nowhere))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--room", action="append", default=[], help="may be repeated")
    if "--" not in sys.argv:
        parser.error("give the data of the runs without a GPU, then --, then those with it")
    split = sys.argv.index("--")
    asked, cpu_files = parser.parse_known_args(sys.argv[1:split])
    main(cpu_files, sys.argv[split + 1 :], asked.room)
