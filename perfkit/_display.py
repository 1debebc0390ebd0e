"""How a result object shows itself, without its room knowing how.

Results live low in the import order (``timing``, ``trace``, ``memory`` …), renderers live
above them in ``report``. A result inherits :class:`Shown`; when it is printed or displayed,
the renderer that ``report`` registered for its type is looked up. The look-up is dynamic on
purpose: it is the one place where a lower room reaches an upper one, and it happens only
when somebody asks to see the result.
"""

from __future__ import annotations

import importlib
from typing import Any


def _report() -> Any:
    return importlib.import_module("perfkit.report")


class Shown:
    """Mixin: ``str()`` gives the plain text, notebooks get the HTML beside it."""

    __slots__ = ()

    def __str__(self) -> str:
        return str(_report().text(self))

    def _repr_html_(self) -> str:
        return str(_report().html(self))

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text("…" if cycle else str(self))
