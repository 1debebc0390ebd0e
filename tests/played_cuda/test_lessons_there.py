"""Lessons run whole on the played GPU, as on a real one, and call nothing there measured.

``make test-cuda-lessons`` runs them; ``make test-cuda-marked`` does not.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch  # noqa: F401 - the stubs come with it

from perfkit.course.kit.tour import run_lesson
from perfkit.show import RESULT_MIME

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(
        not hasattr(ctypes.CDLL(None), "played_launch"), reason="runs on the played GPU only"
    ),
]

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
_MANY = "tens of thousands of launches: minutes, where the CPU plays the GPU"
# two digits of a lesson → why it does not run here
EXCLUDED = {
    "01": _MANY,
    "08": _MANY,
    "12": "training steps on whole pictures: minutes, where the CPU plays the GPU",
    "13": "training steps of gigabytes: minutes, where the CPU plays the GPU",
    "18": _MANY,
}
LESSONS = [
    path.name
    for path in sorted(NOTEBOOKS.glob("[0-9][0-9]-*.ipynb"))
    if path.name[:2] not in EXCLUDED
]
PLAYED = "played GPU (host memory)"


def _texts(notebook: Any) -> Iterator[str]:
    """What its cells print and display, as plain text."""
    for cell in notebook.cells:
        for output in cell.get("outputs", ()):
            yield output.get("text") or output.get("data", {}).get("text/plain", "")


def _stamps(found: Any) -> Iterator[dict[str, Any]]:
    """Every provenance in a result's JSON."""
    if isinstance(found, dict):
        if {"kind", "device", "machine"} <= found.keys():
            yield found
        for value in found.values():
            yield from _stamps(value)
    elif isinstance(found, list):
        for value in found:
            yield from _stamps(value)


def _results(notebook: Any) -> Iterator[Any]:
    for cell in notebook.cells:
        for output in cell.get("outputs", ()):
            yield output.get("data", {}).get(RESULT_MIME, {})


@pytest.mark.parametrize("name", LESSONS)
def test_it_runs_whole(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERFKIT_BUDGET_SCALE", "0.2")  # as `make test` runs the cells
    lines: list[str] = []
    try:
        notebook = run_lesson(NOTEBOOKS / name, lines.append, cell_timeout_s=600).notebook
    finally:
        print("\n".join(lines))  # when each cell began
    stamps = [stamp for found in _results(notebook) for stamp in _stamps(found)]
    there = [stamp for stamp in stamps if stamp["device"] != "cpu"]
    assert there, "no result of this lesson is of the device"
    assert {(stamp["device"], stamp["kind"]) for stamp in there} == {(PLAYED, "played")}
    said = [
        line
        for text in _texts(notebook)
        for line in text.splitlines()
        if re.search(r"(measured|recorded|counted) (here|on)\b", line) and PLAYED in line
    ]
    assert not said, said
