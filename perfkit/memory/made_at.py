"""The line that made the tensor in a variable, read from the code that was running.

Asked when memory has run out: nothing is written down while the code runs, so it costs nothing
then. The price is that only what a variable of a running function reaches can be told, and
that two lines which assign the same variable is unknown apart.
"""

from __future__ import annotations

import dis
import re
from collections.abc import Iterable, Iterator
from types import CodeType, FrameType

_STORES = ("STORE_FAST", "STORE_DEREF", "STORE_NAME", "STORE_GLOBAL")
_LOADS = ("LOAD_FAST", "LOAD_DEREF", "LOAD_NAME", "LOAD_GLOBAL")
# methods by which a list or dict comes to hold something
_KEEPS = frozenset({"append", "appendleft", "add", "extend", "insert", "setdefault", "update"})


def lines_of(name: str, frames: Iterable[FrameType]) -> tuple[FrameType, tuple[int, ...]] | None:
    """The frame whose variable this is, and the lines there that give it a value.

    Args:
        name: a variable (``hidden``) or an element of one (``kept[3]``), which the lines that put
            something into the list or dict are told for, too.
        frames: of the running functions, the innermost first. The first one that has the
            variable counts.

    Returns:
        None where no frame has it, or where ``name`` is something else (``model.fc.weight``).
        No lines where the function got it as an argument and does not assign it.
    """
    found = re.fullmatch(r"(\w+)(\[.*\])?", name, re.DOTALL)
    if found is None:
        return None
    variable, is_element = found[1], found[2] is not None
    for frame in frames:
        if variable in frame.f_locals:
            lines = sorted(set(_lines(frame.f_code, variable, is_element)))
            return frame, tuple(lines)
    return None


def _lines(code: CodeType, variable: str, is_element: bool) -> Iterator[int]:
    before: list[dis.Instruction] = []
    for instruction in dis.get_instructions(code):
        line = instruction.positions.lineno if instruction.positions else None
        if line is not None:
            if instruction.opname.startswith(_STORES):
                if variable in _stored(instruction):
                    yield line
            elif is_element and variable == _filled(instruction, before):
                yield line
        before = [*before[-2:], instruction]


def _stored(instruction: dis.Instruction) -> tuple[str, ...]:
    """Python 3.13 stores two variables at once, or stores one and loads another."""
    names = instruction.argval
    if not isinstance(names, tuple):
        return (names,)
    return names[:1] if "_LOAD_" in instruction.opname else names


def _filled(instruction: dis.Instruction, before: list[dis.Instruction]) -> str | None:
    """The variable whose list or dict gets something here: ``kept.append(…)``, ``kept[i] = …``."""
    if not before:
        return None
    *_, last = loaded = [name for one in before for name in _loaded(one)] or [""]
    if instruction.argval in _KEEPS and instruction.opname.startswith("LOAD_"):
        return last if _loaded(before[-1]) else None
    if instruction.opname == "STORE_SUBSCR":  # the value, then the list, then its index
        if not _loaded(before[-1]):
            return last if len(before) > 1 and _loaded(before[-2]) else None
        # these two only: what comes before them in ``kept.part[i] = …`` is not the list
        loaded = [name for one in before[-2:] for name in _loaded(one)]
        return loaded[-2] if len(loaded) > 1 else None
    return None


def _loaded(instruction: dis.Instruction) -> tuple[str, ...]:
    """The variables that it loads: Python 3.13 loads two at once, or stores one and loads one."""
    names = instruction.argval
    if instruction.opname.startswith(_LOADS):
        return names if isinstance(names, tuple) else (str(names),)
    both = isinstance(names, tuple) and "_LOAD_" in instruction.opname
    return names[1:] if both else ()
