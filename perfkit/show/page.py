"""A result as an HTML page of its own: no script, no request, nothing private.

What is private is taken out of the result, not of the page, so that nothing that the page is
made of can be mistaken for a name; :mod:`perfkit.scrub` lists what that is, and what it
cannot know.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from perfkit._files import write_atomically
from perfkit.scrub import scrub as _scrub

__all__ = ["page", "save"]

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


def page(result: Any, *, title: str = "perfkit report", scrub: bool = True) -> str:
    """The page: the report of a profile, breakdown or any other result of perfkit.

    Args:
        result: what to show; a profile's report holds its breakdown and its step strip.
        title: what the browser's tab says.
        scrub: take out names of users and hosts, environment dumps and tokens.
    """
    from markupsafe import Markup

    from perfkit import show
    from perfkit.show._html import render_string

    if scrub:
        result, title = _scrub((result, title))
    # show.html escapes what it shows: its result is markup
    return render_string(_PAGE, title=title, body=Markup(show.html(result)))


def save(
    result: Any, path: str | os.PathLike[str], *, title: str = "perfkit report", scrub: bool = True
) -> Path:
    """Write :func:`page` into a file, whole or not at all.

    Raises:
        UsageError: the file cannot be written.
    """
    target = Path(path)
    made = page(result, title=title, scrub=scrub)
    write_atomically(target, lambda part: part.write_text(made, encoding="utf-8"))
    return target
