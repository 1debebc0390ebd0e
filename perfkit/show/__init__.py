"""How results look: one document per result, and one renderer per form.

``document(result)`` is what a result says, as data; everything else here renders that. The room
of a result knows nothing of this: ``perfkit.show.lookup`` finds the module that makes the
document when somebody asks to see the result. Your own result types join through
``@document_for(YourResult)``. Plain text needs neither jinja2 nor matplotlib.
"""

from __future__ import annotations

import html as _stdlib_html
from typing import TYPE_CHECKING, Any

from perfkit.base.errors import UsageError
from perfkit.base.extras import needs
from perfkit.show._as_text import as_text
from perfkit.show.document import Document, document_for
from perfkit.show.lookup import document

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = [
    "RESULT_MIME",
    "Document",
    "alt_text",
    "brief",
    "document",
    "document_for",
    "figure",
    "html",
    "markdown",
    "mime_bundle",
    "text",
]

#: The type under which a notebook keeps the numbers of a result, as JSON, beside its picture.
#: ``perfkit tour`` reads findings and ratios from there.
RESULT_MIME = "application/vnd.perfkit.result+json"


def text(obj: Any) -> str:
    """All of a result in plain text, at most 96 columns wide; ``repr`` of anything else."""
    said = document(obj)
    return repr(obj) if said is None else as_text(said)


def brief(obj: Any) -> str:
    """The first screen of :func:`text`."""
    said = document(obj)
    return repr(obj) if said is None else as_text(said, brief=True)


def html(obj: Any) -> str:
    """The self-contained HTML form of a result; anything else as its escaped ``repr``."""
    said = document(obj)
    if said is None:
        return f"<pre>{_stdlib_html.escape(repr(obj))}</pre>"
    from perfkit.show._as_html import as_html

    return as_html(said)


def markdown(obj: Any, *, scrub: bool = True) -> str:
    """The result as Markdown, with every name escaped.

    It is meant for a pull request, so it is scrubbed (:mod:`perfkit.base.scrub`) unless told
    otherwise.

    Raises:
        UsageError: ``obj`` is not a result, so it has no document.
    """
    from perfkit.base.scrub import scrub as scrubbed
    from perfkit.show._as_markdown import as_markdown

    said = _needed(obj)
    return as_markdown(scrubbed(said) if scrub else said)  # escaped, a token has another shape


def figure(obj: Any) -> Figure:
    """The result as a matplotlib figure; :func:`alt_text` describes it in words.

    Raises:
        UsageError: this result has no picture.
        MissingError: matplotlib is not installed.
    """
    from perfkit.show._as_figure import as_figure

    with needs("a figure"):
        return as_figure(_needed(obj))


def alt_text(obj: Any) -> str:
    """:func:`figure` in words.

    Raises:
        UsageError: as :func:`figure`.
    """
    from perfkit.show._as_figure import figure_words

    return figure_words(_needed(obj))


def mime_bundle(obj: Any, *, verbose: bool = False) -> dict[str, Any]:
    """What a notebook stores of a result: text, HTML and, for results that a tour reads, numbers.

    The HTML of a report has the same as Markdown, to be copied: a button where scripts run, and a
    fold with the text where they do not.

    Args:
        verbose: with all tables in the text; HTML has them folded.
    """
    from perfkit.show._copy import with_copy
    from perfkit.show._html import cells_linked

    said = _needed(obj)
    bundle: dict[str, Any] = {
        "text/plain": as_text(said, brief=not verbose),
        "text/html": cells_linked(with_copy(said)),
    }
    if said.kind:
        bundle[RESULT_MIME] = {**obj.to_dict(), "type": said.kind}
    return bundle


def _needed(obj: Any) -> Document:
    said = document(obj)
    if said is None:
        raise UsageError(f"a {type(obj).__name__} is no result of perfkit: print it")
    return said
