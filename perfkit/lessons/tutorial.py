"""A copy of the course in a folder of the reader's own, out of an installed perfkit or a clone."""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import perfkit
from perfkit._version import __version__
from perfkit.errors import MissingError, UsageError
from perfkit.lessons._course_files import SHIPPED, course_files

__all__ = ["Copied", "copy_course", "course_root"]

_README = Path(__file__).parent / "templates" / "tutorial.md"
_MANIFEST = ".perfkit-tutorial.json"
_SHOWN = 5  # names in a message


@dataclass(frozen=True)
class Copied:
    """What a copy did.

    Attributes:
        folder: where the course lies now.
        written: new or renewed files.
        same: files that were there already, as they should be.
        lessons: how many lessons there are.
    """

    folder: Path
    written: int
    same: int
    lessons: int


def course_root() -> Path:
    """The folder that the course is copied from: in the installed package, else in its clone.

    Raises:
        MissingError: neither is here.
    """
    package = Path(perfkit.__file__).resolve().parent
    for root in (package / SHIPPED, package.parent):
        if (root / "notebooks").is_dir() and (root / "data" / "make_images.py").is_file():
            return root
    raise MissingError(
        "this perfkit was installed without its lessons: reinstall it from its wheel or its "
        "repository"
    )


def copy_course(folder: Path, *, force: bool = False) -> Copied:
    """Copy lessons, solutions, data makers and recorded results into ``folder``.

    A file that the reader changed is not overwritten, and then nothing at all is. One that is as
    an earlier copy left it is renewed. All files are made beside their places first and then moved
    there, so that a full disk leaves no half of a course.

    Args:
        folder: made where it is missing.
        force: overwrite what the reader changed as well.

    Raises:
        MissingError: there is no course to copy.
        UsageError: files were changed (named), something else stands in the place of a file or
            folder, ``folder`` is where the course comes from, or nothing can be written there.
    """
    root = course_root()
    wanted = {path: (root / path).read_bytes() for path in course_files(root)}
    wanted[PurePosixPath("README.md")] = _README.read_bytes()
    try:
        if folder.resolve() == root:
            raise UsageError(f"{folder} is where the course comes from: name another folder")
        stale = _stale(folder, wanted, force=force)
        _write(folder, {path: wanted[path] for path in stale}, wanted)
    except OSError as error:
        raise UsageError(f"cannot copy into {folder}: {error.strerror or error}") from None
    n = sum(path.parent.name == "notebooks" and path.suffix == ".ipynb" for path in wanted)
    return Copied(folder, len(stale), len(wanted) - len(stale), n)


def _stale(
    folder: Path, wanted: Mapping[PurePosixPath, bytes], *, force: bool
) -> list[PurePosixPath]:
    """The files that are missing or from an earlier copy.

    Raises:
        UsageError: one was changed, or cannot be a file.
    """
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is no folder: name another one")
    copied = _manifest(folder)
    stale, changed = [], []
    for path, content in wanted.items():
        target = folder / path
        blocked = next((p for p in _parents(folder, path) if p.exists() and not p.is_dir()), None)
        if blocked or (target.exists() and not target.is_file()):
            raise UsageError(f"{blocked or target} is in the way: move it, or name another folder")
        if not target.exists():
            stale.append(path)
            continue
        there = target.read_bytes()
        if there == content:
            continue
        stale.append(path)
        if copied.get(str(path)) != _digest(there):
            changed.append(str(path))
    if changed and not force:
        more = f" and {len(changed) - _SHOWN} more" if len(changed) > _SHOWN else ""
        raise UsageError(
            f"{len(changed)} file{'s' * (len(changed) > 1)} in {folder} changed since they were "
            f"copied: {', '.join(changed[:_SHOWN])}{more}. Nothing was written. Name another "
            "folder, or overwrite them with --force"
        )
    return stale


def _parents(folder: Path, path: PurePosixPath) -> list[Path]:
    return [folder / parent for parent in path.parents if parent.name]


def _write(
    folder: Path, new: Mapping[PurePosixPath, bytes], all_: Mapping[PurePosixPath, bytes]
) -> None:
    """Put ``new`` in its places, and note what all files were like when they were copied."""
    made = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    manifest = {
        "perfkit": __version__,
        "files": {str(path): _digest(content) for path, content in all_.items()},
    }
    staging = None
    try:
        # in the same folder: moving a file within one file system is done at once or not at all
        staging = Path(tempfile.mkdtemp(prefix=".perfkit-copy-", dir=folder))
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


def _manifest(folder: Path) -> dict[str, str]:
    """The digests of an earlier copy; empty where there is none that can be read."""
    try:
        files = json.loads((folder / _MANIFEST).read_text(encoding="utf-8"))["files"]
        return {str(path): str(digest) for path, digest in files.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
