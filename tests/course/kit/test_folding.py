"""No lesson gives away its answer before the guess, in a cell or in a saved output."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from perfkit.course.kit.folding import fold_answers, folded_cells, shows_nothing
from perfkit.course.kit.keys import key_of

NOTEBOOKS = Path(__file__).resolve().parents[3] / "notebooks"
LESSONS = sorted(NOTEBOOKS.glob("[0-9][0-9]-*.ipynb"))


def _cell(id_: str, source: str = "1", *, outputs: bool = True) -> Any:
    cell = new_code_cell(source, id=id_)
    if outputs:
        cell.outputs = [new_output("stream", text="5 times as fast")]
    return cell


def _is_folded(cell: Any) -> bool:
    # JupyterLab and VS Code read one of them, older front ends the other
    assert ("collapsed" in cell.metadata) == ("outputs_hidden" in cell.metadata.get("jupyter", {}))
    return bool(cell.metadata.get("collapsed"))


def test_outputs_below_the_question_are_folded_but_for_what_a_reader_needs() -> None:
    notebook = new_notebook(
        cells=[
            _cell("data"),
            _cell("predict", "guess = Predict('Which?', {})"),
            _cell("lock", "guess.lock('')"),
            _cell("look"),
            new_markdown_cell("Read it."),
            _cell("setup", outputs=False),
            _cell("quiz"),
            _cell("exercise-spec"),
            _cell("score", "guess.score()"),
        ]
    )
    notebook.cells[0].metadata = {"collapsed": True, "jupyter": {"outputs_hidden": True}}
    notebook.cells[3].metadata = {"tags": ["x"], "jupyter": {"source_hidden": True}}
    fold_answers(notebook)
    folded = [c.id for c in notebook.cells if c.cell_type == "code" and _is_folded(c)]
    assert folded == ["look", "score"]
    assert notebook.cells[3].metadata["jupyter"] == {"outputs_hidden": True, "source_hidden": True}
    assert "jupyter" not in notebook.cells[0].metadata
    nbformat.validate(notebook)
    again = nbformat.from_dict(notebook)
    fold_answers(again)
    assert again == notebook


def test_the_first_line_of_a_folded_report_gives_nothing_away() -> None:
    """JupyterLab shows it in place of the output, and a report begins with its verdict."""
    report = '<div aria-label="profile: Data-bound">Data-bound</div>'

    def reported(id_: str, html: Any) -> Any:
        cell = new_code_cell("1", id=id_)
        cell.outputs = [new_output("display_data", data={"text/html": html, "text/plain": "Data"})]
        return cell

    asked = _cell("predict", "guess = Predict('Which?', {})")
    notebook = new_notebook(
        cells=[reported("before", report), asked, reported("look", [report, "\n"])]
    )
    for _ in range(2):  # folding what is folded changes nothing
        fold_answers(notebook)
        before, _, look = (cell.outputs for cell in notebook.cells)
        assert [one["data"].get("text/html") for one in before] == [report]
        assert [one["data"].get("text/html") for one in look] == [None, [report, "\n"]]


def test_what_a_bar_of_progress_leaves_is_not_saved() -> None:
    outputs = [new_output("stream", text="a"), new_output("display_data", data={})]
    notebook = new_notebook(cells=[new_code_cell("1", outputs=outputs)])
    fold_answers(notebook)
    assert [one.output_type for one in notebook.cells[0].outputs] == ["stream"]


def test_what_was_printed_is_not_shown_in_place_of_the_output() -> None:
    def printed(id_: str) -> Any:
        return new_code_cell("1", id=id_, outputs=[new_output("stream", text="never 48\n")])

    def cell_that_shows() -> Any:
        outputs = [new_output("execute_result", data={"text/plain": "48"})]
        return new_code_cell("1", id="plain", outputs=outputs)

    asked = _cell("predict", "guess = Predict('Which?', {})")
    notebook = new_notebook(cells=[printed("before"), asked, printed("look"), cell_that_shows()])
    for _ in range(2):  # folding what is folded changes nothing
        fold_answers(notebook)
        nbformat.validate(notebook)
        assert [len(cell.outputs) for cell in notebook.cells] == [1, len(asked.outputs), 2, 2]
        assert all(shows_nothing(cell.outputs[0]) for cell in notebook.cells[2:])
        # nbval fails a checked cell if a kind of data is saved that a run does not give
        assert not any(cell.outputs[0].data for cell in notebook.cells[2:])
    del notebook.cells[1]  # nothing is asked, and nothing folded
    fold_answers(notebook)
    assert [len(cell.outputs) for cell in notebook.cells] == [1, 1, 1]


@pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem)
def test_no_folded_output_of_a_lesson_shows_its_first_line(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    for number in folded_cells(notebook):
        first, *others = notebook.cells[number].outputs
        assert shows_nothing(first)
        assert not any(shows_nothing(one) for one in others)


def test_a_notebook_without_a_guess_folds_nothing() -> None:
    assert folded_cells(new_notebook(cells=[_cell("look")])) == []


@pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem)
def test_a_lesson_is_saved_folded(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    waiting = folded_cells(notebook)
    assert len(waiting) > 5
    for number, cell in enumerate(notebook.cells):
        if cell.cell_type == "code":
            assert _is_folded(cell) == (number in waiting), cell.id


@pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem)
def test_a_lesson_has_a_key_and_no_cell_gives_it_away(path: Path) -> None:
    key = key_of(path.stem[:2])
    assert key is not None
    sources = {
        cell.id: cell.source
        for cell in nbformat.read(path, as_version=4).cells
        if cell.cell_type == "code"
    }
    calls = [node for node in ast.walk(ast.parse(sources["predict"])) if isinstance(node, ast.Call)]
    asked = next(call for call in calls if getattr(call.func, "id", "") == "Predict")
    assert key.right in ast.literal_eval(asked.args[1])
    assert {k.arg: ast.literal_eval(k.value) for k in asked.keywords} == {"lesson": path.stem[:2]}
    (score,) = (
        node
        for node in ast.walk(ast.parse(sources["score"]))
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "score"
    )
    assert score.args == []
    assert all(keyword.arg == "because" for keyword in score.keywords)
    # either the key says why, or the lesson does with its own figures
    assert bool(key.because) != bool(score.keywords)
