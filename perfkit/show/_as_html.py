"""A document as HTML: self-contained, escaped, without scripts, readable without its style."""

from __future__ import annotations

from markupsafe import Markup

from perfkit.show._bar import bar
from perfkit.show._html import render
from perfkit.show.document import Bar, Document, Picture


def as_html(document: Document, markdown: str = "") -> str:
    """The document as one region with a name and a style sheet of its own.

    Args:
        markdown: the same as Markdown, folded at the end; nothing where empty.
    """
    return render("document.html", document=document, markdown=markdown, bar=_bar, picture=_picture)


# both are made by templates that escape what they are given: their result is markup


def _bar(one: Bar) -> Markup:
    return Markup(bar(one.title, one.segments))


def _picture(one: Picture) -> Markup:
    return Markup(one.as_html())
