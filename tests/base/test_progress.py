"""How far long work is: in a terminal, in a notebook, and what is gone at the end."""

from __future__ import annotations

import io
import os
import time
from collections.abc import Iterator
from typing import Any

import pytest

from perfkit.base import progress
from perfkit.base.errors import UsageError
from perfkit.base.printable import printable
from perfkit.base.progress import Progress, left


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (-3, "nearly done"),
        (0.9, "nearly done"),
        (1, "about 1 s left"),
        (99, "about 99 s left"),
        (100, "about 2 min left"),
        (3600, "about 60 min left"),
    ],
)
def test_what_is_left(seconds: float, said: str) -> None:
    assert left(seconds) == said


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_log_file_gets_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_SILENT_S", 0.0)
    monkeypatch.setattr("sys.stderr", out := io.StringIO())
    with Progress("work") as shown:
        shown.line("one", share=0.5)
    assert out.getvalue() == ""


class _Closed(_Terminal):
    def write(self, text: str) -> int:
        raise ValueError("I/O operation on closed file")


@pytest.mark.parametrize("stream", [None, _Closed()])
def test_no_standard_error_is_needed(stream: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_SILENT_S", 0.0)
    monkeypatch.setattr("sys.stderr", stream)
    with Progress("work") as shown:
        shown.line("one", share=0.5)


def test_a_terminals_line_is_written_over_and_gone_at_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(progress, "_EVERY_S", 0.0)
    monkeypatch.setattr("sys.stderr", out := _Terminal())
    monkeypatch.setenv("COLUMNS", "60")
    with Progress("work") as shown:
        shown.line("no word of what may be over soon", share=0.9)
        monkeypatch.setattr(progress, "_SILENT_S", 0.0)
        shown.line("x" * 120, left_s=13.0)
        shown.line("two\n", left_s=0.0)
        shown.hide()
        shown.line("three", left_s=70.0)
    _, first, second, blank, nothing, third, *end = out.getvalue().split("\r")
    assert first.startswith("work: xxx")
    assert first.endswith(" about 13 s left")
    assert len(first) == len(second) == 59
    assert second.rstrip().endswith("nearly done")
    assert third.endswith("about 70 s left")
    assert (blank.strip(), nothing) == ("", "")
    assert [one.strip() for one in end] == ["", ""]


@pytest.mark.parametrize("columns", range(5, 120, 5))
def test_the_time_left_is_never_cut(columns: int) -> None:
    line = progress.one_line("a long text of what it does", 0.4, "about 13 s left", columns)
    assert len(line) <= columns
    assert columns < 20 or line.endswith("about 13 s left")


def test_what_waits_tells_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_SILENT_S", 0.05)
    monkeypatch.setattr("sys.stderr", out := _Terminal())
    with Progress("work", waits=True) as shown:
        shown.line("run 1 of 2", share=0.0)
        deadline = time.monotonic() + 20
        while not out.getvalue() and time.monotonic() < deadline:
            time.sleep(0.01)
    assert "work: run 1 of 2" in out.getvalue()


def test_who_gets_the_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr", out := _Terminal())
    said: list[str] = []
    whole = Progress("", said.append, total_s=1000.0)
    Progress("part", whole).line("one", share=0.9)
    Progress("", said.append).line("two", left_s=40)
    Progress("", False).line("three")
    first, second = said
    assert first.startswith("part: one; about 1")
    assert first.endswith(" min left")
    assert second == "two; about 40 s left"
    assert out.getvalue() == ""
    with pytest.raises(UsageError, match="say is True; give a function"):
        Progress("", True)


def test_what_controls_a_terminal_is_not_printable() -> None:
    assert printable("a\x1b[1m\n\u202e") == "a�[1m��"
    assert printable("a\n\tb\r", lines=True) == "a\n\tb�"
    assert [printable("abcd", n) for n in (3, 4, None)] == ["ab…", "abcd", "abcd"]


PREPARED = """
import time, torch, perfkit
from torch import nn
from perfkit.base import progress
progress._SILENT_S = progress._EVERY_S = 0.0
model = nn.Linear(8, 4)

def workload(settings):
    for _ in range(200):
        time.sleep(settings.nap)
        yield model(torch.rand(4, 8)).sum()

naps = perfkit.setting("nap", [0.001, 0.002])
"""
LONG = {
    "compare": "perfkit.compare(lambda: torch.rand(9), lambda: torch.rand(99), max_blocks=20)",
    "ab": "perfkit.ab(workload, {'nap': 0.001}, {'nap': 0.002}, settings=[naps], budget_s=50)",
    "sweep": "perfkit.sweep(workload, {'nap': [0.001, 0.002]}, settings=[naps], rounds=2, "
    "seconds=0.1)",
    "tune": "perfkit.tune(workload, [naps], budget_s=4)",
    "find_leaks": "perfkit.find_leaks(lambda: model(torch.rand(4, 8)).sum())",
    "will_it_fit": "perfkit.will_it_fit(model, lambda n: torch.rand(n, 8))",
    "same_result": "perfkit.same_result(lambda: model(torch.ones(8)).sum(), lambda: 1.0)",
    "peaks": "perfkit.peaks('cpu', again=True)",
    "launch": "perfkit.launch(workload, settings={'nap': 0.01}, steps=5)",
}


@pytest.fixture(scope="module")
def kernel() -> Iterator[Any]:
    from jupyter_client.manager import start_new_kernel

    manager, client = start_new_kernel(env={**os.environ, "PERFKIT_BUDGET_SCALE": "0.1"})
    try:
        yield client
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def _ran(kernel: Any, code: str, *, person: bool = True) -> list[Any]:
    """What the kernel sent of a cell, but for its states."""
    said: list[Any] = []
    kernel.execute_interactive(code, output_hook=said.append, timeout=120, allow_stdin=person)
    kinds = ("stream", "error", "display_data", "update_display_data")
    return [one for one in said if one["msg_type"] in kinds]


@pytest.mark.parametrize("name", LONG)
def test_in_a_notebook_long_work_shows_a_bar_that_is_gone_at_the_end(
    kernel: Any, name: str
) -> None:
    """It stood on standard error, painted as an error, with a time left that was long over."""
    assert _ran(kernel, PREPARED) == []
    first, *later = _ran(kernel, f"found = {LONG[name]}")
    assert [first["msg_type"], {one["msg_type"] for one in later}] == [
        "display_data",
        {"update_display_data"},
    ]
    assert len({one["content"]["transient"]["display_id"] for one in (first, *later)}) == 1
    shown = [one["content"]["data"] for one in (first, *later)]
    assert shown.pop() == {}
    assert all({"text/plain", "text/html"} == set(one) for one in shown)
    assert name == "launch" or " left" in str(shown) or "nearly done" in str(shown)


def test_a_notebook_that_a_program_runs_keeps_no_trace_of_the_bar(kernel: Any) -> None:
    """nbval compares outputs; whether the bar had come depended on how busy the machine was."""
    _ran(kernel, PREPARED)
    assert _ran(kernel, f"found = {LONG['same_result']}", person=False) == []


def test_a_comparison_draws_how_its_interval_narrows(kernel: Any) -> None:
    _ran(kernel, PREPARED)
    *shown, _ = _ran(kernel, f"found = {LONG['compare']}")
    pictures = [one["content"]["data"]["text/html"].count("<polygon") for one in shown]
    assert pictures[0] == 0
    assert pictures[-1] == 1
