"""The Lab as a reader meets it: JupyterLab, a click, points that arrive, a ratio in the table."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

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


def test_run_flip_two_toggles_and_reload(open_notebook: Callable) -> None:
    book = open_notebook([DATA, LAB], "lab")
    page = book.page
    page.set_viewport_size({"width": 1200, "height": 1700})
    book.run_all()
    page.wait_for_selector(".pk-lab")
    # what this machine cannot take is disabled and says why
    if page.locator("[data-setting=pin_memory] input").is_disabled():
        assert "not available" in page.locator("[data-setting=pin_memory]").inner_text()

    page.click(".pk-start")
    book.wait_data(".pk-lab", "+d.points > 0 && d.state === 'running'")
    seen = int(page.locator(".pk-lab").get_attribute("data-points"))
    book.wait_data(".pk-lab", f"+d.points > {seen}")
    book.wait_data(".pk-lab", "d.run === '1' && d.state === 'done'")

    # by keyboard: the slider takes the arrow key, JupyterLab does not
    page.locator("[data-setting=num_workers] input").focus()
    page.keyboard.press("ArrowRight")
    book.wait_data(".pk-lab", "d.run === '2' && +d.ghost > 0 && +d.points > 0")
    book.screenshot("lab-running", ".pk-lab")
    page.locator("[data-setting=small] input").check()  # while run 2 goes on
    book.wait_data(".pk-lab", "d.run === '3' && d.state === 'done'")

    row = page.locator(".pk-runs tr[data-run='3']")
    assert "small off → on" in row.locator(".pk-changed").inner_text()
    assert "×" in row.locator(".pk-ratio").inner_text()
    # a step holds a quarter of the samples: that is said beside its ratio
    assert "per sample" in row.locator(".pk-ratio").inner_text()
    assert page.locator(".pk-errors").inner_text() == ""
    book.screenshot("lab-light", ".pk-lab")
    light = page.evaluate("() => document.querySelector('.pk-lab canvas').toDataURL()")
    book.theme("dark")
    # the plot is drawn again when the page tells that its colours have changed
    page.wait_for_function(
        "light => document.querySelector('.pk-lab canvas').toDataURL() !== light", arg=light
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

    # what stays in the file for readers without a kernel, hidden beside the living widget
    book.save()
    static = [out for out in book.outputs() if "pk-static" in str(out["data"].get("text/html"))]
    assert len(static) == 1
    assert "data:image/png;base64," in "".join(static[0]["data"]["text/html"])
    assert "small off → on" in "".join(static[0]["data"]["text/plain"])
    assert page.locator("[class^=pk-static]").first.is_hidden()

    points = page.locator(".pk-lab").get_attribute("data-points")
    book.reload()
    book.wait_data(".pk-lab", f"d.points === '{points}' && d.runs === '3' && +d.ghost > 0")
    assert page.locator("[data-setting=num_workers] output").inner_text() == "1"


def test_a_failed_run_is_told_and_the_lab_goes_on(open_notebook: Callable) -> None:
    book = open_notebook([DATA, LAB], "failing")
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
    with page.expect_download() as download:
        page.click("[data-export=json]")
    with open(download.value.path()) as file:  # noqa: PTH123
        assert [run["state"] for run in json.load(file)["runs"]] == ["failed", "done"]
    with page.expect_download() as download:
        page.click("[data-export=png]")
    with open(download.value.path(), "rb") as file:  # noqa: PTH123
        assert file.read(8) == b"\x89PNG\r\n\x1a\n"


def test_restarting_the_kernel_leaves_no_process(open_notebook: Callable) -> None:
    book = open_notebook([DATA, LAB, "lab.start(num_workers=2)", PROCESSES], "left")
    book.run_all()
    kernel, *children = json.loads(book.outputs()[-1]["text"])
    assert len(children) >= 3  # the run and its two workers at least
    session = book.jupyter.api("sessions")[0]
    book.jupyter.api(f"kernels/{session['kernel']['id']}/restart", "POST")
    deadline = time.monotonic() + 5
    while left := [pid for pid in children if psutil.pid_exists(pid)]:
        assert time.monotonic() < deadline, f"left behind: {left}"
        time.sleep(0.1)
    assert not psutil.pid_exists(kernel)


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
import numpy as np, time
from perfkit.widgets.live_plot import LivePlot, Series
plot = LivePlot([Series("step", "ms", "step time"), Series("wait", "ms", "data wait"),
                 Series("memory", "MiB", "memory", "right")], title="watch(loader)", total=300)
display(plot)
for first in range(0, 300, 10):       # a busy cell: nothing may depend on the browser's answers
    x = np.arange(first, first + 10)
    plot.push(x, np.stack([40 + np.sin(x), 20 + np.cos(x), 300 + x / 10], 1))
    plot.set_status(f"step {first + 10} of 300, 40 ms a step", (first + 10) / 300)
    time.sleep(0.05)
plot.finish("300 steps, median 40 ms, half of it data wait")
"""


def test_live_plot_of_a_busy_cell(open_notebook: Callable) -> None:
    book = open_notebook([LIVE], "live")
    page = book.page
    page.evaluate("() => { jupyterapp.commands.execute('notebook:run-all-cells'); }")
    book.wait_data(".pk-live", "+d.points > 20 && +d.points < 300 && d.state === 'running'")
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
