"""The Lab as a reader uses it: JupyterLab, a click, points that arrive, a ratio in the table."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

pytestmark = pytest.mark.browser

DATA = """
import time, torch
from torch.utils.data import DataLoader, Dataset

class SlowDisk(Dataset):
    def __len__(self):
        return 100_000
    def __getitem__(self, i):
        time.sleep(0.001)
        return torch.full((64,), float(i % 7)), i % 10
"""
LAB = """
import perfkit

def train(s):
    if s["mistake"]:
        raise ValueError("the <b>mistake</b> was made")
    loader = DataLoader(SlowDisk(), batch_size=16 if s["small"] else 64, **s.loader_kwargs())
    model = torch.nn.Linear(64, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in loader:
        loss = torch.nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad(); loss.backward(); optimizer.step()
        yield

lab = perfkit.Lab(
    train,
    ["num_workers", "pin_memory", "precision", perfkit.setting("small", [False, True]),
     perfkit.setting("mistake", [False, True], help="Raises an error.")],
    seconds=4,
    title="Slow disk, small model",
)
lab
"""
PROCESSES = """
import json, os, psutil
for _ in range(300):
    below = [p.pid for p in psutil.Process().children(recursive=True)]
    if lab.status["state"] == "running":
        break
    time.sleep(0.1)
print(json.dumps([os.getpid(), *below]))
"""


@pytest.mark.slow
def test_run_flip_two_toggles_and_reload(open_notebook: Callable) -> None:
    book = open_notebook([DATA, LAB.replace("seconds=4", "seconds=2")], "lab")
    page = book.page
    page.set_viewport_size({"width": 1200, "height": 1700})
    book.run_all()
    page.wait_for_selector(".pk-lab")
    # what is not available on this machine is folded behind one mark, with the reason
    if page.locator(".pk-unavailable").count():
        page.click(".pk-unavailable summary")
        assert page.locator("li[data-setting=pin_memory]").is_visible()
        assert page.locator("[data-setting=pin_memory] input").count() == 0
        page.click(".pk-unavailable summary")

    page.click(".pk-start")
    book.wait_data(".pk-lab", "+d.points > 0 && d.state === 'running'")
    assert page.locator(".pk-start.pk-primary").count() == 0, "it would stop the run"
    seen = int(page.locator(".pk-lab").get_attribute("data-points"))
    book.wait_data(".pk-lab", f"+d.points > {seen}")
    book.wait_data(".pk-lab", "d.run === '1' && d.state === 'done'")

    # by keyboard: the chip takes the arrow key, JupyterLab does not
    page.locator("[data-setting=num_workers] select").focus()
    page.keyboard.press("ArrowDown")
    book.wait_data(".pk-lab", "d.run === '2' && +d.ghost > 0 && +d.points > 0")
    book.screenshot("lab-running", ".pk-lab")
    page.locator("[data-setting=small] input").check()  # while run 2 is in progress
    book.wait_data(".pk-lab", "d.run === '3' && d.state === 'done'")

    row = page.locator(".pk-runs tr[data-run='3']")
    # both settings and ratio refer to the pinned run 1
    assert row.locator(".pk-changed > span").inner_text() == "num_workers 0 → 1, small off → on"
    assert "unconfirmed" in row.locator(".pk-ratio").inner_text()
    assert "run 1, pinned" in page.locator(".pk-legend .pk-ghost").inner_text()
    assert page.locator(".pk-legend .pk-shaded").inner_text() == "the steps that count"
    assert "median" in page.locator(".pk-legend .pk-value").first.inner_text()
    assert page.locator(".pk-start.pk-primary").count() == 1
    dots = page.locator(".pk-run-dot")
    colours = dots.evaluate_all("all => all.map(e => getComputedStyle(e).backgroundColor)")
    assert len({*colours}) == 3, "each run has its colour"
    page.locator(".pk-canvas").hover(position={"x": 300, "y": 60})
    card = page.locator(".pk-card").inner_text()
    assert "seconds of training" in card
    assert "step time (run 1, pinned)" in card
    assert "×" in row.locator(".pk-ratio").inner_text()
    # a step holds a quarter of the samples: that is said beside its ratio
    assert "per sample" in row.locator(".pk-ratio").inner_text()
    assert page.locator(".pk-errors").inner_text() == ""
    assert "measured here: " in page.locator(".pk-lab > .pk-note").inner_text()
    book.screenshot("lab-light", ".pk-lab")
    light = page.evaluate("() => document.querySelector('.pk-lab canvas').toDataURL()")
    book.theme("dark")
    # the plot is redrawn when the page reports a change of colours
    page.wait_for_function(
        "light => { const canvas = document.querySelector('.pk-lab canvas');"
        " return canvas !== null && canvas.toDataURL() !== light; }",
        arg=light,
    )
    book.screenshot("lab-dark", ".pk-lab")
    book.theme("light")

    page.set_viewport_size({"width": 400, "height": 1700})
    page.wait_for_timeout(800)
    book.screenshot("lab-400px", ".pk-lab")
    widths = page.evaluate(
        "() => { const e = document.querySelector('.pk-lab');"
        " return [e.scrollWidth, e.clientWidth]; }"
    )
    assert widths[0] <= widths[1], "the Lab scrolls sideways at 400 px"
    page.set_viewport_size({"width": 1200, "height": 1700})

    # the static part in the file for readers without a kernel, hidden beside the live widget
    book.save()
    static = [out for out in book.outputs() if "pk-static" in str(out["data"].get("text/html"))]
    assert len(static) == 1
    assert "data:image/png;base64," in "".join(static[0]["data"]["text/html"])
    assert "small off → on" in "".join(static[0]["data"]["text/plain"])
    assert page.locator("[class^=pk-static]").first.is_hidden()

    points = page.locator(".pk-lab").get_attribute("data-points")
    book.reload()
    book.wait_data(".pk-lab", f"d.points === '{points}' && d.runs === '3' && +d.ghost > 0")
    assert page.locator("[data-setting=num_workers] select").input_value() == "1"

    # a run after the reload is in the file too
    page.locator("[data-setting=num_workers] select").select_option("0")
    book.wait_data(".pk-lab", "d.run === '4' && d.state === 'done'")
    page.wait_for_function(
        "() => JSON.stringify(jupyterapp.shell.currentWidget.content.model.toJSON())"
        ".includes(': 4 runs')"
    )


def test_a_failed_run_is_told_and_the_lab_goes_on(open_notebook: Callable) -> None:
    book = open_notebook([DATA, LAB.replace("seconds=4", "seconds=1")], "failing")
    page = book.page
    book.run_all()
    page.locator("[data-setting=mistake] input").check()
    page.click(".pk-start")
    book.wait_data(".pk-lab", "d.state === 'failed'")
    message = page.locator(".pk-message")
    assert "the <b>mistake</b> was made" in message.inner_text()
    assert message.locator("b").count() == 0  # text of the user's code stays text
    page.locator("[data-setting=mistake] input").uncheck()
    book.wait_data(".pk-lab", "d.run === '2' && d.state === 'done'")
    runs = json.loads(book.download("[data-export=json]").read_text())["runs"]
    assert [run["state"] for run in runs] == ["failed", "done"]
    assert book.download("[data-export=png]").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")


def test_stop_is_heard_while_a_cell_waits_for_the_run(open_notebook: Callable) -> None:
    long = LAB.replace("seconds=4", "seconds=50")
    book = open_notebook([DATA, long, "result = lab.run()", "print(result.state)"], "busy")
    page = book.page
    page.evaluate("() => { jupyterapp.commands.execute('notebook:run-all-cells'); }")
    book.wait_data(".pk-lab", "d.state === 'running' && +d.points > 0")
    page.click(".pk-stop")
    book.wait_data(".pk-lab", "d.state === 'stopped'", timeout_s=20)
    book.wait_for_kernel()
    page.wait_for_function(
        "() => jupyterapp.shell.currentWidget.content.model.toJSON().cells[3].outputs.length > 0"
    )
    assert book.outputs()[-1]["text"] == "stopped\n"


LIVE = """
import numpy as np, os, time
from perfkit.widgets.live_plot import LivePlot, Series
plot = LivePlot([Series("step", "ms", "step time"), Series("wait", "ms", "data wait"),
                 Series("memory", "MiB", "memory", "right")], title="watch(loader)", total=300)
display(plot)
for first in range(0, 300, 10):       # a busy cell: nothing may depend on the browser's answers
    x = np.arange(first, first + 10)
    plot.push(x, np.stack([40 + np.sin(x), 20 + np.cos(x), 300 + x / 10], 1))
    plot.set_status(f"step {first + 10} of 300, 40 ms a step", (first + 10) / 300)
    time.sleep(0.05)
    while first == 200 and not os.path.exists("seen"):
        time.sleep(0.05)
plot.finish("300 steps, median 40 ms, half of it data wait")
"""


def test_live_plot_of_a_busy_cell(open_notebook: Callable, jupyter: Any) -> None:
    book = open_notebook([LIVE], "live")
    page = book.page
    page.evaluate("() => { jupyterapp.commands.execute('notebook:run-all-cells'); }")
    book.wait_data(".pk-live", "+d.points > 20 && +d.points < 300 && d.state === 'running'")
    (jupyter.root / "seen").touch()
    book.wait_data(".pk-live", "d.points === '300' && d.state === 'done'")
    page.click(".pk-live .pk-data summary")
    page.wait_for_function("() => document.querySelectorAll('.pk-live tbody tr').length === 3")
    assert "300" in page.locator(".pk-live tbody tr").first.inner_text()
    book.screenshot("live-light", ".pk-live")
    book.theme("dark")
    book.screenshot("live-dark", ".pk-live")
    book.theme("light")
    book.save()
    book.reload()
    book.wait_data(".pk-live", "d.points === '300' && d.state === 'done'")


@pytest.mark.slow
def test_pin_and_confirm_by_keyboard(open_notebook: Callable) -> None:
    quick = "from perfkit.widgets import _lab_confirm; _lab_confirm._SHORTEST_S = 8.0"
    book = open_notebook([DATA, quick, LAB.replace("seconds=4", "seconds=1")], "pin")
    page = book.page
    key = "() => document.activeElement.dataset.key"
    book.run_all()
    book.press(".pk-start", "Enter")
    book.wait_data(".pk-lab", "d.run === '1' && d.state === 'done'")
    page.locator("[data-setting=small] input").check()
    book.wait_data(".pk-lab", "d.run === '2' && d.state === 'done' && d.pinned === '1'")

    book.press("[data-key=pin-2]", "Enter")
    book.wait_data(".pk-lab", "d.pinned === '2' && d.ghost === '0'")
    assert page.evaluate(key) == "pin-2"
    assert page.locator("[data-run='1'] .pk-changed > span").inner_text() == "small on → off"
    assert "run 2" in page.locator(".pk-runs thead th").last.inner_text()

    book.press("[data-key=confirm-1]", "Space")
    book.wait_data(".pk-lab", "d.state === 'confirming'")
    assert page.evaluate(key) == "confirm-1", "a button keeps the focus while it waits"
    book.wait_data(".pk-lab", "d.state === 'done'", timeout_s=240)  # its budget: 2 min at most
    cell = page.locator("[data-run='1'] .pk-ratio")
    assert cell.get_attribute("data-kind") == "confirmed"
    assert "[" in cell.inner_text()
    assert page.locator("[data-key=confirm-1]").count() == 0
    assert page.evaluate(key) == "pin-1", "the focus stays in the row"
    assert page.locator(".pk-errors").inner_text() == ""
    page.wait_for_timeout(500)
    book.screenshot("lab-confirmed", ".pk-lab")


def test_a_setting_that_rules_out_another_one_keeps_the_focus(open_notebook: Callable) -> None:
    book = open_notebook([DATA, LAB.replace('"pin_memory"', '"fused", "foreach"')], "focus")
    page = book.page
    book.run_all()
    page.wait_for_selector("[data-setting=fused]")
    book.press("[data-setting=fused] input", "Space")
    page.wait_for_selector(".pk-unavailable li:has-text('fused and foreach')", state="attached")
    assert page.locator("[data-setting=fused] input").evaluate("e => e === document.activeElement")
    assert page.locator("[data-setting=fused] input").is_checked()


def _lives(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _all_end(pids: list[int]) -> None:
    """Within 5 s."""
    deadline = time.monotonic() + 5
    while left := list(filter(_lives, pids)):
        assert time.monotonic() < deadline, f"left behind: {left}"
        time.sleep(0.1)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["restart", "restart-elsewhere", "kill"])
def test_a_lab_without_its_kernel_says_so_and_leaves_no_process(
    open_notebook: Callable, how: str
) -> None:
    long = LAB.replace("seconds=4", "seconds=60")
    cells = [DATA, long, "lab.start(num_workers=2)", PROCESSES]
    # killed, it has no time for an end of its own: that one and its Lab's server are programs
    book = open_notebook(cells, f"gone-{how}", fresh=True, program=how == "kill")
    page = book.page
    book.run_all()
    book.wait_data(".pk-lab", "d.state === 'running' && +d.points > 0")
    kernel, *children = json.loads(book.outputs()[-1]["text"])
    assert len(children) >= 3  # the run and its two workers at least
    if how == "restart":
        page.evaluate(
            "() => jupyterapp.shell.currentWidget.sessionContext.session.kernel.restart()"
        )
    elif how == "restart-elsewhere":
        session = book.jupyter.session(book.name)
        book.jupyter.api(f"kernels/{session['kernel']['id']}/restart", "POST")
    else:
        os.kill(kernel, signal.SIGKILL)
    _all_end([kernel, *children])
    # a kernel restarted elsewhere is noticed only by its silence
    book.wait_data(".pk-lab", "d.state === 'no kernel'", timeout_s=120)
    assert "run the cell again" in page.locator(".pk-line").inner_text()
    for button in page.locator(".pk-lab button:not([data-export=png])").all():
        assert button.is_disabled(), button.inner_text()
    assert page.locator("[data-setting=num_workers] select").is_disabled()
    book.screenshot(f"lab-gone-{how}", ".pk-lab")
    if how == "restart-elsewhere":
        return  # JupyterLab itself does not know that its kernel is another one
    if how == "kill":
        page.click(".jp-Dialog .jp-mod-accept")  # JupyterLab says that the kernel died
    # the cell run again makes a Lab that works
    book.wait_for_kernel()
    book.run_all()
    book.wait_data(".pk-lab", "d.state === 'running' && +d.points > 0")
    page.click(".pk-stop")
    book.wait_data(".pk-lab", "d.state === 'stopped'")


HANGS = """
import perfkit, time

def train(s):
    yield 1
    time.sleep(0 if s["well"] else 3600)
    for _ in range(30):
        time.sleep(0.01)
        yield 1

lab = perfkit.Lab(train, [perfkit.setting("well", [False, True])], seconds=1)
lab
"""


# A loop that goes on until the test has seen it, and a trace that the page asks for.
OTHERS = """
import sys
sys.path.insert(0, %r)
import perfkit, time
from tests.simulated_traces import gpu_training
open("gone.json", "wb").write(gpu_training(6, n_kernels=40).json())
display(perfkit.Timeline("gone.json"))
for _ in perfkit.watch(range(100_000), name="a loop"):
    time.sleep(0.01)
"""


def test_a_plot_and_a_timeline_without_their_kernel_say_so(open_notebook: Callable) -> None:
    root = str(Path(__file__).resolve().parents[2])
    book = open_notebook([OTHERS % root], "gone-others", fresh=True)
    page = book.page
    page.evaluate("() => void jupyterapp.commands.execute('notebook:run-all-cells')")
    book.wait_data(".pk-live", "d.state === 'running' && +d.points > 5")
    book.wait_data(".pk-timeline", "d.state === 'ready'")
    page.evaluate("() => jupyterapp.shell.currentWidget.sessionContext.session.kernel.restart()")
    book.wait_data(".pk-live", "d.state === 'no kernel'")
    told = page.locator(".pk-live .pk-status").inner_text()
    assert "a step" in told
    assert told.endswith("ended: the kernel was restarted or is gone")
    assert page.locator(".pk-live .pk-track").is_hidden()
    book.wait_data(".pk-timeline", "d.state === 'no kernel' && +d.boxes > 0")
    page.locator(".pk-timeline canvas").focus()
    for _ in range(12):
        page.keyboard.press("w")
    page.wait_for_timeout(1000)  # longer than a busy kernel may be silent
    assert "no kernel: showing what was loaded" in page.locator(".pk-time-notice").inner_text()
    assert page.locator(".pk-time-search").is_disabled()
    book.screenshot("gone-others")


def test_the_cell_run_again_while_a_run_hangs(open_notebook: Callable) -> None:
    book = open_notebook([HANGS], "hangs")
    page = book.page
    book.run_all()
    page.click(".pk-start")
    book.wait_data(".pk-lab", "d.state === 'warm-up'")
    book.run_all()
    book.wait_data(".pk-lab", "d.state === 'ready'")
    page.locator("[data-setting=well] input").check()
    page.click(".pk-start")
    book.wait_data(".pk-lab", "d.state === 'done'")
    assert page.locator(".pk-warning:visible").count() == 0


@pytest.mark.slow
def test_a_reopened_notebook_shows_the_last_run(open_notebook: Callable, jupyter: Any) -> None:
    book = open_notebook([DATA, LAB.replace("seconds=4", "seconds=1")], "reopened", fresh=True)
    page = book.page
    book.run_all()
    page.click(".pk-start")
    book.wait_data(".pk-lab", "d.run === '1' && d.state === 'done'")
    page.locator("[data-setting=num_workers] select").select_option("1")
    book.wait_data(".pk-lab", "d.run === '2' && d.state === 'done'")
    saved = book.save()  # at once: the table has the run, the picture may still be drawn
    table = next(
        out["data"]["text/plain"]
        for cell in saved.cells
        for out in cell.get("outputs", [])
        if "pk-static" in str(out.get("data", {}).get("text/html"))
    )
    assert "num_workers 0 → 1" in table
    page.wait_for_function(
        "() => JSON.stringify(jupyterapp.shell.currentWidget.content.model.toJSON())"
        ".includes('data:image/png')"
    )
    book.save()
    jupyter.end_session(book.name, keep_kernel=False)
    page.goto("about:blank")
    book.go()
    page.wait_for_selector("[class^=pk-static] img")
    page.wait_for_function("() => document.body.textContent.includes('model not found')")
    assert page.locator("[class^=pk-static]").first.is_visible()
    assert page.locator("[class^=pk-static] td", has_text="num_workers 0 → 1").count() == 1
    assert not page.get_by_text("model not found").first.is_visible()
    book.screenshot("lab-reopened")


# Runs as a Lab has them, without the time that they would take.
MADE = """
import numpy as np
from perfkit.base.machine import stamp
from perfkit.experiment.process.phase_means import PhaseMeans
from perfkit.experiment.process.result import RunResult
from perfkit.measure.summary import summarize
from perfkit.widgets._lab_rows import Board, browser_rows

def made(run_id, values, phases=PhaseMeans(), faster=1.0):
    step_ms = (30.0 + np.arange(40) % 7) / faster
    return RunResult(
        run_id=run_id, values=values, state="done", message="",
        step=summarize(step_ms, unit="ms"), wait_share=0.4, samples_per_s=2000.0,
        peak_bytes=300 * 2**20, peak_kind="resident", n_steps=40, n_quiet=40, provenance=stamp(),
        n_counted=40, index=np.arange(40), step_ms=step_ms, wait_ms=0.4 * step_ms,
        memory_bytes=np.full(40, 300 * 2**20), quiet=np.ones(40, bool), counted=np.ones(40, bool),
        phases=phases,
    )
"""
ROWS = (
    MADE
    + """
all_of_them = {"data_wait": 12.0, "forward": 6.0, "backward": 9.0, "optimizer": 3.0,
               "evaluation": 2.0, "checkpoint": 1.0, "other": 1.5}
few = {name: all_of_them[name] for name in ("forward", "backward", "optimizer", "other")}
lab.rows = browser_rows(Board([
    made(1, {"num_workers": 0}, PhaseMeans(all_of_them, 20)),
    made(2, {"num_workers": 1}, PhaseMeans(few, 20)),
    made(3, {"num_workers": 2}, PhaseMeans(why_not="the workload has compiled code")),
]))
"""
)
TWELVE = (
    MADE
    + """
from dataclasses import replace
values = [{"num_workers": workers, "small": small, "conf": "expandable_segments:True"}
          for workers in (0, 1, 2) for small in (False, True) for _ in range(2)]
runs = [made(i, one, faster=i**0.5) for i, one in enumerate(values, 1)]
values[-1] = values[-1] | {"conf": "default"}
runs[-1] = replace(runs[-1], values=values[-1], state="out of memory", message="no room")
lab.rows = browser_rows(Board(runs))
"""
)
# text that does not fit where a longer name and value leave no room
LONG = LAB.replace(
    '"pin_memory"',
    'perfkit.setting("a_setting_with_a_long_name", ["expandable_segments:True", "default"])',
)


def test_twelve_runs_fit(open_notebook: Callable) -> None:
    book = open_notebook([DATA, LONG, TWELVE], "twelve")
    page = book.page
    page.set_viewport_size({"width": 900, "height": 900})
    book.run_all()
    book.wait_data(".pk-lab", "d.runs === '12'")
    for width, theme in ((900, "light"), (420, "light"), (900, "dark")):
        page.set_viewport_size({"width": width, "height": 2600})
        book.theme(theme)
        page.wait_for_timeout(500)
        book.screenshot(f"lab-twelve-{width}-{theme}", ".pk-lab")
        for part in (".pk-lab", ".pk-scroll"):
            wide = page.eval_on_selector(part, "e => e.scrollWidth - e.clientWidth")
            assert wide <= 0, f"{part} scrolls sideways at {width} px"
    book.theme("light")
    assert page.locator(".pk-runs tbody tr[data-run]").count() == 12
    assert page.locator(".pk-runs .pk-spark").count() >= 11
    # the same settings twice are not called faster
    assert page.locator("[data-kind='same settings']").count() >= 1


def test_where_the_time_of_a_step_goes_is_a_bar_with_its_words(open_notebook: Callable) -> None:
    book = open_notebook([DATA, LAB, ROWS], "lab-phases")
    page = book.page
    page.set_viewport_size({"width": 900, "height": 1000})
    book.run_all()
    page.wait_for_selector(".pk-runs tbody tr[data-run='3']")
    bars = page.locator(".pk-phases")
    assert bars.count() == 2, "the third run says why it has none"
    assert bars.nth(0).locator("rect").count() == 7
    assert bars.nth(1).locator("rect").count() == 4
    told = bars.nth(0).get_attribute("aria-label")
    assert told.startswith("data wait 12.0 ms (35 %), forward 6.00 ms (17 %), ")
    courses = page.locator(".pk-course")
    why_not = courses.nth(2).locator("details")
    assert why_not.inner_text() == "no phases"
    why_not.locator("summary").press("Enter")  # no pointer is needed to read it
    assert why_not.locator("p").inner_text() == (
        "Where a step's time goes was not seen: the workload has compiled code"
    )
    page.set_viewport_size({"width": 720, "height": 1000})
    book.screenshot("lab-phases-720px", ".pk-lab")
    assert why_not.locator("p").bounding_box()["width"] > 250
    page.set_viewport_size({"width": 900, "height": 1000})
    assert page.locator(".pk-phase-key li").all_inner_texts() == [
        "Where a step's time goes:", "data wait", "forward", "backward", "optimizer", "evaluation",
        "checkpoint", "other",
    ]  # fmt: skip
    for theme in ("light", "dark"):
        book.theme(theme)
        colour = "all => all.slice(0, 7).map(one => getComputedStyle(one).fill)"
        fills = page.eval_on_selector_all(".pk-phases rect", colour)
        assert len(set(fills)) == 7, f"two phases look the same: {fills}"
        wide = page.eval_on_selector(".pk-scroll", "e => e.scrollWidth - e.clientWidth")
        assert wide <= 0
        book.screenshot(f"lab-phases-{theme}", ".pk-lab")
    book.theme("light")


def test_what_the_kernel_sends_meanwhile_takes_no_click_and_no_choice(
    open_notebook: Callable,
) -> None:
    more = ROWS + 'lab.rows = [*lab.rows, {**lab.rows[0], "run": 4, "pinned": False}]\n'
    book = open_notebook([DATA, LAB, ROWS, "pass"], "meanwhile")
    page = book.page
    book.run_all()
    pin = page.locator("[data-key=pin-2]")
    page.click("[data-run='3'] [data-key=unseen-3] summary")
    pin.hover()
    page.mouse.down()
    page.evaluate(
        "async code => { const { kernel } ="
        " jupyterapp.shell.currentWidget.sessionContext.session;"
        " await kernel.requestExecute({ code }).done; }",
        more,
    )
    page.wait_for_selector(".pk-runs tr[data-run='4']")
    page.mouse.up()
    # the kernel heard it; these runs are made up
    page.wait_for_selector(".pk-warning:has-text('run 2 cannot be pinned')")
    assert page.locator("[data-key=unseen-3][open]").count() == 1
    assert page.locator("[data-key=unseen-4]").count() == 0

    # a menu waits for a moment, for more arrow keys, before it tells the kernel
    page.locator("[data-setting=num_workers] select").select_option("1")
    page.locator("[data-setting=small] input").check()
    page.click(".pk-start")
    book.wait_data(".pk-lab", "d.run === '1' && d.state !== 'ready'")
    page.click(".pk-stop")
    book.wait_data(".pk-lab", "d.state === 'stopped' && d.runs === '1'")
    changed = page.locator(".pk-runs tr[data-run='1'] .pk-changed > span").inner_text()
    assert "num_workers 1" in changed
    assert "small on" in changed


def test_start_is_in_sight_at_900_px(open_notebook: Callable) -> None:
    book = open_notebook([DATA, LAB], "start")
    page = book.page
    page.set_viewport_size({"width": 900, "height": 900})
    book.run_all()
    page.wait_for_selector(".pk-start")
    top = page.eval_on_selector(".pk-lab", "e => e.getBoundingClientRect().top")
    start = page.eval_on_selector(".pk-start", "e => e.getBoundingClientRect().bottom")
    assert start - top < 160
    # a warning does not touch the buttons above it
    above = page.eval_on_selector_all(
        ".pk-warning", "all => all.map(e => getComputedStyle(e).marginTop)"
    )
    assert above == ["8px", "8px"]


def test_copy_puts_the_table_on_the_clipboard_scrubbed(open_notebook: Callable) -> None:
    token = '"hf_" + "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7"'  # made up
    lab = LAB.replace('"Slow disk, small model"', token).replace("seconds=4", "seconds=1")
    book = open_notebook([DATA, lab], "lab-copy")
    page = book.page
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    book.run_all()
    page.wait_for_selector(".pk-lab")
    copy = page.locator(".pk-lab [data-export=copy]")
    assert copy.inner_text() == "Copy as Markdown"
    assert copy.is_disabled(), "there is nothing to copy yet"
    page.click(".pk-start")
    book.wait_data(".pk-lab", "d.run === '1' && d.state === 'done'")
    page.bring_to_front()  # only a page in front may write to the clipboard
    # the button says so for two seconds, which a busy machine may let pass between two looks
    copy.evaluate(
        "(button) => { window.said = []; "
        "new MutationObserver(() => window.said.push(button.textContent))"
        ".observe(button, {childList: true, characterData: true, subtree: true}); }"
    )
    copy.click()
    page.wait_for_function("() => window.said.includes('Copied')")
    copied = page.evaluate("() => navigator.clipboard.readText()")
    assert copied.startswith("# \\[secret\\]\n")
    assert "a1B2c3D4" not in copied
    assert "| run | state | mean step |" in copied
    assert "| 1 | done |" in copied
    book.screenshot("lab-copied", ".pk-lab")
