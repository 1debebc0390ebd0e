"""What is folded in a lesson: outputs, until the reader locks a guess, and optional sections.

What a lesson measured answers its own question, so every output below the question is folded: by
cell metadata, which JupyterLab, Notebook 7 and VS Code read, and by ``<details>`` on a page
(:mod:`perfkit.course.kit.page`). Locking the guess opens them all; running a cell opens its own.

A section whose heading begins with "Optional" is saved collapsed, as JupyterLab does it: its cells
run with the others, and the stated minutes leave it out (:mod:`perfkit.course.kit.minutes`).
"""

from __future__ import annotations

import copy
import re
from typing import Any

#: The kind of output that is a widget's view.
WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"

_ASKS = "Predict("
# JupyterLab's metadata key for a collapsed section
_COLLAPSED = "jp-MarkdownHeadingCollapsed"
_HEADING = re.compile(r"(#{1,6}) +(.+)")
# Of what is folded JupyterLab shows the first line of the first output: of a report its verdict, of
# what was printed perhaps the answer. So this stands in front: without content, so nothing shows
# it. Any content would be shown, and compared: nbval fails a cell whose saved outputs have a kind
# of data that running it does not give.
_NOTHING = {"output_type": "display_data", "data": {}, "metadata": {}}
# Needed while guessing or solving; shows no measurements.
_OPEN = ("lock", "exercise", "quiz")


def folded_cells(notebook: Any) -> list[int]:
    """Indices of the cells whose outputs wait for the guess; none if there is no question.

    Args:
        notebook: an ``nbformat`` node, or plain dictionaries of the same form.
    """
    cells = notebook["cells"]
    asking = [
        number
        for number, cell in enumerate(cells)
        if cell["cell_type"] == "code" and _ASKS in "".join(cell["source"])
    ]
    if not asking:
        return []
    return [
        number
        for number, cell in enumerate(cells)
        if number > asking[0]
        and cell["cell_type"] == "code"
        and cell.get("outputs")
        and not str(cell.get("id", "")).startswith(_OPEN)
    ]


def optional_sections(notebook: Any) -> list[range]:
    """The cells of each optional section, heading first.

    A section starts at a Markdown cell whose first line is a heading that begins with "Optional",
    and ends before the next cell that begins with a heading of the same or a higher level.
    """
    found = []
    start, level = None, 0
    for number, cell in enumerate(notebook["cells"]):
        heading = (
            _HEADING.match("".join(cell["source"])) if cell["cell_type"] == "markdown" else None
        )
        if heading is None:
            continue
        if start is not None and len(heading[1]) <= level:
            found.append(range(start, number))
            start = None
        if start is None and heading[2].startswith("Optional"):
            start, level = number, len(heading[1])
    if start is not None:
        found.append(range(start, len(notebook["cells"])))
    return found


def plain_heading(line: str) -> str:
    """A heading's text, without its marks and backticks."""
    return line.lstrip("#").strip().replace("`", "").replace("*", "")


def fold_answers(notebook: Any) -> None:
    """Fold, in place, the optional sections and the outputs that wait for the guess."""
    optional = {section.start for section in optional_sections(notebook)}
    for number, cell in enumerate(notebook["cells"]):
        if cell["cell_type"] == "markdown":
            cell["metadata"].pop(_COLLAPSED, None)
            if number in optional:
                cell["metadata"][_COLLAPSED] = True
    folded = set(folded_cells(notebook))
    for number, cell in enumerate(notebook["cells"]):
        if cell["cell_type"] != "code":
            continue
        metadata = cell["metadata"]
        jupyter = {**metadata.pop("jupyter", {})}
        for place, name in ((metadata, "collapsed"), (jupyter, "outputs_hidden")):
            place.pop(name, None)
            if number in folded:
                place[name] = True
        if jupyter:
            metadata["jupyter"] = jupyter
        _begin_with_nothing(cell.get("outputs", []), is_folded=number in folded)


def shows_nothing(output: Any) -> bool:
    """Whether an output is blank without a kernel: a widget's view, or nothing at all.

    The latter keeps JupyterLab from showing the first line of the next output.
    """
    return "data" in output and not output["data"].keys() - {WIDGET_VIEW}


def _begin_with_nothing(outputs: Any, *, is_folded: bool) -> None:
    while outputs and shows_nothing(outputs[0]):
        del outputs[0]
    # what a bar of progress leaves
    outputs[:] = [one for one in outputs if one.get("data", True)]
    if is_folded and outputs:
        outputs.insert(0, type(outputs[0])(copy.deepcopy(_NOTHING)))
