"""Lessons run on the played GPU, as on a real one, and call nothing there measured.

``make test-cuda-lessons`` runs them; ``make test-cuda-marked`` does not.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
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
# Two digits of a lesson → the last cell that runs here; what follows it takes minutes, as the CPU
# plays the GPU (seen on 2026-11-24 on 2 cores under load, in seconds until the run was ended).
LAST = {
    "01": "quiz",  # `cost`: over 150 s, traces of thousands of launches, option by option
    "08": "settle-a16",  # `count` and its like: 20 s of CPU each; `measure`: over 80 s
    "12": "fact",  # `stake`: 35 s of CPU, whole epochs; `tried`: over 110 s, whole pictures
    "13": "measure",  # `gpu`: over 180 s, training steps of gigabytes
    "18": "settle-c1",  # 38 s of CPU to here, 90 s to `careless`, and then comes the Lab
}
LESSONS = [path.name for path in sorted(NOTEBOOKS.glob("[0-9][0-9]-*.ipynb"))]
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


def _cut(path: Path, folder: Path) -> Path:
    """A lesson up to the last of its cells that runs here."""
    if path.name[:2] not in LAST:
        return path
    notebook = nbformat.read(path, as_version=4)
    last = [cell.id for cell in notebook.cells].index(LAST[path.name[:2]])
    notebook.cells = notebook.cells[: last + 1]
    nbformat.write(notebook, folder / path.name)
    return folder / path.name


@pytest.mark.parametrize("name", LESSONS)
def test_it_runs(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PERFKIT_BUDGET_SCALE", "0.2")  # as `make test` runs the cells
    lines: list[str] = []
    try:
        path = _cut(NOTEBOOKS / name, tmp_path)
        notebook = run_lesson(path, lines.append, cell_timeout_s=600).notebook
    finally:
        print("\n".join(lines))  # when each cell began
    stamps = [stamp for found in _results(notebook) for stamp in _stamps(found)]
    there = [stamp for stamp in stamps if stamp["device"] != "cpu"]
    assert {stamp["device"] for stamp in there} == {PLAYED}
    # a replay of the allocator is simulated, here as anywhere
    kinds = {stamp["kind"] for stamp in there}
    assert kinds - {"simulated"} == {"played"}, kinds
    said = [
        line
        for text in _texts(notebook)
        for line in text.splitlines()
        if re.search(r"(measured|recorded|counted) (here|on)\b", line) and PLAYED in line
    ]
    assert not said, said
