"""What stays of a watched run in the notebook: its text, and HTML with the picture."""

from __future__ import annotations

import base64
from typing import Any

from perfkit.measure.verdict import RunSummary
from perfkit.show import mime_bundle
from perfkit.show._drawn import DRAWN_CLASS, DRAWN_STYLE
from perfkit.show.run_picture import alternative, png

__all__ = ["bundle"]


def bundle(run: RunSummary) -> dict[str, Any]:
    """What is displayed when a watched loop is over: text, and HTML with the picture."""
    from markupsafe import Markup

    said = mime_bundle(run, verbose=True)
    shown = {form: said[form] for form in ("text/plain", "text/html")}
    if run.step is None:
        return shown
    data = base64.b64encode(png(run)).decode("ascii")
    picture = Markup(
        '{}<img class="{}" src="data:image/png;base64,{}" alt="{}" '
        'style="max-width:100%;height:auto;border-radius:4px">'
    ).format(Markup(DRAWN_STYLE), DRAWN_CLASS, Markup(data), alternative(run))
    # no image/png beside it: it would double the size, and viewers without HTML show the text
    return shown | {"text/html": f"{shown['text/html']}\n{picture}"}
