"""``Copy as Markdown`` on a report: a button where scripts run, a fold where they do not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import nbformat
import pytest

pytestmark = pytest.mark.browser

REPORT = """
import perfkit
perfkit.same_result(lambda: 1.0, lambda: 2.0)
"""


def test_a_button_copies_and_what_is_not_trusted_has_a_fold(
    open_notebook: Callable, tmp_path: Path
) -> None:
    book = open_notebook([REPORT.strip()], "copy")
    page = book.page
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    book.run_all()
    report = page.locator(".jp-OutputArea-output .pk-report").first
    button = report.locator(".pk-copy")
    assert button.inner_text() == "Copy as Markdown"
    assert not report.locator(".pk-markdown").is_visible()
    book.screenshot("copy-button", ".jp-OutputArea-output .pk-report")
    button.click()
    page.wait_for_function("() => document.querySelector('.pk-copy').textContent === 'Copied'")
    copied = page.evaluate("() => navigator.clipboard.readText()")
    assert copied.startswith("**Not the same")
    assert "| compared | step |" in copied

    stored = book.save()
    stored.cells[0].source += "  # changed by somebody else: nobody vouches for it"
    strange = tmp_path / "strange.ipynb"
    nbformat.write(stored, strange)
    other = open_notebook(strange, "strange")
    report = other.page.locator(".jp-OutputArea-output .pk-report").first
    report.wait_for()
    assert report.locator(".pk-copy").count() == 0
    fold = report.locator("details.pk-markdown")
    other.screenshot("copy-not-trusted", ".jp-OutputArea-output .pk-report")
    fold.locator("summary").click()
    assert fold.locator("pre").inner_text().strip() == copied.strip()
