"""A lesson's page in a browser: light, dark, narrow, printed, and without any script."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest
from matplotlib.figure import Figure
from playwright.sync_api import Browser, Page

from perfkit.course.kit.page import html_page
from perfkit.course.kit.picture import picture

pytestmark = pytest.mark.browser

LESSON = Path(__file__).resolve().parents[2] / "notebooks" / "00-start-here.ipynb"


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    notebook = nbformat.read(LESSON, as_version=4)
    figure = Figure(figsize=(4, 2))
    figure.add_subplot().plot([1, 2])
    html = picture(figure, "a line")._repr_html_()
    shown = nbformat.v4.new_output("display_data", data={"text/html": html})
    notebook.cells.insert(1, nbformat.v4.new_code_cell("draw()", outputs=[shown]))
    out = tmp_path_factory.mktemp("page") / "00.html"
    out.write_text(html_page(notebook, title="00"), encoding="utf-8")
    return out.as_uri()


@pytest.fixture(params=["light", "dark"])
def page(browser: Browser, address: str, request: pytest.FixtureRequest) -> Iterator[Page]:
    context = browser.new_context(color_scheme=request.param, java_script_enabled=True)
    page = context.new_page()
    page.goto(address)
    yield page
    context.close()


def _brightness(page: Page, selector: str, name: str) -> float:
    colour: Any = page.evaluate(
        "([selector, name]) => getComputedStyle(document.querySelector(selector))[name]"
        ".match(/[0-9.]+/g).slice(0, 3).map(Number)",
        [selector, name],
    )
    return float(sum(colour) / 3)


def test_the_page_follows_the_system_and_is_light_on_paper(page: Page) -> None:
    is_dark = page.evaluate("() => matchMedia('(prefers-color-scheme: dark)').matches")
    for selector in ("body", ".pk-report"):
        assert (_brightness(page, selector, "backgroundColor") < 60) == is_dark, selector
        assert (_brightness(page, selector, "color") > 150) == is_dark, selector
    drawn = "() => getComputedStyle(document.querySelector('img.pk-drawn')).filter"
    assert ("invert" in page.evaluate(drawn)) == is_dark
    page.emulate_media(media="print")
    assert _brightness(page, "body", "backgroundColor") > 200
    assert page.evaluate(drawn) == "none"


def test_what_was_measured_waits_for_the_guess_and_is_printed(page: Page) -> None:
    verdict = page.locator(".pk-report", has_text="Data-bound").first
    assert not verdict.is_visible()
    assert page.get_by_text("You may make one change.").first.is_visible()
    page.locator("#guess").focus()
    page.keyboard.press("Space")
    assert verdict.is_visible()
    page.keyboard.press("Space")
    assert not verdict.is_visible()
    page.emulate_media(media="print")
    assert verdict.is_visible()
    assert not page.locator("#guess").is_visible()
    assert not page.locator(".pk-not-yet").first.is_visible()


@pytest.mark.parametrize("width", [1400, 420])
def test_the_column_can_be_read_and_nothing_is_wider(page: Page, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 900})
    page.locator("#guess").check()
    sizes = page.evaluate(
        "() => ({page: document.documentElement.scrollWidth, shown: innerWidth,"
        " text: Math.max(...[...document.querySelectorAll('.jp-MarkdownOutput p')]"
        ".map(p => p.getBoundingClientRect().width / parseFloat(getComputedStyle(p).fontSize))),"
        " reports: [...document.querySelectorAll('.pk-report')]"
        ".map(r => r.getBoundingClientRect().right)})"
    )
    assert sizes["page"] <= sizes["shown"]
    assert sizes["text"] <= 45  # ems: some 90 letters a line
    assert max(sizes["reports"]) <= width
