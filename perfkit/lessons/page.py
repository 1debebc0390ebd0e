"""An executed notebook as one HTML file that opens anywhere and asks nobody for anything."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from perfkit.errors import MissingError

__all__ = ["NAVIGATION", "html_page", "needs_nbconvert"]

_TEMPLATES = Path(__file__).parent / "templates"

#: Stands once at the beginning of each page's body, where links to other pages may go.
NAVIGATION = "<!--perfkit:navigation-->"

# Which form of an output is shown, the best first. Widgets and JavaScript are left out: without
# a kernel they are blank, and every result of perfkit carries HTML or a picture beside them.
_SHOWN = (
    "text/html",
    "image/svg+xml",
    "image/png",
    "image/jpeg",
    "text/markdown",
    "text/plain",
)


def needs_nbconvert() -> None:
    """Find out before lessons run for minutes whether pages can be made.

    Raises:
        MissingError: nbconvert is not installed.
    """
    _exporter()


def html_page(notebook: Any, *, title: str) -> str:
    """The notebook with its outputs as one HTML page without scripts.

    The page carries a content security policy under which a browser sends no request, whatever
    an output of the notebook may ask for.

    Args:
        notebook: an ``nbformat`` notebook node with outputs.
        title: of the page.

    Raises:
        MissingError: nbconvert is not installed.
    """
    page, _ = _exporter().from_notebook_node(notebook, resources={"metadata": {"name": title}})
    return str(page)


def _exporter() -> Any:
    try:
        from nbconvert.exporters import HTMLExporter
        from traitlets.config import Config
    except ImportError:
        raise MissingError(
            "nbconvert writes the page and is missing: pip install 'perfkit[lab]'"
        ) from None
    return HTMLExporter(
        config=Config({"NbConvertBase": {"display_data_priority": list(_SHOWN)}}),
        template_name="page",
        extra_template_basedirs=[str(_TEMPLATES)],
        embed_images=True,
    )
