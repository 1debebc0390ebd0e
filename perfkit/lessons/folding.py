"""Which saved outputs of a lesson stay folded until the reader has locked a guess.

What a lesson measured answers its own question, so every output below the question is folded: by
cell metadata, which JupyterLab, Notebook 7 and VS Code read, and by ``<details>`` on a page
(:mod:`perfkit.lessons.page`). Locking the guess opens them all; running a cell opens its own.
"""

from __future__ import annotations

from typing import Any

__all__ = ["fold_answers", "folded_cells"]

_ASKS = "Predict("
# What a reader needs while guessing or solving: it shows nothing that was measured.
_OPEN = ("lock", "exercise", "quiz")


def folded_cells(notebook: Any) -> list[int]:
    """The numbers of the cells whose outputs wait for the guess; none where nothing is asked.

    Args:
        notebook: an ``nbformat`` node, or the same as plain dictionaries.
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


def fold_answers(notebook: Any) -> None:
    """Fold, in place, the outputs that wait for the guess, and open all others."""
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
