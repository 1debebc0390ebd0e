"""The executed lessons as a folder of linked pages: offline, without scripts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from markupsafe import Markup

from perfkit.base.errors import UsageError
from perfkit.base.files import write_atomically
from perfkit.course.kit._links import relink
from perfkit.course.kit.page import NAVIGATION, html_page
from perfkit.course.ledger.ledger import Ledger


@dataclass(frozen=True)
class Entry:
    """A lesson's entry in the index.

    Attributes:
        lesson: its slug.
        title: its question.
        page: its HTML, before links are rewritten; empty if there is none.
        seconds: wall time of all cells.
        found: its own comparison in one sentence; empty if it made none.
        failed: why it did not finish; empty if it did.
    """

    lesson: str
    title: str
    page: str
    seconds: float
    found: str = ""
    failed: str = ""


class Site:
    """Pages in one folder.

    Args:
        out: the folder, which must exist.
        paths: the notebooks to run, in order.

    Raises:
        UsageError: two of them would have the same page, or a folder is in the place of a page.
    """

    def __init__(self, out: Path, paths: Sequence[Path]) -> None:
        self._out = out
        self._paths = {path.stem: path for path in paths}
        doubled = len(self._paths) < len(paths)
        if doubled or "index" in self._paths:
            raise UsageError(
                "each lesson needs a page of its own name, and none may be called index: "
                + ", ".join(path.name for path in paths)
            )
        self._solutions = {
            stem: path.parent / "solutions" / path.name
            for stem, path in self._paths.items()
            if (path.parent / "solutions" / path.name).is_file()
        }
        self._entries: dict[str, Entry] = {}
        self._check_places()

    def _check_places(self) -> None:
        """Before lessons run for minutes."""
        solutions = self._out / "solutions"
        pages = [self._out / f"{name}.html" for name in ("index", *self._paths)]
        pages += [solutions / f"{stem}.html" for stem in self._solutions]
        blocked = [page for page in pages if page.exists() and not page.is_file()]
        if self._solutions and solutions.exists() and not solutions.is_dir():
            blocked.append(solutions)
        if blocked:
            raise UsageError(
                f"{blocked[0]} is in the way of a page: move it, or choose another --out"
            )

    def add(self, entry: Entry) -> Path | None:
        """Write the pages of a lesson and its solution now, assuming that all others will follow.

        Returns:
            The path of the page; None if the lesson has none.
        """
        self._entries[entry.lesson] = entry
        return self._write_lesson(entry, list(self._paths))

    def finish(self, provenance: str, ledger: Ledger | None) -> Path:
        """Write the index and the ledger; links to missing lessons are removed from the pages.

        Returns:
            The path of the index.
        """
        with_page = [stem for stem, entry in self._entries.items() if entry.page]
        if with_page != list(self._paths):
            for entry in self._entries.values():
                self._write_lesson(entry, with_page)
        if ledger is not None:
            from perfkit.show.files import page

            _write(self._out / "claims.html", page(ledger, title="Claims ledger"))
        index = self._out / "index.html"
        _write(index, _index(list(self._entries.values()), self._solutions, provenance, ledger))
        return index

    def _write_lesson(self, entry: Entry, stems: Sequence[str]) -> Path | None:
        if not entry.page:
            return None
        pages = {f"{stem}.ipynb": f"{stem}.html" for stem in stems}
        solved = [stem for stem in stems if stem in self._solutions]
        pages |= {f"solutions/{stem}.ipynb": f"solutions/{stem}.html" for stem in solved}
        at = stems.index(entry.lesson)
        around = {
            "before": stems[at - 1] if at else "",
            "after": stems[at + 1] if at + 1 < len(stems) else "",
        }
        has_solution = entry.lesson in self._solutions
        nav = _navigation(entry.lesson, **around, has_solution=has_solution)
        page = self._out / f"{entry.lesson}.html"
        _write(page, _placed(entry.page, nav, entry.lesson, "", pages))
        if has_solution:
            self._write_solution(entry.lesson, pages)
        return page

    def _write_solution(self, lesson: str, pages: dict[str, str]) -> None:
        import nbformat

        try:
            notebook = nbformat.read(self._solutions[lesson], as_version=4)
        except Exception as error:  # a file that is not a notebook may raise anything
            made = _unreadable(error)
        else:
            made = html_page(notebook, title=f"Solution of {lesson}")
        folder = self._out / "solutions"
        folder.mkdir(exist_ok=True)
        nav = _navigation(lesson, is_solution=True)
        _write(folder / f"{lesson}.html", _placed(made, nav, lesson, "solutions/", pages))


def _placed(html: str, navigation: str, lesson: str, folder: str, pages: dict[str, str]) -> str:
    """The page with working links and the navigation on top."""
    linked = relink(html, f"{folder}{lesson}.ipynb", f"{folder}{lesson}.html", pages)
    return linked.replace(NAVIGATION, navigation, 1)


def _navigation(lesson: str, **context: Any) -> str:
    from perfkit.course.kit._template import render

    defaults = {"before": "", "after": "", "has_solution": False, "is_solution": False}
    return render(
        "tour_navigation.html", **{**defaults, **context, "lesson": lesson, "quote": quote}
    )


def _index(
    entries: Sequence[Entry], solutions: dict[str, Path], provenance: str, ledger: Ledger | None
) -> str:
    from perfkit import show
    from perfkit.course.kit._template import render

    return render(
        "tour.html",
        rows=[(entry, entry.lesson in solutions and bool(entry.page)) for entry in entries],
        provenance=provenance,
        # show.html escapes its content: the result is markup
        ledger=Markup(show.html(ledger)) if ledger is not None else "",
        quote=quote,
    )


def _unreadable(error: Exception) -> str:
    from perfkit.course.kit.message import Message

    said = str(error).splitlines() or [type(error).__name__]
    return NAVIGATION + Message("This solution cannot be read", (said[0],))._repr_html_()


def _write(path: Path, text: str) -> None:
    write_atomically(path, lambda part: part.write_text(text, encoding="utf-8"))
