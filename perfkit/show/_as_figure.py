"""A document as a matplotlib figure, and that figure in words.

Made with matplotlib's objects, so that the user's own figures and backend stay alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perfkit.base.errors import UsageError
from perfkit.base.printable import printable
from perfkit.show._bar import describe, looks_of
from perfkit.show.document import Bar, Document

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_WIDTH, _BAR_HEIGHT, _PICTURE_HEIGHT = 8.0, 1.1, 2.6  # inches


def has_figure(document: Document) -> bool:
    """Whether there is something to draw."""
    return document.draw is not None or any(_drawn(document))


def as_figure(document: Document) -> Figure:
    """The document's own figure, or its bars and pictures below each other.

    Raises:
        UsageError: the document has no picture.
    """
    if not has_figure(document):
        raise UsageError(
            f"there is no picture of this result ({document.name}): save it as .txt, .html or .md"
        )
    from matplotlib import style

    from perfkit.show._page_figure import PageFigure

    # the ground is white: a user's dark style would write in white on it
    with style.context("default"):
        drawn = _stacked(document) if document.draw is None else document.draw()
    if isinstance(drawn, PageFigure):
        drawn.said = figure_words(document)
    return drawn


def _stacked(document: Document) -> Figure:
    """Bars and pictures below each other."""
    from perfkit.show._page_figure import PageFigure

    bars, pictures = _drawn(document)
    heights = [_BAR_HEIGHT] * len(bars) + [_PICTURE_HEIGHT] * len(pictures)
    picture = PageFigure(figsize=(_WIDTH, 0.3 + sum(heights)), dpi=110)
    grid = picture.subplots(len(heights), 1, squeeze=False, height_ratios=heights)[:, 0]
    for axes, bar in zip(grid, bars, strict=False):
        _draw(axes, bar)
    for axes, one in zip(grid[len(bars) :], pictures, strict=True):
        one.draw(axes)
        axes.set_title(plain(one.title), fontsize="medium", loc="left")
    return picture


def figure_words(document: Document) -> str:
    """The text alternative of :func:`as_figure`.

    Raises:
        UsageError: the document has no picture.
    """
    if document.draw is not None:
        return document.drawn
    bars, pictures = _drawn(document)
    said = [describe(bar.title, bar.segments) for bar in bars]
    said += [f"{one.title}: {one.words}" for one in pictures]
    if not said:
        as_figure(document)  # raises
    return f"{document.sentence} {'. '.join(words.rstrip('. ') for words in said)}."


def plain(words: str, longest: int = 90) -> str:
    """Words for matplotlib, to which a dollar sign would begin a formula."""
    return printable(words, longest).replace("$", r"\$")


def _drawn(of: Document) -> tuple[list[Bar], list[Any]]:
    bars, pictures = list(of.bars), list(of.pictures)
    for section in of.sections:
        more_bars, more_pictures = _drawn(section)
        bars += more_bars
        pictures += more_pictures
    return [bar for bar in bars if any(s.value > 0 for s in bar.segments)], pictures


def _draw(axes: Any, bar: Bar) -> None:
    total = sum(max(s.value, 0.0) for s in bar.segments)
    start = 0.0
    for segment, look in zip(bar.segments, looks_of(bar.segments), strict=True):
        share = max(segment.value, 0.0) / total
        if share:
            axes.barh(
                0,
                share,
                left=start,
                color=look.on_white,
                edgecolor="#57606a",
                linewidth=0.6,
                clip_on=False,  # the frame of the last part ends at the axes' edge
                hatch=look.hatch,
                label=plain(f"{segment.label} {segment.shown}", 40),
            )
            start += share
    axes.set(xlim=(-0.001, 1.001), xticks=[], yticks=[])
    axes.set_title(plain(bar.title), fontsize="medium", loc="left")
    for side in axes.spines.values():
        side.set_visible(False)
    axes.legend(fontsize="small", ncols=4, loc="upper left", bbox_to_anchor=(0, 0), frameon=False)
