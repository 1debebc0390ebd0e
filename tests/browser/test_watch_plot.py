"""The plot of ``perfkit.watch`` while its loop runs, and what stays of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.browser

LOOP = """
import os, time
import perfkit

for n in perfkit.watch(range(1500), name="a loop of its own"):
    time.sleep(0.03 if n % 50 == 0 else 0.01)
    if os.path.exists("seen-enough"):
        break
"""


def test_it_moves_says_how_far_it_is_and_leaves_a_picture(
    open_notebook: Callable, jupyter: Any
) -> None:
    book = open_notebook([LOOP], "watch")
    page = book.page
    # not awaited: the plot is looked at while the cell runs
    page.evaluate("() => void jupyterapp.commands.execute('notebook:run-all-cells')")
    book.wait_data(".pk-live", "+d.points > 20 && d.state === 'running'")
    seen = int(page.locator(".pk-live").get_attribute("data-points"))
    told = page.locator(".pk-live .pk-status").inner_text()
    assert "a step" in told
    book.wait_data(".pk-live", f"+d.points > {seen + 50}")
    # the words come with the points, in the same message
    assert page.locator(".pk-live .pk-status").inner_text() != told
    assert page.locator(".pk-live .pk-track").get_attribute("aria-valuenow") not in (None, "0")
    assert page.locator(".pk-live .pk-errors").inner_text() == ""
    book.screenshot("watch-running", ".pk-live")
    light = page.evaluate("() => document.querySelector('.pk-live canvas').toDataURL()")
    book.theme("dark")
    page.wait_for_function(
        "light => { const canvas = document.querySelector('.pk-live canvas');"
        " return canvas !== null && canvas.toDataURL() !== light; }",
        arg=light,
    )
    book.screenshot("watch-dark", ".pk-live")
    (jupyter.root / "seen-enough").touch()
    page.wait_for_selector("img[alt^='Step time']", timeout=90_000)
    assert page.locator(".pk-live").count() == 0
    assert "data wait" in page.locator(".jp-OutputArea-output:has(img)").inner_text()
