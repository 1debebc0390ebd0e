"""A comparison to take away: Markdown for a pull request, a picture, JSON.

Serves what shows itself as a sentence and a table: ``perfkit.compare``, ``perfkit.ab``,
``perfkit.sweep``, ``perfkit.tune``, ``same_result``, ``compare-runs``, and runs. Reached through
``result.to_markdown()`` and ``result.save("comparison.md")``.
"""

from __future__ import annotations

import html as _stdlib_html
import json
import math
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfkit._files import write_atomically
from perfkit._printable import printable
from perfkit.errors import UsageError
from perfkit.scrub import scrub as _scrub
from perfkit.timing.compare import Comparison
from perfkit.words import fmt_interval, fmt_number, fmt_ratio

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["alt_text", "figure", "markdown", "save"]

_ENDINGS = (".md", ".png", ".svg", ".json")
# What Markdown or the HTML within it would take for its own. A backslash works for each of them
# in GitHub's dialect, pipes in tables included; & is one because of entities.
_MARKS = re.compile(r"([\\`*_{}\[\]<>()#+!|~&@$])")
_NUMBERED = re.compile(r"^(\s*\d+)([.)])(?=\s)")
_BLUE, _ORANGE = "#0072B2", "#D55E00"  # Okabe and Ito's palette


def markdown(obj: Any, *, scrub: bool = True) -> str:
    """The result as Markdown: its sentence, a table, and notes, with every name escaped.

    It is meant for a pull request, so it is scrubbed (:mod:`perfkit.scrub`) unless told otherwise.

    Raises:
        UsageError: the result is of a kind that has no table.
    """
    view = _scrub(_view(obj)) if scrub else _view(obj)  # escaped, a token has another shape
    blocks = [f"**{_escaped(view.sentence)}**", ""]
    lines = getattr(view, "lines", ())
    blocks += [part for line in lines for part in (_escaped(line), "")]
    if view.rows:
        n = len(view.header)
        align = getattr(view, "align", None) or "<" + ">" * (n - 1)
        rule = ["---" if side == "<" else "---:" for side in align]
        table = [[_escaped(cell) for cell in view.header], rule]
        table += [[_escaped(cell) for cell in row] for row in view.rows]
        blocks += ["| " + " | ".join(row) + " |" for row in table]
        blocks.append("")
    blocks += [f"- Note: {_escaped(warning)}" for warning in view.warnings]
    blocks += [f"- {_escaped(line)}" for line in view.foot]
    return "\n".join(blocks).rstrip() + "\n"


def save(obj: Any, path: str | Path, *, scrub: bool = True) -> Path:
    """Write the result to a file, in the format of its ending; returns the path.

    What is saved is meant to be shared, so it is scrubbed (:mod:`perfkit.scrub`) unless told
    otherwise.

    ``.md``: :func:`markdown`. ``.json``: ``to_dict()``. ``.png``, ``.svg``: :func:`figure`, with
    :func:`alt_text` in the file (PNG: the ``Description``; SVG: ``<title>`` and ``<desc>``).

    Raises:
        UsageError: another ending, a kind of result that has no such form, or a file that
            cannot be written.
    """
    if not isinstance(path, str | os.PathLike):
        raise UsageError(f"{path!r:.60} is not a file name: end it with .md, .png, .svg or .json")
    target = Path(path)
    ending = target.suffix.lower()
    if ending not in _ENDINGS:
        raise UsageError(f"cannot save as {target.name!r}: take one of {', '.join(_ENDINGS)}")
    write: Callable[[Path], Any]
    if ending == ".md":
        words = markdown(obj, scrub=scrub)
        write = lambda part: part.write_text(words, encoding="utf-8")  # noqa: E731
    elif ending == ".json":
        plain = _scrub(_plain(obj)) if scrub else _plain(obj)
        data = json.dumps(plain, indent=1, allow_nan=False) + "\n"
        write = lambda part: part.write_text(data, encoding="utf-8")  # noqa: E731
    else:
        shown = _scrub(obj) if scrub else obj
        drawn, said = figure(shown), alt_text(shown)
        write = lambda part: _write_picture(drawn, said, part, ending)  # noqa: E731
    write_atomically(target, write)
    return target


def figure(obj: Any) -> Figure:
    """The result as a figure; :func:`alt_text` says it in words.

    Raises:
        UsageError: there is no figure of this kind of result.
    """
    if isinstance(obj, Comparison):
        return _of_comparison(obj)
    return _drawer(obj).figure(obj)  # type: ignore[no-any-return]


def alt_text(obj: Any) -> str:
    """The figure in words.

    Raises:
        UsageError: as :func:`figure`.
    """
    if isinstance(obj, Comparison):
        medians = [
            f"{name!r} takes {fmt_number(arm.median)} {arm.unit} {fmt_interval(arm.low, arm.high)}"
            for name, arm in zip(obj.names, (obj.slow, obj.fast), strict=True)
        ]
        return f"Median time per call: {'; '.join(medians)}. {obj.sentence}"
    return str(_drawer(obj).alt_text(obj))


