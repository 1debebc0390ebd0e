"""A perfkit error in a notebook: the user's lines and the sentence, no line of perfkit's."""

from __future__ import annotations

import sys
import traceback
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from conftest import Notebook

LOCK = """\
import threading, perfkit
lock = threading.Lock()
def workload(settings):
    with lock:
        yield
def start():
    return perfkit.ab(workload, {"num_workers": 0}, {"num_workers": 2})
start()
"""
OWN = """\
import perfkit
class Mine:
    def __reduce__(self):
        raise ValueError("mine")
mine = Mine()
def workload(settings):
    yield mine
perfkit.ab(workload, {"num_workers": 0}, {"num_workers": 2})
"""


def test_a_workload_that_cannot_travel_shows_the_users_lines_and_one_sentence(
    notebook: Notebook,
) -> None:
    said = notebook.run(LOCK).out
    assert "WorkloadNotPortableError: workload cannot travel to its own process: global" in said
    assert "----> 8 start()" in said
    assert "in start()" in said
    assert "portable.py" not in said
    assert "cloudpickle.py" not in said
    assert said.rstrip().endswith("(TypeError: cannot pickle '_thread.lock' object)")
    # the debugger and a bug report still have all of it
    whole = "".join(traceback.format_exception(sys.last_value))
    assert "portable.py" in whole
    assert "The above exception was the direct cause" in whole


def test_what_the_users_own_code_raised_stays_in_sight(notebook: Notebook) -> None:
    said = notebook.run(OWN).out
    assert 'raise ValueError("mine")' in said
    assert "WorkloadNotPortableError: workload cannot travel" in said


@pytest.mark.parametrize("mode", ["Plain", "Context", "Verbose", "Minimal"])
def test_the_shells_own_mode_holds(notebook: Notebook, mode: str) -> None:
    notebook.shell.run_line_magic("xmode", mode)
    said = notebook.run("import perfkit\nperfkit.profile(lambda: 3, steps=-1)")
    shown = said.out + said.err
    assert "UsageError: steps is -1; give a whole number" in shown
    assert "arguments.py" not in shown
    assert "Unexpected exception" not in shown
