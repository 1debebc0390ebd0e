"""The report of ``%%torchprof`` in JupyterLab, beside a widget: neither style breaks the other."""

from __future__ import annotations

from collections.abc import Callable

import pytest

pytestmark = pytest.mark.browser

TRAIN = """
%%torchprof -n 3
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = TensorDataset(torch.randn(640, 64), torch.randint(0, 10, (640,)))
for x, y in DataLoader(data, batch_size=64):
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
"""
# its style sheet comes into the page beside the report's
WIDGET = """
from perfkit.widgets.live_plot import LivePlot, Series
display(LivePlot([Series("step", "ms", "step time")], title="watch(loader)"))
"""


def test_report_keeps_its_shape_beside_a_widget(open_notebook: Callable) -> None:
    book = open_notebook(["%load_ext perfkit", TRAIN.lstrip(), WIDGET], "torchprof")
    page = book.page
    book.run_all()
    page.wait_for_selector(".pk-live")
    report = page.locator(".jp-OutputArea-output .pk-report").first
    report.scroll_into_view_if_needed()
    width = report.bounding_box()["width"]
    lane = report.locator("[role=img]").first
    assert lane.get_attribute("aria-label").startswith("Host")
    assert lane.bounding_box()["width"] > 0.9 * width
    first_column = report.locator("table tbody tr td").first
    assert first_column.evaluate("e => getComputedStyle(e).textAlign") == "left"
    for theme in ("light", "dark"):
        book.theme(theme)
        report.scroll_into_view_if_needed()
        book.screenshot(f"torchprof-{theme}", ".jp-OutputArea-output .pk-report")
    page.set_viewport_size({"width": 400, "height": 1400})
    page.wait_for_timeout(500)
    book.screenshot("torchprof-400px", ".jp-OutputArea-output .pk-report")
    wide = report.evaluate("e => [e.scrollWidth, e.clientWidth]")
    assert wide[0] <= wide[1], "the report scrolls sideways at 400 px"
