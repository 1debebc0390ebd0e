"""What the user's functions make in a step, compared by value from one step to later ones.

In the few steps that are looked at ``sys.setprofile`` tells of each call that begins and ends,
which slows them. Of those that take long, a checksum of each tensor and array among the variables
is kept, and of what a module was given and gave back. Equal values need not be made anew, if the
statement that makes them uses nothing that did change, and no weight that trains.
"""

from __future__ import annotations

import inspect
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import CodeType, FrameType
from typing import Any, NamedTuple

import numpy as np
import torch

from perfkit.base import torch_compat
from perfkit.base.checksum import checksum, is_plain
from perfkit.base.process_memory import give_back
from perfkit.base.source import Statement, loops_around, statements_of
from perfkit.base.user_code import is_user_code

# Calls that take less of a step are no matter, and longer steps are not looked at.
_LEAST_SHARE, _LONGEST_S = 0.03, 1.0
# The first look is at the step after so many; then after each doubling, at most so often.
_FROM, _MOST_LOOKS = 8, 6
# Larger tensors are not looked into; in a step so long, at most.
_MOST_BYTES, _MOST_S = 2**26, 0.3
# Snapshots of variables stay with their frames up to here, and keep what is in them.
_SNAPSHOTS = sys.version_info < (3, 13)
_GOES_ON = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
_NUMBERS = (int, float, str, torch.device, torch.dtype, torch.nn.Module, type(None))
_Place = tuple[str, int]


@dataclass
class _Seen:
    """Of one function: prints of its variables, by name; which of them differed; what trains."""

    statements: tuple[Statement, ...]
    n_looks: int = 0
    now: dict[str, list[object]] = field(default_factory=dict)
    before: dict[str, list[object]] = field(default_factory=dict)
    differ: set[str] = field(default_factory=set)
    trains: set[str] = field(default_factory=set)
    plain: set[str] = field(default_factory=set)  # the same number all over
    in_module: bool = False
    by_numbers: bool = True
    called_at: _Place = ("", 0)


class Same(NamedTuple):
    """Statements of a function whose results were equal in all steps that were looked at.

    Attributes:
        in_module: it is a method of a module.
        by_numbers: besides that it was given numbers, texts, devices and types alone.
        called_at: from where, first.
    """

    code: CodeType
    statements: tuple[Statement, ...]
    names: tuple[str, ...]
    in_module: bool
    by_numbers: bool
    called_at: _Place

    @property
    def lines(self) -> list[int]:
        """Where its statements begin that are within no other one."""
        last, found = 0, []
        for one in self.statements:
            if one.first > last:
                found.append(one.first)
                last = one.last
        return found

    def has(self, line: int) -> bool:
        return any(one.first <= line <= one.last for one in self.statements)


class Twice(NamedTuple):
    """A module that gave the same for the same within a step, in each of them.

    Attributes:
        places: the user's lines that called it, in the order in which they did.
        is_trained: whether a backward pass began after the last of these calls.
    """

    name: str
    places: tuple[_Place, ...]
    is_trained: bool

    @property
    def later(self) -> tuple[set[_Place], float]:
        """The lines of all calls but the first, and which part of the calls there these are."""
        others = set(self.places) - {self.places[0]}
        return (others, 1.0) if others else (set(self.places), 1 - 1 / len(self.places))


