"""One Jinja environment and one style sheet for everything that perfkit shows in a notebook.

Autoescape is on: text from traces and user code never becomes markup. The output is
self-contained (no script, no file, no request) and themes itself: it takes JupyterLab's CSS
variables where they exist, VS Code's and Colab's after them, and otherwise follows
``prefers-color-scheme``. It always paints its own background, so that text and ground agree
even in an exported page that knows none of these.
"""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup, escape

from perfkit.base.printable import printable
from perfkit.base.user_code import cell_link
from perfkit.base.words import fmt_bytes, fmt_count, fmt_ms, fmt_ratio, fmt_share
from perfkit.show.plain_text import one_sentence

_TEMPLATES = Path(__file__).parent / "templates"
_CODE = re.compile(r"`(\S(?:[^`\n]*\S)?)`")
# The space between a number and its unit, and in front of that what stays as it is: code, which is
# copied, and tags.
_UNIT = re.compile(
    r"<(style|pre|code)\b.*?</\1>|<[^>]*>"
    r"|(?<=\d) (?=%|(?:[kKMGTP]?i?B|[nµm]?s|min|h|W|[mk]?J|[KMGTP]?FLOP)\b)",
    re.DOTALL,
)

# A line of a cell in the text; a match without a number is what stays as it is.
_CELL = re.compile(r"<(style|script)\b.*?</\1>|<[^>]*>|cell \[(\d+)\], line \d+", re.DOTALL)


@functools.cache
def environment() -> jinja2.Environment:
    """The environment: autoescape on, undefined names are errors, the formatters as filters."""
    env = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=_printable,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    env.filters.update(
        bytes=fmt_bytes,
        code_marked=_code_marked,
        count=fmt_count,
        ms=fmt_ms,
        one_sentence=one_sentence,
        ratio=fmt_ratio,
        share=fmt_share,
    )
    env.globals["style"] = _style()
    return env


def _printable(value: Any) -> Any:
    """No control character of a name reaches the page, nor a mark that turns the text around."""
    plain = isinstance(value, str) and not isinstance(value, Markup)
    return printable(value, lines=True) if plain else value


def _code_marked(text: str) -> Markup:
    """The text, with what stands in `backticks` marked as code."""
    return Markup(_CODE.sub(r"<code>\1</code>", str(escape(printable(text, lines=True)))))


@functools.cache
def _style() -> Markup:
    # our own file, not user text: the only markup that is trusted as it is
    return Markup((_TEMPLATES / "report.css").read_text(encoding="utf-8"))


def render(template: str, **context: Any) -> str:
    """Fill a file of ``show/templates``; see ``_base.html`` for the frame that all share.

    Raises:
        jinja2.UndefinedError: the template names something that the context lacks.
    """
    return _units_kept(environment().get_template(template).render(**context))


def render_string(source: str, **context: Any) -> str:
    """Fill a template given as text (it may ``{% extends "_base.html" %}`` as a file may)."""
    return _units_kept(environment().from_string(source).render(**context))


def cells_linked(html: str) -> str:
    """A page for a notebook, in which the name of a cell's line leads to the cell."""
    return _CELL.sub(_linked, html)


def _linked(found: re.Match[str]) -> str:
    link = cell_link(int(found[2])) if found[2] else ""
    return f'<a href="{escape(link)}">{found[0]}</a>' if link else found[0]


def _units_kept(html: str) -> str:
    """No line ends between a number and its unit."""
    return _UNIT.sub(lambda found: "\N{NO-BREAK SPACE}" if found[0] == " " else found[0], html)
