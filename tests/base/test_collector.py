"""The garbage collector is at rest within and afterwards as it was; how long it takes is known."""

from __future__ import annotations

import gc
import linecache
import signal
import subprocess
import sys
import threading
from types import FrameType
from typing import Any

import pytest

from perfkit.base import collector
from perfkit.base.collector import CollectorTime


@pytest.mark.parametrize("is_on", [True, False])
def test_it_is_as_before_whatever_happens(is_on: bool) -> None:
    (gc.enable if is_on else gc.disable)()
    try:
        with collector.at_rest():
            assert not gc.isenabled()
        assert gc.isenabled() is is_on
        with pytest.raises(ZeroDivisionError), collector.at_rest():
            raise ZeroDivisionError
        assert gc.isenabled() is is_on
    finally:
        gc.enable()


def test_of_two_threads_the_last_one_to_leave_switches_it_on() -> None:
    """A look at frames that began beside an import went on when the import was over."""
    entered, leaves = threading.Event(), threading.Event()

    def rests() -> None:
        with collector.at_rest():
            entered.set()
            leaves.wait()

    thread = threading.Thread(target=rests)
    with collector.at_rest():
        thread.start()
        entered.wait()
    assert not gc.isenabled()
    leaves.set()
    thread.join()
    assert gc.isenabled()


# which programs import torch themselves, and from what they are given
_IMPORTS = """
import gc, sys
seen = []
class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == "torch":
            seen.append(gc.isenabled())
            raise SystemExit(seen != [False])
sys.meta_path.insert(0, Finder)
{start}
"""


@pytest.mark.parametrize(
    "start",
    [
        "from perfkit.script.ranks import torchrun; torchrun.main()",
        "from perfkit.script.ranks import child; child._run(child.Parcel(b'', {}, b'', '', [], 6))",
        "import pathlib; from perfkit.experiment.process import rank; rank._run(pathlib.Path(), 0)",
    ],
)
def test_a_rank_does_not_collect_while_it_imports_torch(start: str) -> None:
    code = _IMPORTS.format(start=start)
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.usefixtures("python_handles_ctrl_c")
def test_ctrl_c_at_any_line_of_it_leaves_the_collector_on() -> None:
    interrupted = 0
    for number in range(1, 30):
        left = number

        def line(frame: FrameType, event: str, argument: Any) -> Any:
            nonlocal left
            code = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
            # the moment before `surely` is within its `try`, where nothing can be done
            left -= event == "line" and not code.startswith(("try:", "surely("))
            if not left:
                sys.settrace(None)
                frame.f_trace = None
                signal.raise_signal(signal.SIGINT)
            return line

        sys.settrace(lambda frame, *_: line if _is_of_it(frame) else None)
        try:
            with collector.at_rest():
                pass
        except KeyboardInterrupt:
            interrupted += 1
        finally:
            sys.settrace(None)
        assert gc.isenabled(), f"line {number} that it runs"
        assert not collector._resting
    assert 10 < interrupted < 29


def _is_of_it(frame: FrameType) -> bool:
    return frame.f_code.co_filename == collector.__file__


def test_it_listens_to_the_collections_of_its_own_thread_only_while_it_runs() -> None:
    taking = CollectorTime()
    before = list(gc.callbacks)
    taking.start()
    taking.start()
    assert len(gc.callbacks) == len(before) + 1
    other = threading.Thread(target=gc.collect)
    other.start()
    other.join()
    assert not taking.take()
    gc.collect()
    taking.stop()
    assert gc.callbacks == before
    assert sum(taking.take()) > 0
    gc.collect()
    assert not taking.take()


def test_a_collection_counts_from_its_begin_to_its_end_and_short_ones_may_be_left_out() -> None:
    times = iter((5, 8, 20, 120))
    taking = CollectorTime(times.__next__, least_ns=3)
    taking.start()
    for phase in ("stop", "start", "stop", "stop", "start"):  # one was under way at first
        taking._callback(phase, {})
    assert (taking.take(), taking.take()) == ([3], ())
    taking._callback("stop", {})
    assert taking.take() == [100]
    brief = CollectorTime(iter((5, 7)).__next__, least_ns=3)
    brief.start()
    for phase in ("start", "stop"):
        brief._callback(phase, {})
    taking.stop()
    brief.stop()
    assert not brief.take()
