"""A matplotlib figure in a lesson: one picture for light and dark pages, with a description.

A lesson calls ``show(figure, alt="…")``. The picture has an opaque background, so it is readable
anywhere; on a dark page its lightness is inverted and its hues stay. The description is the
alternative text, and replaces the picture in plain text.
"""

from __future__ import annotations

import io
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from perfkit.base.errors import UsageError
from perfkit.show import plain_text
from perfkit.show._drawn import drawn_image

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# A 7-inch figure has 1,050 pixels and is shown 672 CSS pixels wide: sharp on a screen with 1.5
# pixels per CSS pixel, and some 30 KB in the saved notebook.
_PIXELS_PER_INCH = 150
_CSS_PIXELS_PER_INCH = 96


@dataclass(frozen=True, repr=False)
class Picture:
    """A drawn figure and its description.

    Attributes:
        png: the picture.
        alt: what it shows, in words.
        width: in CSS pixels; narrower pages shrink it.
        light: whether its background is light, and becomes dark on a dark page.
    """

    png: bytes
    alt: str
    width: int
    light: bool = True

    def __repr__(self) -> str:
        return plain_text.wrap(f"Figure: {self.alt}")

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(repr(self))

    def _repr_html_(self) -> str:
        return drawn_image(self.png, self.alt, width=self.width, light=self.light)


def picture(figure: Figure, alt: str) -> Picture:
    """Draw a figure and close it, so that no notebook shows it a second time.

    Raises:
        UsageError: ``figure`` is not a matplotlib figure (but axes, say), or ``alt`` is empty.
    """
    # A figure exists only if its module is loaded, so nothing needs to be imported.
    module = sys.modules.get("matplotlib.figure")
    if module is None or not isinstance(figure, module.Figure):
        raise UsageError(f"show needs a matplotlib Figure, got {type(figure).__name__}")
    words = " ".join(alt.split()) if isinstance(alt, str) else ""
    if not words:
        raise UsageError("alt is empty: say what the figure shows, for readers who cannot see it")
    out = io.BytesIO()
    try:
        ground = _opaque(figure)
        figure.savefig(out, format="png", dpi=_PIXELS_PER_INCH, facecolor=ground)
        width = round(figure.get_figwidth() * _CSS_PIXELS_PER_INCH)
    finally:
        pyplot = sys.modules.get("matplotlib.pyplot")
        if pyplot is not None:
            pyplot.close(figure)
    return Picture(out.getvalue(), words, width, light=sum(ground) > 1.5)


def show(figure: Figure, alt: str) -> None:
    """Display a matplotlib figure with its description, and close it.

    Args:
        figure: made with pyplot or with ``matplotlib.figure.Figure``.
        alt: what it shows, in one or two sentences with its numbers.

    Raises:
        UsageError: ``figure`` is not a matplotlib figure, or ``alt`` is empty.
    """
    from IPython.display import display

    display(picture(figure, alt))


def _opaque(figure: Figure) -> tuple[float, float, float]:
    """The figure's background colour, over white if it is transparent."""
    from matplotlib.colors import to_rgba

    red, green, blue, alpha = to_rgba(figure.get_facecolor())
    return (1 - alpha + alpha * red, 1 - alpha + alpha * green, 1 - alpha + alpha * blue)
