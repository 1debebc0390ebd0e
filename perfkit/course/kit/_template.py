"""The course's own templates, in the frame and the style of every report."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from perfkit.show._html import render_string

TEMPLATES = Path(__file__).parent / "templates"


def render(template: str, **context: Any) -> str:
    """Fill a file of ``course/kit/templates``; it may extend the frame ``_base.html``."""
    return render_string((TEMPLATES / template).read_text(encoding="utf-8"), **context)
