"""Rewrite the links of a page that moves out of the notebooks' folder."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from urllib.parse import quote, unquote, urlsplit

from markupsafe import Markup, escape

# a tag with all its attributes; a ">" inside quotes does not end it
_TAG = re.compile(r"""<([A-Za-z][\w:-]*)((?:[^<>"']|"[^"]*"|'[^']*')*)>""")
_ADDRESS = re.compile(r"""\s(href|src|srcset|poster)\s*=\s*("[^"]*"|'[^']*'|[^\s"'>]+)""", re.I)
_OUTSIDE = ("http", "https", "mailto")


def relink(html: str, source: str, page: str, pages: Mapping[str, str]) -> str:
    """The page with links that work in its new place.

    A link to a notebook that has a page leads to that page. A link to any other file of the course
    loses its address and keeps its text. External links and links within the page stay. Anything
    other than a link may only use embedded data.

    Args:
        html: the page.
        source: path of its notebook relative to the notebooks' folder, with ``"/"``.
        page: path of the page in the site, likewise.
        pages: notebook → page.
    """

    def new_address(tag: str, address: str) -> str | None:
        if address.startswith("#"):
            return address
        if tag not in ("a", "area"):
            return address if address.startswith("data:") else None
        parts = urlsplit(address)
        if parts.scheme or parts.netloc:
            return address if parts.scheme in _OUTSIDE else None
        notebook = posixpath.normpath(
            posixpath.join(posixpath.dirname(source), unquote(parts.path))
        )
        if notebook not in pages:
            return None
        target = quote(posixpath.relpath(pages[notebook], posixpath.dirname(page) or "."))
        return target + (f"#{parts.fragment}" if parts.fragment else "")

    def new_tag(found: re.Match[str]) -> str:
        tag, attributes = found.group(1), found.group(2)

        def new_attribute(attribute: re.Match[str]) -> str:
            old = Markup(attribute.group(2).strip("\"'")).unescape().strip()
            try:
                address = new_address(tag.lower(), old)
            except ValueError:  # not an address
                address = None
            if address == old:
                return attribute.group(0)
            return "" if address is None else f' {attribute.group(1)}="{escape(address)}"'

        return f"<{tag}{_ADDRESS.sub(new_attribute, attributes)}>"

    return _TAG.sub(new_tag, html)
