"""A waterfall as a picture: bars that begin where the one before ends, down to what remains."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from perfkit.base.words import fmt_ms
from perfkit.show._ink import in_fill
from perfkit.show._text import clip, wrap
from perfkit.show.palette import look_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_NAME, _WIDTH, _VALUE = 40, 40, 9  # columns of a terminal


@dataclass(frozen=True)
class Fall:
    """One bar.

    Attributes:
        label: what it is.
        end_ms: what is left below it.
        ms: its length.
        look: a name of the palette.
    """

    label: str
    end_ms: float
    ms: float
    look: str


@dataclass(frozen=True)
class Falls:
    """A picture of a document (:class:`perfkit.show.document.Picture`).

    Attributes:
        title: what it shows.
        words: the picture in words.
        falls: the bars, from top to bottom.
        scale_ms: what the full width is; of two pictures to be compared, the longer step.
        folds: whether it is behind the first screen.
    """

    title: str
    words: str
    falls: tuple[Fall, ...]
    scale_ms: float
    folds: bool = False
    glyphs: ClassVar[bool] = True

    def as_text(self) -> str:
        """Bars of blocks."""
        lines = [wrap(f"{self.title}:")]
        for fall in self.falls:
            left = round(_WIDTH * max(fall.end_ms, 0.0) / self.scale_ms)
            right = round(_WIDTH * (fall.end_ms + fall.ms) / self.scale_ms)
            right = max(right, left + 1 if fall.ms > 0 else left)
            n = right - left
            left = min(left, _WIDTH - 1)
            blocks = "█" * min(n, _WIDTH - left)
            bar = " " * left + in_fill(blocks, look_of(fall.look).fill)
            bar += " " * (_WIDTH - left - len(blocks))
            name = clip(fall.label, _NAME)
            lines.append(f"  {name:<{_NAME}} {fmt_ms(fall.ms):>{_VALUE}} |{bar}|")
        return "\n".join(lines)

    def as_html(self) -> str:
        """Bars of HTML: they keep their words readable on a narrow screen."""
        from perfkit.show._html import render

        rows = [
            {
                "label": fall.label,
                "shown": fmt_ms(fall.ms),
                "left": f"{100 * max(fall.end_ms, 0.0) / self.scale_ms:.3f}",
                "width": f"{100 * fall.ms / self.scale_ms:.3f}",
                "colour": look_of(fall.look).fill,
                "pattern": look_of(fall.look).pattern or "solid",
            }
            for fall in self.falls
        ]
        return render(
            "_falls.html", title=self.title, rows=rows, alternative=f"{self.title}: {self.words}"
        )

    def draw(self, axes: Axes) -> None:
        """As horizontal bars, in ms."""
        from perfkit.show._as_figure import plain

        names = [plain(f"{fall.label}  {fmt_ms(fall.ms)}", 70) for fall in self.falls]
        at = list(range(len(self.falls)))
        for y, fall in zip(at, self.falls, strict=True):
            look = look_of(fall.look)
            axes.barh(
                y,
                fall.ms,
                left=fall.end_ms,
                height=0.72,
                color=look.on_white,
                edgecolor="#57606a",
                linewidth=0.6,
                hatch=look.hatch,
            )
        for y, fall in zip(at[1:], self.falls[1:], strict=True):  # from where the one above ends
            axes.plot([fall.end_ms + fall.ms] * 2, [y - 1, y], color="#57606a", lw=0.6, ls=":")
        for y, fall, name in zip(at, self.falls, names, strict=True):
            # beside the bar, where there is room: names at the axis would squeeze other pictures
            left, right = fall.end_ms / self.scale_ms, (fall.end_ms + fall.ms) / self.scale_ms
            side, place = ("right", left - 0.008) if left >= 0.5 else ("left", right + 0.008)
            if left < 0.5 < right:
                place = left + 0.008
            axes.text(
                place * self.scale_ms,
                y,
                name,
                ha=side,
                va="center",
                fontsize="small",
                bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 1},
            )
        axes.set_yticks([])
        axes.set(xlim=(0, self.scale_ms * 1.002), ylim=(len(at) - 0.5, -0.5), xlabel="ms")
        for side in ("top", "right", "left"):
            axes.spines[side].set_visible(False)
