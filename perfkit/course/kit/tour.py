"""Run lessons without a browser, and collect what they found and measured.

Every result of perfkit that a lesson displays carries its numbers as JSON beside its picture
(:data:`perfkit.show.RESULT_MIME`); findings and ratios are read from there, not from text.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from perfkit.base.errors import PerfkitError, UsageError
from perfkit.base.extras import needs
from perfkit.base.files import try_writing, write_atomically
from perfkit.base.machine import stamp
from perfkit.course.kit._places import lesson_path, lessons
from perfkit.course.kit._recorded import lesson_hashes, recorded_folders, taught_claims
from perfkit.course.kit.folding import WIDGET_VIEW, fold_answers
from perfkit.course.kit.page import html_page, needs_nbconvert
from perfkit.course.kit.site import Entry, Site
from perfkit.course.ledger.ledger import Ledger, ledger
from perfkit.course.ledger.notebook_signals import signals_as_before
from perfkit.course.ledger.records import read_records
from perfkit.show import RESULT_MIME

# A cell of a lesson takes at most 60 s on two cores; three times that is a hang, even on a slower
# machine.
_CELL_TIMEOUT_S = 180
# Assumed time of a lesson that has not run here yet.
_USUAL_S = 60.0
_SUMMARY = "summary.json"
_COMPARED = {"ratio", "low", "high", "sentence"}
_ANSI = re.compile(r"\x1b\[[0-9;]*m")

Say = Callable[[str], None]


class LessonFailedError(PerfkitError):
    """A lesson did not finish; the message names lesson and cell.

    Attributes:
        notebook: what ran until then, an ``nbformat`` node; None if it could not be read.
    """

    def __init__(self, message: str, notebook: Any = None) -> None:
        super().__init__(message)
        self.notebook = notebook


@dataclass(frozen=True)
class LessonRun:
    """What one lesson found and measured.

    Attributes:
        lesson: its slug, e.g. ``"00-start-here"``.
        seconds: wall time of all its cells.
        profiles: the text of each displayed profile.
        comparisons: the numbers of each displayed comparison, the lesson's own first.
        page: the executed notebook as HTML.
        notebook: the executed notebook itself, an ``nbformat`` node.
        title: its question.
    """

    lesson: str
    seconds: float
    profiles: tuple[str, ...]
    comparisons: tuple[dict[str, Any], ...]
    page: str = field(repr=False)
    notebook: Any = field(repr=False, compare=False, default=None)
    title: str = ""

    def to_dict(self) -> dict[str, Any]:
        """One entry of ``lessons[]`` in ``summary.json``; ratio and interval may be None."""
        first = self.comparisons[0] if self.comparisons else None
        return {
            "lesson": self.lesson,
            "seconds": round(self.seconds, 1),
            "ratio": first["ratio"] if first else None,
            "interval": [first["low"], first["high"]] if first else None,
            "comparisons": list(self.comparisons),
        }


def tour(names: Sequence[str], out: Path, say: Say, *, save: bool = False) -> list[LessonRun]:
    """Run lessons, print what they found, and write a site and ``summary.json``.

    If a lesson fails, the tour says so and continues with the next. However it ends, the lessons
    that ran are in the site and in the summary.

    Args:
        names: lessons as :func:`perfkit.course.kit._places.lesson_path` takes them; none are all.
        out: folder for the site and the summary; made where it is missing.
        say: takes each line to print.
        save: also write the outputs back into the notebooks, for who maintains the course.

    Raises:
        LessonFailedError: at the end, if a lesson raised, took too long, or killed its kernel.
        MissingError: a lesson, nbclient or nbconvert is missing.
        UsageError: ``out`` cannot be written.
    """
    if not _is_here():
        raise UsageError("the current folder was deleted: go to another one first")
    paths = list(dict.fromkeys(map(lesson_path, names))) if names else lessons()
    needs_nbconvert()
    _check_writable(out)
    if (out / _SUMMARY).is_dir():
        raise UsageError(f"{out / _SUMMARY} is a folder: move it, or choose another --out")
    site = Site(out, paths)
    say(_outlook(paths, out))
    runs: list[LessonRun] = []
    failed: list[tuple[str, LessonFailedError]] = []
    found: Ledger | None = None
    try:
        for number, path in enumerate(paths, start=1):
            say(f"Lesson {path.stem} ({number} of {len(paths)})")
            began_s = time.perf_counter()
            try:
                run = run_lesson(path, say)
            except LessonFailedError as error:
                failed.append((path.stem, error))
                page = site.add(_failed_entry(path, error, time.perf_counter() - began_s))
                say(f"\nfailed: {error}" + (f"; page: {page}" if page else "") + "\n")
                continue
            runs.append(run)
            page = site.add(_entry(run))
            if save:
                _save(run.notebook, path)
            for profile in run.profiles:
                say("\n" + profile)
            for comparison in run.comparisons:
                say("\n" + comparison["sentence"])
            say(f"\n{run.lesson}: {run.seconds:.0f} s; page: {page}\n")
        found = _ledger(paths if names else None)
        say(found.to_text() + "\n")
    finally:
        provenance = stamp(command="perfkit tour")
        summary = {
            "lessons": [run.to_dict() for run in runs],
            "failed": [{"lesson": stem, "reason": str(error)} for stem, error in failed],
            "provenance": provenance.to_dict(),
        }
        text = json.dumps(summary, indent=1) + "\n"
        write_atomically(out / _SUMMARY, lambda part: part.write_text(text, encoding="utf-8"))
        say(f"site: {site.finish(str(provenance), found)}")
        say(f"summary: {out / _SUMMARY}")
    if failed:
        n = f"{len(failed)} of {len(paths)} lessons failed: " if len(paths) > 1 else ""
        raise LessonFailedError(n + "; ".join(str(error) for _, error in failed))
    return runs


def _outlook(paths: Sequence[Path], out: Path) -> str:
    """Number of lessons, and about how long they take, from last time if known."""
    try:
        before = json.loads((out / _SUMMARY).read_text(encoding="utf-8"))["lessons"]
        known = {str(one["lesson"]): float(one["seconds"]) for one in before}
    except (OSError, ValueError, KeyError, TypeError):
        known = {}
    seconds = sum(known.get(path.stem, _USUAL_S) for path in paths)
    n = "1 lesson" if len(paths) == 1 else f"{len(paths)} lessons"
    minutes = max(1, round(seconds / 60))
    basis = "as last time" if all(path.stem in known for path in paths) else "on two cores"
    return f"{n}, about {minutes} minute{'s' * (minutes > 1)} {basis}\n"


def _entry(run: LessonRun) -> Entry:
    sentence = run.comparisons[0]["sentence"] if run.comparisons else ""
    return Entry(run.lesson, run.title, run.page, run.seconds, found=sentence)


def _failed_entry(path: Path, error: LessonFailedError, seconds: float) -> Entry:
    """The entry of a failed lesson, with the page of what ran until then."""
    if error.notebook is None:
        return Entry(path.stem, path.stem, "", seconds, failed=str(error))
    title = _title(error.notebook, path.stem)
    page = html_page(error.notebook, title=title)
    return Entry(path.stem, title, page, seconds, failed=str(error))


def _ledger(paths: Sequence[Path] | None) -> Ledger:
    """What the records say about every claim, or about the claims of these lessons."""
    everything = ledger(read_records(recorded_folders()), taught_claims(), lesson_hashes())
    if paths is None:
        return everything
    numbers = {path.stem.split("-")[0] for path in paths}
    rows = tuple(row for row in everything.rows if numbers & set(row.claim.lessons))
    return replace(everything, rows=rows)


def _is_here() -> bool:
    try:
        Path.cwd()
    except OSError:
        return False
    return True


def _check_writable(out: Path) -> None:
    """Create the folder and write into it, before lessons run for minutes.

    Raises:
        UsageError: that is not possible.
    """
    try:
        try_writing(out)
    except (OSError, ValueError) as error:  # a null character in the name raises ValueError
        reason = getattr(error, "strerror", None) or str(error)
        raise UsageError(
            f"cannot write into the folder {str(out)!r} ({reason}): choose another --out"
        ) from None


def run_lesson(path: Path, say: Say, *, cell_timeout_s: float = _CELL_TIMEOUT_S) -> LessonRun:
    """Execute one notebook in its own kernel, which has ended when this returns or raises.

    Raises:
        LessonFailedError: a cell raised, took longer than ``cell_timeout_s``, or killed its
            kernel; or the file is not a notebook.
        MissingError: nbclient or nbformat is not installed.
        KeyboardInterrupt: Ctrl-C or SIGTERM.
    """
    with needs("running lessons"):
        import nbclient
        import nbclient.exceptions
        import nbformat

    try:
        notebook = nbformat.read(path, as_version=4)
    except Exception as error:  # nbformat raises many types for a file that is not a notebook
        said = (str(error).splitlines() or [type(error).__name__])[0][:200]
        raise LessonFailedError(f"lesson {path.stem} cannot be read: {said}") from None
    progress = _Progress(notebook, say)
    client = nbclient.NotebookClient(
        notebook,
        timeout=cell_timeout_s,
        kernel_name="python3",
        resources={"metadata": {"path": str(path.parent)}},
        store_widget_state=False,
        coalesce_streams=True,
        on_cell_start=progress.cell_starts,
        extra_arguments=["--log-level=CRITICAL"],  # exceptions of cells are in their output
    )
    start = time.perf_counter()
    try:
        with signals_as_before(client):
            client.execute()
    except nbclient.exceptions.CellTimeoutError:
        raise LessonFailedError(
            f"lesson {path.stem}, {progress.where}: no end after {cell_timeout_s:.0f} s", notebook
        ) from None
    except nbclient.exceptions.DeadKernelError:
        raise LessonFailedError(
            f"lesson {path.stem}, {progress.where}: its kernel died; the machine may be out of "
            "memory",
            notebook,
        ) from None
    except nbclient.exceptions.CellExecutionError as error:
        said = _ANSI.sub("", f"{error.ename}: {error.evalue}".strip().splitlines()[0])
        raise LessonFailedError(f"lesson {path.stem}, {progress.where}: {said}", notebook) from None
    except (RuntimeError, KeyError) as error:  # no kernel of that name, or it did not start
        raise LessonFailedError(
            f"lesson {path.stem}, {progress.where}: its kernel could not be used ({error})",
            notebook,
        ) from None
    finally:
        manager = client.km
        if manager is not None and manager.has_kernel:
            nbclient.util.run_sync(manager.shutdown_kernel)(now=True)
    title = _title(notebook, path.stem)
    return LessonRun(
        lesson=path.stem,
        seconds=time.perf_counter() - start,
        profiles=tuple(_texts(notebook, "profile")),
        comparisons=tuple(_numbers(notebook, "comparison")),
        page=html_page(notebook, title=title),
        notebook=notebook,
        title=title,
    )


class _Progress:
    """Reports which cell of how many is running, since when, and its first line."""

    def __init__(self, notebook: Any, say: Say) -> None:
        code = [i for i, cell in enumerate(notebook.cells) if cell.cell_type == "code"]
        self._number = {index: number for number, index in enumerate(code, start=1)}
        self._say = say
        self._start = time.perf_counter()
        self.where = "before its first cell"

    def cell_starts(self, cell: Any, cell_index: int) -> None:
        number = self._number.get(cell_index)
        if number is None:
            return
        lines = [line for line in cell.source.splitlines() if line.strip()]
        begins = lines[0][:60] if lines else ""
        self.where = f"cell {number} of {len(self._number)} ({begins!r})"
        elapsed_s = time.perf_counter() - self._start
        self._say(f"  cell {number:>2}/{len(self._number)}  {elapsed_s:5.1f} s  {begins}")


def _results(notebook: Any, kind: str) -> list[dict[str, Any]]:
    """The data of all displayed results of this type, in notebook order."""
    return [
        output.data
        for cell in notebook.cells
        if cell.cell_type == "code"
        for output in cell.outputs
        if output.output_type in ("display_data", "execute_result")
        and RESULT_MIME in output.data
        and isinstance(output.data[RESULT_MIME], dict)
        and output.data[RESULT_MIME].get("type") == kind
    ]


def _texts(notebook: Any, kind: str) -> list[str]:
    return [str(data.get("text/plain", "")) for data in _results(notebook, kind)]


def _numbers(notebook: Any, kind: str) -> list[dict[str, Any]]:
    found = [dict(data[RESULT_MIME]) for data in _results(notebook, kind)]
    return [numbers for numbers in found if numbers.keys() >= _COMPARED]  # others are not perfkit's


def _save(notebook: Any, path: Path) -> None:
    """Write outputs without what readers cannot use and what varies for no reason.

    A widget without its kernel is only an error message, and there is a picture or text beside it.
    The Python version in the metadata does not matter. The file that a kernel compiles a cell as
    has the kernel's process number in its name; what remains names the cell by its text. Of a
    package's file remains its place in the package.
    """
    import nbformat

    for cell in notebook.cells:
        for output in cell.get("outputs", ()):
            output.update(_without_process(output))
            for part in (output.get("data", {}), output.get("metadata", {})):
                part.pop(WIDGET_VIEW, None)
        cell.metadata.pop("execution", None)
    notebook.metadata["language_info"] = {"name": "python"}
    fold_answers(notebook)
    write_atomically(path, lambda part: nbformat.write(notebook, part))


# it begins where a word does: from each letter of a picture's base64 it would take hours
_FILE_OF_CELL = re.compile(r"""(?<![^\s"'(])[^\s"'(]*ipykernel_\d+[/\\](\d+\.py)""")

_TO_PACKAGES = re.compile(r"""(?<![^\s"'(])[^\s"'(]*[/\\](?:site|dist)-packages[/\\]""")


def _without_process(value: Any) -> Any:
    if isinstance(value, str):
        return _TO_PACKAGES.sub("", _FILE_OF_CELL.sub(r"cell-\1", value))
    if isinstance(value, list):
        return [_without_process(one) for one in value]
    if isinstance(value, dict):
        return {key: _without_process(one) for key, one in value.items()}
    return value


def _title(notebook: Any, default: str) -> str:
    """The first heading of the notebook."""
    for cell in notebook.cells:
        for line in cell.source.splitlines() if cell.cell_type == "markdown" else ():
            if line.startswith("# "):
                return str(line.removeprefix("# ").strip())
    return default
