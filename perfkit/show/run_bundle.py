"""What stays of a watched run in the notebook: its text, and HTML with the picture."""

from __future__ import annotations

from typing import Any

from perfkit.measure.verdict import RunSummary
from perfkit.show import mime_bundle
from perfkit.show._drawn import drawn_image
from perfkit.show.run_picture import alternative, png


def bundle(run: RunSummary) -> dict[str, Any]:
    """What is displayed when a watched loop is over: text, and HTML with the picture."""
    said = mime_bundle(run)
    shown = {form: said[form] for form in ("text/plain", "text/html")}
    if run.step is None:
        return shown
    picture = drawn_image(png(run), alternative(run))
    # no image/png beside it: it would double the size, and viewers without HTML show the text
    return shown | {"text/html": f"{shown['text/html']}\n{picture}"}
