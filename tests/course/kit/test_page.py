"""A lesson as a page: measurements wait for the guess, optional sections are folded."""

from __future__ import annotations

import re
from typing import Any

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from perfkit.course.kit.folding import WIDGET_VIEW, fold_answers, optional_sections
from perfkit.course.kit.page import html_page


def _printed(source: str, text: str, id_: str) -> Any:
    return new_code_cell(source, id=id_, outputs=[new_output("stream", text=text)])


@pytest.fixture
def lesson() -> Any:
    return new_notebook(
        cells=[
            new_markdown_cell("# Why?"),
            _printed("guess = Predict('Why?', {})", "the question", "predict"),
            _printed("guess.lock('')", "no guess yet", "lock"),
            _printed("look()", "it is the data", "look"),
            new_markdown_cell("## Optional: `more` <b>"),
            _printed("more()", "even more", "more"),
            new_markdown_cell("### A detail\n\nIt goes on."),
            new_markdown_cell("## Next"),
            new_markdown_cell("## Optional: the end\n\nA text."),
        ]
    )


def test_what_was_measured_is_hidden_until_a_box_is_ticked(lesson: Any) -> None:
    before = nbformat.writes(lesson)
    page = html_page(lesson, title="Why?")
    assert nbformat.writes(lesson) == before
    body = page.partition("</head>")[2]
    assert body.count('id="guess"') == 1
    at = {words: body.index(words) for words in ("no guess yet", 'id="guess"', "it is the data")}
    assert list(at.values()) == sorted(at.values())
    assert re.findall(r'celltag_pk-waits" id="cell-id=([a-z]+)"', body) == ["look", "more"]
    assert body.count("#guess") == 2  # beside each output that waits, the way to the box
    assert "<script" not in page.partition("<body")[0]


def test_a_notebook_without_a_guess_hides_nothing() -> None:
    look = _printed("look()", "the data", "look")
    look.outputs.insert(0, new_output("display_data", data={WIDGET_VIEW: {"model_id": "1"}}))
    page = html_page(new_notebook(cells=[look]), title="x")  # a widget alone would make it warn
    body = page.partition("</head>")[2]
    assert "celltag_pk-waits" not in body
    assert 'id="guess"' not in body


def test_optional_sections_are_folded_as_jupyterlab_and_a_page_do_it(lesson: Any) -> None:
    assert optional_sections(lesson) == [range(4, 7), range(8, 9)]
    fold_answers(lesson)
    collapsed = [
        number
        for number, cell in enumerate(lesson.cells)
        if cell.metadata.get("jp-MarkdownHeadingCollapsed")
    ]
    assert collapsed == [4, 8]
    body = html_page(lesson, title="Why?").partition("</head>")[2]
    optional = '<details class="pk-optional"><summary>Optional: {}</summary>'
    first = body.index(optional.format("more &lt;b&gt;"))
    assert first < body.index("even more") < body.index("It goes on.") < body.index("</details>")
    assert body.index("</details>") < body.index("Next") < body.index(optional.format("the end"))
    assert body.count("<details") == body.count("</details>") == 2
    assert body.count("the end") == 1  # the heading is the summary, not both


def test_a_page_is_dark_where_the_system_is() -> None:
    page = html_page(new_notebook(), title="x")
    assert "prefers-color-scheme: dark" in page
    assert page.count(":root {") >= 2
    assert "data-jp-theme" not in page.partition("<body")[2]
