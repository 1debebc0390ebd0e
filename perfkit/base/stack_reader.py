"""Look at the Python stack of another process, from outside of it, many times a second.

The program of a helper process, started by :mod:`perfkit.base.line_sampler` with nothing else
loaded. A thread inside the watched process needs the interpreter's lock, so it sees a C call that
holds the lock (``sorted``, a regular expression) only when that is over, on the next line. From
outside the frames are plain memory, read through ``/proc/PID/mem`` without stopping anybody. What
is torn, because the process went on meanwhile, is read again.

It forks at once, and says in which process it goes on. Its input is a line of JSON, what to look at
and where the interpreter keeps it (see :mod:`perfkit.base.frame_layout`), then ``take``; it answers
the first with one stack to compare and the second with all that it saw. It ends with its input.
"""

# ruff: noqa: PTH110, PTH123, PTH208
# (pathlib takes longer to load than all of this)
from __future__ import annotations

import json
import os
import random
import select
import struct
import sys
import time
from array import array

TYPE_CHECKING = False  # of typing, which takes longer to load than the rest
if TYPE_CHECKING:
    from typing import Any

_LOOK_FOR_CHILDREN_S = 0.1
_DEPTH = 2  # workers of a fork server are its children
_MOST_MISSED = 20  # a process may run another program by now
_MOST_LEVELS = 2_000
# A frame that is as the last look saw it has the same code, but if that was freed and made anew.
_ASKED_EVERY = 10
_TRIES = 4
_TURN_NS = 100_000  # the shortest that Linux gives; a look takes less
_WINDOW_BYTES = 4096  # a page: frames lie one after the other, most come with the first read
_THREAD_BYTES = 640
_LONGEST_NAME = 4096
# One hour at 100 a second; then every other sample is dropped, and every other taken.
_MOST_SAMPLES = 400_000


class TornError(Exception):
    """What was read makes no sense: it changed meanwhile."""


class Codes:
    """The code objects seen so far, in all processes."""

    def __init__(self) -> None:
        self.told: dict[tuple[str, str, int, bytes], int] = {}
        self.frames: dict[tuple[int, int], int] = {}  # (code, instruction's offset)
        self.stacks: dict[tuple[int, ...], int] = {}

    def lines(self) -> list[tuple[str, str, int]]:
        """File, function and line of each frame."""
        of_code: dict[int, list[tuple[int, int, int | None]]] = {}
        found = []
        told = list(self.told)
        for code, offset in self.frames:
            file, function, first, table = told[code]
            if code not in of_code:
                blank = _blank.__code__.replace(co_firstlineno=first, co_linetable=table)
                of_code[code] = list(blank.co_lines())
            line = next((x for b, e, x in of_code[code] if b <= offset < e and x), first)
            found.append((file, function, line))
        return found


def _blank() -> None:
    pass


