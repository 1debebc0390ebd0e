"""Lessons run through a real kernel, which is gone afterwards whatever happened."""

from __future__ import annotations

import json
import re
from pathlib import Path

import nbformat
import psutil
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from perfkit.errors import MissingError
from perfkit.lessons import tour as tour_
from perfkit.lessons.tour import LessonFailedError, run_lesson, tour

RESULTS = """
from IPython.display import display

def show(kind, **numbers):
    result = {"application/vnd.perfkit.result+json": {"type": kind, **numbers},
              "text/plain": f"the {kind}", "text/html": "<b>bold</b><script src='http://x'></script>"}
    display(result, raw=True)

show("profile")
show("comparison", ratio=2.5, low=2.25, high=2.75, sentence="It is 2.5 times as fast.")
show("comparison", ratio=1.0, low=0.9, high=1.1, sentence="No difference seen.")
"""
PID = "import os, pathlib; pathlib.Path('pid').write_text(str(os.getpid()))"


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "make_images.py").write_text("")
    (tmp_path / "notebooks").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _lesson(clone: Path, *sources: str, name: str = "00-start-here") -> Path:
    cells = [new_markdown_cell("# Why is it slow?\n\nA text."), *map(new_code_cell, sources)]
    path = clone / "notebooks" / f"{name}.ipynb"
    nbformat.write(new_notebook(cells=cells), path)
    return path


def _kernel_is_gone(clone: Path) -> bool:
    return not psutil.pid_exists(int((clone / "notebooks" / "pid").read_text()))


def test_a_tour_prints_and_writes_what_was_found(clone: Path) -> None:
    _lesson(clone, PID, RESULTS)
    said: list[str] = []
    tour(["00"], clone / "out", said.append)
    printed = "\n".join(said)
    assert re.search(r"cell  1/2 +\d+\.\d s  import os", printed)
    assert "the profile" in printed
    assert "It is 2.5 times as fast." in printed

    summary = json.loads((clone / "out" / "summary.json").read_text())
    (lesson,) = summary["lessons"]
    assert lesson["lesson"] == "00-start-here"
    assert lesson["seconds"] > 0
    assert (lesson["ratio"], lesson["interval"]) == (2.5, [2.25, 2.75])
    assert [c["ratio"] for c in lesson["comparisons"]] == [2.5, 1.0]
    assert summary["provenance"]["kind"] == "measured here"
    assert _kernel_is_gone(clone)


def test_the_page_has_no_script_and_may_ask_nobody(clone: Path) -> None:
    path = _lesson(clone, RESULTS, "import math; math.pi")
    page = run_lesson(path, lambda _: None).page
    own, _, outputs = page.partition("<body")
    assert "<script" not in own
    assert not re.search(r"<(link|script|img)[^>]+(src|href)=.?https?:", own)
    assert "<title>Why is it slow?</title>" in own
    # What an output brings along cannot load: the policy stands before it and allows no request.
    (policy,) = re.findall(r"<meta[^>]+Content-Security-Policy[^>]*>", own)
    assert "default-src 'none'" in policy
    assert "script-src" not in policy
    assert "<b>bold</b>" in outputs
    assert "3.14159" in outputs


def test_a_cell_that_raises_is_named(clone: Path) -> None:
    path = _lesson(clone, PID, "1 / 0  # here")
    with pytest.raises(LessonFailedError) as caught:
        run_lesson(path, lambda _: None)
    message = str(caught.value)
    assert "lesson 00-start-here, cell 2 of 2 ('1 / 0  # here')" in message
    assert "ZeroDivisionError: division by zero" in message
    assert "\n" not in message
    assert _kernel_is_gone(clone)


def test_a_cell_that_hangs_is_ended(clone: Path) -> None:
    path = _lesson(clone, PID, "import time; time.sleep(60)")
    with pytest.raises(LessonFailedError, match=r"cell 2 of 2 .*: no end after 2 s"):
        run_lesson(path, lambda _: None, cell_timeout_s=2)
    assert _kernel_is_gone(clone)


def test_a_kernel_that_dies_is_told(clone: Path) -> None:
    path = _lesson(clone, PID, "os._exit(1)")
    with pytest.raises(LessonFailedError, match=r"cell 2 of 2 .*: its kernel died"):
        run_lesson(path, lambda _: None)
    assert _kernel_is_gone(clone)


def test_what_came_before_a_failing_lesson_is_kept(clone: Path) -> None:
    _lesson(clone, RESULTS)
    _lesson(clone, "1 / 0", name="01-measure")
    with pytest.raises(LessonFailedError):
        tour(["00", "01-measure"], clone / "out", lambda _: None)
    summary = json.loads((clone / "out" / "summary.json").read_text())
    assert [lesson["lesson"] for lesson in summary["lessons"]] == ["00-start-here"]


def test_a_lesson_without_comparison_has_no_ratio(clone: Path) -> None:
    run = tour_.LessonRun("00-start-here", 1.0, (), (), "")
    assert run.to_dict()["ratio"] is None
    assert run.to_dict()["interval"] is None


def test_an_unknown_lesson_is_told_with_those_there_are(clone: Path) -> None:
    _lesson(clone, "1")
    with pytest.raises(MissingError, match=r"'99'.*00-start-here"):
        tour(["99"], clone / "out", lambda _: None)
    assert not (clone / "out").exists()


def test_outputs_are_saved_when_asked_for_and_widgets_are_not(clone: Path) -> None:
    view = "'application/vnd.jupyter.widget-view+json': {}"
    widget = f"display({{{view}, 'text/plain': 'w'}}, raw=True)"
    path = _lesson(clone, "from IPython.display import display", widget, "6 * 7")
    before = path.read_bytes()
    tour(["00"], clone / "out", lambda _: None)
    assert path.read_bytes() == before
    tour([str(path)], clone / "out", lambda _: None, save=True)
    saved = nbformat.read(path, as_version=4)
    assert saved.cells[2].outputs[0].data == {"text/plain": "w"}
    assert saved.cells[3].outputs[0].data == {"text/plain": "42"}
    assert saved.metadata["language_info"] == {"name": "python"}
