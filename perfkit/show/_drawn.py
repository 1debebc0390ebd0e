"""How a drawn picture follows the page: made for a light one, turned over on a dark one."""

from __future__ import annotations

import base64

#: The class of such an image. Its ground is opaque and light.
DRAWN_CLASS = "pk-drawn"

# Turning hues back by half a circle after inverting keeps blue blue; 93 % leaves black a dark grey.
_DARK = "{filter:invert(.93) hue-rotate(180deg)}"
DRAWN_STYLE = (
    "<style>"
    "@media screen and (prefers-color-scheme:dark){"
    f"body:not([data-jp-theme-light=true],.vscode-light) img.pk-drawn{_DARK}}}"
    f"body[data-jp-theme-light=false] img.pk-drawn,.vscode-dark img.pk-drawn{_DARK}"
    "</style>"
)


def drawn_image(png: bytes, alt: str, *, width: int | None = None, light: bool = True) -> str:
    """A picture in HTML, no wider than the page.

    Args:
        png: the picture, on an opaque ground.
        alt: what it shows, in words.
        width: in CSS pixels; its own where not given.
        light: its ground is light, and becomes dark on a dark page.
    """
    from markupsafe import escape

    style, kind = (DRAWN_STYLE, f' class="{DRAWN_CLASS}"') if light else ("", "")
    size = "" if width is None else f' width="{width}"'
    data = base64.b64encode(png).decode("ascii")
    return (
        f'{style}<img{kind} src="data:image/png;base64,{data}" alt="{escape(alt)}"{size} '
        'style="max-width:100%;height:auto;border-radius:4px">'
    )
