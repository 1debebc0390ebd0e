"""What a waterfall says, alone or beside the one after a fix."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from perfkit.base.words import fmt_bound, fmt_ms, fmt_ratio, fmt_share
from perfkit.show._ink import in_fill
from perfkit.show.document import Document, Table, document_for
from perfkit.show.palette import look_of
from perfkit.show.plain_text import clip, per_step, wrap
from perfkit.trace.ask.waterfall import CAUSES, Part, Waterfall, WaterfallChange

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_WORDS = {
    "setup": "set-up: compiling, first calls",
    "data": "waiting for data",
    "sync": "device idle: the host waited for it",
    "copy": "copies that nothing hides",
    "communication": "communication that nothing hides",
    "capture": "capturing a CUDA graph",
    "driver": "allocating memory, loading code",
    "host": "Python and other host work",
    "launch": "host too slow to launch",
    "pauses": "short pauses between kernels",
    "queued": "device idle, cause not recorded",
    "above": "kernels above their lower bound",
}
# Other causes look like idling of that cause.
_LOOKS = {
    "above": "above",
    "pauses": "idle: kernels",
    "data": "data wait",
    "sync": "sync",
    "copy": "copy",
    "communication": "communication",
}
_LEAST = "the lower bound"
_OUTSIDE_IN, _INSIDE_OUT = "from the outside in", "from the inside out"
_NAME, _WIDTH, _VALUE = 40, 40, 9  # columns of a terminal
# Removing what takes less of the step brings nothing that anybody could measure.
_WORTH_A_GAIN = 0.01


def _name(cause: str, of: Waterfall) -> str:
    if of.on_device:
        return _WORDS[cause]
    return {
        "host": "between operators (Python, dispatch)",
        "above": "operators above their lower bound",
        "communication": "communication",
    }.get(cause, _WORDS[cause])


def _uncounted(of: Waterfall) -> str:
    what = "kernels" if of.on_device else "operators"
    return f"{what} whose work is not known" if of.least_ms else f"{what}, as recorded"


@document_for(Waterfall)
def _waterfall(of: Waterfall) -> Document:
    if not of.step_ms:
        return Document("waterfall", "No time is recorded in the steps.", warnings=of.warnings)
    pictures = [waterfall_picture(of)]
    if of.orders_differ:
        pictures.append(waterfall_picture(of, inside_out=True, folds=True))
    return Document(
        name="waterfall",
        sentence=_sentence(of),
        headline=_headline(of),
        figure=f"{fmt_ms(of.step_ms)} a step",
        lines=_lines(of),
        warnings=of.warnings,
        pictures=tuple(pictures),
        tables=(replace(waterfall_table(of), brief=False), _families(of)),
        foot=_foot(of),
    )


def waterfall_picture(
    of: Waterfall,
    *,
    inside_out: bool = False,
    title: str = "",
    scale_ms: float = 0.0,
    folds: bool = False,
) -> Falls:
    """One order as a picture.

    Args:
        of: with a step.
        inside_out: the other order.
        title: instead of the usual one.
        scale_ms: what the full width is; by default the step.
        folds: whether it is behind the first screen.
    """
    order = _INSIDE_OUT if inside_out else _OUTSIDE_IN
    parts = tuple(reversed(of.parts)) if inside_out else of.parts
    brings: Callable[[Part], float] = (
        (lambda p: p.inside_out_ms) if inside_out else (lambda p: p.outside_in_ms)
    )
    falls = [
        Fall(
            "now: a step" + ", as recorded" * (of.unprofiled_step_ms is None),
            0.0,
            of.step_ms,
            "whole",
        )
    ]
    left = of.step_ms
    for part in parts:
        left -= brings(part)
        look = _LOOKS.get(part.cause, f"idle: {part.cause}")
        falls.append(Fall(_name(part.cause, of), max(left, 0.0), brings(part), look))
    if of.uncounted_ms:
        falls.append(Fall(_uncounted(of), of.least_ms, of.uncounted_ms, "idle"))
    if of.least_ms:
        falls.append(Fall(f"could be: {_LEAST}", 0.0, of.least_ms, "compute"))
    words = "; ".join(f"{fall.label} {fmt_ms(fall.ms)}" for fall in falls)
    usual = "Down to the lower bound" if of.least_ms else "Down to what the operators take"
    if of.orders_differ:
        usual += f", {order}"
    return Falls(title or usual, words, tuple(falls), scale_ms or of.step_ms, folds)


def waterfall_table(of: Waterfall) -> Table:
    """Each cause in both orders and, if gains can be told, alone."""
    both, gains = of.orders_differ, of.gives_gains
    rows = []
    left = of.step_ms
    for part in of.parts:
        left -= part.outside_in_ms
        whole, alone_ms = of.step_ms, part.alone_ms or 0.0
        bound = whole / (whole - alone_ms) if alone_ms < whole else 0.0
        rows.append(
            (
                _name(part.cause, of),
                fmt_ms(part.outside_in_ms),
                fmt_ms(max(left, of.floor_ms)),
                *((fmt_ms(part.inside_out_ms),) if both else ()),
                *(
                    (fmt_bound(bound) if bound and alone_ms > _WORTH_A_GAIN * whole else "–",)
                    if gains
                    else ()
                ),
            )
        )
    empty = ("",) * (both + gains)
    if of.uncounted_ms:
        rows.append((_uncounted(of), fmt_ms(of.uncounted_ms), fmt_ms(of.least_ms), *empty))
    if of.least_ms:
        rows.append((_LEAST, fmt_ms(of.least_ms), fmt_ms(0.0), *empty))
    return Table(
        ("removed one after another" if gains else "part", "brings" if gains else "time", "left",
         *(("kernels first",) if both else ()),
         *(("alone",) if gains else ())),
        tuple(rows),
        title="From the step to its lower bound" if of.least_ms else "What the step consists of",
        note=f"{per_step(of.n_steps)}; adds up to the step"
        + ("; alone: at most so many times as fast" if gains else ""),
        open=True,
    )  # fmt: skip


def _families(of: Waterfall) -> Table:
    rows = tuple((name, fmt_ms(ms), fmt_share(ms / of.step_ms)) for name, ms in of.above_ms.items())
    return Table(
        ("kind of work", "above its lower bound", "of the step"),
        rows,
        title=f"{'Kernels' if of.on_device else 'Operators'} above their lower bound",
        note=per_step(of.n_steps),
        brief=False,
    )


def _largest(of: Waterfall) -> Part | None:
    return max(of.parts, key=lambda p: p.outside_in_ms, default=None)


def _headline(of: Waterfall) -> str:
    first = _largest(of)
    if first is None or first.outside_in_ms <= _WORTH_A_GAIN * of.step_ms:
        return f"At least {fmt_share(of.floor_ms / of.step_ms)} of the step is needed."
    share = fmt_share(first.outside_in_ms / of.step_ms)
    return f"{share} of the step could go: {_name(first.cause, of)}."


def _sentence(of: Waterfall) -> str:
    what = "kernels" if of.on_device else "operators"
    a_step = "a step" if of.unprofiled_step_ms else "a recorded step"
    if of.least_ms and of.uncounted_ms <= _WORTH_A_GAIN * of.step_ms:
        down = f"{a_step} takes {fmt_ms(of.step_ms)} and needs at least {fmt_ms(of.floor_ms)}"
    elif of.least_ms:
        down = (
            f"{a_step} takes {fmt_ms(of.step_ms)}; what could be removed leaves "
            f"{fmt_ms(of.floor_ms)}, {fmt_ms(of.uncounted_ms)} of it {what} whose work is not known"
        )
    else:
        down = f"{a_step} takes {fmt_ms(of.step_ms)}, its {what} {fmt_ms(of.floor_ms)} of it"
    said = f"{down[0].upper()}{down[1:]}."
    first = _largest(of)
    if first is None or first.outside_in_ms <= _WORTH_A_GAIN * of.step_ms:
        return said
    return (
        f"{said} The largest part in between: {_name(first.cause, of)}, "
        f"{fmt_ms(first.outside_in_ms)} ({fmt_share(first.outside_in_ms / of.step_ms)})."
    )


def _lines(of: Waterfall) -> tuple[str, ...]:
    parts = []
    if of.n_steps > 1:
        parts.append(
            f"Mean of {of.n_steps} steps of {fmt_ms(min(of.steps_ms))} … {fmt_ms(max(of.steps_ms))}"
            + (
                f"; without the profiler a step takes {fmt_ms(of.unprofiled_step_ms)}."
                if of.unprofiled_step_ms
                else "."
            )
        )
    if of.workers_set_the_pace:
        parts.append(
            "The DataLoader's workers set the pace: until they are faster, whatever else becomes "
            "faster only makes the host wait longer for them."
        )
    elif of.orders_differ:
        parts.append(
            "Host and device work at the same time, so what one removal gains depends on what is "
            "gone already: both orders add up to the step."
        )
    return (" ".join(parts),) if parts else ()


def _foot(of: Waterfall) -> tuple[str, ...]:
    if not of.least_ms:
        return (
            "How fast the operators could be is not known: record shapes (`--shapes`), and measure "
            "this machine with `perfkit doctor --peaks`, or with `perfkit.peaks()` where torch "
            "computes with another number of threads than its default.",
        )
    return (f"{of.kind}: rates of {of.device or 'this machine'}, {of.source}.",)


@document_for(WaterfallChange)
def _change(of: WaterfallChange) -> Document:
    before, after = of.before, of.after
    if not before.step_ms or not after.step_ms:
        return Document("waterfalls", "No time is recorded in the steps.", warnings=of.warnings)
    scale = max(before.step_ms, after.step_ms)
    both = [w for w in before.warnings if w in after.warnings]
    warnings = [
        *both,
        *(f"before: {w}" for w in before.warnings if w not in both),
        *(f"after: {w}" for w in after.warnings if w not in both),
        *of.warnings,
    ]
    return Document(
        name="waterfalls",
        sentence=_changed(of),
        headline=_change_headline(of),
        figure=f"{fmt_ms(before.step_ms)} → {fmt_ms(after.step_ms)} a step",
        lines=_distance(of),
        warnings=tuple(warnings),
        pictures=(
            waterfall_picture(before, title="Before", scale_ms=scale),
            waterfall_picture(after, title="After, on the same scale", scale_ms=scale),
        ),
        tables=(_changes(of),),
        foot=tuple(dict.fromkeys((*_foot(before), *_foot(after)))),
    )


def _change_headline(of: WaterfallChange) -> str:
    ratio = of.ratio
    if abs(ratio - 1) <= _WORTH_A_GAIN:
        return "A step takes as long as before."
    return f"{fmt_ratio(ratio)} as fast." if ratio > 1 else f"{fmt_ratio(1 / ratio)} slower."


def _changed(of: WaterfallChange) -> str:
    said = (
        f"A step took {fmt_ms(of.before.step_ms)} before and {fmt_ms(of.after.step_ms)} after "
        f"({fmt_ratio(of.ratio)} as fast, one recording each)."
    )
    causes = {c: ms for c, ms in of.changes_ms.items() if c in CAUSES}
    most = max(causes, key=lambda c: abs(causes[c]), default="")
    if not most or abs(causes[most]) <= _WORTH_A_GAIN * of.before.step_ms:
        return said
    return (
        f"{said} What changed most: {_name(most, of.before)}, from "
        f"{fmt_ms(of.before.ms_of(most))} to {fmt_ms(of.after.ms_of(most))}."
    )


def _distance(of: WaterfallChange) -> tuple[str, ...]:
    if not of.before.least_ms or not of.after.least_ms:
        return ()
    first, second = (w.step_ms / w.floor_ms for w in (of.before, of.after))
    return (f"From {fmt_ratio(first)} what remains when all is removed to {fmt_ratio(second)}.",)


def _changes(of: WaterfallChange) -> Table:
    def row(name: str, before: float, after: float) -> tuple[str, ...]:
        delta = after - before
        return name, fmt_ms(before), fmt_ms(after), f"{'+' if delta > 0 else ''}{fmt_ms(delta)}"

    rows = []
    for cause in of.changes_ms:
        if cause in CAUSES:
            rows.append(row(_name(cause, of.before), of.before.ms_of(cause), of.after.ms_of(cause)))
    if of.before.uncounted_ms or of.after.uncounted_ms:
        known = of.before if of.before.least_ms else of.after
        rows.append(row(_uncounted(known), of.before.uncounted_ms, of.after.uncounted_ms))
    if of.before.least_ms or of.after.least_ms:
        rows.append(row(_LEAST, of.before.least_ms, of.after.least_ms))
    rows.append(row("the step", of.before.step_ms, of.after.step_ms))
    return Table(
        ("part", "before", "after", "change"),
        tuple(rows),
        title="Part by part",
        note="ms of the mean step, from the outside in; adds up to the step",
        open=True,
    )


@dataclass(frozen=True)
class Fall:
    """One bar.

    Attributes:
        end_ms: what is left below it.
        look: a name of the palette.
    """

    label: str
    end_ms: float
    ms: float
    look: str


@dataclass(frozen=True)
class Falls:
    """A picture of a document (:class:`perfkit.show.document.Picture`): bars, each of which begins
    where the one before ends.

    Attributes:
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
