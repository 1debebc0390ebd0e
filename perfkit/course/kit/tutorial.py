"""Copy the course into the reader's own folder, from an installed perfkit or a clone.

Readers work in a copy, because running a lesson rewrites its notebook and a clone should stay
clean.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import perfkit
from perfkit._version import __version__
from perfkit.base.errors import MissingError, UsageError
from perfkit.base.scratch import new_folder
from perfkit.course.kit._course_files import SHIPPED, course_files
from perfkit.course.kit._places import clone_folder

#: The reader's folder in a clone: git ignores it, and nothing deletes it.
WORK = "my-course"

_README = Path(__file__).parent / "templates" / "tutorial.md"
_MANIFEST = ".perfkit-tutorial.json"
_SHOWN = 5  # names in a message


@dataclass(frozen=True)
class Copied:
    """The result of copying.

    Attributes:
        folder: where the course is now.
        written: number of new or updated files.
        same: number of files that were already up to date.
        lessons: number of lessons.
        outdated: files that both the reader and the course have changed; they were left alone.
    """

    folder: Path
    written: int
    same: int
    lessons: int
    outdated: tuple[str, ...] = ()


def course_root() -> Path:
    """The folder to copy the course from: the installed package's, else the clone.

    Raises:
        MissingError: there is neither.
    """
    package = Path(perfkit.__file__).resolve().parent
    for root in (package / SHIPPED, package.parent):
        if (root / "notebooks").is_dir() and (root / "data" / "make_images.py").is_file():
            return root
    raise MissingError(
        "this perfkit was installed without its lessons: reinstall it from its wheel or its "
        "repository"
    )


def copy_course(
    folder: Path, *, force: bool = False, root: Path | None = None, merge: bool = False
) -> Copied:
    """Copy lessons, solutions, data makers and recorded results into ``folder``.

    If the reader changed a file, nothing is copied at all. Files unchanged since an earlier copy
    are updated. All files are written beside their destination and then moved, so a full disk does
    not leave half a course.

    Args:
        folder: created if missing.
        force: also overwrite files that the reader changed.
        root: the course to copy; by default perfkit's own.
        merge: keep files that the reader changed, and copy the rest.

    Raises:
        MissingError: there is no course to copy.
        UsageError: files were changed (the message names them), something is in the way of a file
            or folder, ``folder`` is the source of the course, or it cannot be written.
    """
    root = course_root() if root is None else root
    try:
        wanted = {path: (root / path).read_bytes() for path in course_files(root)}
        wanted[PurePosixPath("README.md")] = _README.read_bytes()
        if folder.resolve() == root:
            raise UsageError(f"{folder} is where the course comes from: name another folder")
        stale, changed = _compared(folder, wanted)
        if changed and not force and not merge:
            raise UsageError(_refusal(folder, changed))
        new = stale if merge and not force else stale + changed
        noted = {str(path): _digest(content) for path, content in wanted.items()}
        outdated: tuple[str, ...] = ()
        if merge and not force:
            copied = _manifest(folder)
            # the base of the reader's version, to detect later changes of the course
            kept = {str(path): copied.get(str(path), noted[str(path)]) for path in changed}
            outdated = tuple(name for name, digest in kept.items() if digest != noted[name])
            noted |= kept
        _write(folder, {path: wanted[path] for path in new}, noted)
    except OSError as error:
        raise UsageError(f"cannot copy into {folder}: {error.strerror or error}") from None
    n = sum(path.parent.name == "notebooks" and path.suffix == ".ipynb" for path in wanted)
    return Copied(folder, len(new), len(wanted) - len(new), n, outdated)


def own_copy(notebook: Path, say: Callable[[str], None]) -> Path:
    """The reader's own copy of a clone's lesson; any other notebook is opened in place.

    The copy is ``my-course`` in the clone. The reader's changes there are kept. It shares generated
    data with the clone, through ``PERFKIT_DATA``.

    Args:
        notebook: a lesson or solution of the clone, or any other notebook.
        say: takes each line to print.

    Raises:
        UsageError: the copy cannot be written.
    """
    clone = clone_folder()
    if clone is None or (clone / _MANIFEST).is_file():
        return notebook
    lessons = (clone / "notebooks").resolve()
    if not notebook.resolve().is_relative_to(lessons):
        return notebook
    copied = copy_course(clone / WORK, root=clone, merge=True)
    os.environ.setdefault("PERFKIT_DATA", str(clone / "data" / "generated"))
    say(f"Your copy of the course is {copied.folder}: git ignores it, and what you change stays.")
    if copied.outdated:
        names = ", ".join(copied.outdated[:_SHOWN])
        more = f" and {len(copied.outdated) - _SHOWN} more" if len(copied.outdated) > _SHOWN else ""
        say(
            f"The course has newer versions of files that you changed: {names}{more}. To get one, "
            "delete or rename yours and call this again."
        )
    return copied.folder / "notebooks" / notebook.resolve().relative_to(lessons)


def _compared(
    folder: Path, wanted: Mapping[PurePosixPath, bytes]
) -> tuple[list[PurePosixPath], list[PurePosixPath]]:
    """The files that are missing or from an earlier copy, and those that the reader changed.

    Raises:
        UsageError: something is in the way of a file.
    """
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is not a folder: name another one")
    copied = _manifest(folder)
    stale: list[PurePosixPath] = []
    changed: list[PurePosixPath] = []
    for path, content in wanted.items():
        target = folder / path
        blocked = next((p for p in _parents(folder, path) if p.exists() and not p.is_dir()), None)
        if blocked or (target.exists() and not target.is_file()):
            raise UsageError(f"{blocked or target} is in the way: move it, or name another folder")
        if not target.exists():
            stale.append(path)
            continue
        there = target.read_bytes()
        if there != content:
            is_ours = copied.get(str(path)) == _digest(there)
            (stale if is_ours else changed).append(path)
    return stale, changed


def _refusal(folder: Path, changed: Sequence[PurePosixPath]) -> str:
    more = f" and {len(changed) - _SHOWN} more" if len(changed) > _SHOWN else ""
    return (
        f"{len(changed)} file{'s' * (len(changed) > 1)} in {folder} changed since they were "
        f"copied: {', '.join(map(str, changed[:_SHOWN]))}{more}. Nothing was written. Name another "
        "folder, or overwrite them with --force"
    )


def _parents(folder: Path, path: PurePosixPath) -> list[Path]:
    return [folder / parent for parent in path.parents if parent.name]


def _write(folder: Path, new: Mapping[PurePosixPath, bytes], digests: Mapping[str, str]) -> None:
    """Write the files in ``new``, and record the digest of each as copied."""
    made = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    manifest = {"perfkit": __version__, "files": dict(digests)}
    staging = None
    try:
        # in the same folder, because a move within one file system is atomic
        staging = new_folder(folder, hidden=True)
        for path, content in new.items():
            (staging / path).parent.mkdir(parents=True, exist_ok=True)
            (staging / path).write_bytes(content)
        (staging / _MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
        for path in [*new, PurePosixPath(_MANIFEST)]:
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (staging / path).replace(folder / path)
    finally:
        if staging is not None:
            shutil.rmtree(staging, ignore_errors=True)
        if made and not any(folder.iterdir()):
            folder.rmdir()
    _trust(folder / path for path in new if path.suffix == ".ipynb")


def _trust(notebooks: Iterable[Path]) -> None:
    """Sign them in the reader's own list of trusted notebooks, as if run here.

    Else JupyterLab takes the style out of their saved reports, and after a reload it shows neither
    quiz nor Lab. They are read from the disk, and what they show is perfkit's.
    """
    with contextlib.suppress(Exception):  # no Jupyter here, or no place for its list
        import nbformat
        from nbformat.sign import NotebookNotary

        notary = NotebookNotary()
        with contextlib.closing(notary.store):
            for path in notebooks:
                notary.sign(nbformat.read(path, as_version=4))


def _manifest(folder: Path) -> dict[str, str]:
    """The digests of an earlier copy; empty if there is none or it cannot be read."""
    try:
        files = json.loads((folder / _MANIFEST).read_text(encoding="utf-8"))["files"]
        return {str(path): str(digest) for path, digest in files.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