def _drawer(obj: Any) -> Any:
    """The module that draws this kind of result."""
    from perfkit.experiment.ab import ABResult
    from perfkit.experiment.result import RunResult
    from perfkit.experiment.sweep import Sweep
    from perfkit.show import runs, sweep

    if isinstance(obj, ABResult | Sweep):
        return sweep
    if isinstance(obj, RunResult) or _is_runs(obj):
        return _Runs(runs)
    raise UsageError(
        f"there is no picture of a {type(obj).__name__}: save it as .md or .json, or save the "
        f"sweep or comparison in it"
    )


class _Runs:
    """The drawing of runs, for one run as for several."""

    def __init__(self, module: Any) -> None:
        self._module = module

    def figure(self, obj: Any) -> Any:
        return self._module.figure(obj if _is_runs(obj) else [obj])

    def alt_text(self, obj: Any) -> str:
        return str(self._module.alt_text(obj if _is_runs(obj) else [obj]))


def _is_runs(obj: Any) -> bool:
    from perfkit.experiment.result import RunResult

    return (
        isinstance(obj, list | tuple)
        and bool(obj)
        and all(isinstance(run, RunResult) for run in obj)
    )


def _view(obj: Any) -> Any:
    """What is said of a result, as its text and HTML say it."""
    from perfkit import show
    from perfkit.experiment.result import RunResult

    if _is_runs(obj) or isinstance(obj, RunResult):
        from perfkit.show import runs

        return runs._view(list(obj) if _is_runs(obj) else [obj])
    module = show._renderer(obj)
    view = getattr(module, "_view", None)
    found = None if view is None else view(obj)
    if found is None or not all(hasattr(found, name) for name in ("sentence", "rows", "foot")):
        raise UsageError(f"a {type(obj).__name__} has no Markdown form: print it, or use its HTML")
    return found


def _plain(obj: Any) -> Any:
    if _is_runs(obj):
        return [run.to_dict() for run in obj]
    to_dict = getattr(obj, "to_dict", None)
    if to_dict is None:
        raise UsageError(f"a {type(obj).__name__} has no JSON form")
    return _finite(to_dict())


def _finite(value: Any) -> Any:
    """JSON has no NaN and no infinity."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


def _escaped(words: str) -> str:
    """One line in which nothing is markup, whatever a name holds."""
    line = " ".join(printable(str(words).replace("\n", " ")).split())
    line = _MARKS.sub(r"\\\1", line)
    if line.startswith(("-", "=", ":")):
        line = "\\" + line
    return _NUMBERED.sub(r"\1\\\2", line)


def _of_comparison(found: Comparison) -> Figure:
    """The ratio with its interval against 1, and the times of both arms."""
    from matplotlib.figure import Figure as MatplotlibFigure

    # opaque, so that it can be read on a dark page, too
    picture = MatplotlibFigure(figsize=(8, 2.8), dpi=110, layout="constrained", facecolor="white")
    left, right = picture.subplots(1, 2, width_ratios=[3, 2])
    arms: Sequence[Any] = (found.slow, found.fast)
    for row, (arm, colour) in enumerate(zip(arms, (_ORANGE, _BLUE), strict=True)):
        left.plot([arm.minimum, arm.maximum], [row, row], color=colour, lw=1, alpha=0.5)
        left.plot([arm.low, arm.high], [row, row], color=colour, lw=6, alpha=0.5)
        left.plot([arm.median], [row], "os"[row], color=colour, ms=9, mew=2)
    # a dollar sign would begin a formula
    names = [printable(name, 30).replace("$", r"\$") for name in found.names]
    left.set_yticks([0, 1], names)
    left.set(ylim=(1.6, -0.6), xlabel=f"time per call [{found.slow.unit}]")
    left.set_xlim(left=0)
    low, high = found.low, found.high
    if low > 0 and math.isfinite(high):
        right.plot([low, high], [0, 0], color=_BLUE, lw=6, alpha=0.5)
    right.plot([found.ratio], [0], "o", color=_BLUE, ms=9)
    right.axvline(1.0, color="black", lw=0.8, ls=":")
    right.set_yticks([])
    right.set(ylim=(-1, 1), xlabel="ratio (dotted: equal)")
    left.set_title("median, 95 % interval, range", fontsize="medium")
    ends = fmt_interval(low, high) if math.isfinite(high) else "(no interval)"
    right.set_title(f"{fmt_ratio(found.ratio)} {ends}", fontsize="medium")
    for axes in (left, right):
        axes.grid(axis="x", alpha=0.25)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    return picture


def _write_picture(drawn: Figure, said: str, part: Path, ending: str) -> None:
    said = printable(said, 2000)
    if ending == ".png":
        drawn.savefig(part, format="png", metadata={"Description": said})
        return
    drawn.savefig(part, format="svg", metadata={"Date": None})
    made = part.read_text(encoding="utf-8")
    words = _stdlib_html.escape(said)
    title = _stdlib_html.escape(said if len(said) <= 120 else f"{said[:119]}…")
    # a screen reader says these; they must be the first things within the drawing
    named = re.sub(
        r"(<svg\b[^>]*)>",
        lambda found: (
            f'{found[1]} role="img" aria-labelledby="pk-title pk-desc">\n'
            f'<title id="pk-title">{title}</title>\n'
            f'<desc id="pk-desc">{words}</desc>'
        ),
        made,
        count=1,
    )
    part.write_text(named, encoding="utf-8")
