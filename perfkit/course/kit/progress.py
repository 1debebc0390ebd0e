"""The reader's guesses, lesson by lesson: stored in one folder, deleted with one call.

The folder is ``$PERFKIT_HOME``, else ``perfkit`` in the user's data folder (:func:`folder`). Each
scored guess is a separate JSON file in ``guesses/``, so two kernels cannot overwrite each other's,
and a damaged file loses only one guess. Only the first guess at a question counts, because
afterwards the answer is known. A locked guess that waits for its score is there, too, so that it
survives the kernel. Nothing else is stored, and nothing leaves the machine.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from perfkit.base.errors import UsageError
from perfkit.base.files import write_atomically
from perfkit.base.home import folder
from perfkit.course.kit.message import Message

__all__ = ["Calibration", "Guess", "calibration", "folder", "forget", "guesses", "keep", "locked"]

_SCHEMA = "perfkit.guess/1"
_LOCK = "perfkit.lock/1"


@dataclass(frozen=True)
class Guess:
    """One scored guess.

    Attributes:
        lesson: the lesson's number or slug.
        question: the question.
        chosen, right: letters.
        sure: the reader's stated confidence in percent; None if not stated.
    """

    lesson: str
    question: str
    chosen: str
    right: str
    sure: int | None = None

    @property
    def was_right(self) -> bool:
        """Whether the guess was the right answer."""
        return self.chosen == self.right


@dataclass(frozen=True, repr=False)
class Calibration:
    """How often guesses were right, in total and by stated confidence.

    Attributes:
        guesses: all scored guesses, sorted by lesson.
    """

    guesses: tuple[Guess, ...]

    @property
    def n_right(self) -> int:
        """Number of right guesses."""
        return sum(guess.was_right for guess in self.guesses)

    def by_confidence(self) -> dict[int, tuple[int, int]]:
        """Stated confidence in percent → (right guesses, all guesses)."""
        stated = sorted({guess.sure for guess in self.guesses if guess.sure is not None})
        found = {}
        for sure in stated:
            those = [guess for guess in self.guesses if guess.sure == sure]
            found[sure] = (sum(guess.was_right for guess in those), len(those))
        return found

    def sentence(self) -> str:
        """The total, in one sentence."""
        n = len(self.guesses)
        if not n:
            return "No guess has been scored yet."
        return f"So far you were right {self.n_right} of {n} {'time' if n == 1 else 'times'}."

    def message(self) -> Message:
        """The total, a line per stated confidence, and a line per guess."""
        sure = tuple(
            f"When you were {percent} % sure: right {right} of {n} {'time' if n == 1 else 'times'}."
            for percent, (right, n) in self.by_confidence().items()
        )
        items = tuple(
            f"{guess.lesson}: {'right' if guess.was_right else 'wrong'}, "
            f"you said {guess.chosen}, it is {guess.right}. {guess.question}"
            for guess in self.guesses
        )
        return Message("Your guesses", (self.sentence(), *sure), items)

    def __repr__(self) -> str:
        return repr(self.message())

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(repr(self))

    def _repr_html_(self) -> str:
        return self.message()._repr_html_()


def keep(guess: Guess) -> str:
    """Store a guess, unless this question was scored before.

    Returns:
        Empty, or the reason why it could not be stored; the lesson continues without.
    """
    try:
        path = folder() / "guesses" / _name(guess.lesson, guess.question)
        if _read(path) is not None:
            return ""
        path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps({"schema": _SCHEMA, **asdict(guess)}, indent=1) + "\n"
        write_atomically(path, lambda part: part.write_text(text, encoding="utf-8"))
    except UsageError as error:
        return str(error)
    except (OSError, ValueError) as error:
        return getattr(error, "strerror", None) or str(error)
    return ""


def keep_lock(lesson: str, question: str, chosen: str, sure: int | None) -> None:
    """Store a guess that is locked and not scored yet; without a folder it stays in the kernel."""
    with contextlib.suppress(OSError, UsageError, ValueError):
        path = _lock_path(lesson, question)
        path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps({"schema": _LOCK, "chosen": chosen, "sure": sure}) + "\n"
        write_atomically(path, lambda part: part.write_text(text, encoding="utf-8"))


def locked(lesson: str, question: str) -> tuple[str, int | None] | None:
    """Letter and confidence of a guess that was locked and not scored; None without one."""
    try:
        data = json.loads(_lock_path(lesson, question).read_text(encoding="utf-8"))
        return data["chosen"], data["sure"]
    except (OSError, UsageError, ValueError, KeyError, TypeError, RecursionError):
        return None


def end_lock(lesson: str, question: str) -> None:
    """It is scored: running the cell that asks lets the reader guess again."""
    with contextlib.suppress(OSError, UsageError):
        _lock_path(lesson, question).unlink(missing_ok=True)


def guesses() -> tuple[Guess, ...]:
    """All stored guesses, sorted by lesson; unreadable files are skipped."""
    # a leading dot marks a file that another kernel is still writing
    found = (_read(path) for path in _files() if not path.name.startswith("."))
    return tuple(sorted((g for g in found if g), key=lambda g: (g.lesson, g.question)))


def calibration() -> Calibration:
    """How often the reader's guesses were right."""
    return Calibration(guesses())


def forget() -> Message:
    """Delete everything that the teaching kit has stored; other files in the folder stay.

    Raises:
        UsageError: a file could not be deleted.
    """
    files = _files()
    stayed = []
    for path in files:
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            stayed.append(f"{path} ({error.strerror or error})")
    if stayed:
        raise UsageError(f"these could not be deleted: {', '.join(stayed)}")
    with contextlib.suppress(OSError, UsageError):  # the folder is missing, or not empty and stays
        (folder() / "guesses").rmdir()
        folder().rmdir()
    n = len(files)
    return Message(
        f"Forgotten: {n} {'guess' if n == 1 else 'guesses'}" if n else "Nothing was kept"
    )


def _files() -> list[Path]:
    with contextlib.suppress(OSError, UsageError, ValueError):
        return sorted((folder() / "guesses").glob("*.json"))
    return []


def _name(lesson: str, question: str) -> str:
    """A file name from lesson and question, safe for any characters."""
    digest = hashlib.sha256(f"{lesson}\0{question}".encode()).hexdigest()[:12]
    return f"{re.sub(r'[^A-Za-z0-9-]', '_', lesson)[:40]}-{digest}.json"


def _lock_path(lesson: str, question: str) -> Path:
    return folder() / "guesses" / f"locked-{_name(lesson, question)}"


def _read(path: Path) -> Guess | None:
    """The guess in a file; None if it cannot be read as one."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        lesson, question = data["lesson"], data["question"]
        chosen, right, sure = data["chosen"], data["right"], data.get("sure")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    if not all(isinstance(text, str) for text in (lesson, question, chosen, right)):
        return None
    usable = isinstance(sure, int) and not isinstance(sure, bool) and 0 <= sure <= 100
    return Guess(lesson, question, chosen, right, sure if usable else None)
