"""watch() outside a kernel as a line, and inside a real kernel as plot, table and picture."""

from __future__ import annotations

import io
import os
import queue
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jupyter_client.manager import KernelManager

import perfkit
from perfkit.base.errors import MissingError, UsageError
from perfkit.measure.memory_looks import Footprint
from perfkit.measure.tracker import Update
from perfkit.show import progress_line
from perfkit.show.progress_line import fmt_seconds
from perfkit.widgets import watch as watch_module
from perfkit.widgets.watch import watch

pytestmark = pytest.mark.slow


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def script(code: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        capture_output=True, text=True, timeout=60, env={**os.environ, **env}, check=False,
    )  # fmt: skip


LOOP = "import perfkit\nfor batch in perfkit.watch(range(50), name='toy'): pass\n"


def test_a_script_prints_one_line_to_standard_error_and_loads_nothing_heavy() -> None:
    done = script(
        LOOP + "import sys\n"
        "print(sorted({'torch', 'matplotlib', 'IPython', 'ipywidgets'} & set(sys.modules)))"
    )
    assert (done.returncode, done.stdout) == (0, "[]\n")
    (line,) = done.stderr.splitlines()
    assert line.startswith("toy: 50 steps, ")
    assert "data-bound: " in line.lower()


def test_only_the_first_of_several_processes_prints() -> None:
    assert script(LOOP, RANK="1").stderr == ""
    assert script(LOOP, RANK="0").stderr != ""


def test_live_false_shows_nothing_and_still_measures(capsys) -> None:
    run = watch(range(50), live=False)
    assert list(run) == list(range(50))
    assert capsys.readouterr() == ("", "")
    assert run.summary.n_steps == 50


def test_an_exception_leaves_a_clean_line_and_its_traceback() -> None:
    done = script("import perfkit\nfor b in perfkit.watch(range(50)):\n    if b == 5: 1/0")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "ZeroDivisionError: division by zero"
    assert any(line.startswith("range: 5 steps") for line in done.stderr.splitlines())


