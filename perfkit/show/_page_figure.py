"""A matplotlib figure that a notebook shows as perfkit's other pictures: dark on a dark page.

Imports matplotlib: only for who draws.
"""

from __future__ import annotations

import io
from typing import Any

from matplotlib.figure import Figure

from perfkit.show._drawn import drawn_image


class PageFigure(Figure):
    """A figure on a white ground.

    Attributes:
        said: what it shows, in words, for who cannot see it.
    """

    said = ""

    def __init__(self, *args: Any, **options: Any) -> None:
        # opaque, so that it can be read on a dark page, too
        super().__init__(*args, **{"facecolor": "white", "layout": "constrained"} | options)

    def _repr_html_(self) -> str:
        # a front end prefers this to the bare picture of the inline backend
        file = io.BytesIO()
        self.savefig(file, format="png", facecolor=self.get_facecolor())
        width = round(self.get_figwidth() * 100)
        return drawn_image(file.getvalue(), self.said or "a figure of perfkit", width=width)
