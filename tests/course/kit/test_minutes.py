"""The minutes that a lesson states match its length."""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from perfkit.course.kit.minutes import Reading, reading

LESSONS = sorted((Path(__file__).resolve().parents[3] / "notebooks").glob("[0-9][0-9]-*.ipynb"))


def test_words_and_lines_are_counted_and_what_is_folded_is_not() -> None:
    hidden = new_code_cell("a = 1\nb = 2")
    hidden.metadata["jupyter"] = {"source_hidden": True}
    cells = [
        new_markdown_cell("# Two words\n\n<details><summary>More</summary>\n\nlong text</details>"),
        hidden,
        new_code_cell("a = 1\n\n    # a comment\nb = 2"),
        new_markdown_cell(
            "Before\n\n```python\none\n\ntwo\n```\n\nafter <data value='x'>5</data>."
        ),
        new_markdown_cell("## Optional: not counted"),
        new_code_cell("c = 3"),
        new_markdown_cell("## Again"),
    ]
    found = reading(new_notebook(cells=cells))
    assert found == Reading(words=3 + 4 + 2, lines=3 + 2)
    assert Reading(words=400, lines=40).minutes == 4


@pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem)
def test_the_stated_minutes_are_enough_to_read_the_lesson(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    said = notebook.metadata["perfkit"]
    header = re.search(
        r"(\d+) minutes of reading and running, (\d+) minutes of exercise",
        notebook.cells[0].source,
    )
    assert header is not None
    assert [int(n) for n in header.groups()] == [said["teaching_minutes"], said["exercise_minutes"]]
    found = reading(notebook)
    assert said["teaching_minutes"] - 3 < found.minutes <= said["teaching_minutes"], found