def test_a_terminal_line_is_rewritten_and_cleared(monkeypatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(progress_line, "_TERMINAL_EVERY_S", 0.0)
    for _ in watch(range(40), name="toy"):
        time.sleep(0.01)
    shown = terminal.getvalue()
    assert shown.count("\n") == 1
    assert "\rtoy: step " in shown
    assert "/40 · " in shown
    assert shown.endswith((".\n", ".)\n"))  # on a busy machine the figures are in brackets
    assert shown.rpartition("\r")[2].startswith("toy: 40 steps")


def test_a_narrow_terminal_loses_all_but_the_time_left(monkeypatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(progress_line, "_TERMINAL_EVERY_S", 0.0)
    monkeypatch.setattr(shutil, "get_terminal_size", lambda: os.terminal_size((32, 24)))
    for _ in watch(range(40), name="toy"):
        time.sleep(0.01)
    lines = [line for line in terminal.getvalue().split("\r") if line.startswith("toy: step ")]
    assert lines
    assert max(map(len, lines)) < 32
    assert all(re.search(r"· \d\d:\d\d < \d\d:\d\d ?$", line.rstrip()) for line in lines)


def screen(written: str) -> list[str]:
    """What a terminal shows of it, row by row."""
    rows, row, at = [], "", 0
    for character in written:
        if character == "\n":
            rows, row, at = [*rows, row.rstrip()], "", 0
        elif character == "\r":
            at = 0
        else:
            row, at = row[:at] + character + row[at + 1 :], at + 1
    return [*rows, row.rstrip()]


def test_the_line_leaves_its_row_to_what_the_loop_prints(monkeypatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(progress_line, "_TERMINAL_EVERY_S", 0.0)
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", terminal)
        patch.setattr(sys, "stdout", terminal)
        for epoch in range(2):
            for number in watch(range(40), name="toy"):
                time.sleep(0.01)
                if number % 10 == 9:
                    print(f"epoch {epoch}, loss", end=" ")
                    time.sleep(0.01)
                    print(f"0.{number}")
        assert "write" not in vars(terminal), "it still watches what is written"
    written = terminal.getvalue()
    assert "\rtoy: step " in written
    rows = screen(written)
    printed = [f"epoch {e}, loss 0.{n}" for e in range(2) for n in (9, 19, 29, 39)]
    assert [row for row in rows if not row.startswith("toy: ")] == [*printed, ""]
    assert len([row for row in rows if row.startswith("toy: 40 steps")]) == 2


def test_a_closed_standard_error_does_not_end_the_run(monkeypatch) -> None:
    for gone in (None, io.StringIO()):
        if gone is not None:
            gone.close()
        monkeypatch.setattr(sys, "stderr", gone)
        assert len(list(watch(range(9)))) == 9


@pytest.mark.parametrize("hz", [0, -1, 10.5, 1e-320, float("nan"), "a", True, [1]])
def test_rates_that_cannot_be_are_refused(hz: Any) -> None:
    with pytest.raises(UsageError, match="update_hz") as caught:
        watch([1], update_hz=hz)
    assert "\n" not in str(caught.value)


def test_what_a_terminal_would_obey_does_not_reach_it(capsys) -> None:
    run = watch(range(5), name="a\nb\x1b[31m")
    list(run)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("a�b�[31m: 5 steps")
    assert "\x1b" not in str(run.summary) + run.summary.provenance.sentence()


def test_refusals_are_clear() -> None:
    with pytest.raises(UsageError, match="cannot loop over 5"):
        perfkit.watch(5)
    with pytest.raises(UsageError, match="Jupyter kernel"):
        perfkit.watch([1], live=True)


@pytest.mark.parametrize(("threads", "hz"), [(1, 10.0), (2, 2.0)])
def test_the_rate_falls_to_2_where_torch_takes_all_cores(monkeypatch, threads, hz) -> None:
    import torch

    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    monkeypatch.setattr(watch_module._host, "usable_cpus", lambda: 2)
    assert watch_module._affordable_hz(10.0) == hz
    assert watch_module._affordable_hz(None) == 1.0
    assert watch_module._affordable_hz(0.5) == 0.5


def test_the_status_line_carries_units() -> None:
    import numpy as np

    update = Update(
        numbers=np.array([1.0]), step_ms=np.array([20.0]), wait_ms=np.array([5.0]),
        memory=Footprint(3 * 2**30, "allocated"), epoch=2, done=30, total=120, elapsed_s=60.0,
        steps_per_s=50.0, samples_per_s=1600.4, wait_share=0.25,
    )  # fmt: skip
    assert progress_line.status(update) == (
        "epoch 2 · step 30/120 · 20.0 ms a step · data wait 25 % · 1,600 samples/s"
        " · 3.00 GiB allocated · 01:00 < 03:00"
    )
    assert fmt_seconds(7322) == "2:02:02"


# --- in a real kernel -----------------------------------------------------------------------


class Kernel:
    """A kernel without a browser, and what it displays."""

    def __init__(self) -> None:
        self.manager = KernelManager(kernel_name="python3")
        self.manager.start_kernel()
        self.client = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=60)

    def run(self, code: str, timeout_s: float = 60.0) -> list[dict[str, Any]]:
        """Messages on iopub until the cell is over."""
        asked = self.client.execute(code)
        messages = []
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                message = self.client.get_iopub_msg(timeout=max(deadline - time.monotonic(), 0.1))
            except queue.Empty:
                raise AssertionError(f"the cell took longer than {timeout_s} s") from None
            if message["parent_header"].get("msg_id") != asked:
                continue
            messages.append(message)
            content = message["content"]
            if message["msg_type"] == "status" and content["execution_state"] == "idle":
                return messages

    def close(self) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)
        self.manager.cleanup_resources()


@pytest.fixture(scope="module")
def kernel() -> Iterator[Kernel]:
    kernel = Kernel()
    kernel.run("import time, perfkit")
    yield kernel
    kernel.close()


def of(messages: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [m["content"] for m in messages if m["msg_type"] == kind]


def printed(messages: list[dict[str, Any]]) -> str:
    return "".join(c["text"] for c in of(messages, "stream"))


def plots(messages: list[dict[str, Any]]) -> list[str]:
    views = "application/vnd.jupyter.widget-view+json"
    shown = [c["data"] for c in of(messages, "display_data")]
    return [data[views]["model_id"] for data in shown if views in data]


def test_a_cell_shows_a_plot_and_points_and_in_its_place_what_stays(kernel: Kernel) -> None:
    seen = kernel.run("for batch in perfkit.watch(range(60), name='toy'):\n    time.sleep(0.01)\n")
    assert of(seen, "error") == []
    assert printed(seen) == ""
    assert len(plots(seen)) == 1
    points = [
        c for c in of(seen, "comm_msg")
        if c["data"].get("method") == "custom" and c["data"]["content"].get("type") == "points"
    ]  # fmt: skip
    # how many messages these come in is the clock's business
    assert sum(c["data"]["content"]["rows"] for c in points) == 59  # all but the first
    (below,) = of(seen, "update_display_data")
    assert "data-bound" in below["data"]["text/plain"].lower()
    assert 'src="data:image/png;base64,' in below["data"]["text/html"]
    assert 'alt="Step time' in below["data"]["text/html"]
    # one output: what stays takes the plot's place, so verdict and curve appear once
    (shown,) = of(seen, "display_data")
    assert shown["transient"]["display_id"] == below["transient"]["display_id"]
    assert below["data"]["text/html"].count("<h3") == 1
    verdicts = [c for c in of(seen, "comm_msg") if "ata-bound" in str(c["data"])]
    assert verdicts == []


def test_an_update_is_one_message(kernel: Kernel) -> None:
    seen = kernel.run(
        "run = perfkit.watch(range(80), name='toy')\n"
        "for batch in run:\n    time.sleep(0.01)\n"
        "print(run.tracker._n_updates)"
    )
    to_plot = [c["data"] for c in of(seen, "comm_msg")]
    n_points = sum(data["method"] == "custom" for data in to_plot)
    assert 3 <= n_points <= int(printed(seen))
    # beside them: what it waits for, that it is over, and the whole curve for a saved page
    assert len(to_plot) == n_points + 3


def test_a_picture_that_fails_leaves_the_verdict_and_no_traceback(kernel: Kernel) -> None:
    kernel.run("from perfkit.show import run_bundle\npng = run_bundle.png\nrun_bundle.png = None")
    seen = kernel.run("for batch in perfkit.watch(range(40)):\n    time.sleep(0.01)\n")
    kernel.run("run_bundle.png = png")
    assert (of(seen, "error"), printed(seen)) == ([], "")
    (below,) = of(seen, "update_display_data")
    said = " ".join(below["data"]["text/plain"].split())
    assert "data-bound" in said.lower()
    assert "the picture of this run failed: TypeError" in said


def test_epochs_share_one_plot_also_when_watch_is_called_for_each(kernel: Kernel) -> None:
    for loader in ("run = perfkit.watch(data)", "run = data"):
        each = "run" if "watch" in loader else "perfkit.watch(run)"
        seen = kernel.run(
            f"data = list(range(12))\n{loader}\n"
            f"for epoch in range(3):\n"
            f"    for batch in {each}:\n        time.sleep(0.02)\n"
        )
        assert of(seen, "error") == []
        assert len(plots(seen)) == 1
        (below,) = of(seen, "update_display_data")
        assert "36 steps in 3 epochs" in below["data"]["text/plain"]


def test_a_later_cell_shows_the_same_run_again(kernel: Kernel) -> None:
    first = kernel.run("run = perfkit.watch(range(20))\nfor _ in run: time.sleep(0.01)")
    second = kernel.run("for _ in run: time.sleep(0.01)")
    assert plots(first) == plots(second) != []
    assert "40 steps in 2 epochs" in of(second, "update_display_data")[0]["data"]["text/plain"]


def test_a_trainer_that_keeps_the_iterator_gets_its_summary_when_the_cell_ends(
    kernel: Kernel,
) -> None:
    seen = kernel.run(
        "run = perfkit.watch(list(range(30)))\nkept = []\n"
        "for epoch in range(2):\n"
        "    kept.append(iter(run))\n"
        "    for _ in range(len(run)):\n        next(kept[-1]); time.sleep(0.01)\n"
    )
    (last,) = of(seen, "update_display_data")
    said = " ".join(last["data"]["text/plain"].split())
    assert "58 steps in 2 epochs" in said
    assert "finished (2 last ones not timed" in said
    assert "ended after" not in said


@pytest.mark.parametrize("how", ["break", "1/0", "raise KeyboardInterrupt"])
def test_ways_out_of_the_loop_leave_nothing_behind(kernel: Kernel, how: str) -> None:
    seen = kernel.run(
        f"run = perfkit.watch(range(100))\n"
        f"for i in run:\n    time.sleep(0.01)\n    if i == 30: {how}"
    )
    assert len(of(seen, "error")) == (how != "break")
    (below,) = of(seen, "update_display_data")
    assert "30 steps" in below["data"]["text/plain"]
    assert "the last one not timed" in " ".join(below["data"]["text/plain"].split())
    after = kernel.run(
        "from perfkit.widgets.watch import _CELL\n"
        "print(run.running, run.summary.ended, _CELL._run, _CELL._plots, "
        "len([f for f in get_ipython().events.callbacks['post_run_cell'] "
        "if 'perfkit' in f.__module__]))"
    )
    assert printed(after) == "False ended after 31 of 100 batches None [] 0\n"


def test_an_interrupt_from_outside_ends_it_cleanly(kernel: Kernel) -> None:
    asked = kernel.client.execute(
        "run = perfkit.watch(range(10**6))\nfor _ in run: time.sleep(0.01)"
    )
    ended = None
    while True:
        message = kernel.client.get_iopub_msg(timeout=30)
        if message["parent_header"].get("msg_id") != asked:
            continue
        if message["msg_type"] == "comm_msg" and ended is None:
            ended = ""
            time.sleep(0.3)
            kernel.manager.interrupt_kernel()
        if message["msg_type"] == "error":
            ended = message["content"]["ename"]
        if message["content"].get("execution_state") == "idle":
            break
    assert ended == "KeyboardInterrupt"
    assert printed(kernel.run("print(run.running, run.summary.n_steps > 5)")) == "False True\n"


def test_live_false_shows_nothing_in_a_kernel(kernel: Kernel) -> None:
    seen = kernel.run("for _ in perfkit.watch(range(30), live=False): pass")
    assert {m["msg_type"] for m in seen} == {"status", "execute_input"}


def test_a_kernel_without_anywidget_gets_words(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It ended in a ModuleNotFoundError, before the first batch."""
    monkeypatch.setattr(watch_module, "has_front_end", lambda: True)
    monkeypatch.setitem(sys.modules, "anywidget", None)
    monkeypatch.delitem(sys.modules, "perfkit.widgets.live_plot", raising=False)
    assert list(watched := watch([1, 2], name="bare")) == [1, 2]
    assert "pip install '.[notebook]'" in watched.summary.to_text()
    assert capsys.readouterr().err == "", "JupyterLab paints it as an error"
    with pytest.raises(MissingError, match="the live plot needs anywidget"):
        watch([1], live=True)


@pytest.fixture
def other_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The environment of a JupyterLab that has started this process as its kernel."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "share" / "jupyter" / "lab").mkdir(parents=True)
    python = tmp_path / "bin" / "python"
    python.symlink_to(sys.executable)
    with subprocess.Popen([python, "-S", "-c", "input()"], stdin=subprocess.PIPE) as server:
        monkeypatch.setenv("JPY_PARENT_PID", str(server.pid))
        for name in ("JUPYTER_PATH", "JUPYTER_DATA_DIR"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setattr(Path, "home", lambda: tmp_path / "home")
        yield tmp_path
        server.kill()


def test_a_server_without_the_widgets_code_is_named_with_the_remedy(
    other_server: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """All that a reader saw was "model not found"; doctor asked the kernel, which has it all."""
    monkeypatch.setattr(watch_module, "has_front_end", lambda: True)
    remedy = f"{other_server}/bin/python -m pip install anywidget"
    assert list(watched := watch([1, 2], name="bare")) == [1, 2]
    assert remedy in " ".join(watched.summary.to_text().split())
    shown = capsys.readouterr()
    assert remedy in shown.out.splitlines()[0], "said while it runs"
    assert shown.err == ""
    with pytest.raises(MissingError, match=r"the live plot is not shown here.*pip install"):
        watch([1], live=True)
    plots = {c.name: c for c in perfkit.doctor().capabilities}["live plots"]
    assert not plots.available
    assert plots.reason.startswith(f"JupyterLab runs in {other_server}, another environment")
    assert plots.remedy.startswith(remedy)

    extensions = other_server / "share" / "jupyter" / "labextensions"
    for name in ("anywidget", "@jupyter-widgets/jupyterlab-manager"):
        (extensions / name).mkdir(parents=True)
    assert {c.name: c for c in perfkit.doctor().capabilities}["live plots"].available


def test_a_lab_names_the_remedy(other_server: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import IPython.display

    from perfkit.widgets import lab as lab_module

    shown: list[Any] = []
    monkeypatch.setattr(lab_module, "has_front_end", lambda: True)
    monkeypatch.setattr(IPython.display, "display", lambda data, **_: shown.append(data))
    lab = perfkit.Lab(_workload)
    try:
        lab._ipython_display_()
    finally:
        lab.close()
    said, static = (one["text/plain"] for one in shown)
    assert f"{other_server}/bin/python -m pip install anywidget" in said
    assert "lab.run(…)" in said
    assert "no run yet" in static or "Lab(" in static


def _workload(settings: Any) -> Iterator[None]:
    yield
