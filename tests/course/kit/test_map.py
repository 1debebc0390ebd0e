"""The map in the header of every lesson: its places are today's, and it has alternative text."""

from __future__ import annotations

import base64
import io
from pathlib import Path
from typing import Any

import nbformat
import pytest
from PIL import Image

from perfkit.base.errors import PerfkitError
from perfkit.course.kit.map import WAY, draw_map, main, put_map, words_of_map
from perfkit.course.kit.page import html_page
from perfkit.course.teaches import PLACES

NOTEBOOKS = Path(__file__).resolve().parents[3] / "notebooks"
LESSONS = sorted(NOTEBOOKS.glob("[0-9][0-9]-*.ipynb"))


@pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem)
def test_every_lesson_shows_where_it_stands(path: Path) -> None:
    cell = nbformat.read(path, as_version=4).cells[0]
    assert f"![{words_of_map(PLACES[path.stem])}](attachment:map.png)" in cell.source
    assert cell.source.count("attachment:") == 1
    ((kind, png),) = cell.attachments["map.png"].items()
    assert kind == "image/png"
    kept = Image.open(io.BytesIO(base64.b64decode(png))).convert("RGBA")
    drawn = Image.open(io.BytesIO(draw_map(PLACES[path.stem]))).convert("RGBA")
    # the colours of the boxes; letters differ between versions of fonts
    assert kept.size == drawn.size
    for number in range(len(WAY)):
        spot = (round((number + 0.5) * kept.width / len(WAY)), 5)
        assert _strong(kept.getpixel(spot)) == _strong(drawn.getpixel(spot))


def _strong(colour: Any) -> bool:
    return bool(colour[0] < 128)


def test_the_lessons_places_are_drawn_in_another_colour() -> None:
    picture = Image.open(io.BytesIO(draw_map(["data", "network"]))).convert("RGBA")
    spots = [(round((n + 0.5) * picture.width / len(WAY)), 5) for n in range(len(WAY))]
    strong = [_strong(picture.getpixel(spot)) for spot in spots]
    assert strong == [True, False, False, False, False, True]


def test_the_words_name_the_places_in_the_order_of_the_way() -> None:
    assert words_of_map(["memory", "host"]).endswith("This lesson is about host and memory.")
    assert words_of_map([name for name, _ in WAY]).endswith("about all of it.")


@pytest.mark.parametrize("places", [[], ["disk"], ["data", "disk"]])
def test_a_place_that_is_not_on_the_way_is_refused(places: list[str]) -> None:
    with pytest.raises(PerfkitError, match="data, host, launch, compute, memory, network"):
        draw_map(places)


def test_a_second_map_takes_the_place_of_the_first(tmp_path: Path) -> None:
    lesson = tmp_path / "03-storage-and-formats.ipynb"
    cells = [nbformat.v4.new_markdown_cell("# Title\n\n| | |\n|---|---|\n")]
    notebook = nbformat.v4.new_notebook(cells=cells)
    put_map(notebook, ["network"])
    nbformat.write(notebook, lesson)
    main([str(lesson)])
    main([str(lesson)])
    cell = nbformat.read(lesson, as_version=4).cells[0]
    assert cell.source.startswith(
        f"# Title\n\n![{words_of_map(['data'])}](attachment:map.png)\n\n|"
    )
    assert cell.source.count("![") == 1
    assert list(cell.attachments) == ["map.png"]
    html = html_page(nbformat.read(lesson, as_version=4), title="Title")
    assert "data:image/png;base64," in html
    assert "attachment:map.png" not in html


def test_a_notebook_without_title_and_a_lesson_without_place_are_named(tmp_path: Path) -> None:
    with pytest.raises(PerfkitError, match="# Title"):
        put_map(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("1")]), ["data"])
    with pytest.raises(PerfkitError, match="# Title"):
        put_map(nbformat.v4.new_notebook(), ["data"])
    with pytest.raises(SystemExit, match=r"teaches\.py"):
        main([str(tmp_path / "20-more.ipynb")])
