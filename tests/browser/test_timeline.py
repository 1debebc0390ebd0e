"""The Timeline as a reader uses it: keys, search, click, flow line; hostile names are text."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.browser.conftest import wait_for
from tests.simulated_traces import gpu_training

pytestmark = pytest.mark.browser

HOSTILE = '<img src=x onerror="window.pwned=1"> "quoted" \'too\' \x07\u202e end'
SHOW = "import perfkit\ntimeline = perfkit.Timeline('simulated.json')\ntimeline"


def _write_trace(folder: Path) -> None:
    sim = gpu_training(6, n_kernels=40)
    events: list[dict[str, Any]] = json.loads(sim.json())["traceEvents"]
    first = min(e["ts"] for e in events)
    for name, at in ((HOSTILE, 200), ("aten::needle", 900)):
        sim.host(name, first + at, 120)
    sim.host(
        "aten::deep", first + 905, 100, **{"Call stack": "lib/python/x.py(1): a;train.py(12): <b>"}
    )
    (folder / "simulated.json").write_bytes(sim.json())


def _numbers(page: Any) -> tuple[float, float]:
    data = page.eval_on_selector(".pk-timeline", "e => [e.dataset.start, e.dataset.end]")
    return float(data[0]), float(data[1])


def test_pan_zoom_search_and_details_by_keyboard_and_mouse(
    open_notebook: Callable, jupyter: Any
) -> None:
    _write_trace(jupyter.root)
    book = open_notebook([SHOW], "timeline")
    page = book.page
    book.run_all()
    book.wait_data(".pk-timeline", "+d.boxes > 50 && d.state === 'ready'")
    whole = _numbers(page)
    book.screenshot("timeline-light", ".pk-timeline")
    # what stays in the file for readers without a kernel, hidden beside the living widget
    static = [out for out in book.outputs() if "image/svg+xml" in out.get("data", {})]
    assert len(static) == 1
    assert page.locator("[class^=pk-static]").first.is_hidden()

    canvas = page.locator(".pk-timeline canvas")
    canvas.focus()
    page.keyboard.press("w")
    page.keyboard.press("w")
    book.wait_data(".pk-timeline", f"d.end - d.start < {0.6 * (whole[1] - whole[0])}")
    zoomed = _numbers(page)
    page.keyboard.press("ArrowRight")
    book.wait_data(".pk-timeline", f"+d.start > {zoomed[0] + 1}")
    page.keyboard.press("Home")
    book.wait_data(".pk-timeline", f"Math.abs(d.start - {whole[0]}) < 1")
    page.keyboard.press("End")
    book.wait_data(".pk-timeline", f"Math.abs(d.end - {whole[1]}) < 1")
    page.keyboard.press("-")
    book.wait_data(".pk-timeline", f"d.end - d.start > {1.2 * (zoomed[1] - zoomed[0])}")
    page.keyboard.press("0")
    book.wait_data(".pk-timeline", f"Math.abs(d.end - d.start - {whole[1] - whole[0]}) < 1")

    # with Ctrl the wheel zooms where the pointer is, without it the page scrolls; a drag pans
    box = canvas.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 60)
    page.mouse.wheel(0, 10)
    page.wait_for_function(
        "document.querySelector('.pk-time-hover').textContent === 'Ctrl + wheel zooms'"
    )
    assert _numbers(page)[1] - _numbers(page)[0] >= 0.99 * (whole[1] - whole[0])
    page.keyboard.down("Control")
    page.mouse.wheel(0, -400)
    page.keyboard.up("Control")
    book.wait_data(".pk-timeline", f"d.end - d.start < {0.8 * (whole[1] - whole[0])}")
    before = _numbers(page)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] / 2 + 80, box["y"] + 60, steps=4)
    page.mouse.up()
    book.wait_data(".pk-timeline", f"+d.start < {before[0] - 1}")

    # search: a count; the match comes into view and shows its details
    page.fill(".pk-time-search", "needle")
    book.wait_data(".pk-timeline", "d.matches === '1' && d.selectedName === 'aten::needle'")
    page.fill(".pk-time-search", "cudaLaunch")
    book.wait_data(".pk-timeline", "d.matches === '240' && d.flows === '1'")
    assert "of 240" in page.locator(".pk-time-count").inner_text()
    first, match = page.eval_on_selector(
        ".pk-timeline", "e => [e.dataset.selected, +e.dataset.match]"
    )
    page.keyboard.press("Enter")
    book.wait_data(".pk-timeline", f"+d.match === {match + 1} && d.selected !== '{first}'")
    canvas.focus()
    page.keyboard.press("p")
    book.wait_data(".pk-timeline", f"+d.match === {match} && d.selected === '{first}'")
    page.locator(".pk-time-flow").first.click()
    book.wait_data(".pk-timeline", "d.selectedName === 'sgemm'")
    assert "launched by" in page.locator(".pk-time-details").inner_text()

    # Tab walks through a lane, Enter opens, Escape closes
    canvas.focus()
    chosen = page.locator(".pk-timeline").get_attribute("data-selected")
    page.keyboard.press("Tab")
    book.wait_data(".pk-timeline", f"d.selected !== '{chosen}' && d.selected !== ''")
    page.keyboard.press("Enter")
    page.wait_for_selector(".pk-time-details dl")
    page.keyboard.press("-")
    page.keyboard.press("-")
    page.click(".pk-timeline .pk-data summary")
    page.wait_for_function("() => document.querySelectorAll('.pk-timeline tbody tr').length > 3")
    page.wait_for_timeout(500)
    book.screenshot("timeline-details-light", ".pk-timeline")
    book.theme("dark")
    book.screenshot("timeline-details-dark", ".pk-timeline")
    book.theme("light")
    page.set_viewport_size({"width": 400, "height": 1400})
    page.wait_for_timeout(800)
    book.screenshot("timeline-400px", ".pk-timeline")
    widths = page.eval_on_selector(".pk-timeline", "e => [e.scrollWidth, e.clientWidth]")
    assert widths[0] <= widths[1], "the timeline scrolls sideways at 400 px"
    assert page.locator(".pk-errors").inner_text() == ""


def test_hostile_names_are_text(open_notebook: Callable, jupyter: Any) -> None:
    _write_trace(jupyter.root)
    html = (
        "from IPython.display import HTML, display\n"
        "from perfkit.advice.profile import explain\n"
        "from perfkit.trace.read.load import load\n"
        "from perfkit.show import strip\n"
        "display(explain(load('simulated.json')))"
    )
    book = open_notebook([SHOW, html], "hostile")
    page = book.page
    book.run_all()
    book.wait_data(".pk-timeline", "+d.boxes > 50 && d.state === 'ready'")
    page.fill(".pk-time-search", "onerror")
    book.wait_data(".pk-timeline", "d.matches === '1'")
    book.wait_data(".pk-timeline", "d.selectedName.startsWith('<img src=x onerror=')")
    name = page.locator(".pk-time-name").inner_text()
    assert name.startswith('<img src=x onerror="window.pwned=1"> "quoted" \'too\'')
    assert "\x07" not in name
    assert "\u202e" not in name
    page.fill(".pk-time-search", "aten::deep")
    book.wait_data(".pk-timeline", "d.selectedName === 'aten::deep'")
    assert "train.py(12): <b>" in page.locator(".pk-time-details").inner_text()
    assert page.locator(".pk-timeline img, .pk-timeline b, .pk-report img").count() == 0
    assert page.evaluate("() => window.pwned") is None
    # folded: present but not visible
    page.wait_for_selector(".pk-report .pk-step", state="attached")


# The busy cell holds the interpreter lock, so that no other thread can answer either: it opens a
# FIFO, which returns when the test opens the other end.
BUSY = """
import ctypes, os, time
os.mkfifo("release")
while not os.path.exists("loaded"):
    time.sleep(0.02)
