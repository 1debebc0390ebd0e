"""Which of the statements that only a CUDA machine executes run on the played GPU: a table by room.

    export PYTHONPATH=$PWD:$PWD/tests/played_cuda/counting
    PERFKIT_COUNT_INTO=/tmp/cpu/lines .venv/bin/pytest tests/memory  # without a GPU
    PERFKIT_COUNT_INTO=/tmp/played/lines .venv-cuda/bin/pytest tests/memory  # on the played GPU
    python tests/played_cuda/counting/cuda_coverage.py /tmp/cpu/lines /tmp/played/lines

Further runs into the same file are added up.

A statement is CUDA's if it did not run without a GPU and stands under an if that speaks of CUDA or
GPUs, behind such an if that leaves its block, or in a function that speaks of them and that either
did not run to its end without a GPU or did more on the played one. That is a guess for those which
ran nowhere: they are listed, to be looked at. What else ran on the played GPU alone stands in a
column of its own: some of it needs a GPU, some was reached by chance. Statements of modules that
neither run imported are not counted.
"""

from __future__ import annotations

import argparse
import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from counted_lines import ran

PACKAGE = Path(__file__).resolve().parents[3] / "perfkit"
ABOUT_CUDA = re.compile(r"cuda|gpu|nvml|nccl", re.IGNORECASE)


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
        reached_its_end = statement.body[-1].lineno in self.without
        return self._speaks(text) and (did_more or not reached_its_end)

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
        blocks = [block for block in (*_blocks(statement), *map(_body, _parts(statement))) if block]
        first = statement.lineno
        last = (statement.end_lineno or first) if not blocks else max(
            first, min(block[0].lineno for block in blocks) - 1
        )  # fmt: skip
        yield first, last, about
        inner = about or module.is_about_cuda(statement, range(first, last + 1))
        for block in blocks:
            yield from _inside(block, module, inner)
        about = about or (inner and _leaves(statement))


def _leaves(statement: ast.stmt) -> bool:
    """Whether what follows in the block is another case: ``if device != "cuda": return``."""
    return isinstance(statement, ast.If) and isinstance(
        statement.body[-1], ast.Return | ast.Raise | ast.Continue | ast.Break
    )


def _blocks(statement: ast.stmt) -> Iterator[list[ast.stmt]]:
    for name in ("body", "orelse", "finalbody"):
        yield getattr(statement, name, [])


def _parts(statement: ast.stmt) -> list[ast.ExceptHandler | ast.match_case]:
    return [*getattr(statement, "handlers", ()), *getattr(statement, "cases", ())]


def _body(part: ast.ExceptHandler | ast.match_case) -> list[ast.stmt]:
    return part.body


def main(cpu: Path, played: Path, wanted: list[str]) -> None:
    """Print the table of these rooms, or of all, and the statements that ran nowhere."""
    without, with_gpu = ran(cpu, PACKAGE), ran(played, PACKAGE)
    rooms: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    nowhere: list[str] = []
    for name in sorted(set(without) & set(with_gpu)):
        room = name.partition("/")[0]
        if wanted and room not in wanted:
            continue
        lines = (PACKAGE / name).read_text(encoding="utf-8").splitlines()
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
    parser.add_argument("cpu", type=Path, help="what ran without a GPU")
    parser.add_argument("played", type=Path, help="what ran on the played GPU")
    asked = parser.parse_args()
    main(asked.cpu, asked.played, asked.room)
