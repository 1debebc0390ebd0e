"""What was alive in a run's process after it ran out of memory, and what would help.

By then the failing line and the calls below it have let go of what only they held. If that was
most of it, which the allocator's peak shows, the rest says nothing about the failure.

Collected only after the failure itself has been reported, so nothing here can hide it.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Mapping
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple

from perfkit.base.device import Device, of
from perfkit.base.machine._host import memory_bytes
from perfkit.base.words import fmt_bytes, fmt_share
from perfkit.experiment.process._failure import is_library, short_name

if TYPE_CHECKING:
    from perfkit.memory.live import LiveTensor, MemoryNow

_TENSORS = 8
_LONGEST_NAME = 60
_LONGEST_TEXT = 6000
#: Tensors without a category get a line if they hold at least this share of the tensors' memory.
_WORTH = 0.15
_ASK_AGAIN = (
    "find what held the peak: most of it is gone with the calls that the error ended; "
    "perfkit.account(step) on fewer or smaller tensors lists it by line"
)


class Alive(NamedTuple):
    """One sentence for the result, and text to show below its traceback."""

    sentence: str
    text: str


def alive(error: BaseException, *, gpu: Device | None = None) -> Alive:
    """List what is alive while the error's traceback still holds the workload's variables.

    Args:
        error: the out-of-memory error that the workload raised.
        gpu: the kind of device to query; by default the one in use.
    """
    from perfkit.memory.live import now
    from perfkit.memory.out_of_memory import ask_for_less, remedies, requested_bytes

    state = now(_variables(error.__traceback__), limit=_TENSORS, device=gpu)
    device = _device(error, state)
    parts = dict(state.by_device.get(device, {}))
    total = sum(parts.values())
    allocator = next((a for a in state.allocators if a.place == device), None)
    asked = requested_bytes(error)
    biggest = [t for t in state.biggest if t.device == device]
    peak = 0 if allocator is None else allocator.peak_allocated_bytes
    is_rest = total < peak / 2
    # what existed when the step began is unknown, so say nothing about it
    none = dict.fromkeys(parts, 0)
    found = list(remedies(none if is_rest else parts, none, allocator) if parts else ())
    if is_rest:
        found.append(_ASK_AGAIN)
    elif parts and parts["other"] >= max(_WORTH * total, 1):
        found.append(_let_go(parts["other"], biggest))
    held = max(total, 0 if allocator is None else allocator.reserved_bytes)
    if asked is not None and asked > held:
        capacity = _capacity(error, device)
        no_room = capacity is not None and asked > capacity
        found = [ask_for_less(asked, held, capacity), *([] if no_room else found)]
    frames = _frames(error.__traceback__)
    lines = [
        f"When memory ran out (measured in the run's process; {device}):",
        f"  tensors still alive after the error: {fmt_bytes(total)}{_by_category(parts)}",
        *(
            f"  {a.name} ({a.place}): allocated {fmt_bytes(a.allocated_bytes)}, reserved "
            f"{fmt_bytes(a.reserved_bytes)}; peaks {fmt_bytes(a.peak_allocated_bytes)} and "
            f"{fmt_bytes(a.peak_reserved_bytes)}"
            for a in state.allocators
        ),
        f"  resident set of the process: {fmt_bytes(state.resident_bytes)}",
        *([f"  requested and refused: {fmt_bytes(asked)}"] if asked is not None else []),
        *_where(error.__traceback__),
        *(["The largest tensors:"] if biggest else []),
        *(f"  {_row(tensor)}{_made(tensor, frames)}" for tensor in biggest),
        *(["What would help:"] if found else []),
        *(f"  - {words}" for words in found),
        *(f"  note: {words}" for words in state.warnings),
    ]
    text = "\n".join(lines)
    if len(text) > _LONGEST_TEXT:
        text = f"{text[: _LONGEST_TEXT - 1]}…"
    if is_rest:
        sentence = f"{fmt_bytes(total)} of tensors were still alive after the error, of a peak of "
        return Alive(f"{sentence}{fmt_bytes(peak)}; try: {found[0].split(':')[0]}", text)
    return Alive(_sentence(total, parts, biggest, found), text)


def _variables(tb: TracebackType | None) -> dict[str, Any]:
    """The user's variables by name, inner functions before outer ones."""
    names: dict[str, Any] = {}
    inner: dict[str, Any] = {}
    for frame in reversed(_frames(tb)):
        names.update(frame.f_globals)
        inner.update(frame.f_locals)
    return names | inner