class Process:
    """One process whose memory may be read.

    Raises:
        OSError: it may not, or the process is over.
    """

    def __init__(self, pid: int, native_id: int, layout: dict[str, Any], codes: Codes) -> None:
        self.pid = pid
        self._native_id = native_id
        self._at = layout
        self._codes = codes
        self._file = os.open(f"/proc/{pid}/mem", os.O_RDONLY | os.O_CLOEXEC)
        self._shift = _base(pid, layout["library"]) - layout["base"]
        self._code_type = layout["code_type"] + self._shift
        self._thread = 0
        # words of a frame, after its address: which code, where in it, who called
        words = [layout[name] // 8 for name in ("code", "instruction", "previous")]
        self._words = [1 + word for word in words]
        self._frame = struct.Struct(f"<{max(words) + 1}Q")
        self._before: dict[tuple[int, ...], int] = {}  # the last look's frames
        self._known: dict[tuple[int, ...], int] = {}  # what says which code it is → its number
        self._n_looks = self.n_missed = 0

    def close(self) -> None:
        os.close(self._file)

    def stack(self) -> int | None:
        """What its thread runs, as an index of ``codes.stacks``; None if it cannot be told."""
        for _ in range(_TRIES):
            try:
                found = tuple(self._levels())
            except (TornError, OverflowError, UnicodeDecodeError):
                continue
            except OSError:  # torn as well, or over
                if not os.path.exists(f"/proc/{self.pid}/task/{self._native_id}"):
                    raise
                continue
            if found:
                self.n_missed = 0
                return self._codes.stacks.setdefault(found, len(self._codes.stacks))
        self.n_missed += 1
        return None

    def _levels(self) -> list[int]:
        at = self._at
        thread = self._thread_state()
        frame = _word(thread, at["frame"])
        if at["within"] is not None:
            frame = _word(self._read(frame, 64), at["within"])
        unpack, size = self._frame.unpack_from, self._frame.size
        code_at, instruction_at, previous_at = self._words
        reach = _WINDOW_BYTES - size
        before, self._before = self._before, {}
        self._n_looks += 1
        if self._n_looks % _ASKED_EVERY == 0:
            before = {}
        found: list[int] = []
        low, window = 0, b""
        for _ in range(_MOST_LEVELS):
            if not frame:
                return found
            start = frame - low
            if not 0 <= start <= len(window) - size:
                low = frame - reach
                try:
                    window = self._read(low, _WINDOW_BYTES)
                except (OSError, TornError):  # there is nothing before its page
                    low = frame - frame % _WINDOW_BYTES
                    window = self._read(low, frame - low + size)
                start = frame - low
            words = frame, *unpack(window, start)
            index = before.get(words)
            if index is None:
                index = self._frame_index(words[code_at] & ~7, words[instruction_at])
            if index is not None:
                self._before[words] = index
                found.append(index)
            frame = words[previous_at]
        raise TornError  # torn frames can lead in a circle

    def _frame_index(self, code: int, instruction: int) -> int | None:
        index = self._code(code) if code else None
        if index is None:
            return None
        key = index, max(instruction - code - self._at["first"], 0)
        return self._codes.frames.setdefault(key, len(self._codes.frames))

    def _code(self, address: int) -> int | None:
        """The code object; None where a frame of the interpreter's own has something else."""
        at = self._at
        head = self._read(address, at["first"])
        if _word(head, 8) != self._code_type:
            return None
        key = (
            address, _word(head, at["co_filename"]), _word(head, at["co_qualname"]),
            _word(head, at["co_linetable"]), _word(head, at["co_firstlineno"]) & 0xFFFFFFFF,
        )  # fmt: skip
        index = self._known.get(key)
        if index is None:
            told = self._text(key[1]), self._text(key[2]), key[4], self._bytes(key[3])
            index = self._known[key] = self._codes.told.setdefault(told, len(self._codes.told))
        return index

    def _text(self, address: int) -> str:
        head = self._read(address, 40)
        kind = str(_word(head, 32) & self._at["kind_mask"])
        if kind not in self._at["kinds"]:
            raise TornError
        start, width, encoding = self._at["kinds"][kind]
        n = _word(head, 16)
        if n > _LONGEST_NAME:
            raise TornError
        return self._read(address + start, n * width).decode(encoding) if n else ""

    def _bytes(self, address: int) -> bytes:
        n = _word(self._read(address, 24), 16)
        if n > 1 << 24:
            raise TornError
        return self._read(address + 32, n)

    def _thread_state(self) -> bytes:
        """The memory of its thread's state."""
        at = self._at
        if self._thread:
            seen = self._read(self._thread, _THREAD_BYTES)
            if _word(seen, at["native_id"]) == self._native_id:
                return seen
        interpreter = self._pointer(at["runtime"] + self._shift + at["interpreter"])
        self._thread = self._pointer(interpreter + at["threads"])
        for _ in range(_MOST_LEVELS):
            seen = self._read(self._thread, _THREAD_BYTES)
            if _word(seen, at["native_id"]) == self._native_id:
                return seen
            self._thread = _word(seen, 8)
            if not self._thread:
                break
        raise TornError

    def _pointer(self, address: int) -> int:
        return _word(self._read(address, 8), 0)

    def _read(self, address: int, n: int) -> bytes:
        found = os.pread(self._file, n, address)
        if len(found) < n:
            raise TornError
        return found


def _word(memory: bytes, start: int) -> int:
    return int.from_bytes(memory[start : start + 8], "little")


def _base(pid: int, library: str) -> int:
    """Where the file that the interpreter's own data is of begins in this process's memory."""
    with open(f"/proc/{pid}/maps", encoding="utf-8", errors="surrogateescape") as maps:
        for line in maps:
            if line.rstrip("\n").endswith(library):
                return int(line.partition("-")[0], 16)
    raise OSError(f"{library} is not loaded")


def _children(pid: int, depth: int) -> list[int]:
    found = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children") as text:
                found += [int(child) for child in text.read().split()]
    except OSError:
        pass
    if depth > 1:
        for child in list(found):
            found += _children(child, depth - 1)
    return found


class Looks:
    """All looks at a process's thread, and at the main threads of its children."""

    def __init__(self, pid: int, native_id: int, layout: dict[str, Any], codes: Codes) -> None:
        self._layout = layout
        self._codes = codes
        self._main: Process | None = Process(pid, native_id, layout, codes)
        self._pid = pid
        self._children: dict[int, Process] = {}
        self._others: set[int] = {os.getpid()}  # no Python, or not to be read
        self._next_child = 0
        self._at_ns, self._who, self._stacks = array("q"), array("q"), array("q")
        self._keep_every = 1

    def look(self) -> None:
        """At the thread, and at one of the children."""
        if self._main is not None and not self._one(self._main):
            self._main = None
        if self._children:
            self._next_child = (self._next_child + 1) % len(self._children)
            child = list(self._children.values())[self._next_child]
            if not self._one(child) or child.n_missed > _MOST_MISSED:
                self._children.pop(child.pid).close()
        if len(self._at_ns) > _MOST_SAMPLES:
            self._at_ns, self._who, self._stacks = (
                seen[::2] for seen in (self._at_ns, self._who, self._stacks)
            )
            self._keep_every *= 2

    def _one(self, process: Process) -> bool:
        at_ns = time.perf_counter_ns()
        try:
            stack = process.stack()
        except OSError:  # it is over
            return False
        if stack is not None:
            self._at_ns.append(at_ns)
            self._who.append(0 if process is self._main else process.pid)
            self._stacks.append(stack)
        return True

    def look_for_children(self) -> None:
        children = set(_children(self._pid, _DEPTH))
        for pid in self._children.keys() - children:
            self._children.pop(pid).close()
        self._others &= children
        for pid in children - self._children.keys() - self._others:
            try:
                self._children[pid] = Process(pid, pid, self._layout, self._codes)
            except OSError:
                self._others.add(pid)

    @property
    def slower(self) -> int:
        return self._keep_every

    def take(self) -> dict[str, object]:
        codes = self._codes
        return {
            "frames": codes.lines(),
            "stacks": list(codes.stacks),
            "at_ns": self._at_ns.tobytes().hex(),
            "who": self._who.tobytes().hex(),
            "stack": self._stacks.tobytes().hex(),
        }


def _ask_to_be_let_in() -> None:
    """Ask Linux for short turns on a core, which come soon after waking.

    Where all cores are busy, a look would otherwise wait until one is free: often until what it was
    to see is over, as a short line before a wait. Every process may ask for it (since Linux 6.12,
    ``man 2 sched_setattr``); older kernels take no notice.
    """
    number = {"x86_64": 314, "aarch64": 274}.get(os.uname().machine)
    if number is None or sys.platform != "linux":
        return
    import ctypes

    # struct sched_attr, version 0: its size, SCHED_OTHER, flags, nice, priority, the turn, two more
    wish = struct.pack("<IIQiIQQQ", 48, 0, 0, 0, 0, _TURN_NS, 0, 0)
    ctypes.CDLL(None).syscall(number, 0, wish, 0)


def _answer(what: object) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


def main() -> None:
    if os.fork():
        os._exit(0)
    _answer(os.getpid())
    _ask_to_be_let_in()
    orders = open(0, "rb", buffering=0)  # noqa: SIM115 - nothing read ahead, for select()
    line = orders.readline()
    if not line:
        return
    order = json.loads(line)
    codes = Codes()
    own = Process(order["pid"], order["asks"], order["layout"], codes)
    stack = own.stack()
    own.close()
    frames = codes.lines()
    _answer([] if stack is None else [frames[i] for i in list(codes.stacks)[stack]])
    looks = Looks(order["pid"], order["native_id"], order["layout"], codes)
    every_s = 1.0 / order["per_s"]
    watched = f"/proc/{order['pid']}"
    next_s = children_s = time.perf_counter()
    while True:
        # at irregular times: a loop of the same pace would always be seen at the same place
        now_s = time.perf_counter()
        while next_s <= now_s:  # one that is past is not made up for: it would be late, too
            next_s += every_s * looks.slower * random.uniform(0.5, 1.5)
        if select.select([orders], [], [], next_s - now_s)[0]:
            said = orders.readline()
            if said:
                _answer(looks.take())
            return
        looks.look()
        if next_s >= children_s:
            if not os.path.exists(watched):  # a process that it forked holds the input open
                return
            looks.look_for_children()
            children_s = next_s + _LOOK_FOR_CHILDREN_S


if __name__ == "__main__":
    main()
