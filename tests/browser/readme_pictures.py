"""README's pictures, taken in a real JupyterLab: ``make pictures``, on a machine that is quiet.

They show lesson 00: what ``%%torchprof`` says of its trainer, and its Lab while somebody starts
a run, changes a setting and confirms what helped. Not a test: pytest gives it the browser.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import nbformat
import pytest
from PIL import Image

pytestmark = pytest.mark.browser

ROOT = Path(__file__).resolve().parents[2]
PICTURES = ROOT / "data" / "pictures"
CELLS = (
    "%load_ext",
    "images =",
    "class Photos",
    "def block",
    "%%torchprof",
    "class Small",
    "lab =",
)
REPORT = ".jp-OutputArea-output .pk-report:has-text('Data-bound')"
FRAME_MS, LAST_MS = 500, 3000


@pytest.mark.timeout(900)
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_pictures(open_notebook: Callable, tmp_path: Path, theme: str) -> None:
    lesson = nbformat.read(ROOT / "notebooks" / "00-start-here.ipynb", as_version=4)
    code = [cell for cell in lesson.cells if cell.cell_type == "code"]
    lesson.cells = [next(cell for cell in code if start in cell.source) for start in CELLS]
    for cell in lesson.cells:
        cell.outputs = []
    nbformat.write(lesson, tmp_path / "00.ipynb")
    book = open_notebook(tmp_path / "00.ipynb", f"readme-{theme}", program=True)
    page = book.page
    page.set_viewport_size({"width": 980, "height": 1700})
    book.theme(theme)
    page.set_default_timeout(300_000)
    book.run_all()
    page.locator(REPORT).first.scroll_into_view_if_needed()
    page.locator(REPORT).first.screenshot(path=PICTURES / f"torchprof-{theme}.png")

    lab = page.locator(".pk-lab")
    lab.scroll_into_view_if_needed()
    frames: list[Image.Image] = []

    def film(condition: str, every_ms: int) -> None:
        """A frame again and again until ``condition`` holds for the Lab's dataset ``d``."""
        for _ in range(60):
            frames.append(Image.open(io.BytesIO(lab.screenshot())).convert("RGB"))
            if lab.evaluate(f"e => {{ const d = e.dataset; return {condition}; }}"):
                return
            page.wait_for_timeout(every_ms)
        raise AssertionError(f"not within 60 frames: {condition}")

    page.click(".pk-start")
    film("d.runs === '1' && d.state === 'done'", FRAME_MS)
    page.locator("[data-setting=decode] select").select_option(label="draft")
    film("d.runs === '2' && d.state === 'done'", FRAME_MS)
    page.locator(".pk-confirm").first.click()
    page.wait_for_timeout(FRAME_MS)
    film("d.state !== 'confirming'", 6000)
    height = max(frame.height for frame in frames)
    paper = frames[-1].getpixel((0, 0))
    small = []
    for frame in frames:
        sheet = Image.new("RGB", (frame.width, height), paper)
        sheet.paste(frame)
        small.append(
            sheet.quantize(256, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
        )
    small[0].save(
        PICTURES / f"lab-{theme}.gif",
        save_all=True,
        append_images=small[1:],
        duration=[FRAME_MS] * (len(small) - 1) + [LAST_MS],
        loop=0,
        optimize=True,
    )
