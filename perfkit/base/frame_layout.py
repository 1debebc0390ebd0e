"""Where this interpreter keeps the frames of its threads, found by looking at itself.

Offsets into CPython's own structures differ between versions and builds. Here each is found as the
place where a known address stands: of this function's code, of its caller's frame. Who uses them
compares a stack read with them with a known one first.
"""

from __future__ import annotations

import ctypes
import functools
import os
import struct
import sys
import sysconfig
import threading
from types import CodeType, FrameType
from typing import Any

# Beginnings that are the same since Python 3.11: an object's header, a frame object's pointer to
# the interpreter's frame, a thread's neighbours.
_HEADER, _FRAME, _PREVIOUS_THREAD = 16, 24, 0
_WORDS_OF_FRAME = 14


@functools.cache
def frame_layout() -> dict[str, Any] | None:
    """The layout; None where it is not to be had (not Linux, no lock, another interpreter)."""
    is_usual = sys.implementation.name == "cpython" and struct.calcsize("P") == 8
    if not (sys.platform == "linux" and is_usual and sys.byteorder == "little"):
        return None
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        return None
    try:
        memory = os.open("/proc/self/mem", os.O_RDONLY)
    except OSError:
        return None
    try:
        return _found(memory)
    except (LookupError, OSError, ValueError, OverflowError, struct.error):
        return None
    finally:
        os.close(memory)


def _found(memory: int) -> dict[str, Any]:
    inner = sys._getframe()
    outer = inner.f_back
    assert outer is not None
    mine, callers = _frame_at(memory, inner), _frame_at(memory, outer)
    code = outer.f_code
    of_mine = _words(memory, mine, _WORDS_OF_FRAME)
    of_callers = _words(memory, callers, _WORDS_OF_FRAME)
    at_code = _index(of_callers, lambda word: word & ~7 == id(code))
    at_instruction = _index(
        of_callers, lambda word: id(code) + 8 <= word < id(code) + code.__sizeof__()
    )
    first = of_callers[at_instruction] - outer.f_lasti - id(code)
    del inner, outer  # a frame that refers to itself would keep what all of its callers hold
    named = (lambda: 0).__code__  # its name and its qualified name differ
    of_code = _words(memory, id(named), first // 8)
    pythons = ctypes.pythonapi
    for name in ("PyThreadState_Get", "PyInterpreterState_Main"):
        getattr(pythons, name).restype = ctypes.c_void_p
    thread, interpreter = pythons.PyThreadState_Get(), pythons.PyInterpreterState_Main()
    runtime = ctypes.addressof(ctypes.c_char.in_dll(pythons, "_PyRuntime"))
    # no call of a Python function in between: it would have a frame of its own
    of_thread = struct.unpack("<80Q", os.pread(memory, 640, thread))
    within = None
    for at_frame, word in enumerate(of_thread):  # noqa: B007
        if word == mine:
            break
        try:
            inside = struct.unpack("<4Q", os.pread(memory, 32, word))
        except (OSError, OverflowError, struct.error):
            continue
        if mine in inside:
            within = 8 * inside.index(mine)
            break
    else:
        raise LookupError("no frame in the thread's state")
    head = thread
    while before := _words(memory, head + _PREVIOUS_THREAD, 1)[0]:
        head = before
    library, base = _library(runtime)
    mask, kinds = _kinds_of_text(memory)
    return {
        "library": library,
        "base": base,
        "code_type": id(CodeType),
        "runtime": runtime,
        "interpreter": 8 * _words(memory, runtime, 2048).index(interpreter),
        "threads": 8 * _index_in_chunks(memory, interpreter, head),
        "native_id": 8 * of_thread.index(threading.get_native_id()),
        "frame": 8 * at_frame,
        "within": within,
        "code": 8 * at_code,
        "instruction": 8 * at_instruction,
        "previous": 8 * of_mine.index(callers),
        "first": first,
        "co_filename": 8 * of_code.index(id(named.co_filename)),
        "co_qualname": 8 * of_code.index(id(named.co_qualname)),
        "co_linetable": 8 * of_code.index(id(named.co_linetable)),
        "co_firstlineno": _line_number(memory, named, first),
        "kind_mask": mask,
        "kinds": kinds,
    }


def _frame_at(memory: int, frame: FrameType) -> int:
    return _words(memory, id(frame) + _FRAME, 1)[0]


def _words(memory: int, address: int, n: int) -> tuple[int, ...]:
    found = os.pread(memory, 8 * n, address)
    return struct.unpack(f"<{len(found) // 8}Q", found[: len(found) // 8 * 8])


def _index(words: tuple[int, ...], is_it: Any) -> int:
    return next(i for i, word in enumerate(words) if is_it(word))


def _index_in_chunks(memory: int, address: int, word: int) -> int:
    """Interpreters are large, some hundred KB in newer versions."""
    for chunk in range(0, 1 << 16, 512):
        words = _words(memory, address + 8 * chunk, 512)
        if word in words:
            return chunk + words.index(word)
    raise LookupError("no thread in the interpreter's state")


def _line_number(memory: int, code: CodeType, n: int) -> int:
    head = os.pread(memory, n, id(code))
    # the first line is one of its numbers of 32 bits; another function's tells it from the others
    other = _line_number.__code__
    others = os.pread(memory, n, id(other))
    for at in range(_HEADER, n - 4, 4):
        if (
            struct.unpack_from("<i", head, at)[0] == code.co_firstlineno
            and struct.unpack_from("<i", others, at)[0] == other.co_firstlineno
        ):
            return at
    raise LookupError("no line number in the code")


def _kinds_of_text(memory: int) -> tuple[int, dict[str, tuple[int, int, str]]]:
    """By some bits of a string's state: where its characters begin, how wide they are.

    The width has three bits there, then come one for "in one piece" and one for "ASCII".
    """
    widths = (1, "ascii"), (1, "latin-1"), (2, "utf-16-le"), (4, "utf-32-le")
    samples = ["ab" + end + "cd" for end in ("x", "é", "Ω", "🜁")]
    states = [_words(memory, id(text) + 32, 1)[0] & 0xFFFFFFFF for text in samples]
    for shift in range(24):
        bits = [state >> shift & 0b11111 for state in states]
        if bits == [0b11001, 0b01001, 0b01010, 0b01100]:
            return 0b11111 << shift, {
                str(bit << shift): (text.__sizeof__() - width * (len(text) + 1), width, encoding)
                for text, bit, (width, encoding) in zip(samples, bits, widths, strict=True)
            }
    raise LookupError("no width in a string's state")


def _library(address: int) -> tuple[str, int]:
    """The file of which this address is data, and where in memory it begins."""
    first: dict[str, int] = {}
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as maps:  # noqa: PTH123
        path = ""
        for line in maps:
            begin, end = (int(x, 16) for x in line.split(" ", 1)[0].split("-"))
            # what is zero at the start follows its file's data, without a name
            path = line.rstrip("\n")[73:] or path
            first.setdefault(path, begin)
            if begin <= address < end:
                return path, first[path]
    raise LookupError("the interpreter's data is nowhere")