class MadeAgain:
    """Looks at some of the steps of this thread; :meth:`step_ended` says which is over.

    Attributes:
        steps: which have been looked at.
    """

    def __init__(self) -> None:
        self.steps: list[int] = []
        self.is_on = False
        self._before = 0, 0.0, 0.0
        self._seen: dict[CodeType, _Seen] = {}
        self._twice: dict[tuple[_Place, ...], Twice] | None = None
        self._forget()

    def _forget(self) -> None:
        self._open: list[tuple[FrameType, float]] = []
        self._paused: dict[CodeType, FrameType] = {}
        self._forward: FrameType | None = None
        self._given: object = None
        self._calls: dict[object, list[tuple[str, _Place, int]]] = {}
        self._n_backward = 0
        self._spent_s = 0.0

    def step_ended(self, n: int) -> bool:
        """So many steps are over; whether it looks at the next one, and is to be told of its end.

        Told of those that double their number, beside.
        """
        if self.is_on:
            self.stop(n * (n > self._before[0]))  # else the run ends within it
            return False
        n_before, before_s, worked_s = self._before
        if n == n_before:  # asked again as the run ends
            return False
        if not n_before:  # what it needs of memory is not to look like a rise in later steps
            for frame in self._callers():
                if is_user_code(frame.f_code.co_filename):
                    loops_around(frame.f_code.co_filename, frame.f_lineno)
                    statements_of(frame.f_code.co_filename, 0)
        self._before = n, time.perf_counter(), time.thread_time()
        step_s = (self._before[1] - before_s) / (n - n_before)
        works_s = (self._before[2] - worked_s) / (n - n_before)
        is_due = n_before and n >= _FROM and len(self.steps) < _MOST_LOOKS and self._is_worth_it
        is_alone = sys.getprofile() is None and not torch_compat.compile_has_patched_torch()
        if is_due and is_alone and works_s < _LONGEST_S and not torch_compat.profiler_is_on():
            self._least_s, self.is_on = _LEAST_SHARE * step_s, True
            self._in_backward = torch_compat.graph_task_id_reader()
            sys.setprofile(self._event)
        return self.is_on

    def stop(self, step: int = 0) -> None:
        """End; what was seen counts only where it was of a whole step, with this number."""
        if not self.is_on:
            return
        self.is_on = False
        if sys.getprofile() == self._event:
            sys.setprofile(None)
            if step:
                self._look_at_callers()
                self._compare(step)
        frames, self._open = (
            [*self._callers(), *(f for f, _ in self._open), *self._paused.values()],
            [],
        )
        for frame in frames if _SNAPSHOTS else ():
            if frame.f_code.co_flags & inspect.CO_OPTIMIZED:  # its variables are elsewhere
                frame.f_locals.clear()
        del frames
        self._forget()
        give_back()

    def _event(self, frame: FrameType, event: str, result: Any) -> None:
        if event == "call":
            name = frame.f_code.co_name
            if name == "forward" and self._forward is None and self._in_backward() < 0:
                self._forward, self._given = frame, _given(frame)
            elif name in ("backward", "grad") and "torch" in frame.f_code.co_filename:
                self._n_backward += 1
            if frame is self._forward or is_user_code(frame.f_code.co_filename):
                self._open.append((frame, time.perf_counter()))
        elif event == "return" and frame.f_code.co_flags & _GOES_ON:
            self._paused[frame.f_code] = frame
        if event == "return" and self._open and self._open[-1][0] is frame:
            began_s = time.perf_counter()
            took_s = began_s - self._open.pop()[1]
            try:
                if took_s >= self._least_s and self._spent_s < _MOST_S:
                    if frame is self._forward:
                        self._called(frame, result)
                    if is_user_code(frame.f_code.co_filename):
                        self._look(frame, result)
            except Exception:  # an object that nobody has seen: nothing is said
                self._spent_s = _MOST_S
            if frame is self._forward:
                self._forward = None
            self._spent_s += time.perf_counter() - began_s

    def _called(self, frame: FrameType, result: Any) -> None:
        given, gave = self._given, checksum(result, most_bytes=_MOST_BYTES)
        if given is not None and gave is not None:
            module = frame.f_locals[frame.f_code.co_varnames[0]]
            call = type(module).__qualname__, _called_at(frame), self._n_backward
            self._calls.setdefault((given, gave[0]), []).append(call)

    def _callers(self) -> Iterator[FrameType]:
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            yield frame
            frame = frame.f_back

    def _look_at_callers(self) -> None:
        """What runs on: of these the innermost loop around, or what began in this step."""
        began = {frame for frame, _ in self._open}
        for frame in self._callers():
            file, first = frame.f_code.co_filename, frame.f_code.co_firstlineno
            if not is_user_code(file):
                continue
            loops = [one for one in loops_around(file, frame.f_lineno) if one[1] > first]
            if loops and frame not in began:
                self._look(frame, None, within=loops[0][1:])
            elif frame in began:
                self._look(frame, None, within=(first, frame.f_lineno))

    def _look(self, frame: FrameType, result: Any, within: tuple[int, int] | None = None) -> None:
        code = frame.f_code
        seen = self._seen.get(code)
        if seen is None:
            line = 0 if code.co_name == "<module>" else code.co_firstlineno
            statements = statements_of(code.co_filename, line)
            if within is not None:
                first, last = within
                statements = tuple(
                    x for x in statements if first < x.first and x.last <= last and x.is_sure
                )
            seen = self._seen[code] = _Seen(statements, called_at=_called_at(frame))
        values = {**frame.f_locals, "return": result}
        uses = {use for one in seen.statements for use in one.uses}
        for name in {use.partition(".")[0] for use in uses}.union(
            *(x.makes for x in seen.statements)
        ):
            value = values.get(name)
            if name not in seen.differ and isinstance(value, torch.Tensor | np.ndarray):
                one = object() if self._spent_s >= _MOST_S else _print(value, seen.plain, name)
                seen.now.setdefault(name, []).append(one)
        if not seen.n_looks:
            seen.in_module = isinstance(values.get("self"), torch.nn.Module)
            given = (values.get(name) for name in code.co_varnames[: code.co_argcount])
            seen.by_numbers = all(isinstance(one, _NUMBERS) for one in given)
            seen.trains = {use for use in uses if _trains(use, values, frame.f_globals)}

    def _compare(self, step: int) -> None:
        self.steps.append(step)
        for seen in self._seen.values():
            if seen.n_looks:
                names = seen.before.keys() | seen.now.keys()
                seen.differ |= {x for x in names if seen.before.get(x) != seen.now.get(x)}
            else:
                seen.before = seen.now
            seen.now = {}
            seen.n_looks += 1
        several = {
            places: Twice(calls[0][0], places, is_trained=calls[-1][2] < self._n_backward)
            for calls in self._calls.values()
            if (places := tuple(place for _, place, _ in calls))[1:]
        }
        old = self._twice
        self._twice = {x: one for x, one in several.items() if old is None or x in old}

    @property
    def _is_worth_it(self) -> bool:
        """Whether another look may find something."""
        return len(self.steps) < 2 or any(self.same(1)) or bool(self._twice)

    @property
    def twice(self) -> list[Twice]:
        return list((self._twice or {}).values())

    def same(self, least_looks: int) -> Iterator[Same]:
        """Of functions that were looked at so often."""
        for code, seen in self._seen.items():
            equal = seen.before.keys() - seen.differ
            found, names = [], Counter[str]()
            for one in seen.statements:
                makes = one.makes & seen.before.keys()
                needs = any(
                    use in seen.trains or use.partition(".")[0] in seen.differ for use in one.uses
                )
                if makes - seen.plain and makes <= equal and not needs:
                    found.append(one)
                    names.update(makes - seen.plain)
            if found and seen.n_looks >= least_looks:
                more = seen.in_module, seen.by_numbers, seen.called_at
                yield Same(code, tuple(found), tuple(names), *more)


