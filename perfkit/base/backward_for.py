"""The backward passes before updates, as the program writes them, for what is updated alone."""

from __future__ import annotations

import linecache
import re
from collections.abc import Iterable

from perfkit.base.source import lines_with, whole_statement

Place = tuple[str, int]

_BACKWARD = re.compile(r"(?P<call>[\w.()\[\], ]+\.backward)\((?P<given>.*)\)")
_STEP = re.compile(r"(?:scaler\.step\((?P<given>[\w.\[\]]+)\)|(?P<own>[\w.\[\]]+)\.step\(.*\))")
_KEPT = r"\b(retain|create)_graph\s*=(?!\s*False)"
# So many lines are looked through for the pass before an update.
_FAR = 40


def backward_for(updates: Iterable[Place]) -> tuple[Place | None, str]:
    """Where the first of the passes before these updates is, and each of them with ``inputs``.

    Empty where one is not known: it may be in a function that is called.
    """
    optimizers: dict[Place, list[str]] = {}
    for place in updates:
        before, step = _pass_before(*place), _STEP.fullmatch(whole_statement(*place))
        if before is None or step is None:
            return None, ""
        optimizers.setdefault(before, []).append(step["given"] or step["own"])
    code = ["# each pass makes the gradients that the next update uses, and no others"]
    for place in sorted(optimizers):
        told = _BACKWARD.fullmatch(whole_statement(*place))
        if told is None:
            return None, ""
        groups = " + ".join(f"{one}.param_groups" for one in optimizers[place])
        given = f"{told['given']}, " if told["given"] else ""
        code += [
            f'mine = [p for group in {groups} for p in group["params"]]',
            f"{told['call']}({given}inputs=mine)",
        ]
    return min(optimizers, default=None), "\n".join(code)


def keeps_graphs(file: str) -> bool:
    """Whether a pass in this file keeps its graph, or makes one of itself.

    A graph that torch.compile made is gone after its pass, and has no second derivative.
    """
    return any(one == file for one, _ in lines_with(_KEPT))


def _pass_before(file: str, line: int) -> Place | None:
    """The last backward pass before a line, in the same function."""
    for at in range(line - 1, max(line - _FAR, 0), -1):
        text = linecache.getline(file, at)
        if re.search(r"\.backward\(", text):
            return file, at
        if re.match(r"\s*def\b", text):
            break
    return None
