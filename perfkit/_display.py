"""How a result displays itself without its package knowing how.

Results are low in the import order (``timing``, ``trace``, ``memory`` …); renderers are above them
in ``report``. A result inherits :class:`Shown`, which looks up the renderer that ``report``
registered for its type when the result is printed or displayed. The look-up is dynamic on purpose:
it is the one place where a lower package reaches an upper one, and it happens only when someone
asks to see the result.
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
    """Mixin: ``str()`` gives the full plain text; a notebook or prompt shows the first screen,
    as HTML if possible.
    """

    __slots__ = ()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        # IPython uses the first class that defines __repr__ or _repr_pretty_, and every dataclass
        # has a generated __repr__: without this line you would see that.
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
        """Write it to a ``.md``, ``.json``, ``.png`` or ``.svg`` file and return the path.

        The ending chooses the format. Pictures carry a text alternative.

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