def _called_at(frame: FrameType) -> _Place:
    """The user's line that led to this call."""
    at = frame.f_back
    while at is not None and not is_user_code(at.f_code.co_filename):
        at = at.f_back
    return ("", 0) if at is None else (at.f_code.co_filename, at.f_lineno)


def _given(frame: FrameType) -> object:
    """A print of all that a module's forward pass is given; None where it cannot be made."""
    code, values = frame.f_code, frame.f_locals
    n = (
        code.co_argcount
        + code.co_kwonlyargcount
        + bool(code.co_flags & 4)
        + bool(code.co_flags & 8)
    )
    module, *given = [values.get(name) for name in code.co_varnames[:n]] or [None]
    found = checksum(given, most_bytes=_MOST_BYTES) if isinstance(module, torch.nn.Module) else None
    return found and (id(module), found[0])


def _print(value: Any, plain: set[str], name: str) -> object:
    if isinstance(value, torch.Tensor) and value.device.type != "cpu":
        if value.nbytes > _MOST_BYTES or torch_compat.cuda_is_capturing():
            return object()
        with torch_compat.without_modes():
            value = value.detach().cpu()
    found = checksum(value, most_bytes=_MOST_BYTES)
    if found is None:
        return object()
    if is_plain(value):
        plain.add(name)
    return found[0], tuple(value.shape), str(value.dtype)


def _trains(use: str, values: dict[str, Any], others: dict[str, Any]) -> bool:
    """Whether this name is a module or a parameter that trains; runs no code of the user's."""
    name, *attributes = use.split(".")
    value = values.get(name, others.get(name))
    for attribute in attributes:
        parts = getattr(value, "__dict__", None) or {}
        kinds = (parts.get(kind) or {} for kind in ("_parameters", "_modules", "_buffers"))
        held = next((one[attribute] for one in (parts, *kinds) if attribute in one), None)
        if held is None:  # a method: of the module itself it is looked at like others
            value = None if name == "self" and attribute == attributes[0] else value
            break
        value = held
    if isinstance(value, torch.nn.Module):
        return any(one.requires_grad for one in value.parameters())
    return isinstance(value, torch.nn.Parameter) and value.requires_grad
