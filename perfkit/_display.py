"""How a result object shows itself, without its room knowing how.

Results live low in the import order (``timing``, ``trace``, ``memory`` …), renderers live
above them in ``report``. A result inherits :class:`Shown`; when it is printed or displayed,
the renderer that ``report`` registered for its type is looked up. The look-up is dynamic on
purpose: it is the one place where a lower room reaches an upper one, and it happens only
when somebody asks to see the result.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any


def _report() -> Any:
    return importlib.import_module("perfkit.show")


def _export() -> Any:
    return importlib.import_module("perfkit.show.export")


class Shown:
    """Mixin: ``str()`` gives the whole plain text; a notebook or a prompt shows its first screen,
    and HTML where it can.
    """

    __slots__ = ()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        # IPython takes the first class that has a __repr__ or a _repr_pretty_ of its own, and
        # every dataclass has a generated __repr__: without this it would be the plain text.
        cls._repr_pretty_ = Shown._repr_pretty_  # type: ignore[method-assign]

    def __str__(self) -> str:
        return str(_report().text(self))

    def to_markdown(self, *, scrub: bool = True) -> str:
        """Sentence, table and notes as Markdown, for a pull request; names are escaped.

        Args:
            scrub: take out secrets and names of users and hosts, see :mod:`perfkit.scrub`.

        Raises:
            UsageError: this kind of result has no table.
        """
        return str(_export().markdown(self, scrub=scrub))

    def save(self, path: str | Path, *, scrub: bool = True) -> Any:
        """Write it to ``.md``, ``.json``, ``.png`` or ``.svg``, by the ending; returns the path.

        Pictures carry their text alternative.

        Args:
            scrub: take out secrets and names of users and hosts, see :mod:`perfkit.scrub`.

        Raises:
            UsageError: another ending, no such form of this result, or a file that cannot be
                written.
        """
        return Path(_export().save(self, path, scrub=scrub))

    def _repr_html_(self) -> str:
        return str(_report().html(self))

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text("…" if cycle else str(_report().brief(self)))