open("held", "w").close()
ctypes.PyDLL(None).open(b"release", os.O_RDONLY)  # PyDLL keeps the lock
"""


def test_a_busy_kernel_is_said_and_what_was_loaded_stays(
    open_notebook: Callable, jupyter: Any
) -> None:
    _write_trace(jupyter.root)
    book = open_notebook([SHOW, BUSY], "busy-timeline")
    page = book.page
    page.evaluate("() => { jupyterapp.commands.execute('notebook:run-all-cells'); }")
    book.wait_data(".pk-timeline", "+d.boxes > 50 && d.state === 'ready'")
    (jupyter.root / "loaded").touch()
    wait_for((jupyter.root / "held").exists)
    page.locator(".pk-timeline canvas").focus()
    for _ in range(12):
        page.keyboard.press("w")
    book.wait_data(".pk-timeline", "d.state === 'busy' && +d.boxes > 0")
    assert "kernel busy, showing what was loaded" in page.locator(".pk-time-notice").inner_text()
    os.close(os.open(jupyter.root / "release", os.O_WRONLY | os.O_NONBLOCK))
    book.wait_data(".pk-timeline", "d.state === 'ready'")
    book.wait_for_kernel()


def test_its_width_stays_when_another_widget_appears(open_notebook: Callable, jupyter: Any) -> None:
    _write_trace(jupyter.root)
    other = (
        "from perfkit.widgets.live_plot import LivePlot, Series\n"
        "LivePlot([Series('step', 'ms', 'step time')], title='other')"
    )
    book = open_notebook([SHOW, other], "beside")
    page = book.page
    page.set_viewport_size({"width": 1700, "height": 1000})
    page.evaluate("() => jupyterapp.commands.execute('notebook:run-cell-and-select-next')")
    book.wait_data(".pk-timeline", "d.state === 'ready'")
    width = page.eval_on_selector(".pk-timeline", "e => e.clientWidth")
    assert width > 1000
    page.evaluate("() => jupyterapp.commands.execute('notebook:run-all-cells')")
    page.wait_for_selector(".pk-live")
    book.wait_data(".pk-timeline", "d.state === 'ready'")
    assert page.eval_on_selector(".pk-timeline", "e => e.clientWidth") == width
