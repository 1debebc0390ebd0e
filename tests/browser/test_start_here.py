"""Lesson 00 for a newcomer: run it, read the verdict, change two settings, see the ratio."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import nbformat
import pytest

pytestmark = pytest.mark.browser

LESSON = Path(__file__).resolve().parents[2] / "notebooks" / "00-start-here.ipynb"

BUDGET_SCALE = "0.2"  # runs of a second: with fewer steps there is no ratio to look at

PROFILE = ".jp-OutputArea-output .pk-report:has-text('Data-bound')"


@pytest.mark.slow
@pytest.mark.timeout(600)  # a slow machine may take some minutes for the lesson itself
def test_lesson_00(open_notebook: Callable, tmp_path: Path) -> None:
    lesson = nbformat.read(LESSON, as_version=4)
    small = f"import os; os.environ['PERFKIT_BUDGET_SCALE'] = {BUDGET_SCALE!r}"
    lesson.cells.insert(0, nbformat.v4.new_code_cell(small))
    nbformat.write(lesson, tmp_path / "00.ipynb")
    book = open_notebook(tmp_path / "00.ipynb", "00-start-here", program=True)
    page = book.page
    page.set_viewport_size({"width": 1200, "height": 1700})
    # the lesson's own cells take about a minute; the runs of lab.run() are among them
    page.set_default_timeout(500_000)
    book.run_all()
    page.set_default_timeout(60_000)

    # %%torchprof says in words what bounds the step, and shows where the time goes
    report = page.locator(PROFILE).first
    report.scroll_into_view_if_needed()
    assert report.locator("[role=img]").first.get_attribute("aria-label")
    book.screenshot("lesson-00-torchprof-light", PROFILE)
    book.theme("dark")
    report.scroll_into_view_if_needed()
    book.screenshot("lesson-00-torchprof-dark", PROFILE)
    book.theme("light")

    # two settings of the Lab: each starts a run whose points arrive and whose ratio is shown
    lab = page.locator(".pk-lab")
    lab.scroll_into_view_if_needed()
    runs = int(lab.get_attribute("data-runs") or 0)
    assert runs == 2  # those of lab.run()
    workers = page.locator("[data-setting=num_workers] select")
    workers.scroll_into_view_if_needed()
    workers.focus()
    page.keyboard.press("ArrowDown")
    book.wait_data(".pk-lab", f"d.run === '{runs + 1}' && +d.points > 0")
    seen = int(lab.get_attribute("data-points") or 0)
    book.wait_data(".pk-lab", f"+d.points > {seen} || d.state === 'done'")
    book.wait_data(".pk-lab", f"d.run === '{runs + 1}' && d.state === 'done'", timeout_s=60)
    page.locator("[data-setting=decode] select").select_option(index=0)
    book.wait_data(".pk-lab", f"d.run === '{runs + 2}' && +d.points > 0")
    book.wait_data(".pk-lab", f"d.run === '{runs + 2}' && d.state === 'done'", timeout_s=60)
    assert "×" in page.locator(f".pk-runs tr[data-run='{runs + 1}'] .pk-ratio").inner_text()
    assert "×" in page.locator(f".pk-runs tr[data-run='{runs + 2}'] .pk-ratio").inner_text()
    assert page.locator(".pk-errors").inner_text() == ""
    book.screenshot("lesson-00-lab-light", ".pk-lab")
    book.theme("dark")
    lab.scroll_into_view_if_needed()
    book.screenshot("lesson-00-lab-dark", ".pk-lab")
    book.theme("light")
