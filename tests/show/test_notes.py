"""What is doubtful is said in one paragraph, however many warnings a result has."""

from __future__ import annotations

import dataclasses
import html as stdlib_html

import pytest
from simulated_traces import cpu_training, gpu_training

from perfkit import show
from perfkit.advice.profile import explain
from perfkit.base import machine
from perfkit.course.ledger.ledger import Ledger
from perfkit.memory.crossings import Crossings
from perfkit.show._html import render_string
from perfkit.synclint.find import SyncLines
from perfkit.trace import copies, load

_WARNINGS = ("the machine was busy", "one step was <cut>", "half of it was not recorded")


def _results() -> dict[str, object]:
    answer = copies(load(gpu_training(2).json()))
    return {
        "trace answer": dataclasses.replace(answer, warnings=_WARNINGS),
        "syncs": SyncLines(warnings=_WARNINGS),
        "machine": dataclasses.replace(machine.facts(), warnings=_WARNINGS),
        "claims": Ledger((), _WARNINGS, ("a CPU",)),
        "crossings": Crossings((), stand_in=False, warnings=_WARNINGS),
        "profile": dataclasses.replace(explain(load(cpu_training(3).json())), warnings=_WARNINGS),
    }


@pytest.mark.parametrize("name", ["trace answer", "syncs", "machine", "claims", "crossings"])
def test_text_says_note_once(name: str) -> None:
    text = show.text(_results()[name])
    assert text.count("Note:") == 1
    said = " ".join(text.split())
    assert all(warning in said for warning in _WARNINGS)


@pytest.mark.parametrize("name", ["trace answer", "claims", "profile"])
def test_html_says_note_once_and_folds_the_others(name: str) -> None:
    page = show.html(_results()[name])
    assert page.count("Note:") == 1
    shown, folded = page.split(" more notes</summary>")
    assert _WARNINGS[0] in shown
    assert all(stdlib_html.escape(warning) in folded for warning in _WARNINGS[1:])


def test_two_notes_are_one_sentence_and_none_is_nothing() -> None:
    notes = '{% import "_parts.html" as parts %}{{ parts.notes(warnings) }}'
    page = render_string(notes, warnings=_WARNINGS[:2])
    assert "the machine was busy; one step was &lt;cut&gt;." in page
    assert "<details" not in page
    assert render_string(notes, warnings=()).strip() == ""
