"""How a drawn picture follows the page: made for a light one, turned over on a dark one."""

from __future__ import annotations

__all__ = ["DRAWN_CLASS", "DRAWN_STYLE"]

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
