"""An executed notebook as one self-contained HTML file that sends no request.

It has a readable column width, follows the reader's light or dark theme, and prints
(``templates/page.css``). Measurements are hidden until the reader ticks a box below the guess.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

from markupsafe import Markup

from perfkit.base.extras import needs
from perfkit.course.kit.folding import folded_cells, optional_sections, plain_heading, shows_nothing

_TEMPLATES = Path(__file__).parent / "templates"
_STYLE = _TEMPLATES / "page.css"

# A box that CSS alone can test: no script runs on the page.
_ASKED = (
    '<label class="pk-asked"><input type="checkbox" id="guess"> '
    "<span>I have made my guess: show what was measured.</span></label>"
)

#: Appears once at the beginning of each page's body, where links to other pages may go.
NAVIGATION = "<!--perfkit:navigation-->"

# Preferred forms of an output, best first. Widgets and JavaScript are left out: without a kernel
# they are blank, and every result of perfkit also has HTML or a picture.
_SHOWN = ("text/html", "image/svg+xml", "image/png", "image/jpeg", "text/markdown", "text/plain")


def needs_nbconvert() -> None:
    """Check that pages can be made, before lessons run for minutes.

    Raises:
        MissingError: nbconvert is not installed.
    """
    _exporter()


def html_page(notebook: Any, *, title: str) -> str:
    """The notebook with its outputs as one HTML page without scripts.

    The page has a content security policy under which a browser sends no request, whatever a
    notebook output asks for.

    Args:
        notebook: an ``nbformat`` notebook node with outputs.
        title: the page title.

    Raises:
        MissingError: nbconvert is not installed.
    """
    exporter = _exporter()
    resources = {
        "metadata": {"name": title},
        "dark_theme": _dark_theme(exporter),
        "page_style": _STYLE.read_text(encoding="utf-8"),
    }
    page, _ = exporter.from_notebook_node(_folded(notebook), resources=resources)
    return str(page)


def _folded(notebook: Any) -> Any:
    """A copy in which CSS can fold optional sections and what waits for the guess."""
    notebook = copy.deepcopy(notebook)
    cells = notebook["cells"]
    waiting = folded_cells(notebook)
    for cell in cells:
        if cell["cell_type"] == "code":
            cell["outputs"] = [one for one in cell["outputs"] if not shows_nothing(one)]
    for number in waiting:
        metadata = cells[number]["metadata"]
        metadata["tags"] = [*metadata.get("tags", []), "pk-waits"]
        metadata["pk_waits"] = True
    if waiting:
        asking = max(n for n in range(waiting[0]) if cells[n]["cell_type"] == "code")
        cells[asking]["metadata"]["pk_after"] = _ASKED
    for section in optional_sections(notebook):
        first, last = cells[section.start], cells[section.stop - 1]
        heading, _, rest = first["source"].partition("\n")
        first["source"] = rest
        summary = Markup('<details class="pk-optional"><summary>{}</summary>')
        first["metadata"]["pk_before"] = str(summary.format(plain_heading(heading)))
        last["metadata"]["pk_after"] = last["metadata"].get("pk_after", "") + "</details>"
    return notebook


def _dark_theme(exporter: Any) -> str:
    """The colours of JupyterLab's dark theme, from nbconvert."""
    loader = exporter.environment.loader
    source, _, _ = loader.get_source(exporter.environment, "lab/static/theme-dark.css")
    return str(source)


def _exporter() -> Any:
    with needs("writing the page"):
        from nbconvert.exporters import HTMLExporter
        from traitlets.config import Config
    return HTMLExporter(
        config=Config({"NbConvertBase": {"display_data_priority": list(_SHOWN)}}),
        template_name="page",
        extra_template_basedirs=[str(_TEMPLATES)],
        embed_images=True,
    )
