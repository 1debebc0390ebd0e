"""A plugin that pytest loads before any other (``-p`` in pyproject.toml), nbval in particular.

jsonschema, and so nbformat, would read a whole grammar for the one format of addresses that no
notebook has: 1.4 s of the 1.6 s that ``import nbformat`` takes, in each process.
"""

from __future__ import annotations

import sys

sys.modules.setdefault("rfc3987_syntax", None)  # type: ignore[arg-type]
