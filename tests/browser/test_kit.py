"""Predict, Quiz and Exercise as a reader uses them: by keyboard, by call, after a reload."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook, new_output
from playwright.sync_api import Browser

from perfkit.course.kit import progress
from perfkit.course.kit.folding import fold_answers
from tests.browser.conftest import VIEWPORT

pytestmark = pytest.mark.browser

QUESTION = "Which one change makes this training at least twice as fast?"
PREDICT = f"""
from perfkit.course.kit.predict import Predict
guess = Predict({QUESTION!r}, {{"a": "a larger batch", "b": "lower precision (bf16)",
    "c": "no printing and no .item() in the loop <b>",
    "d": "less work for each picture before it reaches the network"}}, lesson="00")
guess
"""
SCORE = "guess.score('d', because='The step waited for its data.')"
QUIZ = """
from perfkit.course.kit.quiz import Quiz
quiz = Quiz("A CPU tensor is sent with non_blocking=True. When may it be overwritten?",
    {"a": "at once", "b": "when the copy is done"}, right="b", because={
    "a": "The copy may still be reading it: the GPU would get half of each.",
    "b": "An event or a synchronisation tells when."})
quiz
"""
EXERCISE = """
from perfkit.course.lessons.lesson_00_start_here.exercise import cache_pictures
cache_pictures
"""
BOX = ".pk-choices"
QUIZ_BOX = ".pk-choices:has(legend:has-text('CPU tensor'))"


CELLS = ["import os", PREDICT, QUIZ, EXERCISE, "1", "2"]


@pytest.fixture(autouse=True)
def _no_guess_is_locked() -> None:
    """A guess survives its kernel, so that of one test would be locked in the next."""
    progress.forget()


@pytest.fixture(scope="module")
def book(open_for_all: Callable) -> Any:
    return open_for_all(CELLS, "kit")


@pytest.fixture
def kit(book: Any, browser: Browser, tmp_path: Path) -> Iterator[Any]:
    """A notebook with all three, run anew; the kernel keeps its guesses in a scratch folder."""
    book.page.set_viewport_size(VIEWPORT)
    home = f"import os; os.environ['PERFKIT_HOME'] = {str(tmp_path / 'home')!r}"
    for cell, source in enumerate([home, *CELLS[1:]]):
        _set(book, cell, source)
    book.console.clear()
    book.run_all()
    yield book
    assert book.console == []


def _set(book: Any, cell: int, source: str) -> None:
    book.page.evaluate(
        "([cell, source]) => jupyterapp.shell.currentWidget.content.widgets[cell]"
        ".model.sharedModel.setSource(source)",
        [cell, source],
    )


def _run(book: Any, cell: int, source: str) -> None:
    """Put ``source`` into a cell and run it alone."""
    _set(book, cell, source)
    book.page.evaluate(
        "cell => { jupyterapp.shell.currentWidget.content.activeCellIndex = cell;"
        " return jupyterapp.commands.execute('notebook:run-cell'); }",
        cell,
    )
    book.wait_for_kernel()


def _status(book: Any, box: str) -> str:
    return str(book.page.locator(box).first.locator("[role=status]").inner_text())


@pytest.mark.slow
def test_a_guess_is_locked_by_keyboard_and_stays_after_a_reload(kit: Any, tmp_path: Path) -> None:
    page = kit.page
    box = page.locator(BOX).first
    cells = page.locator(".jp-Cell").count()
    group = box.get_by_role("group", name=QUESTION)
    assert group.get_by_role("radio").count() == 4
    assert group.get_by_role("radio", name="c no printing and no .item() in the loop <b>").count()

    group.get_by_role("radio").first.focus()
    page.keyboard.press("Enter")  # nothing is chosen yet
    assert "Choose an answer first." in _status(kit, BOX)
    page.keyboard.press("Space")
    page.keyboard.press("ArrowDown")
    assert group.get_by_role("radio").nth(1).is_checked()
    page.keyboard.press("Tab")
    page.keyboard.press("7")  # the entry of the list that begins so: 70 %
    page.keyboard.press("Tab")
    assert page.evaluate("() => document.activeElement.textContent") == "Lock my guess"
    kit.screenshot("kit-predict-focus", BOX)
    page.keyboard.press("Enter")
    kit.wait_data(BOX, "d.state === 'closed' && d.picked === 'b'")
    assert _status(kit, BOX).startswith("Locked: b (70 % sure).")
    # the focus is not lost with the button, and the notebook did not take any of the keys
    assert page.evaluate("() => document.activeElement.getAttribute('role')") == "status"
    assert page.locator(".jp-Cell").count() == cells
    assert all(group.get_by_role("radio").nth(i).is_disabled() for i in range(4))

    kit.save()
    kit.reload()
    kit.wait_data(BOX, "d.state === 'closed' && d.picked === 'b'")
    assert _status(kit, BOX).startswith("Locked: b (70 % sure).")
    _run(kit, 4, SCORE)
    kit.screenshot("kit-predict-scored")
    page.wait_for_function(
        "box => document.querySelector(box + ' [data-mark=right]') !== null", arg=BOX
    )
    assert "what was measured" in page.locator(f"{BOX} [data-mark=right]").inner_text()
    assert "your guess" in page.locator(f"{BOX} [data-mark=wrong]").inner_text()
    assert [path.parent.name for path in (tmp_path / "home").rglob("*.json")] == ["guesses"]


def _saved_lesson(folder: Path) -> Path:
    """A lesson as it is saved: long, with outputs that give the answer away, folded."""
    cells = [new_code_cell(source) for source in ("import os", PREDICT, "guess.lock('')")]
    for number in range(30):
        cell = new_code_cell(f"print('answer', {number})", id=f"look-{number}")
        cell.outputs = [new_output("stream", name="stdout", text=f"answer {number}\n" * 12)]
        cells.append(cell)
    notebook = new_notebook(cells=cells)
    fold_answers(notebook)
    nbformat.write(notebook, folder / "saved.ipynb")
    return folder / "saved.ipynb"


@pytest.mark.parametrize("how", ["keyboard", "call"])
def test_what_was_measured_is_folded_until_the_guess_is_locked(
    open_notebook: Callable, tmp_path: Path, how: str
) -> None:
    book = open_notebook(_saved_lesson(tmp_path), f"saved-{how}")
    page = book.page
    answers = page.locator(".jp-OutputArea-output", has_text=re.compile(r"answer \d"))
    _run(book, 1, PREDICT)
    page.locator(BOX).wait_for()
    assert page.locator(".jp-OutputPlaceholder").count() > 0
    assert "answer" not in "".join(page.locator(".jp-OutputPlaceholder").all_inner_texts())
    assert answers.count() == 0
    if how == "keyboard":
        page.locator(f"{BOX} input").first.focus()
        page.keyboard.press("Space")
        page.keyboard.press("Enter")
    else:
        _run(book, 2, "guess.lock('a')")
    book.wait_data(BOX, "d.state === 'closed'")
    answers.first.wait_for()
    # to the last cell, which JupyterLab may draw only when it is scrolled to
    for cell in (12, 22, 32):
        page.evaluate("cell => jupyterapp.shell.currentWidget.content.scrollToItem(cell)", cell)
        page.locator(".jp-OutputArea-output", has_text=f"answer {cell - 3}\n").wait_for()
    assert page.locator(".jp-OutputPlaceholder").count() == 0
    # what the reader folds again stays folded
    page.evaluate(
        "() => { const book = jupyterapp.shell.currentWidget.content; book.activeCellIndex = 32;"
        " return jupyterapp.commands.execute('notebook:hide-cell-outputs'); }"
    )
    page.locator(".jp-OutputPlaceholder").wait_for()
    page.wait_for_timeout(300)
    assert page.locator(".jp-OutputPlaceholder").count() == 1


def test_a_call_does_what_a_click_does(kit: Any) -> None:
    _run(kit, 4, "guess.lock('c')")
    kit.wait_data(BOX, "d.state === 'closed' && d.picked === 'c'")
    assert kit.page.locator(f"{BOX} input:checked").get_attribute("value") == "c"


def test_a_click_is_what_a_call_sees(kit: Any) -> None:
    box = kit.page.locator(BOX).first
    box.get_by_text("a larger batch").click()
    box.get_by_role("button", name="Lock my guess").click()
    kit.wait_data(BOX, "d.state === 'closed' && d.picked === 'a'")
    _run(kit, 4, "print('the guess is', guess.locked, guess.sure)")
    assert any(out.get("text") == "the guess is a None\n" for out in kit.outputs())


def test_a_quiz_says_why_and_lets_try_again(kit: Any) -> None:
    page = kit.page
    box = page.locator(QUIZ_BOX)
    box.get_by_role("radio").first.focus()
    page.keyboard.press("Space")
    page.keyboard.press("Enter")
    page.locator(f"{QUIZ_BOX} [data-mark=wrong]").wait_for()
    assert "try another" in box.get_by_role("status").inner_text()
    assert "half of each" in box.inner_text()
    assert "synchronisation tells" not in box.inner_text()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    page.locator(f"{QUIZ_BOX} [data-mark=right]").wait_for()
    kit.screenshot("kit-quiz-right", QUIZ_BOX)
    assert box.get_by_role("radio").first.is_disabled()
    assert "synchronisation tells" in box.inner_text()


def test_hints_open_one_by_one_with_the_keyboard(kit: Any) -> None:
    page = kit.page
    exercise = page.locator(".pk-report:has(summary:has-text('Hint 1'))")
    summaries = exercise.locator("summary")
    assert [summaries.nth(i).is_visible() for i in range(3)] == [True, False, False]
    summaries.first.focus()
    page.keyboard.press("Space")
    summaries.nth(1).wait_for(state="visible")
    assert not summaries.nth(2).is_visible()


def test_what_is_saved_needs_no_kernel(kit: Any) -> None:
    saved = kit.save()
    for cell in (1, 2):
        data = saved.cells[cell].outputs[-1].data
        assert {"text/plain", "text/html"} <= set(data)
        assert "<script" not in data["text/html"]
    assert saved.cells[1].outputs[-1].data["text/plain"].startswith(QUESTION)


def test_a_locked_guess_survives_a_restart_of_the_kernel(open_notebook: Callable) -> None:
    book = open_notebook([PREDICT, "guess.lock('c')"], "kit-restarted", fresh=True)
    book.run_all()
    book.wait_data(BOX, "d.state === 'closed' && d.picked === 'c'")
    book.page.evaluate(
        "() => jupyterapp.shell.currentWidget.sessionContext.session.kernel.restart()"
    )
    book.wait_for_kernel()
    _run(book, 0, PREDICT)
    book.wait_data(BOX, "d.state === 'closed' && d.picked === 'c'")
    assert _status(book, BOX).startswith("Locked: c")


@pytest.mark.slow
def test_reopened_without_its_kernel_it_keeps_the_question_and_the_answer(
    open_notebook: Callable, jupyter: Any
) -> None:
    book = open_notebook([PREDICT, QUIZ], "kit-reopened", fresh=True)
    page = book.page
    book.run_all()
    book.save()
    book.reload()  # JupyterLab forgets its display ids
    page.locator(QUIZ_BOX).get_by_role("radio").first.focus()
    page.keyboard.press("Space")
    page.keyboard.press("Enter")
    page.locator(f"{QUIZ_BOX} [data-mark=wrong]").wait_for()
    stays = page.locator("[class^=pk-static]")
    assert [stays.nth(i).is_visible() for i in range(2)] == [False, False]
    book.save()
    jupyter.end_session(book.name, keep_kernel=False)
    page.goto("about:blank")
    book.go()
    page.wait_for_function("() => document.body.textContent.includes('model not found')")
    assert not any(text.is_visible() for text in page.get_by_text("model not found").all())
    asked, answered = (stays.nth(i).get_by_role("group").first.inner_text() for i in range(2))
    assert QUESTION in asked
    assert "Run this cell to answer; in a new kernel the imports first." in asked
    assert "try another. Run this cell to answer again;" in " ".join(answered.split())
    assert "(✗ The copy may still be reading it" in answered
    book.screenshot("kit-reopened")


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1200, 420])
def test_nothing_is_wider_than_the_page(kit: Any, theme: str, width: int) -> None:
    page = kit.page
    page.set_viewport_size({"width": width, "height": 1900})
    kit.theme(theme)
    _run(kit, 4, f"guess.lock('b', sure=70)\n{SCORE}")
    _run(kit, 5, "quiz.answer('a')\nquiz.answer('b')")
    page.locator(f"{QUIZ_BOX} [data-mark=right]").wait_for()
    hints = page.locator("summary:has-text('Hint')")
    for index in range(2):
        hints.nth(index).click()
    boxes = page.locator(f"{BOX}, .jp-OutputArea .pk-report:visible")
    for index in range(boxes.count()):
        box = boxes.nth(index)
        box.scroll_into_view_if_needed()
        inside = box.evaluate("e => [e.scrollWidth, e.clientWidth]")
        assert inside[0] <= inside[1]
    page.locator(BOX).first.scroll_into_view_if_needed()
    kit.screenshot(f"kit-{theme}-{width}")
    if theme == "dark":
        kit.theme("light")