def _frames(tb: TracebackType | None) -> list[FrameType]:
    """Frames of user functions, innermost first."""
    frames = [frame for frame, _ in traceback.walk_tb(tb)]
    return [f for f in reversed(frames) if not is_library(f.f_code.co_filename)]


def _device(error: BaseException, state: MemoryNow) -> str:
    """The device that ran out: the GPU that torch names, else the fullest one, else the CPU."""
    words = str(error)
    places: dict[str, list[str]] = {}
    for place in state.by_device:
        places.setdefault(place.partition(":")[0], []).append(place)
    for kind, found in places.items():
        gpu = of(kind)
        if not gpu.out_of_memory:
            continue
        named = re.search(gpu.out_of_memory_index, words) if gpu.out_of_memory_index else None
        index = next((group for group in named.groups() if group), None) if named else None
        if index is not None and gpu.place(int(index)) in found:
            return gpu.place(int(index))
        if named is not None or re.search(gpu.out_of_memory, words):
            return max(found, key=lambda place: sum(state.by_device[place].values()))
    return "cpu"


def _where(tb: TracebackType | None) -> list[str]:
    frames = [f for f in traceback.extract_tb(tb) if not is_library(f.filename)]
    if not frames:
        return []
    last = frames[-1]
    code = f": {last.line}" if last.line else ""
    return [f"  at line {last.lineno} in {last.name} ({short_name(last.filename)}){code}"[:300]]


def _by_category(parts: Mapping[str, int]) -> str:
    present = sorted(((n, name) for name, n in parts.items() if n), reverse=True)
    words = ", ".join(f"{name} {fmt_bytes(n)}" for n, name in present)
    return f" ({words})" if words else ""


def _row(tensor: LiveTensor) -> str:
    shape = "x".join(map(str, tensor.shape)) or "scalar"
    words = f"{fmt_bytes(tensor.storage_bytes)}  {_name(tensor)}  {shape} {tensor.dtype}"
    return f"{words}  {tensor.category}"


def _made(tensor: LiveTensor, frames: list[FrameType]) -> str:
    """The line that created it, if a variable of a running function leads to it."""
    from perfkit.memory.made_at import lines_of

    found = lines_of(tensor.name, frames) if tensor.name else None
    if found is None:
        return ""
    frame, lines = found
    where = f"{frame.f_code.co_name} ({short_name(frame.f_code.co_filename)})"
    if not lines:
        return f"; an argument of {where}"
    shown = " or ".join(map(str, lines[:3])) + (" or …" if len(lines) > 3 else "")
    return f"; made at line {shown} of {where}"


def _name(tensor: LiveTensor) -> str:
    name = tensor.name or "(no variable of the workload)"
    return name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 1]}…"


def _let_go(nbytes: int, biggest: list[LiveTensor]) -> str:
    names = [_name(t) for t in biggest if t.category == "other" and t.name]
    which = f" ({', '.join(names[:3])}{', …' if len(names) > 3 else ''})" if names else ""
    return (
        f"free what the step does not need: {fmt_bytes(nbytes)} belong to neither the model nor a "
        f"graph{which}; inputs are among them; perfkit.find_leaks shows what grows and who holds it"
    )


def _capacity(error: BaseException, device: str) -> int | None:
    """The device's total memory in bytes; None if neither torch nor the system reports it."""
    if device == "cpu":
        return memory_bytes()
    said = re.search(r"total capacity of ([\d.]+) GiB", str(error))
    return int(float(said[1]) * 2**30) if said else None


def _sentence(
    total: int, parts: Mapping[str, int], biggest: list[LiveTensor], found: list[str]
) -> str:
    if not total:
        words = "no tensors were alive there after the error"
        return f"{words}; try: {found[0].split(':')[0]}" if found else words
    category, nbytes = max(parts.items(), key=lambda item: item[1])
    words = f"{fmt_bytes(total)} of tensors were still alive after the error"
    words += f", {fmt_share(nbytes / total)} {category}"
    if biggest:
        words += f", the biggest {_name(biggest[0])} ({fmt_bytes(biggest[0].storage_bytes)})"
    if found:
        words += f"; try: {found[0].split(':')[0]}"
    return words
