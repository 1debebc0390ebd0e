"""A result in a file, whole or not at all; the ending says in which form.

``.txt``, ``.md``, ``.html``, ``.json``, ``.png`` and ``.svg``, the same for every result. What
is written is meant to be shared, so what is private is taken out of the result first;
:mod:`perfkit.base.scrub` lists what that is, and what it cannot know.
"""

from __future__ import annotations

import html as _stdlib_html
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfkit import show
from perfkit.base.errors import UsageError
from perfkit.base.files import write_atomically
from perfkit.base.printable import printable
from perfkit.base.scrub import scrub as _scrub

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ENDINGS = (".txt", ".md", ".html", ".json", ".png", ".svg")
_PICTURES = (".png", ".svg")

_PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
<title>{{ title }}</title>
<style>body{margin:0 auto;padding:12px;max-width:984px;background:#fff}
@media(prefers-color-scheme:dark){body{background:#0d1117}}</style>
</head><body>
{{ body }}
</body></html>
"""


def page(result: Any, *, title: str = "", scrub: bool = True) -> str:
    """The result as an HTML page of its own: no script, no request, nothing private.

    Args:
        title: what the browser's tab says; ``perfkit``, and what it is, where not given.
        scrub: take out names of users and hosts, environment dumps and tokens.
    """
    from markupsafe import Markup

    from perfkit.show._html import render_string

    if scrub:
        # from the result, not from the page: nothing that a page is made of is somebody's name
        result, title = _scrub((result, title))
    said = show.document(result)
    title = title or f"perfkit {said.name if said is not None else 'report'}"
    # show.html escapes what it shows: its result is markup
    return render_string(_PAGE, title=title, body=Markup(show.html(result)))


def write_page(
    result: Any, path: str | os.PathLike[str], *, title: str = "", scrub: bool = True
) -> Path:
    """Write :func:`page` to a file of any name; returns the path.

    Raises:
        UsageError: the file cannot be written, or is no regular file.
    """
    target = Path(path)
    if target.exists() and not target.is_file():
        # putting a file in its place would remove a device
        raise UsageError(f"cannot write {target}: it exists already and is not a regular file")
    made = page(result, title=title, scrub=scrub)
    write_atomically(target, lambda part: part.write_text(made, encoding="utf-8"))
    return target


def endings(result: Any) -> tuple[str, ...]:
    """Those of :data:`ENDINGS` that this result can be saved with."""
    from perfkit.show._as_figure import has_figure

    said = show.document(result)
    refused = set(getattr(result, "_not_saved_as", ()))
    if said is None or not has_figure(said):
        refused |= {*_PICTURES, *((".md",) if said is None else ())}
    return tuple(ending for ending in ENDINGS if ending not in refused)


def save(result: Any, path: str | os.PathLike[str], *, title: str = "", scrub: bool = True) -> Path:
    """Write a result to a file in the form that its ending names; returns the path.

    Pictures have their text alternative in the file (PNG: the ``Description``; SVG: ``<title>``
    and ``<desc>``).

    Args:
        path: ends in one of :func:`endings`.
        title: of an HTML page, see :func:`page`.
        scrub: take out secrets and names of users and hosts.

    Raises:
        UsageError: another ending, no picture of this result, or a file that cannot be written.
        MissingError: a picture, and matplotlib is not installed.
    """
    possible = endings(result)
    listed = f"{', '.join(possible[:-1])} or {possible[-1]}"
    if not isinstance(path, str | os.PathLike):
        raise UsageError(f"{path!r:.60} is not a file name: end it with {listed}")
    target = Path(path)
    ending = {".htm": ".html", ".markdown": ".md"}.get(target.suffix.lower(), target.suffix.lower())
    if ending not in possible:
        why = "there is no picture of this result; " if ending in _PICTURES else ""
        raise UsageError(f"cannot save as {target.name!r}: {why}take one of {listed}")
    write: Callable[[Path], Any]
    if ending in _PICTURES:
        shown = _scrub(result) if scrub else result
        drawn, said = show.figure(shown), show.alt_text(shown)
        write = lambda part: _write_picture(drawn, said, part, ending)  # noqa: E731
    else:
        words = _words(result, ending, title=title, scrub=scrub)
        write = lambda part: part.write_text(words, encoding="utf-8")  # noqa: E731
    write_atomically(target, write)
    return target


def _words(result: Any, ending: str, *, title: str, scrub: bool) -> str:
    if ending == ".html":
        return page(result, title=title, scrub=scrub)
    if ending == ".md":
        return show.markdown(result, scrub=scrub)
    if ending == ".json":
        from perfkit.base.plain import plain

        data = plain(result)
        return json.dumps(_scrub(data) if scrub else data, indent=1, allow_nan=False) + "\n"
    said = show.document(result)
    return f"{show.text(_scrub(said) if scrub and said is not None else result)}\n"


def _write_picture(drawn: Figure, said: str, part: Path, ending: str) -> None:
    said = printable(said, 2000)
    ground = drawn.get_facecolor()  # not that of the user's style
    if ending == ".png":
        drawn.savefig(part, format="png", facecolor=ground, metadata={"Description": said})
        return
    drawn.savefig(part, format="svg", facecolor=ground, metadata={"Date": None})
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
