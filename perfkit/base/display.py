"""How a result displays itself without its package knowing how.

Results are low in the import order; what displays them is above. A result inherits :class:`Shown`.
The package itself says in :data:`shower` which module displays results, and that module is
imported when someone asks to see one.
"""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfkit.base.plain import fields, plain

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: The module that shows results; ``perfkit/__init__.py`` sets it.
shower = ""


def show_part(part: str = "") -> Any:
    """A module of the room that shows results; by default the room itself."""
    return importlib.import_module(f"{shower}{part}")


class Shown:
    """Mixin: ``print()``, a notebook and a prompt show the first screen, as HTML if possible;
    :meth:`to_text` gives all of it.
    """

    __slots__ = ()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        # IPython uses the first class that defines __repr__ or _repr_pretty_, and every dataclass
        # has a generated __repr__: without this line you would see that.
        cls._repr_pretty_ = Shown._repr_pretty_  # type: ignore[method-assign]

    def __str__(self) -> str:
        return str(show_part().brief(self))

    def to_text(self) -> str:
        """All of the result as plain text."""
        return str(show_part().text(self))

    def to_dict(self) -> dict[str, Any]:
        """The same as plain JSON types."""
        return fields(self)

    def to_json(self) -> str:
        """:meth:`to_dict` as JSON, with what is private: ``save("x.json")`` takes that out."""
        return json.dumps(plain(self), indent=1, allow_nan=False)

    def to_markdown(self, *, scrub: bool = True) -> str:
        """The result as Markdown, for a pull request; names are escaped.

        Args:
            scrub: take out secrets and names of users and hosts, see :mod:`perfkit.base.scrub`.
        """
        return str(show_part().markdown(self, scrub=scrub))

    def figure(self) -> Figure:
        """The result as a matplotlib figure.

        Raises:
            UsageError: this result has no picture.
            MissingError: matplotlib is not installed.
        """
        return show_part().figure(self)  # type: ignore[no-any-return]

    def save(self, path: str | Path, *, scrub: bool = True) -> Path:
        """Write it to a file; the ending chooses the format.

        ``.txt``, ``.md``, ``.html`` (a page of its own), ``.json``, and ``.png`` or ``.svg`` where
        it has a picture, with the picture's text alternative in it.

        Args:
            scrub: take out secrets and names of users and hosts, see :mod:`perfkit.base.scrub`.

        Raises:
            UsageError: another ending, no picture of this result, or a file that cannot be
                written.
            MissingError: a picture, and matplotlib is not installed.
        """
        return Path(show_part(".files").save(self, path, scrub=scrub))

    def _repr_html_(self) -> str:
        return str(show_part().html(self))

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        return dict(show_part().mime_bundle(self))

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text("…" if cycle else str(self))
