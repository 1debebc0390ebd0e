"""The course's one map, in each lesson's header: the way of a batch, and where the lesson stands.

``python -m perfkit.course.kit.map notebooks/*.ipynb`` draws it into notebooks. The picture is an
attachment of the header's cell, so that it travels with every copy of the notebook and is there
before anything runs.
"""

from __future__ import annotations

import base64
import io
import sys
from collections.abc import Collection, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from perfkit.base.errors import PerfkitError
from perfkit.base.files import write_atomically
from perfkit.course.teaches import PLACES

#: The places on the way of a batch, and what can be slow there.
WAY = (
    ("data", "disk, decode,\nworkers"),
    ("host", "Python,\ncopies"),
    ("launch", "the device's\nqueue"),
    ("compute", "kernels,\nprecision"),
    ("memory", "activations,\nallocator"),
    ("network", "other ranks"),
)
_NAME = "map.png"
# The boxes bring their own ground, so that their text is readable on a light and a dark page.
_OTHER = ("#dfe5ec", "#39434e")  # ground, text: 8:1
_HERE = ("#1f5fbf", "#ffffff")  # 6:1
_ARROW = "#808b96"
_WIDTH, _GAP, _HEIGHT = 1.24, 0.2, 0.9  # inches; narrow, for a narrow page shrinks it


def words_of_map(places: Collection[str]) -> str:
    """The map's alternative text."""
    way = " → ".join(name for name, _ in WAY)
    here = [name for name, _ in WAY if name in places]
    stands = "all of it" if len(here) == len(WAY) else " and ".join(here)
    return f"The way of a batch: {way}. This lesson is about {stands}."


def draw_map(places: Collection[str]) -> bytes:
    """A PNG of the way of a batch.

    Args:
        places: names of :data:`WAY` at which the lesson stands; they are drawn in a strong colour.

    Raises:
        PerfkitError: a place is not on the way, or there is none.
    """
    known = [name for name, _ in WAY]
    if not places or not set(places) <= set(known):
        raise PerfkitError(
            f"places of a lesson are one or more of {', '.join(known)}; got {sorted(places)}"
        )
    # without pyplot: no window, and no figure that stays open
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.patches import FancyArrow, FancyBboxPatch
    from PIL import Image

    width = len(WAY) * _WIDTH + (len(WAY) - 1) * _GAP
    figure = Figure(figsize=(width, _HEIGHT), dpi=160)
    FigureCanvasAgg(figure)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, width), ylim=(0, _HEIGHT))
    axes.set_axis_off()
    for number, (name, about) in enumerate(WAY):
        left = number * (_WIDTH + _GAP)
        ground, ink = _HERE if name in places else _OTHER
        axes.add_patch(
            FancyBboxPatch(
                (left + 0.06, 0.06),
                _WIDTH - 0.12,
                _HEIGHT - 0.12,
                boxstyle="round,pad=0.06",
                facecolor=ground,
                linewidth=0,
            )
        )
        middle = left + _WIDTH / 2
        axes.text(middle, 0.70, name, color=ink, ha="center", va="center", size=14, weight="bold")
        axes.text(middle, 0.32, about, color=ink, ha="center", va="center", size=10)
        if number:
            axes.add_patch(
                FancyArrow(
                    left - _GAP + 0.01,
                    _HEIGHT / 2,
                    _GAP - 0.02,
                    0,
                    width=0.03,
                    head_width=0.16,
                    head_length=0.1,
                    length_includes_head=True,
                    color=_ARROW,
                )
            )
    kept = io.BytesIO()
    figure.savefig(kept, format="png", transparent=True)
    few_colours = Image.open(kept).quantize(64, method=Image.Quantize.FASTOCTREE)  # a fifth
    kept = io.BytesIO()
    few_colours.save(kept, format="png", optimize=True)
    return kept.getvalue()


def put_map(notebook: Any, places: Collection[str]) -> None:
    """Draw the map below the title in the first cell of a notebook, in place of one that is there.

    Raises:
        PerfkitError: the notebook does not begin with a title.
    """
    cell: Any = notebook["cells"][0] if notebook["cells"] else {"cell_type": ""}
    title, _, rest = cell.get("source", "").partition("\n")
    if cell["cell_type"] != "markdown" or not title.startswith("# "):
        raise PerfkitError("the notebook does not begin with a cell that begins with '# Title'")
    rest = rest.lstrip("\n")
    if rest.startswith("![") and f"(attachment:{_NAME})" in rest.partition("\n")[0]:
        rest = rest.partition("\n")[2].lstrip("\n")
    cell["source"] = f"{title}\n\n![{words_of_map(places)}](attachment:{_NAME})\n\n{rest}"
    png = base64.b64encode(draw_map(places)).decode()
    cell["attachments"] = {**cell.get("attachments", {}), _NAME: {"image/png": png}}


def main(paths: Sequence[str]) -> None:
    """Draw the map into these notebooks, whose lessons stand in ``teaches.PLACES``."""
    import nbformat

    for path in map(Path, paths):
        if path.stem not in PLACES:
            raise SystemExit(f"{path}: give the lesson its places in perfkit/course/teaches.py")
        notebook = nbformat.read(path, as_version=4)
        put_map(notebook, PLACES[path.stem])
        write_atomically(path, partial(nbformat.write, notebook))


if __name__ == "__main__":
    main(sys.argv[1:])
